"""`/v1/completions`: OpenAI's text completions."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp

from llamaserve.engine import Engine
from llamaserve.results import Chunk, Completion, Finish
from llamaserve.server.body import JsonBody
from llamaserve.server.errors import RESPONSES
from llamaserve.server.generation import Batch, Generation
from llamaserve.server.native import final
from llamaserve.server.openai_schema import TextChoice, TextCompletion, finish_reason, stamp, usage_of
from llamaserve.server.openai_text import (
    TextCompletionRequest,
    TextLogprobs,
    check,
    echoes,
    text_logprobs,
    text_prompts,
)
from llamaserve.server.probs import probabilities, shown_probs
from llamaserve.server.request_fields import PriorityHeader, jobs_of, ping_interval
from llamaserve.server.responder import DONE, Responder, frame
from llamaserve.server.state import ServerState

_encode = msgspec.json.Encoder().encode


@post(
    "/v1/completions",
    status_code=200,
    dto=JsonBody[TextCompletionRequest],
    return_dto=None,
    responses={200: ResponseSpec(TextCompletion, description="The completion"), **RESPONSES},
    summary="Complete a prompt",
    tags=["OpenAI"],
)
async def complete_text(
    data: Annotated[TextCompletionRequest, Body()], state: State, priority: PriorityHeader = None
) -> ASGIApp:
    """Completes a prompt. With `"stream": true` the answer is a stream of server-sent events."""
    server: ServerState = state.server
    engine = server.ready_engine()
    check(data)
    prompts = await text_prompts(engine, data, suffix_first=server.settings.spm_infill)
    jobs = jobs_of(engine, prompts, data, priority)
    return Responder(
        Generation(engine, jobs, pieces=data.streams),
        TextAnswer(engine, server, data, len(jobs), await echoes(engine, data)),
        stream=data.streams,
        ping_interval=ping_interval(data, server.settings.sse_ping_interval),
    )


class TextAnswer:
    """Writes completions in OpenAI's form."""

    def __init__(
        self, engine: Engine, server: ServerState, request: TextCompletionRequest, n_choices: int, echoes: list[str]
    ) -> None:
        """`echoes`: texts that the answers begin with; empty for none."""
        self._engine = engine
        self._request = request
        self._echoes = echoes or [""] * n_choices
        self._echoed = [not echo for echo in self._echoes]
        self._offsets = [0] * n_choices
        self._verbose = server.verbose if request.verbose is None else request.verbose
        self._post = bool(request.post_sampling_probs)
        self._stamp = stamp(server.model_name, server.build_info)
        # The events of one choice differ in their text alone, so what is around it is made once.
        self._around = [self._surroundings(i) for i in range(n_choices)]

    def _surroundings(self, index: int) -> tuple[bytes, bytes]:
        before, after = _encode(self._event(TextChoice("", index, None, None))).split(b'"text":""', 1)
        return b"data: " + before + b'"text":', after + b"\n\n"

    def _event(self, choice: TextChoice) -> TextCompletion:
        s = self._stamp
        return TextCompletion([choice], s.created, s.model, s.system_fingerprint, s.id)

    async def frames(self, batch: Batch) -> bytes:
        out: list[bytes] = []
        for index, chunks in batch:
            before, after = self._around[index]
            for chunk in chunks:
                if not self._echoed[index]:
                    self._echoed[index] = True
                    out += (before, _encode(self._echoes[index]), after)
                if chunk.timings is not None or chunk.probs or chunk.progress is not None:
                    out.append(self._rich(index, chunk))
                elif chunk.text:
                    out += (before, _encode(chunk.text), after)
        return b"".join(out)

    def _rich(self, index: int, chunk: Chunk) -> bytes:
        out = b""
        if chunk.text or chunk.probs or chunk.progress is not None:
            event = self._event(TextChoice(chunk.text, index, self._logprobs(index, chunk), None))
            if chunk.timings is not None and self._request.timings_per_token:
                event.timings = chunk.timings
            if chunk.progress is not None:
                event.prompt_progress = chunk.progress
            out = frame(_encode(event))
        if chunk.finish is not None:
            out += frame(_encode(self._last(index, chunk.finish)))
        return out

    def _last(self, index: int, finish: Finish) -> TextCompletion:
        event = self._event(TextChoice("", index, None, finish_reason(finish)))
        event.usage = usage_of([finish], 1)
        event.timings = finish.timings
        if self._verbose:
            event.verbose = final(self._stamp.model, index, finish, stream=True)
        return event

    def _logprobs(self, index: int, chunk: Chunk) -> TextLogprobs | None:
        if not chunk.probs:
            return None
        out = text_logprobs(probabilities(chunk.probs, self._post), self._offsets[index])
        self._offsets[index] += sum(map(len, out.tokens))
        return out

    def end(self) -> bytes:
        return DONE

    async def whole(self, completions: list[Completion]) -> bytes:
        s = self._stamp
        choices: list[TextChoice] = []
        for i, completion in enumerate(completions):
            probs = shown_probs(self._engine, completion)
            logprobs = text_logprobs(probabilities(probs, self._post), 0) if probs else None
            choices.append(TextChoice(self._echoes[i] + completion.text, i, logprobs, finish_reason(completion.finish)))
        body = TextCompletion(choices, s.created, s.model, s.system_fingerprint, s.id)
        first = completions[0].finish
        body.usage = usage_of([c.finish for c in completions], self._request.choices)
        body.timings = first.timings
        if self._verbose:
            body.verbose = final(s.model, 0, first, stream=False)
            body.verbose.content = first.text
        return _encode(body)
