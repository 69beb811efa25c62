"""The table: every option there is, from which parser, help, environment and docs are made."""

from __future__ import annotations

from .spec import Option
from .table_chat import CHAT
from .table_cpu import CPU
from .table_embedding import EMBEDDING
from .table_engine import CONTEXT, MEMORY
from .table_hardware import HARDWARE
from .table_media import MEDIA
from .table_model import MODEL, ROPE
from .table_sampling import SAMPLING
from .table_server import ACCESS, COMMANDS, LOGGING, SERVER
from .table_speculative import SPECULATIVE
from .table_state import STATE
from .table_unsupported import UNSUPPORTED

OPTIONS: tuple[Option, ...] = (
    *MODEL,
    *CONTEXT,
    *MEMORY,
    *STATE,
    *HARDWARE,
    *CPU,
    *ROPE,
    *CHAT,
    *SAMPLING,
    *SERVER,
    *ACCESS,
    *LOGGING,
    *COMMANDS,
    *UNSUPPORTED,
    *EMBEDDING,
    *MEDIA,
    *SPECULATIVE,
)

BY_FLAG: dict[str, tuple[Option, bool]] = {
    flag: (option, positive)
    for option in OPTIONS
    for flags, positive in ((option.flags, True), (option.negative_flags, False))
    for flag in flags
}
"""Spelling to its option and whether it switches the option on."""
