"""The completions that one HTTP request asks for: started together, read as one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from llamaserve.engine import Engine
from llamaserve.params import ChatConstraint, CompletionParams, Prompt
from llamaserve.results import Chunk, Completion, Finish, TokenProb

if TYPE_CHECKING:
    from llamaserve._events import AsyncStream

Batch: TypeAlias = Sequence[tuple[int, list[Chunk]]]
"""Chunks that came together, with the index of the completion they belong to."""

WINDOW = 64
"""Jobs of one request that may be in the engine's queue at a time (or four for each slot): a long list of prompts must
neither fill the queue for everybody else nor be refused for its length."""


@dataclass
class Job:
    """One completion."""

    prompt: Prompt
    params: CompletionParams
    constraint: ChatConstraint | None = None


@dataclass
class Collected:
    """One completion while its chunks come in."""

    tokens: list[int] = field(default_factory=list)
    probs: list[TokenProb] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self.tokens += chunk.tokens
            self.probs += chunk.probs
            self.finish = chunk.finish or self.finish

    def completion(self) -> Completion:
        assert self.finish is not None
        return Completion(self.finish.text, tuple(self.tokens), self.finish, tuple(self.probs))


class Generation:
    """Runs jobs on the engine. Close it, or what is still running runs on."""

    def __init__(self, engine: Engine, jobs: list[Job], *, pieces: bool) -> None:
        """`pieces`: chunks are wanted as they come, not only the last one of each completion with everything in it."""
        self._engine = engine
        self._jobs = jobs
        self._pieces = pieces
        self._streams: dict[int, AsyncStream] = {}
        """Those that run."""
        self._left = iter(range(len(jobs)))
        """Jobs that have not been started."""
        self._queue: asyncio.Queue[tuple[int, list[Chunk] | Exception]] = asyncio.Queue()
        self._readers: list[asyncio.Task[None]] = []
        self._running = 0

    def start(self) -> None:
        """Hands the first jobs to the engine, which tokenizes prompts on a thread of its own; the others follow as
        these end. Raises `RequestError` where it refuses one."""
        first = list(itertools.islice(self._left, max(WINDOW, 4 * self._engine.info.n_slots)))
        for index in first:
            self._open(index)
        self._running = len(self._jobs)
        if self._running > 1:
            self._readers = [asyncio.create_task(self._read(index)) for index in first]

    async def next(self) -> Batch:
        """What came since the last call, at least one chunk; empty at the end. Raises what ended any of the streams."""
        if not self._readers:
            # The usual case, one completion, needs no queue.
            chunks = await self._streams[0].chunks()
            return ((0, chunks),) if chunks else ()
        batch: list[tuple[int, list[Chunk]]] = []
        while self._running and not batch:
            index, item = await self._queue.get()
            while True:
                if isinstance(item, Exception):
                    raise item
                if item:
                    batch.append((index, item))
                else:
                    self._running -= 1
                if self._queue.empty():
                    break
                index, item = self._queue.get_nowait()
        return batch

    async def collect(self) -> list[Completion]:
        """Waits for all completions."""
        parts = [Collected() for _ in self._jobs]
        while batch := await self.next():
            for index, chunks in batch:
                parts[index].add(chunks)
        return [part.completion() for part in parts]

    def close(self) -> None:
        """Cancels what is left."""
        self._left = iter(())
        for reader in self._readers:
            reader.cancel()
        for stream in self._streams.values():
            stream.close()

    def _open(self, index: int) -> AsyncStream:
        job = self._jobs[index]
        stream = self._engine.astream(job.prompt, job.params, constraint=job.constraint, pieces=self._pieces)
        self._streams[index] = stream
        return stream

    async def _read(self, index: int) -> None:
        """Reads the job `index`, then others as long as there are some that nobody reads."""
        try:
            stream = self._streams[index]
            while True:
                chunks = await stream.chunks()
                self._queue.put_nowait((index, chunks))
                if not chunks:
                    del self._streams[index]
                    index = next(self._left, -1)
                    if index < 0:
                        return
                    stream = self._open(index)
        except Exception as e:
            self._queue.put_nowait((index, e))
