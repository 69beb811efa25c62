"""Speculative decoding, and the options that llama-server itself has removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import syntax as v
from .spec import Option, Scope
from .table_cpu import BIT
from .table_engine import CACHE_TYPES
from .values import Choice, Custom, Flag, Float, Int, Str, Switch, ValueType, path

_TYPE = Choice(CACHE_TYPES, "TYPE")


def _spec(
    dest: str,
    *flags: str,
    type: ValueType,
    help: str,
    env: str | None = None,
    default: object = None,
    negative: tuple[str, ...] = (),
    combine: Callable[[Any, Any], Any] | None = None,
    scope: Scope = "engine",
) -> Option:
    return Option(
        dest=dest,
        flags=flags,
        type=type,
        section="speculative",
        scope=scope,
        help=help,
        env=f"LLAMA_ARG_{env}" if env else None,
        default=default,
        negative_flags=negative,
        combine=combine,
    )


_DRAFT = (
    _spec(
        "spec_type",
        "--spec-type",
        env="SPEC_TYPE",
        type=Custom(v.names_required, "TYPE,...", "names separated by commas"),
        help="Ways to draft tokens, tried in this order: none, ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, "
        "ngram-cache, draft-simple (with --spec-draft-model, whose default it is). draft-eagle3, draft-mtp, "
        "draft-dflash and draft-dspark are not supported yet.",
        combine=v.extend,
    ),
    _spec(
        "spec_draft_model",
        *("--spec-draft-model", "-md", "--model-draft"),
        env="SPEC_DRAFT_MODEL",
        type=path(),
        help="Small model with the same vocabulary that drafts tokens.",
    ),
    _spec(
        "spec_draft_hf",
        *("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"),
        env="SPEC_DRAFT_HF_REPO",
        type=Str("USER/REPO[:QUANT]"),
        scope="model",
        help="Repository of the draft model on Hugging Face; --spec-draft-model then names the file in it.",
    ),
    _spec(
        "spec_draft_n_max",
        "--spec-draft-n-max",
        env="SPEC_DRAFT_N_MAX",
        type=Int(min=0, max=1024),
        default=3,
        help="Most tokens to draft.",
    ),
    _spec(
        "spec_draft_n_min",
        "--spec-draft-n-min",
        env="SPEC_DRAFT_N_MIN",
        type=Int(min=0, max=1024),
        default=0,
        help="Fewest tokens to draft: shorter drafts are not used.",
    ),
    _spec(
        "spec_draft_p_split",
        *("--spec-draft-p-split", "--draft-p-split"),
        env="SPEC_DRAFT_P_SPLIT",
        type=Float(metavar="P"),
        default=0.1,
        help="Accepted as llama-server accepts it; drafts don't branch.",
    ),
    _spec(
        "spec_draft_p_min",
        *("--spec-draft-p-min", "--draft-p-min"),
        env="SPEC_DRAFT_P_MIN",
        type=Float(metavar="P"),
        default=0.0,
        help="Least probability of a drafted token.",
    ),
    _spec(
        "spec_draft_backend_sampling",
        "--spec-draft-backend-sampling",
        negative=("--no-spec-draft-backend-sampling",),
        env="SPEC_DRAFT_BACKEND_SAMPLING",
        type=Switch(),
        default=True,
        help="Sample drafts on the device.",
    ),
    _spec(
        "spec_draft_type_k",
        *("--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"),
        env="SPEC_DRAFT_CACHE_TYPE_K",
        type=_TYPE,
        default="f16",
        help="As --cache-type-k, for the draft model.",
    ),
    _spec(
        "spec_draft_type_v",
        *("--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"),
        env="SPEC_DRAFT_CACHE_TYPE_V",
        type=_TYPE,
        default="f16",
        help="As --cache-type-v, for the draft model.",
    ),
    _spec(
        "spec_draft_ngl",
        *("--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
        type=Custom(v.gpu_layers, "N|auto|all", "a whole number, 'auto' or 'all'"),
        env="N_GPU_LAYERS_DRAFT",
        default="auto",
        help="As --n-gpu-layers, for the draft model.",
    ),
    _spec(
        "spec_draft_device",
        *("--spec-draft-device", "-devd", "--device-draft"),
        type=Str("NAME,..."),
        help="As --device, for the draft model.",
    ),
    _spec(
        "spec_draft_override_tensor",
        *("--spec-draft-override-tensor", "-otd", "--override-tensor-draft"),
        type=Str("PATTERN=BUFFER,..."),
        help="As --override-tensor, for the draft model.",
    ),
    _spec(
        "spec_draft_cpu_moe",
        *("--spec-draft-cpu-moe", "-cmoed", "--cpu-moe-draft"),
        env="SPEC_DRAFT_CPU_MOE",
        type=Flag(),
        help="As --cpu-moe, for the draft model.",
    ),
    _spec(
        "spec_draft_n_cpu_moe",
        *("--spec-draft-n-cpu-moe", "--spec-draft-ncmoe", "-ncmoed", "--n-cpu-moe-draft"),
        env="SPEC_DRAFT_N_CPU_MOE",
        type=Int(min=0),
        help="As --n-cpu-moe, for the draft model.",
    ),
    *(
        _spec(f"spec_draft_{name}", *flags, type=Int(), help=f"As --{name.replace('_', '-')}, for the draft model.")
        for name, flags in (
            ("threads", ("--spec-draft-threads", "-td", "--threads-draft")),
            ("threads_batch", ("--spec-draft-threads-batch", "-tbd", "--threads-batch-draft")),
        )
    ),
    *(
        _spec(
            f"spec_draft_{name}",
            *flags,
            type=type,
            scope="none",
            help="Has no effect; accepted because llama-server accepts it.",
        )
        for name, flags, type in (
            ("cpu_mask", ("--spec-draft-cpu-mask", "-Cd", "--cpu-mask-draft"), Str("MASK")),
            ("cpu_range", ("--spec-draft-cpu-range", "-Crd", "--cpu-range-draft"), Str("LO-HI")),
            ("cpu_strict", ("--spec-draft-cpu-strict", "--cpu-strict-draft"), BIT),
            ("prio", ("--spec-draft-prio", "--prio-draft"), Int(min=0, max=3)),
            ("poll", ("--spec-draft-poll", "--poll-draft"), BIT),
            ("cpu_mask_batch", ("--spec-draft-cpu-mask-batch", "-Cbd", "--cpu-mask-batch-draft"), Str("MASK")),
            ("cpu_strict_batch", ("--spec-draft-cpu-strict-batch", "--cpu-strict-batch-draft"), BIT),
            ("prio_batch", ("--spec-draft-prio-batch", "--prio-batch-draft"), Int(min=0, max=3)),
            ("poll_batch", ("--spec-draft-poll-batch", "--poll-batch-draft"), BIT),
        )
    ),
)

_NGRAM = (
    *(
        _spec(
            f"spec_ngram_mod_n_{name}",
            f"--spec-ngram-mod-n-{name}",
            type=Int(min=low, max=1024),
            default=default,
            help=help,
        )
        for name, default, low, help in (
            ("min", 48, 0, "Fewest tokens to draft from n-grams (ngram-mod)."),
            ("max", 64, 0, "Most tokens to draft from n-grams (ngram-mod)."),
            ("match", 24, 1, "Length of the n-gram looked up (ngram-mod)."),
        )
    ),
    *(
        _spec(
            f"spec_ngram_{kind.replace('-', '_')}_{name.replace('-', '_')}",
            f"--spec-ngram-{kind}-{name}",
            type=Int(min=1, max=high),
            default=default,
            help=f"{help} (ngram-{kind}).",
        )
        for kind in ("simple", "map-k", "map-k4v")
        for name, default, high, help in (
            ("size-n", 12, 1024, "Length of the n-gram looked up"),
            ("size-m", 48, 1024, "Length of the draft"),
            ("min-hits", 1, 65535, "How often an n-gram must have occurred"),
        )
    ),
    _spec(
        "lookup_cache_static",
        *("-lcs", "--lookup-cache-static"),
        type=path(),
        help="File of n-grams to draft from (ngram-cache), as llama-lookup-create makes it.",
    ),
    _spec(
        "lookup_cache_dynamic",
        *("-lcd", "--lookup-cache-dynamic"),
        type=path(),
        help="The same, of earlier outputs. Not written to.",
    ),
    _spec(
        "spec_synth_len",
        "--spec-synth-len",
        env="SPEC_SYNTH_LEN",
        type=Float(),
        help="Pretend that this many tokens are accepted on average (for benchmarks).",
    ),
    _spec(
        "spec_synth_rates",
        "--spec-synth-rates",
        env="SPEC_SYNTH_RATES",
        type=Str("P,P,..."),
        help="Pretend these rates of acceptance, one for each position (for benchmarks).",
    ),
    _spec("spec_default", "--spec-default", type=Flag(), help="Same as --spec-type ngram-mod."),
)


def _gone(dest: str, *flags: str, use: str, env: str | None = None, type: ValueType | None = None) -> Option:
    return Option(
        dest=dest,
        flags=flags,
        env=env,
        type=type or Str("N"),
        section="speculative",
        scope="none",
        supported=False,
        removed=use,
        help=f"Removed; use {use}.",
    )


_REMOVED = (
    _gone(
        "draft_max",
        *("--draft", "--draft-n", "--draft-max"),
        env="LLAMA_ARG_DRAFT_MAX",
        use="--spec-draft-n-max or --spec-ngram-mod-n-max",
    ),
    _gone(
        "draft_min",
        *("--draft-min", "--draft-n-min"),
        env="LLAMA_ARG_DRAFT_MIN",
        use="--spec-draft-n-min or --spec-ngram-mod-n-min",
    ),
    _gone(
        "spec_ngram_size_n",
        "--spec-ngram-size-n",
        use="--spec-ngram-simple-size-n, --spec-ngram-map-k-size-n, --spec-ngram-map-k4v-size-n or "
        "--spec-ngram-mod-n-match",
    ),
    _gone(
        "spec_ngram_size_m",
        "--spec-ngram-size-m",
        use="--spec-ngram-simple-size-m, --spec-ngram-map-k-size-m or --spec-ngram-map-k4v-size-m",
    ),
    _gone(
        "spec_ngram_min_hits",
        "--spec-ngram-min-hits",
        use="--spec-ngram-simple-min-hits, --spec-ngram-map-k-min-hits or --spec-ngram-map-k4v-min-hits",
    ),
    _gone("mlock", "--mlock", use="--load-mode mlock", type=Flag()),
    _gone("mmap", "--mmap", use="--load-mode mmap", type=Flag()),
    _gone("no_mmap", "--no-mmap", use="--load-mode none", type=Flag()),
    _gone("direct_io", "-dio", "--direct-io", use="--load-mode dio", type=Flag()),
)

SPECULATIVE = _DRAFT + _NGRAM + _REMOVED
