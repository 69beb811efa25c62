"""The HTTP protocol that uvicorn runs: its own, with the head of an answer and its body sent in one piece."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterable
from typing import Any


class _HeadWithBody(asyncio.Transport):
    """Holds the head of an answer until the body's first piece is there.

    Two writes would be two system calls for us, and wake the client twice. What is held goes out in the same turn of
    the event loop even if nothing follows.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data[:9] == b"HTTP/1.1 ":
            self._held = bytes(data)
            self._loop.call_soon(self._flush)
        elif data:
            self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._held = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()


def http_protocol() -> Any:
    """For uvicorn's `http`: the class to run, or the name of one of its own."""
    if not importlib.util.find_spec("httptools"):
        return "h11"
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415

    class Protocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(_HeadWithBody(transport, self.loop))

    return Protocol
