"""`/infill`: fills in the middle between two texts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp

from llamaserve.engine import Engine
from llamaserve.infill import ExtraFile, Mixed, infill_prompt
from llamaserve.server.body import JsonBody
from llamaserve.server.errors import RESPONSES
from llamaserve.server.generation import Generation
from llamaserve.server.native import NativeAnswer
from llamaserve.server.native_schema import CompletionResponse, NativeRequest
from llamaserve.server.prompts import mixed_of
from llamaserve.server.request_fields import PriorityHeader, jobs_of, ping_interval
from llamaserve.server.responder import Responder
from llamaserve.server.state import ServerState


class InfillRequest(NativeRequest, kw_only=True):
    """Body of `/infill`: all of `/completion`, and the texts around the gap."""

    input_prefix: str | list[Any]
    """What comes before the gap: text, or a list of texts and token ids."""
    input_suffix: str | list[Any]
    """What comes after the gap."""
    input_extra: list[ExtraFile] | None = None
    """Other files of the project."""
    prompt: str | None = None
    """How the text in the gap starts."""


@post(
    "/infill",
    status_code=200,
    dto=JsonBody[InfillRequest],
    return_dto=None,
    responses={
        200: ResponseSpec(CompletionResponse, description="The completion; a list of them for several"),
        **RESPONSES,
    },
    summary="Fill in the middle",
    tags=["llama-server"],
)
async def infill(data: Annotated[InfillRequest, Body()], state: State, priority: PriorityHeader = None) -> ASGIApp:
    """Completes what belongs between two texts. Needs a model that was trained for it."""
    server: ServerState = state.server
    engine = server.ready_engine()
    prompt = await asyncio.to_thread(_prompt, engine, data, suffix_first=server.settings.spm_infill)
    jobs = jobs_of(engine, [prompt], data, priority)
    return Responder(
        Generation(engine, jobs, pieces=data.streams),
        NativeAnswer(engine, server.model_name, data),
        stream=data.streams,
        ping_interval=ping_interval(data, server.settings.sse_ping_interval),
    )


def _prompt(engine: Engine, data: InfillRequest, *, suffix_first: bool) -> list[int | str]:
    tokens = infill_prompt(
        engine,
        _mixed(engine, data.input_prefix, "input_prefix"),
        _mixed(engine, data.input_suffix, "input_suffix"),
        prompt=data.prompt or "",
        extra=data.input_extra or (),
        suffix_first=suffix_first,
        n_predict=data.n_predict,
    )
    return list(tokens)


def _mixed(engine: Engine, value: str | list[Any], field: str) -> Mixed:
    return value if isinstance(value, str) else mixed_of(value, engine.info.n_vocab, field)
