"""What clients send to the chat routes, and what it means for the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from llamaserve.chat import ChatParams
from llamaserve.params import Limit, UInt
from llamaserve.server.body import check_depth
from llamaserve.server.errors import ApiError
from llamaserve.server.request_fields import GenerationRequest

DEFAULT_TOP_LOGPROBS = 20

_OPTIONAL = ("reasoning_content", "name", "tool_call_id", "tool_calls")
"""Fields of a message that may be `null`."""

_WORDS = {
    "continue_final_message": ("content", "reasoning_content"),
    "reasoning_format": ("none", "auto", "deepseek", "deepseek-legacy"),
}
"""What fields may say that also take other types."""


class ChatRequest(GenerationRequest, kw_only=True):
    """Body of `/v1/chat/completions` and of the routes that take the same chats."""

    messages: list[dict[str, Any]]
    """`[{"role": "user", "content": "..."}, ...]`; content is text, or parts like `{"type": "text", "text": "..."}`."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call."""
    tool_choice: str | dict[str, Any] | None = None
    """"auto", "none", "required", or `{"type": "function", "function": {"name": "..."}}`."""
    parallel_tool_calls: bool | None = None
    """Whether the model may call several functions at once."""
    response_format: dict[str, Any] | None = None
    """`{"type": "json_object"}` or `{"type": "json_schema", "json_schema": {"schema": {}}}`."""
    logprobs: bool | int | None = None
    """Return the log probabilities of the tokens."""
    top_logprobs: UInt | None = None
    """How many alternatives of each token to return, with `logprobs`."""
    add_generation_prompt: bool | None = None
    """End the prompt with the start of an answer (the default)."""
    continue_final_message: bool | str | None = None
    """Go on with the last (assistant) message."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the template, such as `enable_thinking`."""
    reasoning_format: str | None = None
    """Where thoughts go: "none" leaves them in `content`, "deepseek" moves them to `reasoning_content`."""
    reasoning_effort: str | None = None
    """How much to think, where the template knows it: "low", "medium", "high"."""
    reasoning_budget_tokens: Limit | None = None
    """Most tokens to think with; -1 for no limit."""
    thinking_budget_tokens: Limit | None = None
    """Same as `reasoning_budget_tokens`."""
    reasoning_budget_message: str | None = None
    """Text that ends the thinking when its budget is used up."""


def chat_params(request: ChatRequest) -> ChatParams:
    """What the template needs. Raises `ApiError` (400) for a chat that is no chat."""
    for name in ("messages", "tools", "json_schema", "response_format", "chat_template_kwargs"):
        check_depth(getattr(request, name), name)
    messages = _checked_messages(request.messages)
    tools, tool_choice = _tools(request)
    tools = [_checked_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    schema = _schema(request)
    grammar = request.grammar or ""
    if schema is not None and grammar:
        raise ApiError(400, "'grammar' can't be used together with 'json_schema' or 'response_format'")
    if tools and tool_choice != "none" and grammar:
        raise ApiError(400, "'grammar' can't be used together with 'tools'")
    _check_choices(request)
    if request.logprobs and tools and request.streams:
        raise ApiError(400, "'logprobs' can't be used together with 'tools' in a stream")
    return ChatParams(
        messages=messages,
        tools=tools or None,
        tool_choice=tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        json_schema=schema,
        grammar=grammar,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=request.continue_final_message or False,
        reasoning_format=request.reasoning_format,
        reasoning_effort=request.reasoning_effort,
        reasoning_budget_tokens=_budget(request),
        reasoning_budget_message=request.reasoning_budget_message,
        chat_template_kwargs=request.chat_template_kwargs or {},
        stream=request.streams,
    )


def _check_choices(request: ChatRequest) -> None:
    """Refuses (400) words that mean nothing, which would otherwise be ignored."""
    for name, words in _WORDS.items():
        value = getattr(request, name)
        if isinstance(value, str) and value not in words:
            raise ApiError(400, f"Field '{name}': expected one of {', '.join(map(repr, words))}")


def sampling(
    request: ChatRequest, chat: ChatParams, stops: list[str], default_stop: str | list[str] | None
) -> ChatRequest:
    """The request as completion parameters: with the template's stop texts, and the schema wherever it came from. Where
    the template makes a grammar of its own out of these, that one is used."""
    stop = default_stop if request.stop is None else request.stop
    own = [stop] if isinstance(stop, str) else list(stop or ())
    n_probs = request.n_probs
    if request.logprobs:
        n_probs = DEFAULT_TOP_LOGPROBS if request.top_logprobs is None else request.top_logprobs
    elif request.top_logprobs is not None:
        raise ApiError(400, "'top_logprobs' needs 'logprobs' to be true")
    return msgspec.structs.replace(request, stop=(own + stops) or None, n_probs=n_probs, json_schema=chat.json_schema)


def _checked_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, without what is `null` and may be left out: clients send back answers with all of their fields."""
    checked: list[dict[str, Any]] = []
    for i, given in enumerate(messages):
        where = f"messages[{i}]"
        message = {name: value for name, value in given.items() if value is not None or name not in _OPTIONAL}
        if not isinstance(message.get("role"), str):
            raise ApiError(400, f"Field '{where}.role': expected a string")
        for name in ("reasoning_content", "name", "tool_call_id"):
            if not isinstance(message.get(name, ""), str):
                raise ApiError(400, f"Field '{where}.{name}': expected a string")
        if message["role"] == "assistant":
            if "content" not in message and "tool_calls" not in message:
                raise ApiError(400, f"Field '{where}': an assistant message needs 'content' or 'tool_calls'")
        elif "content" not in message:
            raise ApiError(400, f"Field '{where}': 'content' is required")
        _check_content(message.get("content"), f"{where}.content")
        if "tool_calls" in message:
            message["tool_calls"] = _checked_calls(message["tool_calls"], f"{where}.tool_calls")
        checked.append(message)
    return checked


def _checked_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise ApiError(400, f"Field '{where}': expected a list")
    checked: list[dict[str, Any]] = []
    for i, call in enumerate(calls):
        at = f"{where}[{i}]"
        if not isinstance(call, dict) or call.get("type") != "function":
            raise ApiError(400, f"Field '{at}': expected an object of the type \"function\"")
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(400, f"Field '{at}.function': expected an object with a 'name'")
        if "arguments" not in function:
            raise ApiError(400, f"Field '{at}.function.arguments': required")
        if not isinstance(call.get("id") or "", str):
            raise ApiError(400, f"Field '{at}.id': expected a string")
        checked.append({name: value for name, value in call.items() if name != "id" or value is not None})
    return checked


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise ApiError(400, f"Field '{where}': expected a string or a list of parts")
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image_url", "input_audio", "input_video", "video_url"):
            raise ApiError(501, f"Field '{where}[{i}]': images, audio and video are not supported yet")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f'Field \'{where}[{i}]\': expected {{"type": "text", "text": "..."}}')


def _checked_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """The tool, without what is `null` in its function."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise ApiError(400, f'Field \'{where}\': expected {{"type": "function", "function": {{...}}}}')
    function = {name: value for name, value in function.items() if value is not None}
    if not isinstance(function.get("name"), str):
        raise ApiError(400, f"Field '{where}.function.name': expected a string")
    if not isinstance(function.get("description", ""), str):
        raise ApiError(400, f"Field '{where}.function.description': expected a string")
    return tool | {"function": function}


def _tools(request: ChatRequest) -> tuple[list[dict[str, Any]], str]:
    tools = request.tools or []
    choice = request.tool_choice
    if choice is None:
        return tools, "auto"
    if isinstance(choice, str):
        return tools, choice
    kind = choice.get("type", "function")
    if kind == "allowed_tools":
        # OpenAI has the list in an object of its own, or beside the type.
        allowed = choice["allowed_tools"] if isinstance(choice.get("allowed_tools"), dict) else choice
        mode, names = allowed.get("mode", "auto"), [_name_of(t) for t in _list(allowed.get("tools"))]
        if mode not in ("auto", "required"):
            raise ApiError(400, 'Field \'tool_choice.mode\': expected "auto" or "required"')
        return _named(tools, names), mode
    if kind != "function":
        raise ApiError(400, f'Field \'tool_choice.type\': expected "function" or "allowed_tools", got {kind!r}')
    # One function by name: the model must call one of the tools, and is shown that one only.
    return _named(tools, [_name_of(choice)]), "required"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _name_of(tool: Any) -> Any:
    """The name in a tool or a choice, in the form of chats (`function.name`) or of responses (`name`)."""
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def _named(tools: list[dict[str, Any]], names: list[Any]) -> list[dict[str, Any]]:
    for name in names or [None]:
        if not any(_name_of(t) == name for t in tools) or name is None:
            raise ApiError(400, f"Field 'tool_choice': there is no tool named {name!r}")
    return [t for t in tools if _name_of(t) in names]


def _schema(request: ChatRequest) -> Any:
    schema, where = request.json_schema, "json_schema"
    wanted = request.response_format or {}
    kind = wanted.get("type")
    if kind == "json_object":
        if "schema" in wanted or not schema:
            schema, where = wanted.get("schema", {}), "response_format.schema"
    elif kind == "json_schema":
        wrapper = wanted.get("json_schema")
        if not isinstance(wrapper, dict):
            raise ApiError(400, "Field 'response_format.json_schema': expected an object with a 'schema'")
        schema, where = wrapper.get("schema", {}), "response_format.json_schema.schema"
    elif kind not in (None, "", "text"):
        raise ApiError(
            400, f'Field \'response_format.type\': expected "text", "json_object" or "json_schema", got {kind!r}'
        )
    elif not kind and ("schema" in wanted or "json_schema" in wanted):
        raise ApiError(400, "Field 'response_format.type': required, or the schema would not be looked at")
    if schema is not None and not isinstance(schema, (dict, bool)):
        raise ApiError(400, f"Field '{where}': the JSON schema must be an object")
    # No keyword at all means any object here, not any value.
    return {"type": "object"} if schema == {} else schema


def _budget(request: ChatRequest) -> int | None:
    own = request.reasoning_budget_tokens
    budget = request.thinking_budget_tokens if own is None else own
    return None if budget == -1 else budget
