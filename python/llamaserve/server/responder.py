"""Sends completions to the client: one JSON body, or server-sent events as they come.

This is plain ASGI: on the way of a token from the engine to the socket there is only `Answer.frames` and one `send`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from litestar.types import Receive, Scope, Send

from llamaserve.results import Completion
from llamaserve.server import errors
from llamaserve.server.errors import ErrorInfo
from llamaserve.server.generation import Batch, Generation

log = logging.getLogger("llamaserve.http")

JSON_HEADERS = [(b"content-type", b"application/json")]
EVENT_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    # Tells nginx not to hold the stream back.
    (b"x-accel-buffering", b"no"),
]
PING = b":\n\n"
DONE = b"data: [DONE]\n\n"


def frame(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


class Answer(Protocol):
    """How an API family writes completions."""

    async def frames(self, batch: Batch) -> bytes:
        """The events for a batch; may be empty."""
        ...

    def end(self) -> bytes:
        """What follows the last event."""
        ...

    async def whole(self, completions: list[Completion]) -> bytes:
        """The body of an answer that isn't streamed."""
        ...


class Failures:
    """How an API family tells of errors and keeps a silent stream open. This is llama-server's and OpenAI's way."""

    ping = PING

    def error_event(self, info: ErrorInfo) -> bytes:
        """The last event of a stream that breaks off."""
        return frame(errors.body_of(info))

    def error_body(self, info: ErrorInfo) -> bytes:
        """The body where no stream has begun."""
        return errors.body_of(info)


class Responder:
    """The ASGI response that runs a generation. A client that goes away cancels it, whatever it is waiting for."""

    def __init__(
        self,
        generation: Generation,
        answer: Answer,
        *,
        stream: bool,
        ping_interval: int,
        failures: Failures | None = None,
    ) -> None:
        self._generation = generation
        self._answer = answer
        self._failures = failures or Failures()
        self._stream = stream
        self._ping_interval = ping_interval
        self._started = False
        self._last_send = 0.0
        # Two tasks send on a stream (events and pings), and not every server keeps their writes apart.
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        left = False

        async def watch() -> None:
            nonlocal left
            await disconnected(receive)
            left = True
            task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            await self._run(send)
        except asyncio.CancelledError:
            if not left:
                raise
            log.debug("client left %s", scope["path"])
        finally:
            watcher.cancel()
            self._generation.close()

    async def _run(self, send: Send) -> None:
        try:
            self._generation.start()
            if self._stream:
                await self._send_stream(send)
            else:
                body = await self._answer.whole(await self._generation.collect())
                await send_body(send, 200, body)
        except Exception as e:
            try:
                await self._send_error(send, e)
            except RuntimeError as broken:
                # The connection is gone, or unusable after what the client sent on it.
                log.debug("could not answer: %s", broken)

    async def _send_stream(self, send: Send) -> None:
        # Until something has come an error is still a plain response with its own status.
        batch = await self._generation.next()
        await send({"type": "http.response.start", "status": 200, "headers": list(EVENT_HEADERS)})
        self._started = True
        self._last_send = time.monotonic()
        pings = asyncio.create_task(self._ping(send)) if self._ping_interval > 0 else None
        try:
            # The headers go out now, not with the first token.
            await self._write(send, b"")
            while batch:
                if data := await self._answer.frames(batch):
                    await self._write(send, data)
                batch = await self._generation.next()
        finally:
            if pings is not None:
                pings.cancel()
        await send({"type": "http.response.body", "body": self._answer.end(), "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        async with self._lock:
            self._last_send = time.monotonic()
            await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _ping(self, send: Send) -> None:
        while True:
            silent = time.monotonic() - self._last_send
            if silent >= self._ping_interval:
                await self._write(send, self._failures.ping)
            else:
                await asyncio.sleep(self._ping_interval - silent)

    async def _send_error(self, send: Send, error: Exception) -> None:
        info = errors.info_of(error)
        if self._started:
            async with self._lock:
                await send({"type": "http.response.body", "body": self._failures.error_event(info), "more_body": False})
        else:
            await send_body(send, info.code, self._failures.error_body(info), errors.headers_of(info))


async def send_body(send: Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    more = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*JSON_HEADERS, length, *more]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
