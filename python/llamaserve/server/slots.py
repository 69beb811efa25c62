"""`/slots`: what is running."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.datastructures import State
from litestar.params import Parameter
from msgspec import UNSET, UnsetType

from llamaserve.results import SlotInfo
from llamaserve.server.errors import ApiError
from llamaserve.server.generation_settings import without_texts
from llamaserve.server.state import ServerState

# llama-server's switch for showing prompts and outputs of all users.
_SHOW_TEXTS = os.environ.get("LLAMA_SERVER_SLOTS_DEBUG", "0") not in ("", "0")


class NextToken(msgspec.Struct):
    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: int


class Slot(msgspec.Struct):
    """A slot. What is about a request is left out before the slot's first one."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    id_task: int | UnsetType = UNSET
    n_prompt_tokens: int | UnsetType = UNSET
    n_prompt_tokens_processed: int | UnsetType = UNSET
    n_prompt_tokens_cache: int | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    next_token: list[NextToken] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    generated: str | UnsetType = UNSET


@get("/slots", summary="What is running", tags=["llama-server"])
async def list_slots(
    state: State,
    fail_on_no_slot: Annotated[str | None, Parameter(description="Answer 503 if no slot is idle")] = None,
) -> list[Slot]:
    server: ServerState = state.server
    if not server.settings.slots:
        raise ApiError(501, "/slots is switched off; start the server with --slots")
    slots = await asyncio.to_thread(server.ready_engine().slots)
    if fail_on_no_slot and all(slot.is_processing for slot in slots):
        raise ApiError(503, "no slot available")
    return [_slot(slot) for slot in slots]


def _slot(info: SlotInfo) -> Slot:
    slot = Slot(info.id, info.n_ctx, info.speculative, info.is_processing)
    if info.id_task < 0:
        return slot
    slot.id_task = info.id_task
    slot.n_prompt_tokens = info.n_prompt_tokens
    slot.n_prompt_tokens_processed = info.n_prompt_tokens_processed
    slot.n_prompt_tokens_cache = info.n_prompt_tokens_cache
    slot.params = without_texts(info.params)
    # An idle slot has no budget, whatever its last request had.
    left, done = (info.n_remain, info.n_decoded) if info.is_processing else (-1, 0)
    slot.next_token = [NextToken(info.has_next_token, info.has_new_line, left, done)]
    if _SHOW_TEXTS:
        slot.prompt, slot.generated = info.prompt, info.generated
    return slot
