"""Tools with a model whose chat template has no place for them (SmolLM2), over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import Running

MESSAGES: Any = [{"role": "user", "content": "What is the weather in Paris on Sunday?"}]


def tool(name: str, properties: dict[str, Any]) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [
    tool("get_weather", {"city": {"type": "string", "maxLength": 40}, "day": {"enum": ["Saturday", "Sunday"]}}),
    tool("add", {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "boolean"}}),
]


@pytest.fixture
def client(live: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")


def check(name: str, text: str) -> None:
    arguments = json.loads(text)
    if name == "get_weather":
        assert isinstance(arguments["city"], str)
        assert arguments["day"] in ("Saturday", "Sunday")
    else:
        assert name == "add"
        assert 0 <= arguments["a"] <= 99
        assert isinstance(arguments["b"], bool)


def ask(client: openai.OpenAI, choice: Any, **more: Any) -> Any:
    return client.chat.completions.create(
        model="any", messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=120, **more
    )


def test_a_call_that_is_required(client: openai.OpenAI) -> None:
    choice = ask(client, "required").choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.id
    check(call.function.name, call.function.arguments)
    pieces = [c.choices[0] for c in ask(client, "required", stream=True) if c.choices]
    deltas = [p.delta.tool_calls[0] for p in pieces if p.delta.tool_calls]
    assert (deltas[0].function.name, deltas[0].index) == (call.function.name, 0)
    assert deltas[0].id
    assert all(d.function.name is None and d.id is None for d in deltas[1:])
    assert "".join(d.function.arguments or "" for d in deltas) == call.function.arguments
    assert pieces[-1].finish_reason == "tool_calls"


def test_a_function_by_name(client: openai.OpenAI) -> None:
    choice = ask(client, {"type": "function", "function": {"name": "add"}}).choices[0]
    (call,) = choice.message.tool_calls
    assert call.function.name == "add"
    check("add", call.function.arguments)


def test_text_is_still_text(client: openai.OpenAI) -> None:
    choice = ask(client, "none").choices[0]
    assert choice.message.content
    assert not choice.message.tool_calls
    story: Any = [{"role": "user", "content": "Write one sentence about the sea."}]
    answer = client.chat.completions.create(model="any", messages=story, tools=TOOLS, max_tokens=40)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_results_reach_the_model(live: Running) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": true}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42 degrees"},
    ]
    body = {"messages": messages, "tools": TOOLS}
    prompt = httpx.post(f"{live.url}/apply-template", json=body).json()["prompt"]
    assert '<tool_call>\n{"name":"add","arguments":{"a":1,"b":true}}\n</tool_call>' in prompt
    assert "<tool_response>\n42 degrees\n</tool_response>" in prompt
    assert "get_weather" in prompt
