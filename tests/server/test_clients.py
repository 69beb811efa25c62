"""The clients that people use, against a server with a real model: `openai`, `anthropic`, `langchain-openai`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from tests.server.conftest import Running, start

QUESTION = "What is the weather in Paris?"
STORY = "Write a long story about a dog."

# SmolLM2's own template has no place for tools. The model is small, so examples show it what a call looks like.
TEMPLATE = r"""
{%- if tools %}
{{- "<|im_start|>system\nYou call functions:\n<tools>" }}
{%- for tool in tools %}
{{- "\n" + (tool | tojson) }}
{%- endfor %}
{{- "\n</tools><|im_end|>\n" }}
{%- for city in ["London", "Paris"] %}
{{- "<|im_start|>user\nWhat is the weather in " + city + "?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n" }}
{{- "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" + city + "\"}}\n</tool_call><|im_end|>\n" }}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
{{- "<|im_start|>" + message.role + "\n" }}
{%- if message.role == "tool" %}
{{- "<tool_response>\n" + message.content + "\n</tool_response>" }}
{%- else %}
{{- message.content if message.content else "" }}
{%- for call in message.tool_calls or [] %}
{{- "\n<tool_call>\n{\"name\": \"" + call.function.name + "\", \"arguments\": " }}
{{- (call.function.arguments | tojson) + "}\n</tool_call>" }}
{%- endfor %}
{%- endif %}
{{- "<|im_end|>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- "<|im_start|>assistant\n" }}
{%- endif %}
"""

CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "London"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class City(BaseModel):
    """A city with weather."""

    city: Literal["Paris", "London"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    template = tmp_path_factory.mktemp("templates") / "tools.jinja"
    Path(template).write_text(TEMPLATE, encoding="utf-8")
    flags = ("-c", "4096", "-np", "2", "--temp", "0", "--api-key", "secret", "--chat-template-file", str(template))
    running = start(*flags)
    yield running
    running.stop()


# -- openai ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def openai_client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


def test_openai_responses(openai_client: openai.OpenAI) -> None:
    response = openai_client.responses.create(
        model="any", input=STORY, instructions="You write stories.", max_output_tokens=8
    )
    assert response.status == "incomplete"
    assert response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage
    assert response.usage.output_tokens == 8
    with openai_client.responses.stream(
        model="any", input=STORY, instructions="You write stories.", max_output_tokens=8
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == response.output_text
    count = openai_client.responses.input_tokens.count(model="any", input=STORY, instructions="You write stories.")
    assert count.input_tokens == response.usage.input_tokens


def test_openai_responses_with_functions(openai_client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "name": "get_weather", "parameters": CITY_SCHEMA}]
    given: list[Any] = [{"role": "user", "content": QUESTION}]
    response = openai_client.responses.create(
        model="any", input=given, tools=tools, tool_choice="required", max_output_tokens=64
    )
    (call,) = response.output
    assert call.type == "function_call"
    assert call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "Paris"}
    with openai_client.responses.stream(
        model="any", input=given, tools=tools, tool_choice="required", max_output_tokens=64
    ) as stream:
        arguments = "".join(e.delta for e in stream if e.type == "response.function_call_arguments.delta")
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert arguments == streamed.arguments == call.arguments
    given += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}]
    answer = openai_client.responses.create(model="any", input=given, max_output_tokens=8)
    assert answer.output_text


def test_openai_responses_with_a_format(openai_client: openai.OpenAI) -> None:
    response = openai_client.responses.parse(model="any", input=QUESTION, text_format=City, max_output_tokens=64)
    assert isinstance(response.output_parsed, City)


def test_openai_chat_tools(openai_client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY_SCHEMA}}]
    messages: Any = [{"role": "user", "content": QUESTION}]
    answer = openai_client.chat.completions.create(
        model="any", messages=messages, tools=tools, tool_choice="required", max_tokens=64
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    chunks = openai_client.chat.completions.create(
        model="any", messages=messages, tools=tools, tool_choice="required", max_tokens=64, stream=True
    )
    pieces = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices and c.choices[0].delta.tool_calls]
    assert "".join(p.function.arguments or "" for p in pieces if p.function) == call.function.arguments
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}]
    assert (
        openai_client.chat.completions.create(model="any", messages=messages, max_tokens=8).choices[0].message.content
    )


def test_openai_chat_parse(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.parse(
        model="any", messages=[{"role": "user", "content": QUESTION}], response_format=City, max_tokens=64
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_openai_errors(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        openai_client.responses.create(model="any", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match=r"exceed|context"):
        openai_client.responses.create(model="any", input="rain " * 5000, stream=True)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve("resp_1")


# -- anthropic -------------------------------------------------------------------------------------------------------


@pytest.fixture
def anthropic_client(server: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)


def test_anthropic_messages(anthropic_client: anthropic.Anthropic) -> None:
    request: dict[str, Any] = {
        "model": "any",
        "max_tokens": 8,
        "system": [{"type": "text", "text": "You write stories.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": STORY}],
    }
    message = anthropic_client.messages.create(**request)
    assert message.stop_reason == "max_tokens"
    (block,) = message.content
    assert block.type == "text"
    assert message.usage.output_tokens == 8
    with anthropic_client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == block.text
    assert final.stop_reason == "max_tokens"
    usage = final.usage
    assert usage.cache_read_input_tokens
    del request["max_tokens"]
    count = anthropic_client.messages.count_tokens(**request)
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert count.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_anthropic_stop_sequences_and_prefill(anthropic_client: anthropic.Anthropic) -> None:
    message = anthropic_client.messages.create(
        model="any",
        max_tokens=32,
        stop_sequences=["five"],
        messages=[
            {"role": "user", "content": "Count from one to nine."},
            {"role": "assistant", "content": "One, two, three, four,"},
        ],
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "five")


def test_anthropic_tools(anthropic_client: anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    request: dict[str, Any] = {
        "model": "any",
        "max_tokens": 64,
        "tools": [{"name": "get_weather", "description": "Weather", "input_schema": CITY_SCHEMA}],
    }
    choice: dict[str, Any] = {"type": "tool", "name": "get_weather"}
    message = anthropic_client.messages.create(**request, messages=messages, tool_choice=choice)
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    with anthropic_client.messages.stream(**request, messages=messages, tool_choice={"type": "any"}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    assert json.loads("".join(pieces)) == streamed.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It is sunny."}
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = anthropic_client.messages.create(model="any", max_tokens=8, messages=messages)
    assert answer.content[0].type == "text"


def test_anthropic_errors(server: Running, anthropic_client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "rain " * 5000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        anthropic_client.messages.create(model="any", max_tokens=8, messages=messages)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic_client.with_options(api_key="wrong").messages.create(model="any", max_tokens=8, messages=messages)
    response = httpx.post(f"{server.url}/v1/messages", headers={"x-api-key": "secret"}, content=b"{")
    assert response.json()["type"] == "error"


# -- langchain -------------------------------------------------------------------------------------------------------


@tool
def get_weather(city: Literal["Paris", "London"]) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


@pytest.mark.parametrize("responses_api", [False, True])
def test_langchain(server: Running, responses_api: bool) -> None:
    model = ChatOpenAI(
        model="any",
        base_url=f"{server.url}/v1",
        api_key=SecretStr("secret"),
        use_responses_api=responses_api,
        max_tokens=64,
        max_retries=0,
    )
    short = model.model_copy(update={"max_tokens": 8})
    answer = short.invoke(STORY)
    assert answer.text
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == 8
    pieces = list(short.stream(STORY))
    assert len(pieces) > 2
    assert "".join(p.text for p in pieces) == answer.text
    message = model.bind_tools([get_weather], tool_choice="any").invoke(QUESTION)
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = get_weather.invoke(call)
    assert short.invoke([("user", QUESTION), message, result]).text
    assert isinstance(model.with_structured_output(City).invoke(QUESTION), City)
