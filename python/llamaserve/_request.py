"""From typed parameters to the core's request."""

from __future__ import annotations

from typing import Any

import msgspec

from llamaserve import _core
from llamaserve.errors import RequestError
from llamaserve.params import ChatConstraint, CompletionParams

# Fields that go to the core under their own name and with their own type.
_PLAIN = (
    "seed",
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "typical_p",
    "repeat_last_n",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "min_keep",
    "n_probs",
    "post_sampling_probs",
    "ignore_eos",
    "n_predict",
    "n_indent",
    "n_keep",
    "n_discard",
    "n_cache_reuse",
    "speculative_n_max",
    "speculative_n_min",
    "t_max_predict_ms",
    "cache_prompt",
    "return_tokens",
    "return_progress",
    "timings_per_token",
    "id_slot",
    "priority",
    "t_max_ms",
)


def make_request_params(
    core: _core.Engine,
    defaults: CompletionParams | None,
    params: CompletionParams | None,
    constraint: ChatConstraint | None,
) -> _core.RequestParams:
    """The engine's defaults with `defaults`, then `params`, then the chat's `constraint` on top.

    Raises `RequestError` ("invalid_request") where a value can't be used.
    """
    out = core.new_params()
    try:
        for source in (defaults, params):
            if source is not None:
                _apply(out, source)
        if constraint is not None:
            _constrain(out, constraint)
    except TypeError as e:
        raise RequestError(f"a parameter has the wrong type: {e}".splitlines()[0], "invalid_request") from None
    except ValueError as e:
        raise RequestError(str(e), "invalid_request") from None
    return out


def _apply(out: _core.RequestParams, source: CompletionParams) -> None:
    for name in _PLAIN:
        value = getattr(source, name)
        if value is not None:
            try:
                setattr(out, name, value)
            except (TypeError, OverflowError):
                raise ValueError(f"Field '{name}': {_shown(value)} can't be used") from None
    if source.stop is not None:
        stop = [source.stop] if isinstance(source.stop, str) else source.stop
        if stop := [s for s in stop if s]:
            out.stop = stop
    if source.samplers is not None:
        if isinstance(source.samplers, str):
            out.set_samplers_by_chars(source.samplers)
        else:
            out.set_samplers_by_names(source.samplers)
    if source.lora:
        out.lora = [(adapter.id, adapter.scale) for adapter in source.lora]
    if source.logit_bias is not None:
        out.clear_logit_bias()
        for token, bias in _biases(source.logit_bias):
            if isinstance(token, int):
                if 0 <= token < 2**31:  # others are in no vocabulary, and are skipped like those outside this one
                    out.add_logit_bias(token, bias)
            else:
                out.add_logit_bias_text(token, bias)
    if source.grammar:
        out.grammar = source.grammar
        out.json_schema = ""
    elif source.json_schema is not None:
        out.json_schema = msgspec.json.encode(source.json_schema).decode()
        out.grammar = ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _biases(value: list[Any] | dict[str, Any]) -> list[tuple[int | str, float]]:
    """`(token id or text, bias)` pairs. Pairs of another form are skipped, as llama-server skips them."""
    pairs: list[Any]
    if isinstance(value, dict):
        pairs = [[int(k) if k.lstrip("-").isdecimal() and k.isascii() else k, v] for k, v in value.items()]
    else:
        pairs = value
    out: list[tuple[int | str, float]] = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            continue
        token, bias = pair
        if isinstance(bias, bool):
            if bias:
                continue
            bias = float("-inf")
        if isinstance(bias, (int, float)) and isinstance(token, (int, str)) and not isinstance(token, bool):
            try:
                out.append((token, float(bias)))
            except OverflowError:
                raise ValueError(f"Field 'logit_bias': {_shown(bias)} can't be used") from None
    return out


def _constrain(out: _core.RequestParams, c: ChatConstraint) -> None:
    if c.grammar:
        out.grammar = c.grammar
        out.json_schema = ""
        out.grammar_is_tool_calls = True
    out.grammar_lazy = c.grammar_lazy
    out.preserved_tokens = list(c.preserved_tokens)
    out.grammar_triggers = [(t.type, t.value, t.token) for t in c.grammar_triggers]
    out.generation_prompt = c.generation_prompt
    if c.reasoning_end_tags:
        out.reasoning_budget = c.reasoning_budget
        out.reasoning_start_tag = c.reasoning_start_tag
        out.reasoning_end_tags = list(c.reasoning_end_tags)
        out.reasoning_budget_message = c.reasoning_budget_message
