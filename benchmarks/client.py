"""A small HTTP client that costs little and notes when every piece of an answer came."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """One completion, as the client saw it. Times are seconds of the monotonic clock."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    """When each token came. Tokens that came in one piece have the same time."""
    final: dict[str, Any] = field(default_factory=dict)
    """The last event."""

    @property
    def first_token(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.arrivals[0] - self.sent

    @property
    def end(self) -> float:
        return self.arrivals[-1]

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def _send(self, path: str, body: dict[str, Any]) -> asyncio.StreamReader:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self.writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(payload) + payload)
        assert self.reader is not None
        return self.reader

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        status = lines[0].split(" ", 2)[1]
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        if status != "200":
            text = await reader.read(int(headers.get("content-length", "0")) or 2000)
            raise RuntimeError(f"{status}: {text.decode(errors='replace')}")
        return headers

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Sends a request whose answer comes in one piece; gives its JSON."""
        try:
            reader = await self._send(path, body)
            headers = await self._head(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            # llama-server closes a connection after a number of requests.
            self.close()
            reader = await self._send(path, body)
            headers = await self._head(reader)
        if "content-length" in headers:
            return json.loads(await reader.readexactly(int(headers["content-length"])))
        return json.loads(b"".join([chunk async for chunk in self._chunks(reader)]))

    async def complete(self, **body: Any) -> Answer:
        """Streams a completion from /completion."""
        answer = Answer(time.monotonic())
        reader = await self._send("/completion", {"stream": True, **body})
        await self._head(reader)
        rest = b""
        async for chunk in self._chunks(reader):
            now = time.monotonic()
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                if not event.startswith(b"data: ") or event == b"data: [DONE]":
                    continue
                # Both servers put the number of tokens into every event; the JSON is read only where it is needed.
                if b'"stop":true' in event:
                    answer.final = json.loads(event[6:])
                    tokens = answer.final["tokens_predicted"] - len(answer.arrivals)
                else:
                    tokens = max(0, json.loads(event[6:])["tokens_predicted"] - len(answer.arrivals))
                answer.arrivals += [now] * tokens
        return answer

    @staticmethod
    async def _chunks(reader: asyncio.StreamReader) -> Any:
        while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


async def complete_all(port: int, bodies: list[dict[str, Any]]) -> list[Answer]:
    """All at once, each over its own connection."""
    connections = [Connection(port) for _ in bodies]
    try:
        return list(await asyncio.gather(*(c.complete(**b) for c, b in zip(connections, bodies, strict=True))))
    finally:
        for connection in connections:
            connection.close()
