"""`/props`: what the server is and how it is set up."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import get, post
from litestar.datastructures import State
from msgspec import UNSET, UnsetType

from llamaserve.engine import Engine
from llamaserve.server.errors import ApiError
from llamaserve.server.generation_settings import default_settings, without_texts
from llamaserve.server.state import ServerState

MEDIA_MARKER = "<__media__>"


class DefaultGenerationSettings(msgspec.Struct):
    params: dict[str, Any]
    n_ctx: int


class Modalities(msgspec.Struct):
    vision: bool = False
    video: bool = False
    audio: bool = False


class Props(msgspec.Struct):
    """Properties of the server and the model."""

    default_generation_settings: DefaultGenerationSettings
    total_slots: int
    model_alias: str
    model_ftype: str
    model_path: str
    modalities: Modalities
    media_marker: str
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    ui: bool
    ui_settings: dict[str, Any]
    chat_template: str
    chat_template_caps: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool = False
    cors_proxy_enabled: bool = False
    chat_template_tool_use: str | UnsetType = UNSET


class Success(msgspec.Struct):
    success: bool = True


@get("/props", summary="Properties of the server", tags=["llama-server"])
async def get_props(state: State) -> Props:
    server: ServerState = state.server
    if server.asleep is not None:
        return msgspec.structs.replace(server.asleep.props, is_sleeping=True)
    return describe(server, server.ready_engine())


def describe(server: ServerState, engine: Engine) -> Props:
    """What `/props` shows while the model is loaded."""
    settings, info = server.settings, engine.info
    return Props(
        default_generation_settings=DefaultGenerationSettings(without_texts(default_settings(engine)), info.n_ctx_slot),
        total_slots=info.n_slots,
        model_alias=server.model_name,
        model_ftype=info.ftype,
        model_path=info.path,
        modalities=Modalities(),
        media_marker=MEDIA_MARKER,
        endpoint_slots=settings.slots,
        endpoint_props=settings.props,
        endpoint_metrics=settings.metrics,
        ui=settings.ui,
        ui_settings=settings.ui_config or {},
        chat_template=info.chat_template,
        chat_template_caps=info.chat_template_caps,
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        build_info=server.build_info,
        chat_template_tool_use=info.chat_template_tool_use or UNSET,
    )


@post("/props", status_code=200, summary="Change properties", tags=["llama-server"])
async def post_props(state: State) -> Success:
    """Needs `--props`. There is nothing yet that can be changed, so the body is ignored."""
    server: ServerState = state.server
    if not server.settings.props:
        raise ApiError(501, "changing properties is switched off; start the server with --props")
    return Success()
