"""Keyword options of `Engine`: the names of llama-server's flags, with underscores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from llamaserve import _core
from llamaserve.errors import ModelLoadError

CacheType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


Adapters: TypeAlias = Sequence["str | os.PathLike[str] | tuple[str | os.PathLike[str], float]"]


class EngineOptions(TypedDict, total=False):
    """All optional; what is left out takes llama-server's default. `docs/flags.md` says what each does."""

    threads: int
    threads_batch: int
    ctx_size: int
    n_predict: int
    batch_size: int
    ubatch_size: int
    keep: int
    context_shift: bool
    swa_full: bool
    flash_attn: Literal["on", "off", "auto"]
    rope_scaling: Literal["none", "linear", "yarn"]
    rope_scale: float
    rope_freq_base: float
    rope_freq_scale: float
    yarn_orig_ctx: int
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_slow: float
    yarn_beta_fast: float
    kv_offload: bool
    repack: bool
    no_host: bool
    cache_type_k: CacheType
    cache_type_v: CacheType
    load_mode: str
    lazy_mode: str
    numa: str
    cpu_mask: str
    cpu_range: str
    cpu_strict: bool
    prio: int
    poll: int
    cpu_mask_batch: str
    cpu_range_batch: str
    cpu_strict_batch: bool
    prio_batch: int
    poll_batch: int
    device: str
    override_tensor: str
    cpu_moe: bool
    n_cpu_moe: int
    n_cpu_ffn: int
    n_gpu_layers: int | str
    split_mode: Literal["none", "layer", "row", "tensor"]
    tensor_split: str
    main_gpu: int
    fit: bool
    fit_target: str
    fit_ctx: int
    check_tensors: bool
    override_kv: list[str]
    op_offload: bool
    parallel: int
    kv_unified: bool | None
    kv_unified_per_slot: int
    cont_batching: bool
    special: bool
    warmup: bool
    cache_prompt: bool
    lora: Adapters
    """LoRA adapters: paths, or pairs of a path and a scale."""
    lora_init_without_apply: bool
    control_vector: Adapters
    control_vector_layer_range: Sequence[int]
    """First and last layer, from 1."""
    chat_template: str
    chat_template_file: str
    jinja: bool
    reasoning_format: str
    reasoning: Literal["on", "off", "auto"]
    reasoning_effort: str
    reasoning_budget: int
    reasoning_budget_message: str
    chat_template_kwargs: dict[str, Any]
    skip_chat_parsing: bool
    prefill_assistant: bool
    reasoning_preserve: bool
    reverse_prompt: list[str]
    embedding: bool
    reranking: bool
    pooling: Literal["none", "mean", "cls", "last", "rank"]
    embd_normalize: int
    cache_ram: int
    cache_reuse: int
    cache_idle_slots: bool
    ctx_checkpoints: int
    step_target_ms: float
    cpu_attention: Literal["auto", "ggml"]
    queue_size: int
    spec_type: list[str]
    spec_default: bool
    spec_draft_model: str | Path
    spec_draft_n_max: int
    spec_draft_n_min: int
    spec_draft_p_split: float
    spec_draft_p_min: float
    spec_draft_backend_sampling: bool
    spec_draft_type_k: CacheType
    spec_draft_type_v: CacheType
    spec_draft_ngl: int | str
    spec_draft_device: str
    spec_draft_override_tensor: str
    spec_draft_cpu_moe: bool
    spec_draft_n_cpu_moe: int
    spec_draft_threads: int
    spec_draft_threads_batch: int
    spec_ngram_mod_n_min: int
    spec_ngram_mod_n_max: int
    spec_ngram_mod_n_match: int
    spec_ngram_simple_size_n: int
    spec_ngram_simple_size_m: int
    spec_ngram_simple_min_hits: int
    spec_ngram_map_k_size_n: int
    spec_ngram_map_k_size_m: int
    spec_ngram_map_k_min_hits: int
    spec_ngram_map_k4v_size_n: int
    spec_ngram_map_k4v_size_m: int
    spec_ngram_map_k4v_min_hits: int
    lookup_cache_static: str | Path
    lookup_cache_dynamic: str | Path
    spec_synth_len: float
    spec_synth_rates: str


_PATHS = frozenset(("spec_draft_model", "lookup_cache_static", "lookup_cache_dynamic"))


def make_engine_params(model: str, options: EngineOptions) -> _core.EngineParams:
    """The core's parameters. Raises `TypeError` for an unknown name or a value of the wrong type."""
    params = _core.EngineParams()
    try:
        params.model = model
    except (TypeError, UnicodeError):
        raise ModelLoadError(f"{model!a}: the file's name is not valid UTF-8; rename it") from None
    for name, given in options.items():
        if name not in EngineOptions.__annotations__:
            raise TypeError(f"unknown engine option {name!r}")
        if given is None:
            continue
        try:
            if name == "chat_template_file":
                params.chat_template = Path(str(given)).read_text(encoding="utf-8")
            else:
                setattr(params, name, _converted(name, given))
        except OSError as e:
            raise ModelLoadError(f"{name}: {e}") from None
        except TypeError:
            raise TypeError(f"engine option {name!r} can't be {given!r}") from None
    return params


def _converted(name: str, given: object) -> object:
    """The value in the form that the core takes."""
    if name == "chat_template_kwargs" and isinstance(given, dict):
        return {key: msgspec.json.encode(value).decode() for key, value in given.items()}
    if name in ("lora", "control_vector"):
        return _adapters(given)
    if name in ("n_gpu_layers", "spec_draft_ngl"):
        return str(given)
    if name in _PATHS and isinstance(given, Path):
        return str(given)
    return given


def _adapters(given: object) -> list[tuple[str, float]]:
    if isinstance(given, (str, os.PathLike)) or not isinstance(given, Sequence):
        raise TypeError
    pairs = [(item, 1.0) if isinstance(item, (str, os.PathLike)) else item for item in given]
    return [(os.fspath(path), float(scale)) for path, scale in pairs]
