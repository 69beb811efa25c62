"""Bodies of OpenAI's responses API."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from llamaserve.params import Limit
from llamaserve.results import Progress, Timings
from llamaserve.server.request_fields import GenerationRequest

# -- requests --


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text of an answer."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    text: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    """Not supported yet."""


class InputFile(msgspec.Struct, tag_field="type", tag="input_file"):
    """Not supported yet."""


InputPart: TypeAlias = InputText | OutputText | Refusal | ReasoningText | SummaryText | InputImage | InputFile


class InputItem(msgspec.Struct):
    """A message, a call of a function, what it returned, or thoughts. Items of an answer are taken back as they are."""

    type: str | None = None
    """"message" (also where it is not given), "function_call", "function_call_output" or "reasoning"."""
    role: str | None = None
    """Of a message: "user", "assistant", "system" or "developer"."""
    content: str | list[InputPart] | None = None
    """Of a message or of thoughts."""
    call_id: str | None = None
    """Of a call and of what it returned."""
    name: str | None = None
    """Of a call: the function's name."""
    arguments: str | None = None
    """Of a call: JSON."""
    output: str | list[InputPart] | None = None
    """What a function returned."""
    summary: list[SummaryText] | None = None
    """Of thoughts."""


class TextFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    name: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    """JSON schema that the answer follows, with "json_schema"."""
    strict: bool | UnsetType | None = UNSET


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None


class Reasoning(msgspec.Struct):
    effort: str | None = None
    """How much to think, where the model's template knows of it; "none" switches it off."""
    summary: str | None = None
    """Ignored: thoughts come whole."""


class ResponsesRequest(GenerationRequest, kw_only=True):
    """Body of `/v1/responses` and `/v1/responses/input_tokens`. The sampling fields of `/completion` are taken too."""

    input: str | list[InputItem]
    """A text, or the conversation so far."""
    instructions: str | None = None
    """System prompt."""
    max_output_tokens: Limit | None = None
    """Same as `n_predict`."""
    tools: list[dict[str, Any]] | None = None
    """`[{"type": "function", "name": "...", "parameters": {}}]`; tools of other types are left out."""
    tool_choice: str | dict[str, Any] | None = None
    """"auto", "none", "required", `{"type": "function", "name": "..."}`, or
    `{"type": "allowed_tools", "mode": "auto", "tools": []}`."""
    parallel_tool_calls: bool | None = None
    """Several calls in one answer."""
    text: TextConfig | None = None
    """The form of the answer: text, any JSON, or JSON by a schema."""
    reasoning: Reasoning | None = None
    """How much effort goes into thinking."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the template."""
    metadata: dict[str, Any] | None = None
    """Comes back with the response."""
    previous_response_id: str | None = None
    """Not supported: responses are not stored."""
    conversation: Any = None
    """Not supported."""
    prompt: Any = None
    """Not supported."""
    background: bool | None = None
    """Not supported."""


# -- responses --


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: str
    content: list[ReasoningText]
    summary: list[SummaryText] = []
    encrypted_content: str = ""


OutputItem: TypeAlias = ReasoningItem | MessageItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int
    """Tokens of the thoughts' text."""


class ResponseUsage(msgspec.Struct):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class Response(msgspec.Struct, kw_only=True):
    """A response, perhaps not complete yet."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    """"completed", "incomplete" (a limit was reached), "failed" or "in_progress"."""
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: Reasoning
    store: bool = False
    temperature: float | None
    text: TextConfig
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float | None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None


# -- events of a stream --


class Event(msgspec.Struct, kw_only=True):
    """Fields that any event has or may have."""

    type: str
    sequence_number: int
    timings: Timings | UnsetType = UNSET
    prompt_progress: Progress | UnsetType = UNSET


class ResponseEvent(Event, kw_only=True):
    response: Response


class ItemEvent(Event, kw_only=True):
    output_index: int
    item: OutputItem


class PartEvent(Event, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0
    part: OutputText | ReasoningText


class DeltaEvent(Event, kw_only=True):
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    delta: str


class TextDoneEvent(Event, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0
    logprobs: list[Any] | UnsetType = UNSET
    text: str


class ArgumentsDoneEvent(Event, kw_only=True):
    item_id: str
    output_index: int
    name: str
    arguments: str
