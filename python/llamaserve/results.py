"""What the engine gives back."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

StopType: TypeAlias = Literal["none", "eos", "word", "limit"]


class Timings(msgspec.Struct, frozen=True):
    """Token counts and times (milliseconds) of one request; names as in llama-server's `timings`."""

    cache_n: int
    """Prompt tokens that came from the cache."""
    prompt_n: int
    """Prompt tokens that were computed."""
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | msgspec.UnsetType = msgspec.UNSET
    """Tokens that were drafted; not set if there were none."""
    draft_n_accepted: int | msgspec.UnsetType = msgspec.UNSET
    """Those of them that were sampled then."""


class Progress(msgspec.Struct, frozen=True):
    """How far the prompt is computed, in tokens."""

    total: int
    cache: int
    processed: int
    time_ms: int


class TokenProb(msgspec.Struct, frozen=True):
    """One token and its probability (0 to 1)."""

    id: int
    text: bytes
    """The token's bytes; they may end within a character."""
    prob: float
    top: tuple[TokenProb, ...] = ()
    """The most probable tokens at this place, best first (only on a generated token)."""


class Finish(msgspec.Struct, frozen=True):
    """How a completion ended."""

    stop_type: StopType
    """"eos": the model ended; "word": a stop text; "limit": token, time or context limit."""
    stopping_word: str
    truncated: bool
    """The context was full."""
    has_new_line: bool
    id_slot: int
    tokens_cached: int
    """Tokens of this request that stay in the slot's cache."""
    n_prompt_tokens: int
    n_predicted: int
    prompt_text: str
    """The prompt as the model saw it, special tokens included."""
    text: str
    """The whole generated text."""
    timings: Timings
    params: dict[str, Any] = {}
    """All parameters that the request ran with: names as in the HTTP API."""


class Chunk(msgspec.Struct, frozen=True):
    """One piece of a streamed completion."""

    text: str = ""
    """Text that became certain: whole characters, no part of a stop text."""
    tokens: tuple[int, ...] = ()
    n_predicted: int = 0
    """Tokens generated so far."""
    n_prompt_tokens: int = 0
    probs: tuple[TokenProb, ...] = ()
    """One entry a token, where `n_probs` was asked for."""
    progress: Progress | None = None
    """Set on chunks that report prompt progress."""
    timings: Timings | None = None
    """Set on the last chunk, and on all where `timings_per_token` was asked for."""
    id_slot: int = -1
    """The slot that the request runs on; -1 before it has one."""
    started: bool = False
    """First chunk of a stream: the request was accepted and holds a slot; no text yet."""
    finish: Finish | None = None
    """Set on the last chunk."""


class Completion(msgspec.Struct, frozen=True):
    """A whole completion."""

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    probs: tuple[TokenProb, ...] = ()

    @property
    def timings(self) -> Timings:
        return self.finish.timings


class ToolCall(msgspec.Struct, frozen=True):
    """A function call that the model asked for; `arguments` is JSON text."""

    name: str
    arguments: str
    id: str


class ChatMessage(msgspec.Struct, frozen=True):
    """An assistant message, parsed."""

    content: str
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class ChatDelta(msgspec.Struct, frozen=True):
    """What a streamed assistant message grew by."""

    content: str = ""
    reasoning_content: str = ""
    tool_call_index: int = -1
    """Index of the tool call this delta belongs to, or -1."""
    tool_call: ToolCall | None = None
    """New pieces of that call: the name and id come once, the arguments grow."""


class ChatCompletion(msgspec.Struct, frozen=True):
    """A whole chat answer."""

    message: ChatMessage
    finish: Finish
    probs: tuple[TokenProb, ...] = ()

    @property
    def timings(self) -> Timings:
        return self.finish.timings


class ChatChunk(msgspec.Struct, frozen=True):
    """One piece of a streamed chat answer: what the message grew by, and the chunk it came from."""

    deltas: tuple[ChatDelta, ...]
    chunk: Chunk
    message: ChatMessage | None = None
    """The whole message, on the last chunk."""


class SlotInfo(msgspec.Struct, frozen=True):
    """One slot as `/slots` shows it."""

    id: int
    n_ctx: int
    state: str
    is_processing: bool
    id_task: int
    """Id of the current or last request; -1 before the first."""
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    n_decoded: int
    n_remain: int
    has_next_token: bool
    has_new_line: bool
    prompt: str
    generated: str
    params: dict[str, object]
    speculative: bool = False
    """Whether the engine drafts tokens."""


class LoraAdapter(msgspec.Struct, frozen=True):
    """A loaded LoRA adapter."""

    id: int
    path: str
    scale: float
    """For requests that don't choose; 0 is off."""
    task_name: str
    prompt_prefix: str
    alora_invocation_string: str
    """The text that switches an activated adapter (aLoRA) on; empty for others."""
    alora_invocation_tokens: tuple[int, ...]


class SlotTransfer(msgspec.Struct, frozen=True):
    """What came of saving a slot to a file, or restoring it from one."""

    id_slot: int
    n_tokens: int
    n_bytes: int
    """Size of the file."""
    ms: float


class Metrics(msgspec.Struct, frozen=True):
    """Counters since the engine started, and gauges."""

    prompt_tokens_total: int
    prompt_tokens_cached_total: int
    prompt_seconds_total: float
    tokens_predicted_total: int
    tokens_predicted_seconds_total: float
    n_decode_total: int
    n_tokens_max: int
    n_busy_slots_total: int
    """Busy slots summed over all decode calls."""
    prompt_tokens_window: int
    """The four *_window values count since the previous call that reset them."""
    prompt_seconds_window: float
    tokens_predicted_window: int
    tokens_predicted_seconds_window: float
    requests_processing: int
    requests_deferred: int
    kv_cells_used: int
    n_preempted_total: int
    """Times that a request had to leave its slot because the KV cache was full."""
    cache_ram_bytes: int
    """Host memory taken by saved prefixes."""
    cache_ram_entries: int
    n_drafts_total: int = 0
    """Drafts that were verified, then tokens in them, and those that were sampled as drafted."""
    n_draft_tokens_total: int = 0
    n_draft_accepted_total: int = 0
    n_draft_accepted_by_place: list[int] = []
    """Accepted tokens by their place in the draft."""


class ModelInfo(msgspec.Struct, frozen=True):
    """What was loaded."""

    path: str
    description: str
    ftype: str
    n_params: int
    size: int
    """Bytes of all tensors."""
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    vocab_type: int
    n_ctx: int
    n_ctx_slot: int
    """Tokens one request may use, prompt and output together."""
    n_slots: int
    n_batch: int
    n_ubatch: int
    kv_unified: bool
    embedding: bool
    """Made with `embedding` or `reranking`."""
    n_embd_out: int
    """Values in an embedding."""
    pooling: str
    """How token embeddings become one: none, mean, cls, last or rank."""
    embd_normalize: int
    bos_token: str
    eos_token: str
    chat_template: str
    chat_template_tool_use: str
    chat_template_caps: dict[str, bool]
    supports_thinking: bool
    n_predict: int = -1
    """Most tokens a request generates that sets no limit; -1: no limit."""
    bos_added: int = -1
    """The token that the model's prompts start with; -1 for none."""
    fim_prefix: int = -1
    """Tokens for fill-in-the-middle; -1 where the model has no such token."""
    fim_suffix: int = -1
    fim_middle: int = -1
    fim_repo: int = -1
    fim_separator: int = -1
