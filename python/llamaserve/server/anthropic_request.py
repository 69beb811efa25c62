"""From a request of Anthropic's messages API to the chat that it means."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from llamaserve.server.anthropic_schema import (
    ClientTool,
    ImageBlock,
    InputBlock,
    InputMessage,
    MessagesRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from llamaserve.server.body import check_depth
from llamaserve.server.chat_request import ChatRequest
from llamaserve.server.errors import ApiError
from llamaserve.server.request_fields import GenerationRequest

DEFAULT_MAX_TOKENS = 4096
DEFAULT_THINKING_BUDGET = 10000

# Claude Code puts a line of its own before the system prompt, with a stamp that differs in every request. The prompt is
# told apart from the cached one at the stamp, so it is made the same in all.
_BILLING_STAMP = re.compile(r"\A(x-anthropic-billing-header:.*?cch=)[^;]{5}(?=;)", re.DOTALL)


def chat_of(request: MessagesRequest) -> ChatRequest:
    """The same request in OpenAI's form. Raises `ApiError` (400) for what is wrong with it."""
    if request.choices != 1:
        raise ApiError(400, "Field 'n': there is one answer to a request")
    system = _system(request.system)
    messages = [] if system is None else [{"role": "system", "content": system}]
    calls: set[str] = set()
    for i, message in enumerate(request.messages):
        messages += _messages(message, f"messages[{i}]", calls)
    fields: dict[str, Any] = {name: getattr(request, name) for name in GenerationRequest.__struct_fields__}
    fields |= _tools(request)
    fields |= _thinking(request)
    if fields["n_predict"] is None:
        fields["n_predict"] = DEFAULT_MAX_TOKENS
    if request.stop_sequences is not None:
        fields["stop"] = request.stop_sequences
    if request.output_config is not None and request.output_config.format is not None:
        fields["json_schema"] = request.output_config.format.schema
    return ChatRequest(messages=messages, **fields)


def _system(system: str | list[TextBlock] | None) -> str | None:
    if system is None:
        return None
    texts = [system] if isinstance(system, str) else [block.text for block in system]
    return "".join(_BILLING_STAMP.sub(r"\1fffff", text) for text in texts)


def _messages(message: InputMessage, where: str, calls: set[str]) -> list[dict[str, Any]]:
    """A message of Anthropic's may hold several of OpenAI's: what tools answered are messages of their own there, and
    come first as they answer the message before. `calls` are the ids of all tool calls so far."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    tool_calls: list[dict[str, Any]] = []
    for i, block in enumerate(message.content):
        at = f"{where}.content[{i}]"
        _check_place(block, message.role, at)
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            tool_calls.append(_tool_call(block, at))
            calls.add(block.id)
        elif isinstance(block, ToolResultBlock):
            if block.tool_use_id not in calls:
                raise ApiError(
                    400, f"Field '{at}.tool_use_id': no message before has a tool_use with the id {block.tool_use_id!r}"
                )
            results.append(_result(block, at))
        elif isinstance(block, ImageBlock):
            raise _no_images(at)
    if results and not texts:
        return results
    out: dict[str, Any] = {"role": message.role, "content": _content(texts)}
    if tool_calls:
        out["tool_calls"] = tool_calls
    if thoughts:
        out["reasoning_content"] = "".join(thoughts)
    return [*results, out]


def _check_place(block: InputBlock, role: str, at: str) -> None:
    if isinstance(block, (ThinkingBlock, RedactedThinkingBlock, ToolUseBlock)):
        allowed = "assistant"
    elif isinstance(block, (ToolResultBlock, ImageBlock)):
        allowed = "user"
    else:
        return
    if role != allowed:
        kind = type(block).__struct_config__.tag
        raise ApiError(400, f"Field '{at}.type': {kind!r} belongs in messages with the role {allowed!r}")


def _content(texts: list[str]) -> str | list[dict[str, Any]]:
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else ""


def _tool_call(block: ToolUseBlock, at: str) -> dict[str, Any]:
    check_depth(block.input, f"{at}.input")
    arguments = msgspec.json.encode(block.input).decode()
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _result(block: ToolResultBlock, at: str) -> dict[str, Any]:
    content = block.content or ""
    if not isinstance(content, str):
        texts: list[str] = []
        for i, part in enumerate(content):
            if isinstance(part, ImageBlock):
                raise _no_images(f"{at}.content[{i}]")
            texts.append(part.text)
        content = "".join(texts)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _no_images(at: str) -> ApiError:
    # The status is llama-server's, whose clients may look for it.
    return ApiError(500, f"Field '{at}': image input is not supported yet")


def _tools(request: MessagesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if request.tools:
        fields["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    choice = request.tool_choice
    if choice is None:
        return fields
    if choice.type in ("any", "tool") and not request.tools:
        raise ApiError(400, f"Field 'tool_choice': {choice.type!r} needs 'tools'")
    if choice.type == "tool":
        if choice.name is None:
            raise ApiError(400, "Field 'tool_choice.name': with the type 'tool' it is required")
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = "required" if choice.type == "any" else choice.type
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: ClientTool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise ApiError(
            400, f"Field '{where}.type': {tool.type!r} is not supported; use 'custom' with an 'input_schema'"
        )
    check_depth(tool.input_schema, f"{where}.input_schema")
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": {} if tool.input_schema is None else tool.input_schema,
    }
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _thinking(request: MessagesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {"chat_template_kwargs": request.chat_template_kwargs}
    if request.output_config is not None:
        fields["reasoning_effort"] = request.output_config.effort
    thinking = request.thinking
    if thinking is not None and thinking.type == "enabled":
        budget = thinking.budget_tokens
        fields["thinking_budget_tokens"] = DEFAULT_THINKING_BUDGET if budget is None else budget
    elif thinking is not None and thinking.type == "disabled":
        fields["reasoning_effort"] = "none"
    return fields
