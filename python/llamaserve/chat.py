"""Chats: from messages to a prompt, and from generated text back to a message."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import msgspec

from llamaserve import _core
from llamaserve.errors import RequestError
from llamaserve.params import ChatConstraint, GrammarTrigger
from llamaserve.results import ChatDelta, ChatMessage, ToolCall

Messages: TypeAlias = list[dict[str, Any]]

_RawDelta: TypeAlias = tuple[str, str, int, str, str, str]


class ChatParams(msgspec.Struct, kw_only=True):
    """A chat as OpenAI's API describes one. Fields left at `None` take the engine's defaults."""

    messages: Any
    """`[{"role": "user", "content": "..."}, ...]`"""
    tools: Any = None
    """Functions that the model may call, in OpenAI's form."""
    tool_choice: str = "auto"
    """"auto", "none" or "required"."""
    parallel_tool_calls: bool | None = None
    json_schema: Any = None
    grammar: str = ""
    add_generation_prompt: bool = True
    continue_final_message: bool | str = False
    """Go on with the last (assistant) message; "reasoning_content" or "content" say which part of it."""
    reasoning_format: str | None = None
    """"none", "auto", "deepseek" or "deepseek-legacy"."""
    reasoning_effort: str | None = None
    reasoning_budget_tokens: int | None = None
    reasoning_budget_message: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    stream: bool = False
    """Whether the answer will be parsed piece by piece (it matters to "deepseek-legacy")."""


class ChatPrompt:
    """A rendered chat: the prompt, and what is needed to sample and parse the answer."""

    def __init__(self, core: _core.ChatPrompt, grammar_is_users: bool) -> None:
        self._core = core
        self.prompt: str = core.prompt
        self.stop: list[str] = core.additional_stops
        self.format: str = core.format
        """Name of the answer's format."""
        self.reasoning_format: str = core.reasoning_format
        self.generation_prompt: str = core.generation_prompt
        self.constraint = ChatConstraint(
            grammar=core.grammar,
            grammar_lazy=core.grammar_lazy,
            grammar_triggers=tuple(GrammarTrigger(t, v, k) for t, v, k in core.grammar_triggers),
            preserved_tokens=tuple(core.preserved_tokens),
            generation_prompt=core.generation_prompt,
            reasoning_budget=core.reasoning_budget,
            reasoning_start_tag=core.reasoning_start_tag,
            reasoning_end_tags=tuple(core.reasoning_end_tags),
            reasoning_budget_message=core.reasoning_budget_message,
        )
        self.grammar_is_users = grammar_is_users

    @property
    def plain(self) -> bool:
        """The answer is plain content: there is nothing to parse in it."""
        return self._core.plain

    def parser(self) -> ChatParser:
        """A parser for one answer to this prompt."""
        return ChatParser(self)


class ChatParser:
    """Turns the growing text of one answer into the message's growth."""

    def __init__(self, prompt: ChatPrompt) -> None:
        self._core = _core.ChatParser(prompt._core)

    def feed(self, text: str, *, final: bool = False) -> tuple[ChatDelta, ...]:
        """Adds `text`; returns what the message grew by. `final` says that no more comes."""
        deltas = self._core.push(text)
        if final or self._core.wants_parse:
            deltas += self._parse(final)
        return tuple(_delta(d) for d in deltas)

    async def afeed(self, text: str, *, final: bool = False) -> tuple[ChatDelta, ...]:
        """As `feed`, with what takes time in a worker thread."""
        deltas = self._core.push(text)
        if final or self._core.wants_parse:
            deltas += await asyncio.to_thread(self._parse, final)
        return tuple(_delta(d) for d in deltas)

    def _parse(self, final: bool) -> list[_RawDelta]:
        try:
            return self._core.parse(final)
        except ValueError as e:
            raise RequestError(str(e), "internal") from None

    @property
    def parsed_bytes(self) -> int:
        """How much llama-common's parser has read so far: a measure of the work."""
        return self._core.parsed_bytes

    @property
    def message(self) -> ChatMessage:
        content, reasoning, calls = self._core.message()
        return ChatMessage(content, reasoning, tuple(ToolCall(*c) for c in calls))


def _delta(d: _RawDelta) -> ChatDelta:
    content, reasoning, index, name, arguments, call_id = d
    call = ToolCall(name, arguments, call_id) if index >= 0 else None
    return ChatDelta(content, reasoning, index, call)
