"""Response bodies of the OpenAI families, and what they have in common."""

from __future__ import annotations

import secrets
import string
import time

import msgspec
from msgspec import UNSET, UnsetType

from llamaserve.results import Finish, Progress, Timings
from llamaserve.server.native_schema import CompletionResponse
from llamaserve.server.openai_text import TextLogprobs
from llamaserve.server.probs import Logprobs

_ALPHABET = string.ascii_letters + string.digits


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    """Token counts."""

    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class FunctionDelta(msgspec.Struct):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    """New pieces of a tool call."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET


class Delta(msgspec.Struct):
    """What the message grew by."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    finish_reason: str | None
    index: int
    delta: Delta
    logprobs: Logprobs | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct):
    """An event of a streamed chat completion."""

    choices: list[ChunkChoice]
    created: int
    id: str
    model: str
    system_fingerprint: str
    object: str = "chat.completion.chunk"
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: Progress | UnsetType = UNSET
    verbose: CompletionResponse | UnsetType = msgspec.field(default=UNSET, name="__verbose")


class Function(msgspec.Struct):
    name: str
    arguments: str


class MessageToolCall(msgspec.Struct):
    type: str
    function: Function
    id: str | UnsetType = UNSET


class Message(msgspec.Struct):
    """The assistant's message."""

    role: str
    content: str
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    finish_reason: str
    index: int
    message: Message
    logprobs: Logprobs | UnsetType = UNSET


class ChatCompletionResponse(msgspec.Struct):
    """A chat completion."""

    choices: list[ChatChoice]
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    id: str
    timings: Timings
    object: str = "chat.completion"
    verbose: CompletionResponse | UnsetType = msgspec.field(default=UNSET, name="__verbose")


class TextChoice(msgspec.Struct):
    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: str | None


class TextCompletion(msgspec.Struct):
    """A completion, or an event of a streamed one."""

    choices: list[TextChoice]
    created: int
    model: str
    system_fingerprint: str
    id: str
    object: str = "text_completion"
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: Progress | UnsetType = UNSET
    verbose: CompletionResponse | UnsetType = msgspec.field(default=UNSET, name="__verbose")


class Stamp(msgspec.Struct, frozen=True):
    """What all events of a response repeat."""

    created: int
    id: str
    model: str
    system_fingerprint: str


def stamp(model: str, fingerprint: str) -> Stamp:
    completion_id = "chatcmpl-" + "".join(secrets.choice(_ALPHABET) for _ in range(32))
    return Stamp(int(time.time()), completion_id, model, fingerprint)


def usage_of(finishes: list[Finish], choices: int) -> Usage:
    """Token counts of all completions; a prompt counts once, however many choices it has."""
    completion = sum(f.n_predicted for f in finishes)
    firsts = finishes[::choices]
    prompt = sum(f.n_prompt_tokens for f in firsts)
    cached = sum(f.timings.cache_n for f in firsts)
    return Usage(completion, prompt, completion + prompt, PromptTokensDetails(cached))


def finish_reason(finish: Finish, *, tool_calls: bool = False) -> str:
    if finish.stop_type not in ("eos", "word"):
        return "length"
    return "tool_calls" if tool_calls else "stop"
