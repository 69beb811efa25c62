"""From a typed chat to the core's inputs of a template, and from its prompt to the completion's parameters."""

from __future__ import annotations

from typing import Any

import msgspec

from llamaserve import _core
from llamaserve.chat import ChatParams, ChatPrompt
from llamaserve.params import CompletionParams


def chat_inputs(chat: ChatParams) -> _core.ChatInputs:
    inputs = _core.ChatInputs()
    inputs.messages = _json(chat.messages)
    inputs.tools = _json(chat.tools) if chat.tools else ""
    inputs.tool_choice = chat.tool_choice
    inputs.parallel_tool_calls = -1 if chat.parallel_tool_calls is None else int(chat.parallel_tool_calls)
    inputs.json_schema = "" if chat.json_schema is None else _json(chat.json_schema)
    inputs.grammar = chat.grammar
    inputs.add_generation_prompt = chat.add_generation_prompt
    inputs.continue_final_message = (
        chat.continue_final_message
        if isinstance(chat.continue_final_message, str)
        else ("true" if chat.continue_final_message else "")
    )
    inputs.reasoning_format = chat.reasoning_format or ""
    inputs.reasoning_effort = chat.reasoning_effort or ""
    if chat.reasoning_budget_tokens is not None:
        inputs.reasoning_budget = chat.reasoning_budget_tokens
    if chat.reasoning_budget_message is not None:
        inputs.reasoning_budget_message = chat.reasoning_budget_message
    inputs.chat_template_kwargs = {k: _json(v) for k, v in chat.chat_template_kwargs.items()}
    inputs.stream = chat.stream
    return inputs


def with_stops(params: CompletionParams, prompt: ChatPrompt, defaults: CompletionParams | None) -> CompletionParams:
    """`params` with the texts that end an answer in the template's format, beside those the caller asked for."""
    if not prompt.stop:
        return params
    stop = params.stop if params.stop is not None else (defaults.stop if defaults else None)
    own = [stop] if isinstance(stop, str) else list(stop or ())
    return msgspec.structs.replace(params, stop=own + prompt.stop)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
