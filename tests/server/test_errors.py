"""Everything that can be wrong with a request ends in the error format, never in a 500 or a dead server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamaserve.errors import EngineClosedError, RequestError
from llamaserve.params import CompletionParams

from tests.server.conftest import App

DEEP = b"[" * 100_000
ROUTES = [
    "/completion",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/tokenize",
    "/detokenize",
    "/apply-template",
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"prompt": "\xff", "messages": "\xff", "content": "\xff", "tokens": "\xff"}',
        b'{"prompt": "\\ud800", "messages": "\\ud800", "content": "\\ud800", "tokens": "\\ud800"}',
        b'{"x": ' + DEEP,
        b'{"prompt": ' + DEEP + b"]" * len(DEEP) + b"}",
        b'{"messages": [' + b'{"content": ' * 5000 + b"1" + b"}" * 5000 + b"]}",
        b'{"prompt": NaN, "messages": NaN, "content": NaN, "tokens": NaN}',
        b'{"prompt": "x", "seed": 1' + b"0" * 10_000 + b', "messages": 1, "content": 1, "tokens": 1}',
    ],
)
def test_broken_bodies(app: App, path: str, body: bytes) -> None:
    response = app.request("POST", path, content=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == 400
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_predict", "x"),
        ("n_predict", -2),
        ("n_predict", 2**31),
        ("n_predict", 1.5),
        ("temperature", "hot"),
        ("temperature", True),
        ("seed", -2),
        ("stop", 1),
        ("stop", [1]),
        ("n", 0),
        ("n", 10**9),
        ("repeat_last_n", -1),
        ("stream", "yes"),
        ("samplers", 3),
        ("sse_ping_interval", -2),
        ("stream_options", []),
        ("response_fields", "content"),
    ],
)
def test_wrong_values_are_named(app: App, field: str, value: Any) -> None:
    response = app.post("/completion", {"prompt": "x", field: value})
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]


def test_numbers_are_read_as_llama_server_reads_them(app: App) -> None:
    body = {"prompt": "x", "n_predict": 2.0, "temperature": 1, "top_k": -5, "top_p": 3}
    assert app.post("/completion", body).status_code == 200


def test_too_deep_for_templates(app: App) -> None:
    deep: Any = "x"
    for _ in range(300):
        deep = {"a": deep}
    for field in ({"tools": [deep]}, {"json_schema": deep}, {"chat_template_kwargs": deep}):
        response = app.post("/v1/chat/completions", {"messages": [], **field})
        assert response.status_code == 400
        assert "too deeply" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("no", "invalid_request"), 400, "invalid_request_error"),
        (RequestError("no", "unavailable"), 503, "unavailable_error"),
        (RequestError("no", "not_supported"), 501, "not_supported_error"),
        (RequestError("no", "internal"), 500, "server_error"),
        (EngineClosedError("no"), 503, "unavailable_error"),
        (KeyError("secret"), 500, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_says(app: App, error: Any, status: int, kind: str, stream: bool) -> None:
    app.engine.refuse = error
    response = app.post("/completion", {"prompt": "x", "stream": stream})
    assert response.status_code == status
    body = response.json()["error"]
    assert (body["code"], body["type"]) == (status, kind)
    assert "secret" not in body["message"]
    assert ("retry-after" in response.headers) == (status == 503)


def test_context_size(app: App) -> None:
    app.engine.refuse = RequestError("too long", "context_size", n_prompt_tokens=500, n_ctx=256)
    response = app.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True})
    assert response.status_code == 400
    assert response.json() == {
        "error": {
            "code": 400,
            "message": "too long",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 500,
            "n_ctx": 256,
        }
    }


def test_an_error_within_a_stream_is_an_event(app: App) -> None:
    app.engine.fail_after = 2
    events = app.events("/v1/completions", {"prompt": "x"})
    assert events[0]["choices"][0]["text"] == " one"
    assert events[-1] == {"error": {"code": 500, "message": "it broke", "type": "server_error"}}
    assert app.engine.streams[0].closed


def test_one_failing_choice_ends_all(app: App) -> None:
    app.engine.fail_after = 2
    assert app.post("/v1/completions", {"prompt": "x", "n": 2}).status_code == 500
    assert all(stream.closed for stream in app.engine.streams)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(sorted({
    *CompletionParams.__struct_fields__,
    "prompt", "messages", "tools", "tool_choice", "response_format", "stream", "stream_options", "n", "logprobs",
    "top_logprobs", "max_tokens", "lora", "response_fields", "content", "tokens", "chat_template_kwargs", "verbose",
    "continue_final_message", "reasoning_format", "with_pieces", "add_special", "echo", "input", "system", "thinking",
    "stop_sequences", "output_config", "instructions", "text", "reasoning", "max_output_tokens", "metadata",
}))  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(ROUTES), fields=st.dictionaries(field_names, json_values, max_size=4), valid=st.booleans())
def test_any_json_gets_an_answer(path: str, fields: dict[str, Any], valid: bool) -> None:
    good = {"prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}], "content": "x", "tokens": [1]}
    response = App().post(path, {**good, **fields} if valid else fields)
    assert response.status_code in (200, 400, 501), response.text
    if response.status_code != 200:
        assert json.loads(response.text)["error"]["code"] == response.status_code
