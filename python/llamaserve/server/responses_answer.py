"""Chat answers in the form of OpenAI's responses API, whole or event by event."""

from __future__ import annotations

import asyncio
import secrets
import time

import msgspec
from msgspec import UNSET

from llamaserve.results import Chunk, Finish
from llamaserve.server.chat_parts import Part, PartsAnswer
from llamaserve.server.chat_route import PreparedChat
from llamaserve.server.errors import ErrorInfo
from llamaserve.server.responses_request import CALL_PREFIX, function_tools
from llamaserve.server.responses_schema import (
    ArgumentsDoneEvent,
    DeltaEvent,
    Event,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    PartEvent,
    Reasoning,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseEvent,
    ResponsesRequest,
    ResponseUsage,
    TextConfig,
    TextDoneEvent,
    TextFormat,
)

_encode = msgspec.json.Encoder().encode

_ID_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
_DELTA_TYPES = {
    "reasoning": "response.reasoning_text.delta",
    "text": "response.output_text.delta",
    "call": "response.function_call_arguments.delta",
}


class ResponsesAnswer(PartsAnswer):
    """Writes one response."""

    def __init__(self, chat: PreparedChat, request: ResponsesRequest) -> None:
        super().__init__(chat.prompt)
        self._engine = chat.engine
        self._timings = bool(request.timings_per_token)
        self._next_number = 0
        self._response = Response(
            id=_new_id("resp"),
            created_at=int(time.time()),
            status="in_progress",
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            model=chat.server.model_name,
            output=[],
            parallel_tool_calls=request.parallel_tool_calls is not False,
            reasoning=request.reasoning or Reasoning(),
            temperature=request.temperature,
            text=TextConfig((request.text and request.text.format) or TextFormat("text")),
            tool_choice=request.tool_choice or "auto",
            tools=function_tools(request),
            top_p=request.top_p,
        )

    # -- streamed ----------------------------------------------------------------------------------------------------

    def begin(self, chunk: Chunk, out: list[bytes]) -> None:
        out.append(self._lifecycle("response.created"))
        self.progress(chunk, out)

    def progress(self, chunk: Chunk, out: list[bytes]) -> None:
        event = self._lifecycle_event("response.in_progress")
        if chunk.progress is not None:
            event.prompt_progress = chunk.progress
        if self._timings and chunk.timings is not None:
            event.timings = chunk.timings
        out.append(_frame(event))

    def open_part(self, part: Part, out: list[bytes]) -> None:
        _identify(part)
        item = _item(part, "in_progress")
        out.append(
            _frame(
                ItemEvent(
                    type="response.output_item.added",
                    sequence_number=self._number(),
                    output_index=part.index,
                    item=item,
                )
            )
        )
        if part.kind != "call":
            out.append(self._content_part("response.content_part.added", part))
        event = self._delta(part, "")
        # The events of a part differ in their number and text alone, so what is around these is made once.
        event.sequence_number = 0
        before, after = _frame(event).split(b'"sequence_number":0', 1)
        between, end = after.rsplit(b'"delta":""', 1)
        part.around = (before + b'"sequence_number":', between + b'"delta":', end)

    def grow_part(self, part: Part, text: str, chunk: Chunk, out: list[bytes]) -> None:
        if self._timings and chunk.timings is not None:
            event = self._delta(part, text)
            event.sequence_number = self._number()
            event.timings = chunk.timings
            out.append(_frame(event))
            return
        before, between, end = part.around
        out += (before, str(self._number()).encode(), between, _encode(text), end)

    def close_part(self, part: Part, out: list[bytes]) -> None:
        if part.kind == "call":
            done: Event = ArgumentsDoneEvent(
                type="response.function_call_arguments.done",
                sequence_number=self._number(),
                item_id=part.id,
                output_index=part.index,
                name=part.name,
                arguments=part.text,
            )
        else:
            done = TextDoneEvent(
                type="response.output_text.done" if part.kind == "text" else "response.reasoning_text.done",
                sequence_number=self._number(),
                item_id=part.id,
                output_index=part.index,
                logprobs=[] if part.kind == "text" else UNSET,
                text=part.text,
            )
        out.append(_frame(done))
        if part.kind != "call":
            out.append(self._content_part("response.content_part.done", part))
        out.append(
            _frame(
                ItemEvent(
                    type="response.output_item.done",
                    sequence_number=self._number(),
                    output_index=part.index,
                    item=_item(part, "completed"),
                )
            )
        )

    async def finish(self, finish: Finish, parts: list[Part], out: list[bytes]) -> None:
        await self._complete(finish, parts)
        # Also where a limit ended it: llama-server's clients wait for this event. The response's status tells.
        event = self._lifecycle_event("response.completed")
        event.timings = finish.timings
        out.append(_frame(event))

    def error_event(self, info: ErrorInfo) -> bytes:
        self._response.status = "failed"
        self._response.error = ResponseError("invalid_prompt" if info.code < 500 else "server_error", info.message)
        self._response.output = [_item(part, "incomplete") for part in self._parts]
        return self._lifecycle("response.failed")

    # -- whole -------------------------------------------------------------------------------------------------------

    async def body(self, finish: Finish, parts: list[Part]) -> bytes:
        for part in parts:
            _identify(part)
        await self._complete(finish, parts)
        return _encode(self._response)

    # -- internals ---------------------------------------------------------------------------------------------------

    async def _complete(self, finish: Finish, parts: list[Part]) -> None:
        response = self._response
        response.output = [_item(part, "completed") for part in parts]
        limited = finish.stop_type not in ("eos", "word")
        response.status = "incomplete" if limited else "completed"
        if limited:
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        else:
            response.completed_at = int(time.time())
        thoughts = "".join(part.text for part in parts if part.kind == "reasoning")
        n_thoughts = len(await asyncio.to_thread(self._engine.tokenize, thoughts)) if thoughts else 0
        response.usage = ResponseUsage(
            finish.n_prompt_tokens,
            InputTokensDetails(finish.timings.cache_n),
            finish.n_predicted,
            OutputTokensDetails(min(n_thoughts, finish.n_predicted)),
            finish.n_prompt_tokens + finish.n_predicted,
        )

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _lifecycle_event(self, kind: str) -> ResponseEvent:
        return ResponseEvent(type=kind, sequence_number=self._number(), response=self._response)

    def _lifecycle(self, kind: str) -> bytes:
        return _frame(self._lifecycle_event(kind))

    def _content_part(self, kind: str, part: Part) -> bytes:
        content = OutputText(part.text) if part.kind == "text" else ReasoningText(part.text)
        return _frame(
            PartEvent(
                type=kind,
                sequence_number=self._number(),
                item_id=part.id,
                output_index=part.index,
                part=content,
            )
        )

    def _delta(self, part: Part, text: str) -> DeltaEvent:
        return DeltaEvent(
            type=_DELTA_TYPES[part.kind],
            sequence_number=0,
            item_id=part.id,
            output_index=part.index,
            content_index=UNSET if part.kind == "call" else 0,
            logprobs=[] if part.kind == "text" else UNSET,
            delta=text,
        )


def _item(part: Part, status: str) -> OutputItem:
    if part.kind == "reasoning":
        return ReasoningItem(part.id, status, [ReasoningText(part.text)] if part.pieces else [])
    if part.kind == "text":
        return MessageItem(part.id, status, [OutputText(part.text)] if part.pieces else [])
    call_id = CALL_PREFIX + part.call_id
    return FunctionCallItem(part.id, status, call_id, part.name, part.text)


def _identify(part: Part) -> None:
    part.id = _new_id(_ID_PREFIXES[part.kind])


def _frame(event: Event) -> bytes:
    return b"event: " + event.type.encode() + b"\ndata: " + _encode(event) + b"\n\n"


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(24)}"
