"""Options for a model's state between requests: saved slots, adapters, sleep."""

from __future__ import annotations

from . import syntax as v
from .spec import Option
from .values import Custom, Flag, Int, Switch

STATE = (
    Option(
        dest="slot_save_path",
        flags=("--slot-save-path",),
        type=Custom(v.folder, "DIR", "the path of a folder that exists"),
        section="memory",
        scope="server",
        help="Folder for slots that clients save and restore; without it they can't.",
    ),
    Option(
        dest="cache_idle_slots",
        flags=("--cache-idle-slots",),
        negative_flags=("--no-cache-idle-slots",),
        env="LLAMA_ARG_CACHE_IDLE_SLOTS",
        type=Switch(),
        default=True,
        section="memory",
        scope="engine",
        help="Where slots share one KV cache: when a request comes, idle slots give up their cells to host memory "
        "(--cache-ram), so that attention doesn't look at them.",
    ),
    Option(
        dest="lora",
        flags=("--lora",),
        type=Custom(v.files, "FILE,...", "paths of files separated by commas"),
        combine=v.extend,
        section="adapters",
        scope="engine",
        help="LoRA adapters. Clients know them by number, from 0; see docs/lora.md.",
    ),
    Option(
        dest="lora_scaled",
        flags=("--lora-scaled",),
        type=Custom(v.scaled_files, "FILE:SCALE,...", "FILE:SCALE pairs separated by commas"),
        into="lora",
        combine=v.extend,
        section="adapters",
        scope="engine",
        help="LoRA adapters, each with its scale.",
    ),
    Option(
        dest="lora_init_without_apply",
        flags=("--lora-init-without-apply",),
        type=Flag(),
        default=False,
        section="adapters",
        scope="engine",
        help="Load LoRA adapters without using them until a client asks.",
    ),
    Option(
        dest="control_vector",
        flags=("--control-vector",),
        type=Custom(v.files, "FILE,...", "paths of files separated by commas"),
        combine=v.extend,
        section="adapters",
        scope="engine",
        help="Control vectors: what they hold is added to the output of the model's layers.",
    ),
    Option(
        dest="control_vector_scaled",
        flags=("--control-vector-scaled",),
        type=Custom(v.scaled_files, "FILE:SCALE,...", "FILE:SCALE pairs separated by commas"),
        into="control_vector",
        combine=v.extend,
        section="adapters",
        scope="engine",
        help="Control vectors, each with its scale.",
    ),
    Option(
        dest="control_vector_layer_range",
        flags=("--control-vector-layer-range",),
        type=Custom(v.layer_range, "START END", "the numbers of the first and the last layer, from 1"),
        nargs=2,
        default_text="all layers",
        section="adapters",
        scope="engine",
        help="First and last layer for the control vectors.",
    ),
    Option(
        dest="sleep_idle_seconds",
        flags=("--sleep-idle-seconds",),
        type=Int(min=-1, forbid=(0,), metavar="SECONDS"),
        default=-1,
        default_text="-1: never",
        section="server",
        scope="server",
        help="Unload the model after this many seconds without requests; the next one that needs it loads it again.",
    ),
)
