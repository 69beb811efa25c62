"""The OpenAI families: shapes, streams, and what a chat request means for the engine."""

from __future__ import annotations

from typing import Any

import pytest
from llamaserve.results import Chunk
from llamaserve.server.chat_request import ChatRequest, chat_params
from llamaserve.server.errors import ApiError

from tests.server.conftest import App

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_chat(app: App, path: str) -> None:
    body = app.post(path, {**CHAT, "max_tokens": 2}).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert len(body["id"]) == len("chatcmpl-") + 32
    assert body["model"] == "fake-model"
    assert body["system_fingerprint"] == "b7-abc"
    assert body["choices"] == [
        {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": " one two"}}
    ]
    assert body["usage"] == {
        "completion_tokens": 2,
        "prompt_tokens": 7,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert body["timings"]["prompt_n"] == 4
    assert "__verbose" not in body
    (_, params, _) = app.engine.submitted[0]
    assert params.stop == ["<end>"]


def test_chat_stream(app: App) -> None:
    first, *events, last, done = app.events("/v1/chat/completions", {**CHAT, "max_tokens": 2})
    assert done == "[DONE]"
    assert first["choices"] == [{"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": None}}]
    assert [e["choices"][0]["delta"] for e in events] == [{"content": " one"}, {"content": " two"}]
    assert last["choices"] == [{"index": 0, "finish_reason": "length", "delta": {}}]
    assert last["timings"]["predicted_n"] == 5
    same = ("id", "created", "model", "system_fingerprint", "object")
    assert len({tuple(e[name] for name in same) for e in (first, *events, last)}) == 1
    assert all(e["object"] == "chat.completion.chunk" for e in (first, *events, last))


def test_text_between_the_made_once_parts_is_escaped(app: App) -> None:
    app.state.model_name = 'odd"content":"" "text":""'
    events = app.events("/v1/chat/completions", CHAT)
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1]) == (
        ' one two three\n foür "five"'
    )
    events = app.events("/v1/completions", {"prompt": "x"})
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == ' one two three\n foür "five"'
    assert {e["model"] for e in events[:-1]} == {app.state.model_name}


def test_usage_comes_last_when_asked_for(app: App) -> None:
    *_, finish, usage, done = app.events(
        "/v1/chat/completions", {**CHAT, "max_tokens": 2, "stream_options": {"include_usage": True}}
    )
    assert done == "[DONE]"
    assert "timings" not in finish
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 9
    assert usage["timings"]["predicted_n"] == 5


def test_choices(app: App) -> None:
    body = app.post("/v1/chat/completions", {**CHAT, "n": 2, "max_tokens": 2}).json()
    assert [c["index"] for c in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 4
    assert body["usage"]["prompt_tokens"] == 7
    events = app.events("/v1/chat/completions", {**CHAT, "n": 2, "max_tokens": 2})
    for index in (0, 1):
        deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"][0]["index"] == index]
        assert deltas == [{"role": "assistant", "content": None}, {"content": " one"}, {"content": " two"}, {}]


def test_logprobs(app: App) -> None:
    body = app.post("/v1/chat/completions", {**CHAT, "max_tokens": 2, "logprobs": True, "top_logprobs": 3}).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in content] == [" one", " two"]
    assert [len(t["top_logprobs"]) for t in content] == [3, 3]
    first, *events, _, _ = app.events("/v1/chat/completions", {**CHAT, "max_tokens": 2, "logprobs": True})
    assert "logprobs" not in first["choices"][0]
    assert [len(e["choices"][0]["logprobs"]["content"]) for e in events] == [1, 1]
    assert app.post("/v1/chat/completions", {**CHAT, "top_logprobs": 3}).status_code == 400


def test_progress_and_timings(app: App) -> None:
    body = {**CHAT, "max_tokens": 1, "return_progress": True, "timings_per_token": True}
    first, second, *_ = app.events("/v1/chat/completions", body)
    assert first["prompt_progress"]["processed"] == 7
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert second["choices"][0]["delta"] == {"content": " one"}
    assert second["timings"]["prompt_n"] == 4


def test_tool_calls(app: App) -> None:
    app.engine.plain = False
    body = app.post("/v1/chat/completions", {**CHAT, "tools": [TOOL]}).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"] == [
        {"type": "function", "id": "id1", "function": {"name": "f", "arguments": "{}"}}
    ]
    events = app.events("/v1/chat/completions", {**CHAT, "tools": [TOOL]})
    calls = [e["choices"][0]["delta"]["tool_calls"] for e in events[:-1] if "tool_calls" in e["choices"][0]["delta"]]
    assert calls == [
        [{"index": 0, "id": "id1", "type": "function", "function": {"name": "f"}}],
        [{"index": 0, "function": {"arguments": "{}"}}],
    ]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_verbose(app: App) -> None:
    body = app.post("/v1/chat/completions", {**CHAT, "verbose": True}).json()
    assert body["__verbose"]["prompt"] == "<user>hi"
    assert body["__verbose"]["content"] == body["choices"][0]["message"]["content"]
    app.state.verbose = True
    assert "__verbose" in app.post("/v1/completions", {"prompt": "hi"}).json()
    assert "__verbose" not in app.post("/v1/completions", {"prompt": "hi", "verbose": False}).json()


def test_text_completions(app: App) -> None:
    body = app.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2}).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"text": " one two", "index": i, "logprobs": None, "finish_reason": "length"} for i in (0, 1)
    ]
    assert body["usage"]["prompt_tokens"] == 14
    *events, last, done = app.events("/v1/completions", {"prompt": "a", "max_tokens": 2})
    assert done == "[DONE]"
    assert [e["choices"][0]["text"] for e in events] == [" one", " two"]
    assert last["choices"][0] == {"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}
    assert last["usage"]["total_tokens"] == 9


def test_apply_template_and_count(app: App) -> None:
    assert app.post("/apply-template", CHAT).json() == {"prompt": "<user>hi"}
    assert app.post("/chat/completions/input_tokens", CHAT).json() == {
        "input_tokens": 9,
        "object": "response.input_tokens",
    }


@pytest.mark.parametrize(
    "messages",
    [None, "x", [1], [{}], [{"role": 1}], [{"role": "user"}], [{"role": "assistant"}], [{"role": "user", "content": 1}],
     [{"role": "user", "content": [1]}], [{"role": "user", "content": [{"type": "sound"}]}],
     [{"role": "user", "content": [{"type": "text"}]}]],
)  # fmt: skip
def test_chats_that_are_none(app: App, messages: Any) -> None:
    response = app.post("/v1/chat/completions", {"messages": messages})
    assert response.status_code == 400
    assert "messages" in response.json()["error"]["message"]


def chat(**fields: Any) -> Any:
    return chat_params(ChatRequest(messages=[{"role": "user", "content": "x"}], **fields))


def test_response_formats() -> None:
    assert chat(response_format={"type": "text"}).json_schema is None
    assert chat(response_format={"type": "json_object"}).json_schema == {"type": "object"}
    assert chat(response_format={"type": "json_object", "schema": {"const": 1}}).json_schema == {"const": 1}
    assert chat(response_format={"type": "json_schema", "json_schema": {"schema": {"a": 1}}}).json_schema == {"a": 1}
    assert chat(json_schema={}).json_schema == {"type": "object"}
    for wrong in ({"type": "sound"}, {"type": "json_object", "schema": 1}, {"type": "json_schema"}):
        with pytest.raises(ApiError):
            chat(response_format=wrong)


def test_constraints_reach_the_engine(app: App) -> None:
    app.post("/v1/chat/completions", {**CHAT, "grammar": "root ::= x"})
    app.post("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}})
    (_, first, _), (_, second, _) = app.engine.submitted
    assert first.grammar == "root ::= x"
    assert second.json_schema == {"type": "object"}


def test_what_can_not_be_combined() -> None:
    for fields in (
        {"grammar": "root ::= x", "json_schema": {}},
        {"grammar": "root ::= x", "tools": [TOOL]},
        {"logprobs": True, "tools": [TOOL], "stream": True},
    ):
        with pytest.raises(ApiError):
            chat(**fields)


def test_one_tool_by_name() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    params = chat(tools=[TOOL, other], tool_choice={"type": "function", "function": {"name": "g"}})
    assert (params.tools, params.tool_choice) == ([other], "required")
    with pytest.raises(ApiError, match="'h'"):
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "h"}})


def test_allowed_tools() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [other]}}
    params = chat(tools=[TOOL, other], tool_choice=choice)
    assert (params.tools, params.tool_choice) == ([other], "required")
    for wrong in (
        {"type": "allowed_tools", "mode": "never", "tools": [other]},
        {"type": "allowed_tools", "tools": [{"type": "function", "name": "h"}]},
        {"type": "sound"},
    ):
        with pytest.raises(ApiError, match="tool_choice"):
            chat(tools=[TOOL, other], tool_choice=wrong)


def test_probabilities_of_held_back_text_are_not_lost(app: App) -> None:
    """A token whose text waits (half a character) brings its probability with the next text."""
    import tests.server.fake_engine as fake  # noqa: PLC0415

    chunks = fake._chunks("x", ChatRequest(messages=[], n_predict=2, n_probs=1))
    chunks[1] = Chunk("", chunks[1].tokens, 1, 7, chunks[1].probs)
    original = fake._chunks
    fake._chunks = lambda *_: chunks
    try:
        events = app.events("/v1/chat/completions", {**CHAT, "logprobs": True})
    finally:
        fake._chunks = original
    deltas = [e["choices"][0] for e in events[:-2]]
    assert [len(d["logprobs"]["content"]) for d in deltas if "logprobs" in d] == [2]
