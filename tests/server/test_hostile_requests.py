"""Requests of a client that means no good, or has bugs: each gets an answer that says what is wrong, and where."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import App

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


def refused(response: httpx.Response, field: str) -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400, "-1" + "0" * 9000])
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/completion", '{"prompt": "x", "n_predict": NUMBER}', "n_predict"),
        ("/completion", '{"prompt": ["x", NUMBER]}', "prompt[1]"),
        ("/completion", '{"prompt": "x", "json_schema": {"const": NUMBER}}', "json_schema.const"),
        (CHAT, '{"messages": [{"role": "user", "content": NUMBER}]}', "messages[0].content"),
        (
            CHAT,
            '{"messages": [], "tools": [{"function": {"parameters": {"enum": [1, NUMBER]}}}]}',
            "parameters.enum[1]",
        ),
        ("/v1/messages", '{"messages": [], "max_tokens": 1, "metadata": {"a": NUMBER}}', "metadata.a"),
        ("/tokenize", '{"content": "x", "with_pieces": NUMBER}', "with_pieces"),
    ],
)
def test_numbers_that_no_float_holds(app: App, path: str, body: str, field: str, number: str) -> None:
    refused(app.request("POST", path, content=body.replace("NUMBER", number)), field)
    assert app.engine.submitted == []


def test_long_digits_that_are_no_large_number(app: App) -> None:
    body = f'{{"prompt": "{"1" * 400}", "temperature": 0.{"3" * 400}}}'
    assert app.request("POST", "/completion", content=body).status_code == 200


def test_whole_floats_count_as_integers_at_any_depth(app: App) -> None:
    body = {"prompt": "x", "n_predict": 2.0, "lora": [{"id": 0.0, "scale": 1}]}
    assert app.post("/completion", body).status_code == 200
    thinking = {"type": "enabled", "budget_tokens": 16.0}
    body = {"messages": HELLO, "max_tokens": 4, "thinking": thinking}
    assert app.post("/v1/messages", body).status_code == 200
    refused(app.post("/completion", {"prompt": "x", "lora": [{"id": 0.5}]}), "lora[0].id")


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"content": "x"}, "messages[1].role"),
        ({"role": None, "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": "x", "name": 1}, "messages[1].name"),
        ({"role": "tool", "content": "x", "tool_call_id": {}}, "messages[1].tool_call_id"),
        ({"role": "assistant", "content": "x", "reasoning_content": ["x"]}, "messages[1].reasoning_content"),
        ({"role": "assistant", "tool_calls": None}, "messages[1]"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": "f"}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [1]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [CALL, {}]}, "messages[1].tool_calls[1]"),
        ({"role": "assistant", "tool_calls": [CALL | {"type": "x"}]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [CALL | {"id": 1}]}, "messages[1].tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [CALL | {"function": []}]}, "messages[1].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [CALL | {"function": {"name": 1}}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f"}}]}, "function.arguments"),
    ],
)
def test_messages_of_a_wrong_form(app: App, message: dict[str, Any], field: str) -> None:
    refused(app.post(CHAT, {"messages": [*HELLO, message]}), field)


def test_answers_come_back_with_all_their_nulls(app: App) -> None:
    """Clients send an earlier answer as their library made it, with every field that was not set."""
    nothing = dict.fromkeys(("reasoning_content", "name", "tool_call_id", "tool_calls", "refusal", "audio"))
    call = CALL | {"id": None}
    messages = [*HELLO, {"role": "assistant", "content": "x", **nothing}, {"role": "assistant", "tool_calls": [call]}]
    tool = {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": None}}
    assert app.post(CHAT, {"messages": messages, "tools": [tool]}).status_code == 200


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({}, "tools[0]"),
        ({"type": "function"}, "tools[0]"),
        ({"type": "function", "function": "f"}, "tools[0]"),
        ({"type": "custom", "function": {"name": "f"}}, "tools[0]"),
        ({"type": "function", "function": {"name": 1}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": "f", "description": 1}}, "tools[0].function.description"),
    ],
)
def test_tools_of_a_wrong_form(app: App, tool: Any, field: str) -> None:
    refused(app.post(CHAT, {"messages": HELLO, "tools": [tool]}), field)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reasoning_format": "x" * 5000}, "reasoning_format"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"json_schema": [1]}, "json_schema"),
        ({"response_format": {"type": "json_object", "schema": 1}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}}, "json_schema.schema"),
        ({"response_format": {"json_schema": {"schema": {"type": "integer"}}}}, "response_format.type"),
        ({"response_format": {"schema": {"type": "integer"}}}, "response_format.type"),
    ],
)
def test_what_would_be_ignored_is_refused(app: App, fields: dict[str, Any], field: str) -> None:
    refused(app.post(CHAT, {"messages": HELLO, **fields}), field)


@pytest.mark.parametrize("path", ["/completion", "/infill"])
def test_an_alias_is_named_as_the_client_named_it(app: App, path: str) -> None:
    body = {"prompt": "x", "input_prefix": "", "input_suffix": "", "logprobs": 2**40}
    refused(app.post(path, body), "'logprobs'")


def test_seeds_of_64_bits(app: App) -> None:
    """OpenAI's API has such seeds."""
    assert app.post(CHAT, {"messages": HELLO, "seed": 2**63 - 1}).status_code == 200
    refused(app.post(CHAT, {"messages": HELLO, "seed": 2**63}), "seed")


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_list_of_prompts_is_not_queued_at_once(app: App, stream: bool) -> None:
    waiting: list[int] = []
    astream = app.engine.astream

    def counted(*args: Any, **kwargs: Any) -> Any:
        waiting.append(sum(not s.closed and s._at == 0 for s in app.engine.streams))
        return astream(*args, **kwargs)

    app.engine.astream = counted  # type: ignore[method-assign]
    response = app.post("/completion", {"prompt": ["a"] * 500, "n_predict": 3, "stream": stream})
    assert response.status_code == 200
    if stream:
        events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line]
        assert sorted(e["index"] for e in events if e["stop"]) == list(range(500))
    else:
        assert [answer["index"] for answer in response.json()] == list(range(500))
        assert len({answer["content"] for answer in response.json()}) == 1
    assert len(waiting) == 500
    assert max(waiting) < 100


def test_a_failure_in_a_long_list_of_prompts_ends_it(app: App) -> None:
    app.engine.fail_after = 3
    assert app.post("/completion", {"prompt": ["a"] * 200}).status_code == 500
    assert len(app.engine.streams) < 100


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            CHAT,
            {"messages": HELLO, "chat_template_kwargs": {f"k{i}": 1 for i in range(20_000)}},
            "chat_template_kwargs",
        ),
        (CHAT, {"messages": [{"role": "user", "content": "x"} | {f"k{i}": 1 for i in range(20_000)}]}, "messages"),
        ("/apply-template", {"messages": HELLO, "tools": [{f"k{i}": 1 for i in range(20_000)}]}, "tools"),
        ("/v1/responses", {"input": "x", "metadata": {f"k{i}": 1 for i in range(20_000)}}, "metadata"),
    ],
)
def test_objects_with_too_many_members(app: App, path: str, body: Any, field: str) -> None:
    refused(app.post(path, body), f"'{field}'")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/props", "/slots", "/metrics"])
def test_head_is_answered_as_get(path: str) -> None:
    """Watchers of servers ask so."""
    app = App(slots=True, metrics=True)
    assert app.request("HEAD", path).status_code == app.get(path).status_code == 200
    assert app.request("HEAD", "/completion").status_code == 405
    assert App(api_keys=["k"]).request("HEAD", "/slots").status_code == 401
