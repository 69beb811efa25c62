"""Request fields that all families of completions share, beyond those of `llamaserve.CompletionParams`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from litestar.params import HeaderParameter

from llamaserve.engine import Engine
from llamaserve.params import CompletionParams, Limit, Prompt
from llamaserve.server.generation import Job

Choices: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=128)]


PriorityHeader: TypeAlias = Annotated[
    int | None,
    HeaderParameter(name="X-Priority", ge=-(2**31), le=2**31 - 1, description="Same as `priority` in the body"),
]


class StreamOptions(msgspec.Struct, kw_only=True):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    """Send a last event with the token counts."""


class GenerationRequest(CompletionParams, kw_only=True):
    """What a client may set for any completion. `null` means not set; unknown fields are ignored."""

    model: str | None = None
    """Accepted and ignored: there is one model."""
    stream: bool | None = None
    """Send server-sent events as the text is made."""
    stream_options: StreamOptions | None = None
    """What the stream has beyond the answer."""
    max_completion_tokens: Limit | None = None
    """Same as `n_predict`."""
    max_tokens: Limit | None = None
    """Same as `n_predict`."""
    n_cmpl: Choices | None = None
    """How many completions of each prompt."""
    n: Choices | None = None
    """Same as `n_cmpl`."""
    sse_ping_interval: Limit | None = None
    """Seconds of silence after which a stream gets a ping; -1 sends none."""
    verbose: bool | None = None
    """Add `__verbose` to OpenAI responses: the same result in the form of `/completion`."""

    def __post_init__(self) -> None:
        # llama-server's aliases; its own name wins.
        if self.n_predict is None:
            self.n_predict = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if self.n_cmpl is None:
            self.n_cmpl = self.n

    @property
    def choices(self) -> int:
        return self.n_cmpl or 1

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def ping_interval(request: GenerationRequest, default: int) -> int:
    return default if request.sse_ping_interval is None else request.sse_ping_interval


def jobs_of(
    engine: Engine, prompts: list[Prompt], request: GenerationRequest, priority: int | None = None
) -> list[Job]:
    """One job for each choice of each prompt, in the order of the `index` that clients see.

    `priority` is that of the request's header; the field in the body wins.
    """
    if request.priority is None and priority is not None:
        request = msgspec.structs.replace(request, priority=priority)
    variants = [_variant(engine, request, i) for i in range(request.choices)]
    return [Job(prompt, params) for prompt in prompts for params in variants]


def _variant(engine: Engine, request: GenerationRequest, i: int) -> CompletionParams:
    """The parameters of choice `i`: another seed for each, and a slot of their own."""
    if i == 0:
        return request
    seed = request.seed
    if seed is None and engine.defaults is not None:
        seed = engine.defaults.seed
    if seed is not None and seed >= 0:
        seed = (seed + i) % 2**32
    return msgspec.structs.replace(request, seed=seed, id_slot=None)
