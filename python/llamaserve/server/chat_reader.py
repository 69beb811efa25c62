"""Reads one chat answer: from the chunks of text to what the message grows by."""

from __future__ import annotations

import msgspec

from llamaserve.chat import ChatPrompt
from llamaserve.results import ChatDelta, ChatMessage, Chunk


class ChatReader:
    """Reads one answer. All APIs that answer chats read it here, and write it their own way."""

    def __init__(self, prompt: ChatPrompt) -> None:
        self._parser = None if prompt.plain else prompt.parser()

    @property
    def plain(self) -> bool:
        """The text is the message: there is nothing to parse in it."""
        return self._parser is None

    @property
    def called(self) -> bool:
        """The answer so far has tool calls."""
        return self._parser is not None and bool(self._parser.message.tool_calls)

    async def read(self, chunks: list[Chunk]) -> list[tuple[Chunk, tuple[ChatDelta, ...]]]:
        """Each chunk with what the message grew by."""
        parser = self._parser
        if parser is None:
            return [(chunk, (ChatDelta(content=chunk.text),) if chunk.text else ()) for chunk in chunks]
        if len(chunks) > 1 and not any(c.probs or c.progress for c in chunks):
            # Pieces that came together are parsed together.
            chunks = [msgspec.structs.replace(chunks[-1], text="".join(c.text for c in chunks))]
        out: list[tuple[Chunk, tuple[ChatDelta, ...]]] = []
        for chunk in chunks:
            finished = chunk.finish is not None
            deltas: tuple[ChatDelta, ...] = ()
            if chunk.text or finished:
                deltas = await parser.afeed(chunk.text, final=finished)
            out.append((chunk, deltas))
        return out

    async def whole(self, text: str) -> ChatMessage:
        """The message of an answer that came in one piece."""
        if self._parser is None:
            return ChatMessage(text)
        await self._parser.afeed(text, final=True)
        return self._parser.message
