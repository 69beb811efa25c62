"""What a caller may ask of one completion. Names and ranges are those of llama-server's `/completion` body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

UInt: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**32 - 1)]

Prompt: TypeAlias = str | Sequence[int | str]
"""Text, token ids, or text and token ids mixed."""


class LoraScale(msgspec.Struct, frozen=True):
    """One LoRA adapter, by its number, and how strongly it works; 0 is off."""

    id: UInt
    scale: float = 0.0


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the next token is chosen. A field left at `None` takes the engine's default."""

    seed: Seed | None = None
    """Seed of the random generator; -1 picks one at random."""
    temperature: float | None = None
    """0 samples greedily; higher is more varied. Negative values count as 0."""
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_k: Int32 | None = None
    """Keep the K most probable tokens; 0 keeps all."""
    top_p: float | None = None
    """Keep the smallest set of tokens with this cumulative probability; 1.0 keeps all."""
    min_p: float | None = None
    """Drop tokens less probable than this fraction of the most probable one."""
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    typical_p: float | None = None
    repeat_last_n: UInt | None = None
    """Tokens looked back on by the penalties; 0 turns them off."""
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: UInt | None = None
    dry_penalty_last_n: UInt | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: Int32 | None = None
    """0 off, 1 Mirostat, 2 Mirostat 2.0."""
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    min_keep: UInt | None = None
    n_probs: Int32 | None = None
    """Return the probabilities of this many most probable tokens with each token."""
    post_sampling_probs: bool | None = None
    """Probabilities after the sampler chain, not those of the raw logits."""
    ignore_eos: bool | None = None
    logit_bias: list[Any] | dict[str, Any] | None = None
    """`[[token id or text, bias], ...]` or `{"token id or text": bias}`; a bias of `False` bans the token."""
    samplers: list[str] | str | None = None
    """Order of the sampler chain, as names or as one string of letters."""
    grammar: str | None = None
    """GBNF grammar that the output must follow (root rule `root`)."""
    json_schema: Any = None
    """JSON schema that the output must follow. An empty object allows any object."""


class CompletionParams(SamplingParams, kw_only=True, omit_defaults=True):
    """Sampling, limits, and what comes back."""

    n_predict: Limit | None = None
    """Most tokens to generate; -1 until the model ends or the context is full; 0 only computes the prompt."""
    stop: str | list[str] | None = None
    """Texts that end the generation; they are not part of the output."""
    n_indent: UInt | None = None
    n_keep: Limit | None = None
    n_discard: UInt | None = None
    t_max_predict_ms: int | None = None
    """Stop at the first line break after this many milliseconds of generating; 0 or less: no limit."""
    cache_prompt: bool | None = None
    """Reuse what a slot has already computed of this prompt."""
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    id_slot: Limit | None = None
    """Serve the request on this slot; -1 takes any."""
    lora: list[LoraScale] | None = None
    """LoRA adapters for this request; those that aren't named are off. Left out or empty: as the engine is set."""
    priority: Int32 | None = None
    """Higher goes first; waiting ten seconds is worth as much as one more. Default 0."""
    t_max_ms: UInt | None = None
    """Milliseconds from arrival to the end; past that the answer ends where it is. 0: no limit."""


class GrammarTrigger(msgspec.Struct, frozen=True):
    """Text or token that switches a lazy grammar on. `type`: 0 token, 1 word, 2 pattern, 3 full pattern."""

    type: int
    value: str
    token: int = -1


class ChatConstraint(msgspec.Struct, frozen=True, kw_only=True):
    """What a rendered chat asks of the sampler: made by `Engine.apply_template`, passed back to the engine."""

    grammar: str = ""
    grammar_lazy: bool = False
    grammar_triggers: tuple[GrammarTrigger, ...] = ()
    preserved_tokens: tuple[str, ...] = ()
    generation_prompt: str = ""
    reasoning_budget: int = -1
    reasoning_start_tag: str = ""
    reasoning_end_tags: tuple[str, ...] = ()
    reasoning_budget_message: str = ""


def merge(params: CompletionParams | None, overrides: Mapping[str, Any]) -> CompletionParams:
    """`params` with `overrides` (checked by name, type and range) on top.

    Raises `msgspec.ValidationError` for a wrong type or range and `TypeError` for an unknown name.
    """
    known = CompletionParams.__struct_fields__
    for name in overrides:
        if name not in known:
            raise TypeError(f"unknown completion parameter {name!r}")
    checked = msgspec.convert(dict(overrides), CompletionParams)
    if params is None:
        return checked
    return msgspec.structs.replace(params, **{name: getattr(checked, name) for name in overrides})
