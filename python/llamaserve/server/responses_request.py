"""From a request of OpenAI's responses API to the chat that it means."""

from __future__ import annotations

import logging
from typing import Any

from llamaserve.server.body import check_depth
from llamaserve.server.chat_request import ChatRequest
from llamaserve.server.errors import ApiError
from llamaserve.server.request_fields import GenerationRequest
from llamaserve.server.responses_schema import (
    InputFile,
    InputImage,
    InputItem,
    InputPart,
    Refusal,
    ResponsesRequest,
)

log = logging.getLogger("llamaserve.http")

CALL_PREFIX = "call_"
"""Before the ids of calls as clients see them. It is taken off again, since some templates check the ids' form."""

_NOT_STORED = {
    "previous_response_id": "responses are not stored here; send the whole conversation as 'input'",
    "conversation": "conversations are not stored here; send the whole conversation as 'input'",
    "prompt": "stored prompts are not supported; use 'instructions' and 'input'",
    "background": "responses can't run in the background here; leave it out, or use 'stream'",
}


def chat_of(request: ResponsesRequest) -> ChatRequest:
    """The same request as a chat. Raises `ApiError` (400) for what is wrong with it."""
    for name, reason in _NOT_STORED.items():
        if getattr(request, name):
            raise ApiError(400, f"Field '{name}': {reason}")
    if request.choices != 1:
        raise ApiError(400, "Field 'n': there is one answer to a request")
    fields: dict[str, Any] = {name: getattr(request, name) for name in GenerationRequest.__struct_fields__}
    if request.max_output_tokens is not None:
        fields["n_predict"] = request.max_output_tokens
    check_depth(request.metadata, "metadata")
    check_depth(request.tool_choice, "tool_choice")
    tools, choice = _tools_and_choice(request)
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    return ChatRequest(
        messages=_messages(request),
        tools=tools or None,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_format(request),
        chat_template_kwargs=request.chat_template_kwargs,
        **fields,
    )


# -- input -----------------------------------------------------------------------------------------------------------


def _messages(request: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        messages.append({"role": "user", "content": request.input})
        return messages
    calls: set[str] = set()
    for i, item in enumerate(request.input):
        where = f"input[{i}]"
        kind = item.type or "message"
        if kind == "message":
            _add_message(item, where, messages)
        elif kind == "function_call":
            _add_call(item, where, messages, calls)
        elif kind == "function_call_output":
            _add_output(item, where, messages, calls)
        elif kind == "reasoning":
            _add_reasoning(item, where, messages)
        elif kind == "item_reference":
            raise ApiError(400, f"Field '{where}.type': items are not stored here; send the item itself")
        else:
            raise ApiError(400, f"Field '{where}.type': items of the type {kind!r} are not supported")
    return messages


def _add_message(item: InputItem, where: str, messages: list[dict[str, Any]]) -> None:
    role = _need(item.role, f"{where}.role")
    if role not in ("user", "assistant", "system", "developer"):
        raise ApiError(
            400, f'Field \'{where}.role\': expected "user", "assistant", "system" or "developer", got {role!r}'
        )
    content = _content(_need(item.content, f"{where}.content"), f"{where}.content")
    if role != "assistant":
        messages.append({"role": role, "content": content})
        return
    message = _assistant(messages)
    # The items of one answer (thoughts, text, calls) are one message.
    message["content"] = _joined(message["content"], content)


def _add_call(item: InputItem, where: str, messages: list[dict[str, Any]], calls: set[str]) -> None:
    call_id = _need(item.call_id, f"{where}.call_id")
    calls.add(call_id)
    _assistant(messages).setdefault("tool_calls", []).append(
        {
            "id": call_id.removeprefix(CALL_PREFIX),
            "type": "function",
            "function": {
                "name": _need(item.name, f"{where}.name"),
                "arguments": _need(item.arguments, f"{where}.arguments"),
            },
        }
    )


def _add_output(item: InputItem, where: str, messages: list[dict[str, Any]], calls: set[str]) -> None:
    call_id = _need(item.call_id, f"{where}.call_id")
    if call_id not in calls:
        raise ApiError(400, f"Field '{where}.call_id': no item before is a function_call with the id {call_id!r}")
    content = _content(_need(item.output, f"{where}.output"), f"{where}.output")
    messages.append({"role": "tool", "tool_call_id": call_id.removeprefix(CALL_PREFIX), "content": content})


def _add_reasoning(item: InputItem, where: str, messages: list[dict[str, Any]]) -> None:
    if isinstance(item.content, str):
        text = item.content
    else:
        parts: list[Any] = [*(item.content or item.summary or [])]
        text = "".join(_text(part, f"{where}.content[{i}]") for i, part in enumerate(parts))
    if text:
        message = _assistant(messages)
        message["reasoning_content"] = message.get("reasoning_content", "") + text


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message at the end, which is made if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _joined(old: Any, new: Any) -> Any:
    if not old:
        return new
    parts: list[Any] = []
    for content in (old, new):
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def _content(content: str | list[InputPart], where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    texts = [_text(part, f"{where}[{i}]") for i, part in enumerate(content)]
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else ""


def _text(part: InputPart, where: str) -> str:
    if isinstance(part, InputImage):
        raise ApiError(501, f"Field '{where}': image input is not supported yet")
    if isinstance(part, InputFile):
        raise ApiError(501, f"Field '{where}': file input is not supported yet")
    return part.refusal if isinstance(part, Refusal) else part.text


def _need(value: Any, where: str) -> Any:
    if value is None:
        raise ApiError(400, f"Field '{where}': required")
    return value


# -- tools and formats -----------------------------------------------------------------------------------------------


def function_tools(request: ResponsesRequest) -> list[dict[str, Any]]:
    """The tools that are functions. llama-server leaves out the others too: agents name the tools that OpenAI runs in
    every request, and can do without."""
    return [tool for tool in request.tools or [] if tool.get("type") == "function"]


def _tools_and_choice(request: ResponsesRequest) -> tuple[list[dict[str, Any]], str | dict[str, Any] | None]:
    for i, tool in enumerate(request.tools or []):
        if tool.get("type") != "function":
            log.debug("tools[%d] is left out: its type is %r", i, tool.get("type"))
        elif not isinstance(tool.get("name"), str):
            raise ApiError(400, f"Field 'tools[{i}].name': expected a string")
    tools = function_tools(request)
    choice = request.tool_choice
    if isinstance(choice, dict):
        kind = choice.get("type")
        if kind == "function":
            return _chat_tools(tools), {"type": "function", "function": {"name": choice.get("name")}}
        if kind != "allowed_tools":
            raise ApiError(400, f'Field \'tool_choice.type\': expected "function" or "allowed_tools", got {kind!r}')
        allowed = choice.get("tools")
        if not isinstance(allowed, list) or not all(isinstance(tool, dict) for tool in allowed):
            raise ApiError(400, "Field 'tool_choice.tools': expected a list of objects")
        names = [tool.get("name") for tool in allowed]
        tools = [tool for tool in tools if tool["name"] in names]
        choice = choice.get("mode", "auto")
    if choice not in (None, "auto", "none", "required"):
        raise ApiError(400, f'Field \'tool_choice\': expected "auto", "none", "required" or an object, got {choice!r}')
    if choice == "required" and not tools:
        raise ApiError(400, "Field 'tool_choice': 'required' needs functions in 'tools'")
    return _chat_tools(tools), choice


def _chat_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for tool in tools:
        function = {name: value for name, value in tool.items() if name != "type" and value is not None}
        out.append({"type": "function", "function": {"parameters": {}, **function}})
    return out


def _format(request: ResponsesRequest) -> dict[str, Any] | None:
    wanted = request.text.format if request.text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object"}
    if not isinstance(wanted.schema, dict):
        raise ApiError(400, "Field 'text.format.schema': required")
    check_depth(wanted.schema, "text.format.schema")
    return {"type": "json_schema", "json_schema": {"schema": wanted.schema}}
