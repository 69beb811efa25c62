"""`/lora-adapters`: which LoRA adapters there are, and how strongly they work."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get, post
from litestar.datastructures import State
from litestar.params import Body
from msgspec import UNSET, UnsetType

from llamaserve.params import LoraScale
from llamaserve.results import LoraAdapter
from llamaserve.server.body import JsonBody
from llamaserve.server.errors import RESPONSES
from llamaserve.server.state import ServerState


class Adapter(msgspec.Struct):
    id: int
    path: str
    scale: float
    """For requests that don't choose; 0 is off."""
    task_name: str
    prompt_prefix: str
    alora_invocation_string: str | UnsetType = UNSET
    """The text that switches an activated adapter (aLoRA) on."""
    alora_invocation_tokens: tuple[int, ...] | UnsetType = UNSET


class Applied(msgspec.Struct):
    success: bool = True


@get("/lora-adapters", summary="List LoRA adapters", tags=["llama-server"])
async def list_adapters(state: State) -> list[Adapter]:
    server: ServerState = state.server
    return [_adapter(adapter) for adapter in server.ready_engine().lora_adapters()]


@post(
    "/lora-adapters",
    status_code=200,
    dto=JsonBody[list[LoraScale]],
    return_dto=None,
    responses=RESPONSES,
    summary="Set the scales of LoRA adapters",
    tags=["llama-server"],
)
async def set_adapters(data: Annotated[list[LoraScale], Body()], state: State) -> Applied:
    """For requests from now on that don't choose for themselves. Adapters that aren't named are switched off."""
    server: ServerState = state.server
    server.ready_engine().set_lora_adapters({adapter.id: adapter.scale for adapter in data})
    return Applied()


def _adapter(adapter: LoraAdapter) -> Adapter:
    out = Adapter(adapter.id, adapter.path, adapter.scale, adapter.task_name, adapter.prompt_prefix)
    if adapter.alora_invocation_tokens:
        out.alora_invocation_string = adapter.alora_invocation_string
        out.alora_invocation_tokens = adapter.alora_invocation_tokens
    return out
