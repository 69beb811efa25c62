"""Vertex AI's prediction protocol: many requests in one, each for the route that it names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llamaserve.options import OptionError, ServerSettings, VertexSettings, parse
from llamaserve.server.app import create_app
from llamaserve.server.errors import ConfigurationError
from llamaserve.server.state import ServerState

from tests.server.conftest import App

CHAT = {"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "Hi"}]}


def vertex(**settings: Any) -> App:
    return App(vertex=VertexSettings(), **settings)


def predict(app: App, *instances: Any) -> list[Any]:
    response = app.post("/predict", {"instances": instances})
    assert response.status_code == 200, response.text
    predictions = response.json()["predictions"]
    assert isinstance(predictions, list)
    return predictions


def test_environment() -> None:
    assert parse([], {"AIP_HTTP_PORT": "9"}).server.vertex is None
    server = parse(["--port", "1"], {"AIP_MODE": "PREDICTION"}).server
    assert (server.vertex, server.port) == (VertexSettings("/predict", "", 8080), 8080)
    environ = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "9", "AIP_PREDICT_ROUTE": "p/q", "AIP_HEALTH_ROUTE": "/h"}
    server = parse([], environ).server
    assert (server.vertex, server.port) == (VertexSettings("/p/q", "/h", 9), 9)
    with pytest.raises(OptionError, match="AIP_HTTP_PORT"):
        parse([], {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "many"})


def test_each_instance_goes_to_its_route() -> None:
    app = vertex()
    chat, raw, text, tokens, health = predict(
        app,
        CHAT | {"stream": True},
        {"@requestFormat": "/completion", "prompt": "a", "n_predict": 1},
        {"@requestFormat": "completions", "prompt": "a", "n": 2},
        {"@requestFormat": "tokenize", "content": "A"},
        {"@requestFormat": "health"},
    )
    assert chat["object"] == "chat.completion"
    assert raw["content"] == " one"
    assert text["object"] == "text_completion"
    assert len(text["choices"]) == 2
    assert tokens == {"tokens": [65]}
    assert health == {"status": "ok"}
    assert predict(app) == []


def test_errors_are_among_the_answers() -> None:
    answers = predict(
        vertex(),
        "x",
        {},
        {"@requestFormat": 1},
        {"@requestFormat": "nope"},
        {"@requestFormat": "predict", "instances": []},
        CHAT | {"messages": 1},
        CHAT,
    )
    assert [answer["error"]["code"] for answer in answers[:-1]] == [400] * 6
    assert "no route" in answers[3]["error"]["message"]
    assert answers[-1]["choices"]


@pytest.mark.parametrize("body", [{}, [], {"instances": {}}, {"instances": [{}] * 129}])
def test_wrong_bodies(body: Any) -> None:
    response = vertex().post("/predict", body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_text_answers() -> None:
    (answer,) = predict(vertex(metrics=True), {"@requestFormat": "metrics"})
    assert answer.startswith("# HELP llamacpp:")


def test_keys_prefix_and_health() -> None:
    settings = VertexSettings("/p", "/alive")
    app = App(vertex=settings, api_keys=["k"], api_prefix="/api")
    assert app.get("/api/alive").json() == {"status": "ok"}
    assert app.post("/api/p", {"instances": []}).status_code == 401
    response = app.post("/api/p", {"instances": [CHAT]}, headers={"x-api-key": "k"})
    assert response.json()["predictions"][0]["choices"]
    assert App().post("/predict", {"instances": []}).status_code == 404


@pytest.mark.parametrize("settings", [VertexSettings("/completion"), VertexSettings("/p", "/metrics")])
def test_a_route_that_is_taken(settings: VertexSettings) -> None:
    with pytest.raises(ConfigurationError, match="has a route of that name"):
        create_app(ServerState(ServerSettings(vertex=settings), "m"))


def test_a_client_that_leaves() -> None:
    """It cancels what it asked for."""
    app = vertex()
    app.engine.hang = True
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        body = b'{"instances": [{"@requestFormat": "/completion", "prompt": "a"}]}'
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            while not app.engine.streams:  # noqa: ASYNC110
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        headers = [(b"content-length", str(len(body)).encode())]
        scope = {"type": "http", "method": "POST", "path": "/predict", "headers": headers, "query_string": b""}
        await asyncio.wait_for(app.asgi(scope | {"root_path": ""}, receive, send), 10)  # type: ignore[arg-type]

    asyncio.run(call())
    assert app.engine.streams[0].closed
    assert sent == []
