"""What a caller may ask of one completion. Names and ranges are those of llama-server's `/completion` body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

UInt: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]

Prompt: TypeAlias = str | Sequence[int | str]
"""Text, token ids, or text and token ids mixed."""


class LoraScale(msgspec.Struct, frozen=True):
    """One LoRA adapter, by its number, and how strongly it works; 0 is off."""

    id: UInt
    """The adapter's place in `--lora`, from 0."""
    scale: float = 0.0
    """How strongly it works: 1 as trained, 0 not at all."""


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the next token is chosen. A field left at `None` takes the engine's default."""

    seed: Seed | None = None
    """Seed of the random generator, of which the low 32 bits count; -1 picks one at random."""
    temperature: float | None = None
    """0 samples greedily; higher is more varied. Negative values count as 0."""
    dynatemp_range: float | None = None
    """The temperature varies by this much around `temperature`, with the entropy; 0 turns that off."""
    dynatemp_exponent: float | None = None
    """How the entropy maps to the temperature."""
    top_k: Int32 | None = None
    """Keep the K most probable tokens; 0 keeps all."""
    top_p: float | None = None
    """Keep the smallest set of tokens with this cumulative probability; 1.0 keeps all."""
    min_p: float | None = None
    """Drop tokens less probable than this fraction of the most probable one."""
    top_n_sigma: float | None = None
    """Keep tokens whose logit is within this many standard deviations of the best; negative keeps all."""
    xtc_probability: float | None = None
    """How often the most probable tokens are removed (XTC); 0 never."""
    xtc_threshold: float | None = None
    """XTC removes tokens from this probability on, except the last of them; above 0.5 none."""
    typical_p: float | None = None
    """Keep locally typical tokens of this cumulative probability; 1.0 keeps all."""
    repeat_last_n: UInt | None = None
    """Tokens looked back on by the penalties; 0 turns them off."""
    repeat_penalty: float | None = None
    """Makes tokens less likely that occurred before; 1.0 turns it off."""
    frequency_penalty: float | None = None
    """The same, growing with how often they occurred; 0 turns it off."""
    presence_penalty: float | None = None
    """The same for any that occurred at all; 0 turns it off."""
    dry_multiplier: float | None = None
    """Strength of the penalty on repeating sequences (DRY); 0 turns it off."""
    dry_base: float | None = None
    """How fast that penalty grows with the length of the repetition."""
    dry_allowed_length: UInt | None = None
    """Repetitions up to this many tokens are not punished."""
    dry_penalty_last_n: UInt | None = None
    """How many tokens DRY looks back on; 0 turns it off."""
    dry_sequence_breakers: list[str] | None = None
    """Texts at which DRY takes a sequence to end."""
    mirostat: Int32 | None = None
    """0 off, 1 Mirostat, 2 Mirostat 2.0."""
    mirostat_tau: float | None = None
    """The entropy that Mirostat aims at."""
    mirostat_eta: float | None = None
    """How fast Mirostat learns."""
    adaptive_target: float | None = None
    """Prefer tokens near this probability (0 to 1); negative turns it off."""
    adaptive_decay: float | None = None
    """How slowly that forgets what was sampled (0 to 0.99)."""
    min_keep: UInt | None = None
    """The samplers leave at least this many tokens."""
    n_probs: Int32 | None = None
    """Return the probabilities of this many most probable tokens with each token."""
    post_sampling_probs: bool | None = None
    """Probabilities after the sampler chain, not those of the raw logits."""
    ignore_eos: bool | None = None
    """Never end by the model's own decision."""
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
    """Stop at a line that is indented by fewer blanks than this."""
    n_keep: Limit | None = None
    """Tokens at the start that a context shift keeps; -1 keeps the whole prompt."""
    n_discard: UInt | None = None
    """Tokens that a context shift drops; 0 drops half of those that may go."""
    n_cache_reuse: UInt | None = None
    """Shortest chunk of the prompt to reuse at another position; 0 is off. See `--cache-reuse`."""
    speculative_n_max: UInt | None = msgspec.field(default=None, name="speculative.n_max")
    """Most tokens to draft at a time, where the engine speculates; 0 drafts none."""
    speculative_n_min: UInt | None = msgspec.field(default=None, name="speculative.n_min")
    """Shorter drafts are not used."""
    t_max_predict_ms: int | None = None
    """Stop at the first line break after this many milliseconds of generating; 0 or less: no limit."""
    cache_prompt: bool | None = None
    """Reuse what a slot has already computed of this prompt."""
    return_tokens: bool | None = None
    """Return the ids of the generated tokens."""
    return_progress: bool | None = None
    """In a stream: say how far the prompt is."""
    timings_per_token: bool | None = None
    """In a stream: add `timings` to every event."""
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
    encoded = dict(zip(known, CompletionParams.__struct_encode_fields__, strict=True))
    checked = msgspec.convert({encoded[name]: value for name, value in overrides.items()}, CompletionParams)
    if params is None:
        return checked
    return msgspec.structs.replace(params, **{name: getattr(checked, name) for name in overrides})
