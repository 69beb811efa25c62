"""A chat answer as a sequence of parts: thoughts, text, tool calls. Each begins, grows, and ends before the next one.

Anthropic's content blocks and the output items of OpenAI's responses are such parts. The classes derived from
`PartsAnswer` say how the events of a part are written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from llamaserve.chat import ChatPrompt
from llamaserve.results import ChatDelta, ChatMessage, Chunk, Completion, Finish, ToolCall
from llamaserve.server.chat_reader import ChatReader
from llamaserve.server.generation import Batch
from llamaserve.server.responder import Failures

PartKind: TypeAlias = Literal["reasoning", "text", "call"]


@dataclass
class Part:
    """One part of an answer, perhaps still growing."""

    kind: PartKind
    index: int
    """Its place in the answer."""
    call_id: str = ""
    name: str = ""
    """Name of the function, where this is a call."""
    pieces: list[str] = field(default_factory=list)
    id: str = ""
    """For APIs whose parts have one."""
    around: tuple[bytes, ...] = ()
    """What is around the text in the events of this part, made once."""

    @property
    def text(self) -> str:
        """The thoughts, the text, or the arguments of the call (JSON)."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


def parts_of(message: ChatMessage) -> list[Part]:
    """The parts of a whole message."""
    parts: list[Part] = []
    if message.reasoning_content:
        parts.append(Part("reasoning", 0, pieces=[message.reasoning_content]))
    if message.content:
        parts.append(Part("text", len(parts), pieces=[message.content]))
    for call in message.tool_calls:
        parts.append(Part("call", len(parts), call.id, call.name, [call.arguments]))
    return parts


class PartsAnswer(ABC, Failures):
    """Writes one chat answer, whole or event by event."""

    def __init__(self, prompt: ChatPrompt) -> None:
        self._reader = ChatReader(prompt)
        self._begun = False
        self._open: Part | None = None
        self._parts: list[Part] = []

    # -- what an API defines; `out` takes the bytes of events ---------------------------------------------------------

    @abstractmethod
    def begin(self, chunk: Chunk, out: list[bytes]) -> None:
        """Events before anything else."""

    def progress(self, chunk: Chunk, out: list[bytes]) -> None:
        """Events for how far the prompt is, where that was asked for."""
        return

    @abstractmethod
    def open_part(self, part: Part, out: list[bytes]) -> None:
        """Events for a part that begins; nothing is in it yet. Sets `part.around`."""

    @abstractmethod
    def grow_part(self, part: Part, text: str, chunk: Chunk, out: list[bytes]) -> None:
        """Events for new text in a part."""

    @abstractmethod
    def close_part(self, part: Part, out: list[bytes]) -> None:
        """Events for a part that is complete."""

    @abstractmethod
    async def finish(self, finish: Finish, parts: list[Part], out: list[bytes]) -> None:
        """Events at the end."""

    @abstractmethod
    async def body(self, finish: Finish, parts: list[Part]) -> bytes:
        """The answer in one piece."""

    # -- `Answer` ----------------------------------------------------------------------------------------------------

    async def frames(self, batch: Batch) -> bytes:
        out: list[bytes] = []
        for _, chunks in batch:
            for chunk, deltas in await self._reader.read(chunks):
                if not self._begun:
                    self._begun = True
                    self.begin(chunk, out)
                elif chunk.progress is not None:
                    self.progress(chunk, out)
                for delta in deltas:
                    self._add(delta, chunk, out)
                if chunk.finish is not None:
                    self._close(out)
                    await self.finish(chunk.finish, self._parts, out)
        return b"".join(out)

    def end(self) -> bytes:
        return b""

    async def whole(self, completions: list[Completion]) -> bytes:
        (completion,) = completions
        message = await self._reader.whole(completion.text)
        return await self.body(completion.finish, parts_of(message))

    # -- internals ---------------------------------------------------------------------------------------------------

    def _add(self, delta: ChatDelta, chunk: Chunk, out: list[bytes]) -> None:
        if delta.reasoning_content:
            self._grow(self._part("reasoning", out), delta.reasoning_content, chunk, out)
        if delta.content:
            self._grow(self._part("text", out), delta.content, chunk, out)
        call = delta.tool_call
        if call is not None:
            part = self._open
            if part is None or part.kind != "call" or call.name:
                part = self._begin_part("call", out, call)
            if call.arguments:
                self._grow(part, call.arguments, chunk, out)

    def _part(self, kind: PartKind, out: list[bytes]) -> Part:
        part = self._open
        return part if part is not None and part.kind == kind else self._begin_part(kind, out)

    def _begin_part(self, kind: PartKind, out: list[bytes], call: ToolCall | None = None) -> Part:
        self._close(out)
        part = Part(kind, len(self._parts))
        if call is not None:
            part.call_id, part.name = call.id, call.name
        self._parts.append(part)
        self._open = part
        self.open_part(part, out)
        return part

    def _grow(self, part: Part, text: str, chunk: Chunk, out: list[bytes]) -> None:
        part.pieces.append(text)
        self.grow_part(part, text, chunk, out)

    def _close(self, out: list[bytes]) -> None:
        if self._open is not None:
            self.close_part(self._open, out)
            self._open = None
