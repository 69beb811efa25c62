"""Bodies of llama-server's own `/completion`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from llamaserve.params import Int32
from llamaserve.results import Progress, Timings
from llamaserve.server.probs import TokenProbability
from llamaserve.server.prompts import PromptField
from llamaserve.server.request_fields import GenerationRequest


class NativeRequest(GenerationRequest, kw_only=True):
    """What the routes take that answer in llama-server's own form."""

    response_fields: list[str] | None = None
    """Names of the response fields to return; `a/b` picks field `b` of `a`."""
    logprobs: Int32 | bool | None = None
    """Same as `n_probs`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_probs is None and self.logprobs is not None:
            self.n_probs = int(self.logprobs)


class CompletionRequest(NativeRequest, kw_only=True):
    """Body of `/completion`."""

    prompt: PromptField
    """Text, token ids, both mixed, or a list of such prompts."""


class CompletionResponse(msgspec.Struct):
    """A completion, or the last event of a streamed one (`content` and `tokens` came before then)."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: list[TokenProbability] | UnsetType = UNSET


class CompletionEvent(msgspec.Struct):
    """An event of a streamed completion before the last one."""

    index: int
    content: str
    tokens: tuple[int, ...]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: Timings | UnsetType = UNSET
    prompt_progress: Progress | UnsetType = UNSET
    completion_probabilities: list[TokenProbability] | UnsetType = UNSET
