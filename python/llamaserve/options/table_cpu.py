"""Options for which CPUs compute, and how urgently."""

from __future__ import annotations

from . import syntax as v
from .spec import Option
from .values import Custom, Int, Str, ValueType

BIT = Custom(v.bit, "0|1", "0 or 1")


def _cpu(dest: str, *flags: str, type: ValueType, help: str, default: object = None, text: str = "") -> Option:
    return Option(
        dest=dest,
        flags=flags,
        type=type,
        section="hardware",
        scope="engine",
        help=help,
        default=default,
        default_text=text,
    )


CPU = (
    _cpu(
        "cpu_mask",
        *("-C", "--cpu-mask"),
        type=Str("MASK"),
        text="any CPU",
        help="CPUs to use, as a hexadecimal mask. Adds to --cpu-range.",
    ),
    _cpu(
        "cpu_range",
        *("-Cr", "--cpu-range"),
        type=Str("LO-HI"),
        text="any CPU",
        help="CPUs to use, from the first to the last. Adds to --cpu-mask.",
    ),
    _cpu("cpu_strict", "--cpu-strict", type=BIT, default=False, text="0", help="Tie each thread to one of these CPUs."),
    _cpu(
        "prio",
        "--prio",
        type=Int(min=-1, max=3),
        default=0,
        help="Priority of the process and its threads: -1 low, 0 normal, 1 medium, 2 high, 3 realtime.",
    ),
    _cpu(
        "poll",
        "--poll",
        type=Int(min=0, max=100),
        default=50,
        help="How busily threads wait for work, from 0 (not at all) to 100. Has no effect in builds with OpenMP.",
    ),
    _cpu(
        "cpu_mask_batch",
        *("-Cb", "--cpu-mask-batch"),
        type=Str("MASK"),
        text="as --cpu-mask",
        help="CPUs to use while computing prompts. Adds to --cpu-range-batch.",
    ),
    _cpu(
        "cpu_range_batch",
        *("-Crb", "--cpu-range-batch"),
        type=Str("LO-HI"),
        text="as --cpu-range",
        help="CPUs to use while computing prompts. Adds to --cpu-mask-batch.",
    ),
    _cpu(
        "cpu_strict_batch",
        "--cpu-strict-batch",
        type=BIT,
        text="as --cpu-strict",
        help="As --cpu-strict, while computing prompts.",
    ),
    _cpu(
        "prio_batch",
        "--prio-batch",
        type=Int(min=0, max=3),
        text="as --prio",
        help="As --prio, for threads that compute prompts.",
    ),
    _cpu(
        "poll_batch",
        "--poll-batch",
        type=Int(min=0, max=100),
        text="as --poll",
        help="As --poll, while computing prompts.",
    ),
)
