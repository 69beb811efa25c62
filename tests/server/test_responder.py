"""Streams on the wire: what is sent when, pings, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from llamaserve.server import responder

from tests.server.conftest import App


class Connection:
    """An ASGI connection that records what is sent, and can go away."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
        }
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [m["body"] for m in self.sent if m["type"] == "http.response.body"]


def call(app: App, connection: Connection) -> asyncio.Task[None]:
    return asyncio.ensure_future(app.asgi(connection.scope, connection.receive, connection.send))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_while_it_waits(app: App, path: str, stream: bool, n: int) -> None:
    async def main() -> None:
        app.engine.hang = True
        body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "stream": stream, "n": n}
        connection = Connection(path, body)
        task = call(app, connection)
        await asyncio.sleep(0.1)
        assert len(app.engine.streams) == n
        assert not task.done()
        connection.gone.set()
        await asyncio.wait_for(task, 1)
        assert all(s.closed for s in app.engine.streams)
        assert connection.sent == []
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_client_that_leaves_a_stream(app: App) -> None:
    async def main() -> None:
        connection = Connection("/completion", {"prompt": "x", "stream": True})
        send = connection.send

        async def leave_after_three(message: Any) -> None:
            await send(message)
            if len(connection.sent) == 3:
                connection.gone.set()
                await asyncio.sleep(1)

        connection.send = leave_after_three  # type: ignore[method-assign]
        await asyncio.wait_for(call(app, connection), 0.5)
        assert app.engine.streams[0].closed
        assert len(connection.sent) == 3

    asyncio.run(main())


def test_what_is_there_goes_out_in_one_piece(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.server.fake_engine import FakeStream  # noqa: PLC0415

    async def all_at_once(self: FakeStream) -> Any:
        chunks, self._chunks = self._chunks, []
        return chunks

    monkeypatch.setattr(FakeStream, "chunks", all_at_once)

    async def main() -> None:
        connection = Connection("/v1/completions", {"prompt": "x", "stream": True})
        await call(app, connection)
        _, events, end = connection.bodies
        assert events.count(b"data: ") == 6
        assert end == b"data: [DONE]\n\n"

    asyncio.run(main())


def test_headers_come_before_the_first_token(app: App) -> None:
    async def main() -> None:
        connection = Connection("/v1/completions", {"prompt": "x", "stream": True})
        await call(app, connection)
        start, first = connection.sent[:2]
        assert start["status"] == 200
        assert dict(start["headers"])[b"x-accel-buffering"] == b"no"
        assert first["body"] == b""

    asyncio.run(main())


def test_pings(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.server.fake_engine import FakeStream  # noqa: PLC0415

    chunks = FakeStream.chunks

    async def slow(self: FakeStream) -> Any:
        if self._at == 2:
            await asyncio.sleep(2.5)
        return await chunks(self)

    monkeypatch.setattr(FakeStream, "chunks", slow)

    async def main() -> None:
        on = Connection("/completion", {"prompt": "x", "stream": True, "sse_ping_interval": 1})
        off = Connection("/completion", {"prompt": "x", "stream": True, "sse_ping_interval": -1})
        await asyncio.gather(call(app, on), call(app, off))
        assert on.bodies.count(responder.PING) == 2
        assert off.bodies.count(responder.PING) == 0
        assert [b for b in on.bodies if b != responder.PING] == off.bodies

    asyncio.run(main())
