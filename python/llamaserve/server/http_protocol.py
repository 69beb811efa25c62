"""The HTTP protocol that uvicorn runs: its own, with the head of an answer and its body sent in one piece, and with
offers to change protocols ignored."""

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


class _Parser:
    """llhttp for a protocol, without upgrades.

    llhttp takes a request that offers another protocol (as Java's HTTP client offers HTTP/2) to end with its head.
    Another one then reads on where it stopped.
    """

    def __init__(self, protocol: Any, parser: Any, httptools: Any) -> None:
        self._protocol = protocol
        self._httptools = httptools
        self._use(parser)

    def feed_data(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except self._httptools.HttpParserUpgrade as e:
                data = data[e.args[0] :]
                self._read_on()
            else:
                return

    def should_upgrade(self) -> bool:
        return False

    def upgrades(self) -> bool:
        """Whether the message that seems to be complete is one whose body follows."""
        return bool(self._parser.should_upgrade())

    def _use(self, parser: Any) -> None:
        self._parser = parser
        self.get_method = parser.get_method
        self.get_http_version = parser.get_http_version
        self.should_keep_alive = parser.should_keep_alive

    def _read_on(self) -> None:
        """Leaves the rest to a new parser, which is told only how long the body is."""
        lengths = (b"content-length", b"transfer-encoding")
        lines = [name + b": " + value + b"\r\n" for name, value in self._protocol.headers if name in lengths]
        after = _AfterHead(self._protocol)
        self._use(self._httptools.HttpRequestParser(after))
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        after.quiet = False


class _AfterHead:
    """Tells a protocol what a parser finds, except for a request's head while it is `quiet`."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self.quiet = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self.quiet:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.quiet:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.quiet:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.quiet:
            self._protocol.on_headers_complete()


def http_protocol() -> Any:
    """For uvicorn's `http`: the class to run, or the name of one of its own."""
    if not importlib.util.find_spec("httptools"):
        return "h11"
    import httptools  # noqa: PLC0415
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415

    class Protocol(HttpToolsProtocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.parser: Any = _Parser(self, self.parser, httptools)

        def on_message_complete(self) -> None:
            if not self.parser.upgrades():
                super().on_message_complete()

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(_HeadWithBody(transport, self.loop))

    return Protocol
