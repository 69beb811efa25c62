"""Bodies of Anthropic's messages API."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from llamaserve.params import UInt
from llamaserve.server.request_fields import GenerationRequest

# -- blocks of content, which come and go in the same form --


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""
    """Always empty, and not looked at: there is nothing to prove here."""


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Thoughts that only Anthropic can read. Left out of the prompt."""

    data: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool by the model."""

    id: str
    name: str
    input: dict[str, Any]


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    """Not supported yet."""

    source: dict[str, Any]


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    """What a tool answered."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None


InputBlock: TypeAlias = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock | ImageBlock
OutputBlock: TypeAlias = ThinkingBlock | TextBlock | ToolUseBlock


# -- requests --


class InputMessage(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]


class ClientTool(msgspec.Struct):
    """A tool that the client runs."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    """JSON schema of the tool's input."""
    type: str | None = None
    """"custom". The tools that Anthropic defines are not supported."""
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """Which tool, with "tool"."""
    disable_parallel_tool_use: bool | None = None
    """At most one call in an answer."""


class ThinkingConfig(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    """"disabled" switches thinking off where the model's template can; the others leave it to the model."""
    budget_tokens: UInt | None = None
    """Most tokens to think with, with "enabled"; 10000 where it is not given."""


class OutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    format: OutputFormat | None = None
    """JSON schema that the answer follows."""
    effort: str | None = None
    """How much to think, where the model's template knows of it."""


class MessagesRequest(GenerationRequest, kw_only=True):
    """Body of `/v1/messages` and `/v1/messages/count_tokens`. The sampling fields of `/completion` are taken too."""

    messages: list[InputMessage]
    """The conversation so far; the last one is the user's, or the beginning of the answer."""
    system: str | list[TextBlock] | None = None
    """System prompt."""
    stop_sequences: list[str] | None = None
    """Texts that end the answer; they are not part of it."""
    tools: list[ClientTool] | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """Whether it may, must or must not call one, or which."""
    thinking: ThinkingConfig | None = None
    """Whether the model thinks first, and for how many tokens at most."""
    output_config: OutputConfig | None = None
    """The form of the answer, and how much effort goes into it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the template."""
    metadata: dict[str, Any] | None = None
    """Ignored."""


# -- responses --


class MessageUsage(msgspec.Struct):
    """Token counts. The whole prompt is the sum of the first three."""

    input_tokens: int
    """Tokens of the prompt that had to be computed."""
    cache_creation_input_tokens: int
    """Always 0: computed tokens are cached at no price."""
    cache_read_input_tokens: int
    """Tokens of the prompt that came from the cache."""
    output_tokens: int


class MessageResponse(msgspec.Struct, tag_field="type", tag="message"):
    """The assistant's message."""

    id: str
    role: str
    content: list[OutputBlock]
    model: str
    stop_reason: str | None
    """"end_turn", "max_tokens", "stop_sequence" or "tool_use"."""
    stop_sequence: str | None
    usage: MessageUsage


class MessageTokens(msgspec.Struct):
    """Length of the prompt that a request makes."""

    input_tokens: int


# -- events of a stream --


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: MessageResponse


class ContentBlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: OutputBlock


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class StopDelta(msgspec.Struct):
    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass
