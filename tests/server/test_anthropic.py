"""Anthropic's messages API: what a request means for the engine, bodies, events and their order, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamaserve.errors import RequestError
from llamaserve.server.anthropic_request import chat_of
from llamaserve.server.anthropic_schema import MessagesRequest
from llamaserve.server.body import decode
from llamaserve.server.chat_request import ChatRequest

from tests.server import fake_engine
from tests.server.conftest import App, parse_named_events
from tests.server.test_errors import json_values

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def chat(messages: Any = MESSAGES, **fields: Any) -> ChatRequest:
    return chat_of(decode(json.dumps({"messages": messages, **fields}).encode(), MessagesRequest))


def events(app: App, **fields: Any) -> list[tuple[str, Any]]:
    response = app.post("/v1/messages", {"messages": MESSAGES, "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    out = parse_named_events(response.text)
    assert all(name == data["type"] for name, data in out)
    return out


# -- bodies and events --


def test_message(app: App) -> None:
    body = app.post("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}).json()
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "content": [{"type": "text", "text": " one two"}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 2,
        },
    }
    (prompt, params, _) = app.engine.submitted[0]
    assert prompt == "<user>hi"
    assert params.n_predict == 2


def test_events_in_their_order(app: App) -> None:
    start, *rest = events(app, max_tokens=2)
    message = start[1]["message"]
    assert start[0] == "message_start"
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"]["input_tokens"] == 7
    assert message["usage"]["output_tokens"] == 0
    usage = {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 2}
    delta = {"type": "content_block_delta", "index": 0}
    assert [data for _, data in rest] == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {**delta, "delta": {"type": "text_delta", "text": " one"}},
        {**delta, "delta": {"type": "text_delta", "text": " two"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def test_text_in_events_is_escaped(app: App) -> None:
    app.state.model_name = 'odd"text":""'
    got = events(app)
    texts = [d["delta"]["text"] for name, d in got if name == "content_block_delta"]
    assert "".join(texts) == ' one two three\n foür "five"'


def test_tool_calls(app: App) -> None:
    app.engine.plain = False
    body = app.post("/v1/messages", {"messages": MESSAGES, "tools": [TOOL]}).json()
    assert body["content"][1] == {"type": "tool_use", "id": "id1", "name": "f", "input": {}}
    got = [data for name, data in events(app, tools=[TOOL]) if name != "ping"]
    assert got[-6:-2] == [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "id1", "name": "f", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": "{}"},
        },
        {"type": "content_block_stop", "index": 1},
    ]


def test_thinking(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_engine, "FakeParser", fake_engine.ThinkingParser)
    app.engine.plain = False
    body = app.post("/v1/messages", {"messages": MESSAGES}).json()
    assert body["content"] == [
        {"type": "thinking", "thinking": " one", "signature": ""},
        {"type": "text", "text": ' two three\n foür "five"'},
    ]
    got = [data for _, data in events(app)]
    assert got[1:6] == [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": " one"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": ""}},
        {"type": "content_block_stop", "index": 0},
    ]
    assert got[6]["index"] == 1


def test_stop_reasons(app: App) -> None:
    def reason(**stop: Any) -> tuple[str, Any]:
        app.engine.finish_fields = stop
        body = {"messages": MESSAGES, "stop_sequences": ["END"]}
        whole = app.post("/v1/messages", body).json()
        last = next(d for name, d in events(app, **body) if name == "message_delta")["delta"]
        assert last == {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
        return whole["stop_reason"], whole["stop_sequence"]

    assert reason(stop_type="eos") == ("end_turn", None)
    assert reason(stop_type="limit") == ("max_tokens", None)
    assert reason(stop_type="word", stopping_word="END") == ("stop_sequence", "END")
    assert reason(stop_type="word", stopping_word="<end>") == ("end_turn", None)
    app.engine.plain = False
    assert reason(stop_type="eos") == ("tool_use", None)
    (_, params, _) = app.engine.submitted[0]
    assert params.stop == ["END", "<end>"]


def test_count_tokens(app: App) -> None:
    assert app.post("/v1/messages/count_tokens", {"messages": MESSAGES}).json() == {"input_tokens": 9}
    assert app.engine.submitted == []


# -- what a request means --


def test_system_prompts() -> None:
    assert chat(system="be brief").messages[0] == {"role": "system", "content": "be brief"}
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert chat(system=blocks).messages[0] == {"role": "system", "content": "ab"}
    assert chat().messages == MESSAGES


def test_a_stamp_that_changes_does_not_change_the_prompt() -> None:
    def system(stamp: str) -> Any:
        header = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={stamp};"
        return chat(system=[{"type": "text", "text": header}, {"type": "text", "text": "You are"}]).messages[0]

    assert system("a5145") == system("00b1f")
    assert chat(system="cch=a5145;").messages[0]["content"] == "cch=a5145;"


def test_a_conversation_with_tools() -> None:
    request = chat([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "redacted_thinking", "data": "zzz"},
            {"type": "text", "text": "ok"},
            CALL,
            {**CALL, "id": "c2", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "text", "text": "here"},
            {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
            {"type": "tool_result", "tool_use_id": "c2", "is_error": True,
             "content": [{"type": "text", "text": "no "}, {"type": "text", "text": "file"}]},
        ]},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]},
    ])  # fmt: skip
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    other = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert request.messages == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": "no file"},
        {"role": "user", "content": "here"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ]


def test_tools_and_choices() -> None:
    request = chat(tools=[TOOL, {"name": "g", "type": "custom"}], tool_choice={"type": "auto"})
    assert request.tools == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "g", "description": "", "parameters": {}}},
    ]
    assert request.tool_choice == "auto"
    assert chat(tools=[TOOL], tool_choice={"type": "any"}).tool_choice == "required"
    assert chat(tools=[TOOL], tool_choice={"type": "none"}).tool_choice == "none"
    named = chat(tools=[TOOL], tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True})
    assert named.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert named.parallel_tool_calls is False


def test_thinking_and_limits() -> None:
    assert chat().n_predict == 4096
    assert chat(max_tokens=0).n_predict == 0
    assert chat().thinking_budget_tokens is None
    assert chat(thinking={"type": "enabled", "budget_tokens": 50}).thinking_budget_tokens == 50
    assert chat(thinking={"type": "enabled"}).thinking_budget_tokens == 10000
    assert chat(thinking={"type": "disabled"}).reasoning_effort == "none"
    assert chat(thinking={"type": "adaptive"}, output_config={"effort": "high"}).reasoning_effort == "high"


def test_sampling_fields_and_schemas() -> None:
    request = chat(
        temperature=0.5, top_p=0.9, top_k=3, seed=1, metadata={"user_id": "x"}, model="any", service_tier="auto",
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )  # fmt: skip
    assert (request.temperature, request.top_p, request.top_k, request.seed) == (0.5, 0.9, 3, 1)
    assert request.json_schema == {"type": "object"}


# -- errors --


@pytest.fixture(scope="module")
def shared_app() -> App:
    """For what leaves no traces."""
    return App()


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, "'messages' is required"),
        ({"messages": 1}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, "messages[0].content[0].type"),
        ({"messages": [*MESSAGES, {"role": "user", "content": [CALL]}]}, "messages[1].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"messages": [{"role": "assistant", "content": [{**CALL, "input": "x"}]}]}, "messages[0].content[0].input"),
        ({"messages": MESSAGES, "system": 1}, "system"),
        ({"messages": MESSAGES, "max_tokens": "x"}, "max_tokens"),
        ({"messages": MESSAGES, "stop_sequences": "x"}, "stop_sequences"),
        ({"messages": MESSAGES, "thinking": {"type": "deep"}}, "thinking.type"),
        ({"messages": MESSAGES, "thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking.budget_tokens"),
        ({"messages": MESSAGES, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"messages": MESSAGES, "tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"messages": MESSAGES, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "h"}}, "'h'"),
        ({"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"messages": MESSAGES, "tools": [{"name": "s", "type": "web_search_20250305"}]}, "tools[0].type"),
        ({"messages": MESSAGES, "tools": [{}]}, "tools[0]"),
        ({"messages": MESSAGES, "n": 2}, "'n'"),
        ({"messages": MESSAGES, "output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ],
)
def test_what_is_wrong_is_named(shared_app: App, fields: dict[str, Any], where: str) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = shared_app.post(path, fields)
        assert response.status_code == 400
        body = response.json()
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert where in body["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [[IMAGE], [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "x"}, IMAGE]}]],
)
def test_images(app: App, content: Any) -> None:
    messages = [{"role": "assistant", "content": [CALL]}, {"role": "user", "content": content}]
    response = app.post("/v1/messages", {"messages": messages})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "api_error"
    assert "image input is not supported" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError("no", "invalid_request"), 400, "invalid_request_error"),
        (RequestError("no", "unavailable"), 503, "overloaded_error"),
        (RequestError("no", "internal"), 500, "api_error"),
        (KeyError("secret"), 500, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_says(app: App, error: Any, status: int, kind: str, stream: bool) -> None:
    app.engine.refuse = error
    response = app.post("/v1/messages", {"messages": MESSAGES, "stream": stream})
    assert response.status_code == status
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert "secret" not in response.text


def test_a_prompt_that_is_too_long(app: App) -> None:
    app.engine.refuse = RequestError("too long", "context_size", n_prompt_tokens=500, n_ctx=256)
    body = app.post("/v1/messages", {"messages": MESSAGES}).json()
    assert body["error"]["message"] == "prompt is too long: 500 tokens > 256 maximum"
    assert (body["error"]["n_prompt_tokens"], body["error"]["n_ctx"]) == (500, 256)


def test_an_error_within_a_stream_is_an_event(app: App) -> None:
    app.engine.fail_after = 3
    got = events(app)
    assert got[-1] == (
        "error",
        {"type": "error", "error": {"type": "api_error", "message": "it broke", "code": 500}},
    )
    assert app.engine.streams[0].closed


def test_before_the_model_is_there_and_beside_the_routes() -> None:
    app = App(api_keys=["k"])
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        body = app.post(path, {"messages": MESSAGES}).json()
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
    headers = {"x-api-key": "k"}
    assert app.post("/v1/messages", {"messages": MESSAGES}, headers=headers).status_code == 200
    for method, path, status, kind in (
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
    ):
        response = app.request(method, path, headers=headers)
        assert response.status_code == status
        assert (response.json()["type"], response.json()["error"]["type"]) == ("error", kind)
    app.state.engine = None
    response = app.post("/v1/messages", {"messages": MESSAGES}, headers=headers)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json()["error"]["type"] == "overloaded_error"


BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "other"])},
    optional={
        name: json_values | st.just("c1") | st.just({})
        for name in ("text", "thinking", "data", "id", "name", "input", "tool_use_id", "content", "is_error")
    },
)
HOSTILE = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.lists(BLOCKS, max_size=4) | st.text()}
    ),
    max_size=4,
)


@settings(max_examples=100, deadline=None)
@given(messages=HOSTILE, stream=st.booleans())
def test_any_messages_get_an_answer(shared_app: App, messages: Any, stream: bool) -> None:
    response = shared_app.post("/v1/messages", {"messages": messages, "stream": stream})
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["type"] == "invalid_request_error"
