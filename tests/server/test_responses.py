"""OpenAI's responses API: what a request means for the engine, bodies, events and their order, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamaserve.errors import RequestError
from llamaserve.server.body import decode
from llamaserve.server.chat_request import ChatRequest
from llamaserve.server.responses_request import chat_of
from llamaserve.server.responses_schema import ResponsesRequest

from tests.server import fake_engine
from tests.server.conftest import App, parse_named_events
from tests.server.test_errors import json_values

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}


def chat(given: Any = "hi", **fields: Any) -> ChatRequest:
    return chat_of(decode(json.dumps({"input": given, **fields}).encode(), ResponsesRequest))


def events(app: App, **fields: Any) -> list[Any]:
    response = app.post("/v1/responses", {"input": "hi", "stream": True, **fields})
    assert response.status_code == 200, response.text
    out = parse_named_events(response.text)
    assert all(name == data["type"] for name, data in out)
    assert [data["sequence_number"] for _, data in out] == list(range(len(out)))
    return [data for _, data in out]


@pytest.fixture(scope="module")
def shared_app() -> App:
    """For what leaves no traces."""
    return App()


# -- bodies and events --


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
def test_response(app: App, path: str) -> None:
    body = app.post(path, {"input": "hi", "instructions": "be brief", "metadata": {"a": "b"}}).json()
    assert body["id"].startswith("resp_")
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", "fake-model")
    assert body["completed_at"] >= body["created_at"]
    (item,) = body["output"]
    assert item.pop("id").startswith("msg_")
    text = ' one two three\n foür "five"'
    assert item == {
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
    }
    assert body["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }
    assert (body["instructions"], body["metadata"], body["store"]) == ("be brief", {"a": "b"}, False)
    assert (body["tool_choice"], body["tools"], body["text"]) == ("auto", [], {"format": {"type": "text"}})
    (prompt, _, _) = app.engine.submitted[0]
    assert prompt == "<system>be brief<user>hi"


def test_events_in_their_order(app: App) -> None:
    got = events(app, max_output_tokens=2)
    assert [e["type"].removeprefix("response.") for e in got] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    created, in_progress, added, part, *deltas, done, part_done, item_done, completed = got
    assert created["response"]["status"] == in_progress["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
    item_id = added["item"]["id"]
    assert item_id.startswith("msg_")
    assert added["item"]["content"] == []
    place = {"item_id": item_id, "output_index": 0, "content_index": 0}
    for event in (part, *deltas, done, part_done):
        assert place.items() <= event.items()
    assert [e["delta"] for e in deltas] == [" one", " two"]
    assert done["text"] == part_done["part"]["text"] == item_done["item"]["content"][0]["text"] == " one two"
    response = completed["response"]
    assert response["id"] == created["response"]["id"]
    assert response["output"] == [item_done["item"]]
    # A limit was reached. The event is the one that llama-server's clients wait for.
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert completed["timings"]["predicted_n"] == 5


def test_text_in_events_is_escaped(app: App) -> None:
    app.state.model_name = 'odd"delta":"" "sequence_number":0'
    deltas = [e["delta"] for e in events(app) if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == ' one two three\n foür "five"'


def test_tool_calls(app: App) -> None:
    app.engine.plain = False
    body = app.post("/v1/responses", {"input": "hi", "tools": [TOOL]}).json()
    assert body["tools"] == [TOOL]
    call = body["output"][1]
    assert call.pop("id").startswith("fc_")
    assert call == {
        "type": "function_call",
        "status": "completed",
        "call_id": "call_id1",
        "name": "f",
        "arguments": "{}",
    }
    *_, message_done, added, delta, done, item_done, completed = events(app, tools=[TOOL])
    assert message_done["type"] == "response.output_item.done"
    assert (added["type"], added["output_index"]) == ("response.output_item.added", 1)
    assert (added["item"]["name"], added["item"]["arguments"]) == ("f", "")
    assert (delta["type"], delta["delta"]) == ("response.function_call_arguments.delta", "{}")
    assert (done["type"], done["arguments"]) == ("response.function_call_arguments.done", "{}")
    assert {delta["item_id"], done["item_id"]} == {added["item"]["id"]}
    assert item_done["item"] == {**added["item"], "status": "completed", "arguments": "{}"}
    assert completed["response"]["output"][1] == item_done["item"]


def test_thoughts(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_engine, "FakeParser", fake_engine.ThinkingParser)
    app.engine.plain = False
    body = app.post("/v1/responses", {"input": "hi"}).json()
    thoughts = body["output"][0]
    assert thoughts.pop("id").startswith("rs_")
    assert thoughts == {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": " one"}],
        "encrypted_content": "",
    }
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == 4
    got = events(app)
    assert [e["type"].removeprefix("response.") for e in got[2:9]] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
    ]
    assert got[4]["delta"] == got[5]["text"] == " one"
    assert got[8]["output_index"] == 1


def test_progress_and_timings(app: App) -> None:
    got = events(app, return_progress=True, timings_per_token=True, max_output_tokens=1)
    progress = [e for e in got if "prompt_progress" in e]
    assert [e["type"] for e in progress] == ["response.in_progress"]
    assert progress[0]["prompt_progress"]["processed"] == 7
    (delta,) = (e for e in got if e["type"] == "response.output_text.delta")
    assert delta["timings"]["prompt_n"] == 4
    plain = events(app, max_output_tokens=1)
    assert not any("timings" in e for e in plain[:-1])


def test_count_tokens(app: App) -> None:
    for path in ("/v1/responses/input_tokens", "/responses/input_tokens"):
        assert app.post(path, {"input": "hi"}).json() == {"input_tokens": 9, "object": "response.input_tokens"}


# -- what a request means --


def test_a_conversation_with_tools() -> None:
    answer = {"type": "output_text", "text": "ok", "annotations": []}
    request = chat([
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [answer]},
        CALL,
        {**CALL, "call_id": "own"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "own", "output": [{"type": "input_text", "text": "no"}]},
        {"role": "assistant", "content": "It is"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "secret"}]},
    ])  # fmt: skip
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert request.messages == [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [call, {**call, "id": "own"}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "own", "content": "no"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is"}, {"type": "text", "text": "secret"}]},
    ]


def test_what_an_answer_holds_can_be_sent_back(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.engine.plain = False
    output = app.post("/v1/responses", {"input": "hi", "tools": [TOOL]}).json()["output"]
    result = {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "4"}
    (message, tool) = chat([*output, result]).messages
    assert message["tool_calls"][0]["id"] == tool["tool_call_id"] == "id1"
    monkeypatch.setattr(fake_engine, "FakeParser", fake_engine.ThinkingParser)
    output = app.post("/v1/responses", {"input": "hi"}).json()["output"]
    assert chat(output).messages[0]["reasoning_content"] == " one"


def test_tools_and_choices() -> None:
    other = {"type": "function", "name": "g", "strict": None}
    request = chat(tools=[TOOL, {"type": "web_search"}, other])
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert request.tools == [
        {"type": "function", "function": function},
        {"type": "function", "function": {"name": "g", "parameters": {}}},
    ]
    assert chat(tools=[TOOL], tool_choice="required").tool_choice == "required"
    named = chat(tools=[TOOL, other], tool_choice={"type": "function", "name": "g"})
    assert named.tool_choice == {"type": "function", "function": {"name": "g"}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    some = chat(tools=[TOOL, other], tool_choice=allowed)
    assert some.tools == request.tools[:1]
    assert some.tool_choice == "required"


def test_formats_limits_and_effort() -> None:
    schema = {"type": "object"}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}, "verbosity": "low"}
    assert chat(text=text).response_format == {"type": "json_schema", "json_schema": {"schema": schema}}
    assert chat(text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}
    assert chat(text={"format": {"type": "text"}}).response_format is None
    assert chat(max_output_tokens=3).n_predict == 3
    assert chat(reasoning={"effort": "low", "summary": "auto"}).reasoning_effort == "low"
    request = chat(temperature=0.5, top_p=0.9, seed=1, store=True, truncation="auto", include=[], user="x")
    assert (request.temperature, request.top_p, request.seed) == (0.5, 0.9, 1)


# -- errors --


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, "'input' is required"),
        ({"input": 1}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "sound"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{**CALL, "name": None}]}, "input[0].name"),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[1].call_id"),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "call_1"}]}, "input[1].output"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ({"input": "x", "max_output_tokens": "x"}, "max_output_tokens"),
        ({"input": "x", "n": 2}, "'n'"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice"),
        ({"input": "x", "tool_choice": "sometimes"}, "tool_choice"),
        ({"input": "x", "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"input": "x", "tool_choice": {"type": "allowed_tools", "tools": [1]}}, "tool_choice.tools"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "h"}}, "'h'"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "x", "reasoning": {"effort": 1}}, "reasoning.effort"),
    ],
)
def test_what_is_wrong_is_named(shared_app: App, fields: dict[str, Any], where: str) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        response = shared_app.post(path, fields)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["code"], error["type"]) == (400, "invalid_request_error")
        assert where in error["message"]


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_images_and_files(shared_app: App, kind: str) -> None:
    given = [{"role": "user", "content": [{"type": kind, "image_url": "data:image/png;base64,AAAA"}]}]
    response = shared_app.post("/v1/responses", {"input": given})
    assert response.status_code == 501
    assert "input[0].content[0]" in response.json()["error"]["message"]


def test_an_error_before_a_stream_is_a_response(app: App) -> None:
    app.engine.refuse = RequestError("no", "unavailable")
    response = app.post("/v1/responses", {"input": "hi", "stream": True})
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "unavailable_error"


def test_an_error_within_a_stream_fails_the_response(app: App) -> None:
    app.engine.fail_after = 3
    failed = events(app)[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "it broke"}
    (item,) = failed["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", " one two")
    assert app.engine.streams[0].closed


ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from([None, "message", "function_call", "function_call_output", "reasoning", "other"])},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "developer", "x"]),
        **{
            name: json_values | st.just("c1") | st.just([{"type": "output_text", "text": "x"}])
            for name in ("content", "call_id", "name", "arguments", "output", "summary")
        },
    },
)


@settings(max_examples=100, deadline=None)
@given(
    given=st.lists(ITEMS, max_size=4),
    fields=st.dictionaries(
        st.sampled_from(["tools", "tool_choice", "text", "reasoning", "metadata", "stream", "instructions"]),
        json_values,
        max_size=2,
    ),
)
def test_any_input_gets_an_answer(shared_app: App, given: Any, fields: dict[str, Any]) -> None:
    response = shared_app.post("/v1/responses", {"input": given, **fields})
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["type"] == "invalid_request_error"
