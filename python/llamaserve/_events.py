"""From the core's events to chunks: one drain a step, for synchronous and asynchronous readers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol

import msgspec
from typing_extensions import Self

from llamaserve import _core
from llamaserve.errors import EngineClosedError, LlamaserveError, RequestError
from llamaserve.results import (
    Chunk,
    Finish,
    Metrics,
    ModelInfo,
    Progress,
    SlotInfo,
    Timings,
    TokenProb,
)


def _timings(t: tuple[int, int, float, int, float, int, int]) -> Timings:
    """Counts (cached, prompt, predicted tokens) and milliseconds, with the rates worked out."""
    cache_n, prompt_n, prompt_ms, predicted_n, predicted_ms, draft_n, draft_n_accepted = t

    def per_token(ms: float, n: int) -> float:
        return ms / n if n else 0.0

    def per_second(ms: float, n: int) -> float:
        return 1000.0 * n / ms if ms > 0 else 0.0

    # The first token comes out of the prompt's last step, so the time since then is that of the others.
    later_n = max(predicted_n - 1, 0)
    return Timings(
        cache_n,
        prompt_n,
        prompt_ms,
        per_token(prompt_ms, prompt_n),
        per_second(prompt_ms, prompt_n),
        predicted_n,
        predicted_ms,
        per_token(predicted_ms, later_n),
        per_second(predicted_ms, later_n),
        draft_n or msgspec.UNSET,
        draft_n_accepted if draft_n else msgspec.UNSET,
    )


def _probs(items: list[tuple[int, bytes, float, list[tuple[int, bytes, float]]]]) -> tuple[TokenProb, ...]:
    return tuple(TokenProb(i, text, p, tuple(TokenProb(*t) for t in top)) for i, text, p, top in items)


def chunk_of(event: _core.Event) -> Chunk:
    """The chunk that a (non-error) event carries."""
    kind = event.kind
    if kind == _core.EventKind.token and not event.has_extras:
        return Chunk(event.text, tuple(event.tokens), event.n_predicted, event.n_prompt_tokens, id_slot=event.id_slot)
    timings = event.timings
    finish = None
    if kind == _core.EventKind.finished:
        assert timings is not None
        f = event.finish
        assert f is not None
        finish = Finish(
            stop_type=f.stop_type,
            stopping_word=f.stopping_word,
            truncated=f.truncated,
            has_new_line=f.has_new_line,
            id_slot=f.id_slot,
            tokens_cached=f.tokens_cached,
            n_prompt_tokens=event.n_prompt_tokens,
            n_predicted=event.n_predicted,
            prompt_text=f.prompt_text,
            text=f.text,
            timings=_timings(timings),
            params=f.params,
        )
    progress = event.progress
    return Chunk(
        text=event.text,
        tokens=tuple(event.tokens),
        n_predicted=event.n_predicted,
        n_prompt_tokens=event.n_prompt_tokens,
        probs=_probs(event.probs),
        progress=Progress(*progress) if progress is not None else None,
        timings=_timings(timings) if timings is not None else None,
        id_slot=event.id_slot,
        started=kind == _core.EventKind.started,
        finish=finish,
    )


def error_of(event: _core.Event) -> LlamaserveError:
    """The exception that an error event stands for."""
    kind, message, n_prompt, n_ctx = event.error
    if kind == "closed":
        return EngineClosedError(message)
    return RequestError(message, kind, n_prompt_tokens=n_prompt, n_ctx=n_ctx)


def finish_of(chunks: list[Chunk]) -> Finish:
    for chunk in reversed(chunks):
        if chunk.finish is not None:
            return chunk.finish
    raise EngineClosedError("the stream ended early")


class SyncStream:
    """Iterator over the chunks of one completion. `close()` (or leaving the `with` block) cancels what is left."""

    def __init__(self, core: _core.Engine, request_id: int, sink: _core.EventSink) -> None:
        self._core: _core.Engine | None = (
            core  # None once done, so that a stream kept somewhere doesn't keep a closed model
        )
        self._id, self._sink = request_id, sink
        self._pending: deque[_core.Event] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self._core is None:
            raise StopIteration
        while not self._pending:
            # Short waits, so that Ctrl-C is answered while a long prompt is computed.
            self._pending.extend(self._sink.wait(0.2))
            if self._core is None:  # closed meanwhile, or read to the end by another thread
                raise StopIteration
        event = self._pending.popleft()
        if event.kind == _core.EventKind.error:
            self._core = None
            raise error_of(event)
        if event.kind == _core.EventKind.finished:
            self._core = None
        return chunk_of(event)

    def close(self) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.cancel(self._id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream:
    """Asynchronous iterator over the chunks of one completion.

    `close()` (or leaving `async with`) cancels what is left.
    """

    def __init__(self, pump: AsyncPump, core: _core.Engine, request_id: int) -> None:
        self._core: _core.Engine | None = core  # None once done
        self._pump, self.id = pump, request_id
        self._pending: deque[_core.Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def push(self, event: _core.Event) -> None:
        """For the pump: hands over an event."""
        self._pending.append(event)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def chunks(self) -> list[Chunk]:
        """All chunks that are there, at least one; waits for it. Empty once the stream has ended.

        Raises `RequestError` or `EngineClosedError` if the request failed; chunks before the error come first.
        """
        if self._core is None:
            return []
        while not self._pending:
            self._waiter = self._pump.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        out: list[Chunk] = []
        while self._pending:
            if self._pending[0].kind == _core.EventKind.error:
                if out:
                    break
                self._core = None
                raise error_of(self._pending.popleft())
            event = self._pending.popleft()
            if event.kind == _core.EventKind.finished:
                self._core = None
            out.append(chunk_of(event))
        return out

    async def __aiter__(self) -> Any:
        while chunks := await self.chunks():
            for chunk in chunks:
                yield chunk

    def close(self) -> None:
        """Cancels the request if it is still running."""
        self._pump.forget(self.id)
        core, self._core = self._core, None
        if core is not None:
            core.cancel(self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.cancel(self.id)


class Receiver(Protocol):
    """Takes the events of a request."""

    def push(self, event: _core.Event) -> None: ...


class AsyncPump:
    """Brings the events of one engine to one event loop: one wake-up a step, however many streams there are.

    The engine thread writes a byte to a socket that the loop watches. Loops that can't watch a socket (Windows'
    proactor) get a thread that waits for the engine instead.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._streams: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        try:
            self.sink = _core.EventSink(self._writer.fileno())
            ref = weakref.ref(self)
            loop.add_reader(self._reader.fileno(), _drain, ref)
        except NotImplementedError:
            self.sink = _core.EventSink()
            threading.Thread(target=_wait, args=(weakref.ref(self), self.sink), daemon=True).start()

    def open(self, core: _core.Engine, request_id: int) -> AsyncStream:
        stream = AsyncStream(self, core, request_id)
        self._streams[request_id] = stream
        return stream

    def attach(self, request_ids: Iterable[int], receiver: Receiver) -> None:
        """Hands the events of these requests to `receiver`, for as long as someone else holds it."""
        for request_id in request_ids:
            self._streams[request_id] = receiver

    def forget(self, request_id: int) -> None:
        self._streams.pop(request_id, None)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._reader.recv(4096)
        self.deliver(self.sink.drain())

    def deliver(self, events: list[_core.Event]) -> None:
        streams = self._streams
        for event in events:
            stream = streams.get(event.request_id)
            if stream is not None:
                stream.push(event)

    def __del__(self) -> None:
        self.sink.close()
        if not self.loop.is_closed():
            with contextlib.suppress(NotImplementedError, RuntimeError):
                self.loop.remove_reader(self._reader.fileno())
        self._reader.close()
        self._writer.close()


def _drain(ref: weakref.ref[AsyncPump]) -> None:
    pump = ref()
    if pump is not None:
        pump.drain()


def _wait(ref: weakref.ref[AsyncPump], sink: _core.EventSink) -> None:
    while not sink.closed:
        events = sink.wait(0.5)
        pump = ref()
        if pump is None:
            return
        if events:
            try:
                pump.loop.call_soon_threadsafe(pump.deliver, events)
            except RuntimeError:
                return
        del pump


def info_of(raw: dict[str, Any]) -> ModelInfo:
    return msgspec.convert(raw, ModelInfo)


def slot_of(raw: dict[str, Any]) -> SlotInfo:
    return msgspec.convert(raw, SlotInfo)


def metrics_of(raw: dict[str, Any]) -> Metrics:
    return msgspec.convert(raw, Metrics)
