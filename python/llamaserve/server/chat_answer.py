"""Chat answers in OpenAI's form, whole or event by event."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from llamaserve.chat import ChatParser, ChatPrompt
from llamaserve.engine import Engine
from llamaserve.results import ChatDelta, ChatMessage, Chunk, Completion, Finish, TokenProb
from llamaserve.server.chat_request import ChatRequest
from llamaserve.server.generation import Batch, Job
from llamaserve.server.native import final
from llamaserve.server.openai_schema import (
    ChatChoice,
    ChatCompletionChunk,
    ChatCompletionResponse,
    ChunkChoice,
    Delta,
    Function,
    FunctionDelta,
    Message,
    MessageToolCall,
    ToolCallDelta,
    finish_reason,
    stamp,
    usage_of,
)
from llamaserve.server.probs import Logprobs, probabilities, shown_probs
from llamaserve.server.responder import DONE, frame
from llamaserve.server.state import ServerState

_encode = msgspec.json.Encoder().encode

FIRST_DELTA = Delta(role="assistant", content=None)


class Choice:
    """One choice of a stream, and how far it is."""

    def __init__(self, index: int, parser: ChatParser | None) -> None:
        self.index = index
        self.parser = parser
        self.begun = False
        self.probs: list[TokenProb] = []
        """Probabilities of tokens whose text has not been sent yet."""
        self.around: tuple[bytes, bytes] = (b"", b"")


class ChatAnswer:
    """Writes chat completions."""

    def __init__(
        self, engine: Engine, server: ServerState, request: ChatRequest, prompt: ChatPrompt, jobs: list[Job]
    ) -> None:
        self._engine = engine
        self._request = request
        self._prompt = prompt
        self._jobs = jobs
        self._verbose = server.verbose if request.verbose is None else request.verbose
        self._post = bool(request.post_sampling_probs)
        self._stamp = stamp(server.model_name, server.build_info)
        self._choices = [Choice(i, None if prompt.plain else prompt.parser()) for i in range(len(jobs))]
        for choice in self._choices:
            choice.around = self._surroundings(choice.index)
        self._finishes: list[Finish | None] = [None] * len(jobs)

    # -- streamed ----------------------------------------------------------------------------------------------------

    async def frames(self, batch: Batch) -> bytes:
        out: list[bytes] = []
        for index, chunks in batch:
            choice = self._choices[index]
            if choice.parser is None:
                self._plain(choice, chunks, out)
            else:
                await self._parsed(choice, choice.parser, chunks, out)
        return b"".join(out)

    def _plain(self, choice: Choice, chunks: list[Chunk], out: list[bytes]) -> None:
        before, after = choice.around
        for chunk in chunks:
            if chunk.timings is not None or chunk.probs or chunk.progress is not None:
                deltas = (ChatDelta(content=chunk.text),) if chunk.text else ()
                self._rich(choice, chunk, deltas, False, out)
            elif chunk.text:
                if not choice.begun:
                    self._begin(choice, out)
                out += (before, _encode(chunk.text), after)

    async def _parsed(self, choice: Choice, parser: ChatParser, chunks: list[Chunk], out: list[bytes]) -> None:
        if len(chunks) > 1 and not any(c.probs or c.progress for c in chunks):
            # Pieces that came together are parsed together.
            chunks = [msgspec.structs.replace(chunks[-1], text="".join(c.text for c in chunks))]
        for chunk in chunks:
            finished = chunk.finish is not None
            deltas: tuple[ChatDelta, ...] = ()
            if chunk.text or finished:
                deltas = await parser.afeed(chunk.text, final=finished)
            called = finished and bool(parser.message.tool_calls)
            self._rich(choice, chunk, deltas, called, out)

    def _rich(
        self, choice: Choice, chunk: Chunk, deltas: tuple[ChatDelta, ...], called: bool, out: list[bytes]
    ) -> None:
        """Events for a chunk that carries more than text, or whose text was parsed."""
        events: list[ChatCompletionChunk] = []
        if chunk.progress is not None:
            events.append(self._event(choice.index, FIRST_DELTA))
            choice.begun = True
        elif not choice.begun and (deltas or chunk.finish is not None):
            self._begin(choice, out)
        events += [self._event(choice.index, delta_of(delta)) for delta in deltas]
        choice.probs += chunk.probs
        if events:
            last = events[-1]
            if choice.probs:
                last.choices[0].logprobs = Logprobs(probabilities(choice.probs, self._post))
                choice.probs = []
            if chunk.timings is not None and self._request.timings_per_token and chunk.finish is None:
                last.timings = chunk.timings
            if chunk.progress is not None:
                last.prompt_progress = chunk.progress
        if chunk.finish is not None:
            events.append(self._last(choice, chunk.finish, called))
        out += [frame(_encode(event)) for event in events]

    def _begin(self, choice: Choice, out: list[bytes]) -> None:
        choice.begun = True
        out.append(frame(_encode(self._event(choice.index, FIRST_DELTA))))

    def _last(self, choice: Choice, finish: Finish, called: bool) -> ChatCompletionChunk:
        self._finishes[choice.index] = finish
        event = self._event(choice.index, Delta(), finish_reason(finish, tool_calls=called))
        if not self._request.include_usage:
            event.timings = finish.timings
        if self._verbose:
            params = self._jobs[choice.index].params
            event.verbose = final(self._engine, self._stamp.model, choice.index, finish, params, stream=True)
        return event

    def end(self) -> bytes:
        finishes = [f for f in self._finishes if f is not None]
        if not self._request.include_usage or not finishes:
            return DONE
        s = self._stamp
        event = ChatCompletionChunk([], s.created, s.id, s.model, s.system_fingerprint)
        event.usage = usage_of(finishes, self._request.choices)
        event.timings = finishes[0].timings
        return frame(_encode(event)) + DONE

    def _event(self, index: int, delta: Delta, reason: str | None = None) -> ChatCompletionChunk:
        s = self._stamp
        return ChatCompletionChunk([ChunkChoice(reason, index, delta)], s.created, s.id, s.model, s.system_fingerprint)

    def _surroundings(self, index: int) -> tuple[bytes, bytes]:
        """What is around the text in the events of one choice, made once."""
        before, after = _encode(self._event(index, Delta(content=""))).split(b'"content":""', 1)
        return b"data: " + before + b'"content":', after + b"\n\n"

    # -- whole -------------------------------------------------------------------------------------------------------

    async def whole(self, completions: list[Completion]) -> bytes:
        choices = [await self._choice(c, completion) for c, completion in zip(self._choices, completions, strict=True)]
        s = self._stamp
        first = completions[0].finish
        body = ChatCompletionResponse(
            choices=choices,
            created=s.created,
            model=s.model,
            system_fingerprint=s.system_fingerprint,
            usage=usage_of([c.finish for c in completions], self._request.choices),
            id=s.id,
            timings=first.timings,
        )
        if self._verbose:
            body.verbose = final(self._engine, s.model, 0, first, self._jobs[0].params, stream=False)
            body.verbose.content = first.text
        return _encode(body)

    async def _choice(self, choice: Choice, completion: Completion) -> ChatChoice:
        if choice.parser is None:
            message = ChatMessage(completion.text)
        else:
            await choice.parser.afeed(completion.text, final=True)
            message = choice.parser.message
        probs = shown_probs(self._engine, completion)
        return ChatChoice(
            finish_reason=finish_reason(completion.finish, tool_calls=bool(message.tool_calls)),
            index=choice.index,
            message=message_of(message),
            logprobs=Logprobs(probabilities(probs, self._post)) if probs else UNSET,
        )


def delta_of(delta: ChatDelta) -> Delta:
    out = Delta()
    if delta.reasoning_content:
        out.reasoning_content = delta.reasoning_content
    if delta.content:
        out.content = delta.content
    call = delta.tool_call
    if call is not None:
        piece = ToolCallDelta(delta.tool_call_index)
        if call.id:
            piece.id, piece.type = call.id, "function"
        function: dict[str, Any] = {}
        if call.name:
            function["name"] = call.name
        if call.arguments:
            function["arguments"] = call.arguments
        if function:
            piece.function = FunctionDelta(**function)
        out.tool_calls = [piece]
    return out


def message_of(message: ChatMessage) -> Message:
    out = Message("assistant", message.content)
    if message.reasoning_content:
        out.reasoning_content = message.reasoning_content
    if message.tool_calls:
        out.tool_calls = [
            MessageToolCall("function", Function(call.name, call.arguments), call.id or UNSET)
            for call in message.tool_calls
        ]
    return out
