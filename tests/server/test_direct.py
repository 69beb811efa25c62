"""The short way to the busiest routes answers as Litestar's way does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.server.conftest import App

BODIES: list[tuple[str, bytes]] = [
    ("/completion", b'{"prompt": "a", "n_predict": 2}'),
    ("/completions", b'{"prompt": ["a", "b"], "n_predict": 2}'),
    ("/v1/completions", b'{"prompt": "a", "max_tokens": 2}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}'),
    ("/chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}'),
    ("/completion", b'{"prompt": 1.5}'),
    ("/completion", b'{"prompt": "a", "n_predict": "many"}'),
    ("/completion", b"{"),
    ("/completion", b""),
    ("/v1/chat/completions", b"[]"),
]


def answer(app: App, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    response = app.request("POST", path, content=body, headers=headers)
    found = response.json()
    for part in found if isinstance(found, list) else [found]:
        for name in ("created", "id", "timings", "generation_settings"):
            part.pop(name, None)
    return response.status_code, found


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_both_ways_answer_alike(path: str, body: bytes) -> None:
    # The priority header takes Litestar's way.
    assert answer(App(), path, body, {}) == answer(App(), path, body, {"x-priority": "0"})


def test_behind_a_prefix() -> None:
    app = App(api_prefix="/api")
    assert app.post("/api/completion", {"prompt": "a"}).status_code == 200
    assert app.post("/completion", {"prompt": "a"}).status_code == 404


def test_needs_a_key() -> None:
    app = App(api_keys=["secret"])
    assert app.post("/completion", {"prompt": "a"}).status_code == 401
    assert app.post("/completion", {"prompt": "a"}, headers={"Authorization": "Bearer secret"}).status_code == 200


def call(app: App, messages: list[dict[str, Any]], length: int) -> list[Any]:
    """The app called with these messages from the client; gives what it sent."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/completion",
        "raw_path": b"/completion",
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"content-length", str(length).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app.asgi(scope, receive, send))  # type: ignore[arg-type]
    return sent


def test_body_in_pieces() -> None:
    body = b'{"prompt": "a", "n_predict": 2}'
    pieces = [{"type": "http.request", "body": body[i : i + 5], "more_body": True} for i in range(0, len(body), 5)]
    sent = call(App(), [*pieces, {"type": "http.request", "body": b"", "more_body": False}], len(body))
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"])["stop"] is True


def test_client_that_leaves_before_its_body_is_here() -> None:
    app = App()
    body = {"type": "http.request", "body": b'{"prompt"', "more_body": True}
    assert call(app, [body, {"type": "http.disconnect"}], 100) == []
