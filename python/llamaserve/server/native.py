"""`/completion`: llama-server's own completions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp
from msgspec import UNSET

from llamaserve.engine import Engine
from llamaserve.results import Chunk, Completion, Finish
from llamaserve.server.body import JsonBody
from llamaserve.server.errors import RESPONSES
from llamaserve.server.generation import Batch, Generation
from llamaserve.server.generation_settings import settings_of
from llamaserve.server.native_schema import CompletionEvent, CompletionRequest, CompletionResponse, NativeRequest
from llamaserve.server.probs import probabilities, shown_probs
from llamaserve.server.prompts import prompts_of
from llamaserve.server.request_fields import PriorityHeader, jobs_of, ping_interval
from llamaserve.server.responder import Responder, frame
from llamaserve.server.state import ServerState

_encode = msgspec.json.Encoder().encode


@post(
    ["/completion", "/completions"],
    status_code=200,
    dto=JsonBody[CompletionRequest],
    return_dto=None,
    responses={
        200: ResponseSpec(CompletionResponse, description="The completion; a list of them for several"),
        **RESPONSES,
    },
    summary="Complete a prompt",
    tags=["llama-server"],
)
async def complete(
    data: Annotated[CompletionRequest, Body()], state: State, priority: PriorityHeader = None
) -> ASGIApp:
    """Completes a prompt. With `"stream": true` the answer is a stream of server-sent events."""
    server: ServerState = state.server
    engine = server.ready_engine()
    jobs = jobs_of(engine, prompts_of(data.prompt, engine.info.n_vocab), data, priority)
    answer = NativeAnswer(engine, server.model_name, data)
    return Responder(
        Generation(engine, jobs, pieces=data.streams),
        answer,
        stream=data.streams,
        ping_interval=ping_interval(data, server.settings.sse_ping_interval),
    )


class NativeAnswer:
    """Writes completions in the form of `/completion`."""

    def __init__(self, engine: Engine, model: str, request: NativeRequest) -> None:
        self._engine = engine
        self._model = model
        self._request = request
        self._post = bool(request.post_sampling_probs)

    async def frames(self, batch: Batch) -> bytes:
        return b"".join(self._frame(index, chunk) for index, chunks in batch for chunk in chunks)

    def _frame(self, index: int, chunk: Chunk) -> bytes:
        out = b""
        if chunk.tokens or chunk.text or chunk.progress is not None:
            event = CompletionEvent(
                index,
                chunk.text,
                chunk.tokens,
                False,
                chunk.id_slot,
                chunk.n_predicted,
                chunk.n_prompt_tokens,
            )
            if chunk.timings is not None and self._request.timings_per_token:
                event.timings = chunk.timings
            if chunk.progress is not None:
                event.prompt_progress = chunk.progress
            if chunk.probs:
                event.completion_probabilities = probabilities(chunk.probs, self._post)
            out = frame(_encode(event))
        if chunk.finish is not None:
            last = final(self._model, index, chunk.finish, stream=True)
            out += frame(self._encoded(last))
        return out

    def end(self) -> bytes:
        return b""

    async def whole(self, completions: list[Completion]) -> bytes:
        bodies = [self._encoded(self._full(i, completion)) for i, completion in enumerate(completions)]
        return bodies[0] if len(bodies) == 1 else b"[" + b",".join(bodies) + b"]"

    def _full(self, index: int, completion: Completion) -> CompletionResponse:
        finish = completion.finish
        out = final(self._model, index, finish, stream=False)
        out.content = finish.text
        if self._request.return_tokens:
            out.tokens = list(completion.tokens)
        if probs := shown_probs(self._engine, completion):
            out.completion_probabilities = probabilities(probs, self._post)
        return out

    def _encoded(self, out: CompletionResponse) -> bytes:
        fields = self._request.response_fields
        return _encode(pick(msgspec.to_builtins(out), fields) if fields else out)


def final(model: str, index: int, finish: Finish, *, stream: bool) -> CompletionResponse:
    """What is known at the end of a completion; `content` and `tokens` are left empty."""
    return CompletionResponse(
        index=index,
        content="",
        tokens=[],
        id_slot=finish.id_slot,
        stop=True,
        model=model,
        tokens_predicted=finish.n_predicted,
        tokens_evaluated=finish.n_prompt_tokens,
        generation_settings=settings_of(finish, stream=stream),
        prompt=finish.prompt_text,
        has_new_line=finish.has_new_line,
        truncated=finish.truncated,
        stop_type=finish.stop_type,
        stopping_word=finish.stopping_word,
        tokens_cached=finish.tokens_cached,
        timings=finish.timings,
        completion_probabilities=UNSET,
    )


def pick(out: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """The fields named by `paths`, each under its path. Those that aren't there are left out."""
    picked: dict[str, Any] = {}
    for path in paths:
        value: Any = out
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            picked[path] = value
    return picked
