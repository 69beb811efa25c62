"""Chat answers in the form of Anthropic's messages API, whole or event by event."""

from __future__ import annotations

import secrets

import msgspec

from llamaserve.results import Chunk, Finish
from llamaserve.server.anthropic_schema import (
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageResponse,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputBlock,
    SignatureDelta,
    StopDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from llamaserve.server.chat_parts import Part, PartsAnswer
from llamaserve.server.chat_route import PreparedChat
from llamaserve.server.errors import ErrorInfo, anthropic_body_of

_encode = msgspec.json.Encoder().encode

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class AnthropicAnswer(PartsAnswer):
    """Writes one message."""

    ping = PING

    def __init__(self, chat: PreparedChat, stop_sequences: list[str] | None) -> None:
        super().__init__(chat.prompt)
        self._model = chat.server.model_name
        self._stop_sequences = stop_sequences or []
        self._id = "msg_" + secrets.token_hex(16)

    # -- streamed ----------------------------------------------------------------------------------------------------

    def begin(self, chunk: Chunk, out: list[bytes]) -> None:
        cached = chunk.progress.cache if chunk.progress is not None else 0
        message = self._message([], MessageUsage(chunk.n_prompt_tokens - cached, 0, cached, 0))
        out.append(_event("message_start", MessageStart(message)))

    def open_part(self, part: Part, out: list[bytes]) -> None:
        delta: TextDelta | ThinkingDelta | InputJsonDelta
        block: OutputBlock
        if part.kind == "reasoning":
            block, delta, name = ThinkingBlock(""), ThinkingDelta(""), "thinking"
        elif part.kind == "text":
            block, delta, name = TextBlock(""), TextDelta(""), "text"
        else:
            block, delta, name = ToolUseBlock(part.call_id, part.name, {}), InputJsonDelta(""), "partial_json"
        out.append(_event("content_block_start", ContentBlockStart(part.index, block)))
        if part.index == 0:
            out.append(PING)
        event = _event("content_block_delta", ContentBlockDelta(part.index, delta))
        before, after = event.split(f'"{name}":""'.encode(), 1)
        part.around = (before + f'"{name}":'.encode(), after)

    def grow_part(self, part: Part, text: str, chunk: Chunk, out: list[bytes]) -> None:
        before, after = part.around
        out += (before, _encode(text), after)

    def close_part(self, part: Part, out: list[bytes]) -> None:
        if part.kind == "reasoning":
            out.append(_event("content_block_delta", ContentBlockDelta(part.index, SignatureDelta(""))))
        out.append(_event("content_block_stop", ContentBlockStop(part.index)))

    async def finish(self, finish: Finish, parts: list[Part], out: list[bytes]) -> None:
        stop = StopDelta(self._reason(finish, parts), self._stop_sequence(finish))
        out.append(_event("message_delta", MessageDelta(stop, _usage(finish))))
        out.append(_event("message_stop", MessageStop()))

    def error_event(self, info: ErrorInfo) -> bytes:
        return b"event: error\ndata: " + self.error_body(info) + b"\n\n"

    # -- whole -------------------------------------------------------------------------------------------------------

    async def body(self, finish: Finish, parts: list[Part]) -> bytes:
        message = self._message([_block(part) for part in parts], _usage(finish))
        message.stop_reason = self._reason(finish, parts)
        message.stop_sequence = self._stop_sequence(finish)
        return _encode(message)

    def error_body(self, info: ErrorInfo) -> bytes:
        return anthropic_body_of(info)

    # -- internals ---------------------------------------------------------------------------------------------------

    def _message(self, content: list[OutputBlock], usage: MessageUsage) -> MessageResponse:
        return MessageResponse(self._id, "assistant", content, self._model, None, None, usage)

    def _reason(self, finish: Finish, parts: list[Part]) -> str:
        if finish.stop_type not in ("eos", "word"):
            return "max_tokens"
        if self._stop_sequence(finish) is not None:
            return "stop_sequence"
        return "tool_use" if any(part.kind == "call" for part in parts) else "end_turn"

    def _stop_sequence(self, finish: Finish) -> str | None:
        # The template has stop texts of its own, which are the model's way to end its turn.
        word = finish.stopping_word
        return word if finish.stop_type == "word" and word in self._stop_sequences else None


def _event(name: str, event: msgspec.Struct) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"


def _usage(finish: Finish) -> MessageUsage:
    cached = finish.timings.cache_n
    return MessageUsage(finish.n_prompt_tokens - cached, 0, cached, finish.n_predicted)


def _block(part: Part) -> OutputBlock:
    if part.kind == "reasoning":
        return ThinkingBlock(part.text)
    if part.kind == "text":
        return TextBlock(part.text)
    return ToolUseBlock(part.call_id, part.name, _input(part.text))


def _input(arguments: str) -> dict[str, object]:
    """The arguments of a call. A call that was cut off has none that could be read."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
