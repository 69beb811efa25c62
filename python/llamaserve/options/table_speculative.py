"""Speculative decoding: llama-server's options, not supported yet, and those llama-server itself has removed."""

from __future__ import annotations

from . import syntax as v
from .spec import Option
from .table_engine import CACHE_TYPES
from .table_unsupported import later
from .values import Choice, Custom, Flag, Float, Int, Str, Switch, ValueType, path

_BIT = Choice(("0", "1"), "0|1")
_TYPE = Choice(CACHE_TYPES, "TYPE")


def _spec(
    dest: str,
    *flags: str,
    type: ValueType,
    help: str,
    env: str | None = None,
    default: object = None,
    negative: tuple[str, ...] = (),
    accepts: tuple[object, ...] = (),
) -> Option:
    return later(
        dest,
        *flags,
        type=type,
        section="speculative",
        note="speculative decoding",
        help=help,
        env=env,
        default=default,
        negative=negative,
        accepts=accepts,
    )


_DRAFT = (
    _spec(
        "spec_type",
        "--spec-type",
        env="SPEC_TYPE",
        type=Custom(v.names_required, "TYPE,...", "names separated by commas"),
        help="Kinds of speculation: none, draft-simple, draft-eagle3, draft-mtp, draft-dflash, draft-dspark, "
        "ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache.",
        default=["none"],
        accepts=(["none"],),
    ),
    _spec(
        "spec_draft_model",
        *("--spec-draft-model", "-md", "--model-draft"),
        env="SPEC_DRAFT_MODEL",
        type=path(),
        help="The draft model.",
    ),
    _spec(
        "spec_draft_hf",
        *("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"),
        env="SPEC_DRAFT_HF_REPO",
        type=Str("USER/REPO[:QUANT]"),
        help="Repository of the draft model.",
    ),
    _spec(
        "spec_draft_n_max",
        "--spec-draft-n-max",
        env="SPEC_DRAFT_N_MAX",
        type=Int(min=0),
        default=3,
        help="Most tokens to draft.",
    ),
    _spec(
        "spec_draft_n_min",
        "--spec-draft-n-min",
        env="SPEC_DRAFT_N_MIN",
        type=Int(),
        default=0,
        help="Fewest tokens to draft.",
    ),
    _spec(
        "spec_draft_p_split",
        *("--spec-draft-p-split", "--draft-p-split"),
        env="SPEC_DRAFT_P_SPLIT",
        type=Float(metavar="P"),
        default=0.1,
        help="Probability from which a draft may branch.",
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
        _spec(f"spec_draft_{name}", *flags, type=type, help=f"As --{name.replace('_', '-')}, for the draft model.")
        for name, flags, type in (
            ("threads", ("--spec-draft-threads", "-td", "--threads-draft"), Int()),
            ("threads_batch", ("--spec-draft-threads-batch", "-tbd", "--threads-batch-draft"), Int()),
            ("cpu_mask", ("--spec-draft-cpu-mask", "-Cd", "--cpu-mask-draft"), Str("MASK")),
            ("cpu_range", ("--spec-draft-cpu-range", "-Crd", "--cpu-range-draft"), Str("LO-HI")),
            ("cpu_strict", ("--spec-draft-cpu-strict", "--cpu-strict-draft"), _BIT),
            ("prio", ("--spec-draft-prio", "--prio-draft"), Int(min=0, max=3)),
            ("poll", ("--spec-draft-poll", "--poll-draft"), _BIT),
            ("cpu_mask_batch", ("--spec-draft-cpu-mask-batch", "-Cbd", "--cpu-mask-batch-draft"), Str("MASK")),
            ("cpu_strict_batch", ("--spec-draft-cpu-strict-batch", "--cpu-strict-batch-draft"), _BIT),
            ("prio_batch", ("--spec-draft-prio-batch", "--prio-batch-draft"), Int(min=0, max=3)),
            ("poll_batch", ("--spec-draft-poll-batch", "--poll-batch-draft"), _BIT),
        )
    ),
)

_NGRAM = (
    *(
        _spec(f"spec_ngram_mod_n_{name}", f"--spec-ngram-mod-n-{name}", type=Int(), default=default, help=help)
        for name, default, help in (
            ("min", 48, "Fewest tokens to draft from n-grams (ngram-mod)."),
            ("max", 64, "Most tokens to draft from n-grams (ngram-mod)."),
            ("match", 24, "Length of the n-gram looked up (ngram-mod)."),
        )
    ),
    *(
        _spec(
            f"spec_ngram_{kind.replace('-', '_')}_{name.replace('-', '_')}",
            f"--spec-ngram-{kind}-{name}",
            type=Int(min=1),
            default=default,
            help=f"{help} (ngram-{kind}).",
        )
        for kind in ("simple", "map-k", "map-k4v")
        for name, default, help in (
            ("size-n", 12, "Length of the n-gram looked up"),
            ("size-m", 48, "Length of the draft"),
            ("min-hits", 1, "How often an n-gram must have occurred"),
        )
    ),
    _spec(
        "lookup_cache_static",
        *("-lcs", "--lookup-cache-static"),
        type=path(),
        help="N-grams to draft from, not updated.",
    ),
    _spec(
        "lookup_cache_dynamic",
        *("-lcd", "--lookup-cache-dynamic"),
        type=path(),
        help="N-grams to draft from, updated while generating.",
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
    _spec("spec_default", "--spec-default", type=Flag(), help="Speculate with the default settings."),
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
