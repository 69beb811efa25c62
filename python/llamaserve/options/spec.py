"""What one option is, and the error every mistake with options becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .values import Choice, Flag, Switch, ValueType

EXIT_USAGE = 2

Scope = Literal["engine", "sampling", "server", "log", "model", "command", "none"]

SECTIONS: dict[str, str] = {
    "model": "Model",
    "context": "Context and batching",
    "memory": "Memory and cache",
    "hardware": "CPU and GPU",
    "rope": "Context extension (RoPE, YaRN)",
    "chat": "Chat and reasoning",
    "sampling": "Sampling defaults",
    "server": "Server",
    "access": "Access (keys, TLS, CORS)",
    "logging": "Logging",
    "command": "Commands",
    "adapters": "Adapters",
    "speculative": "Speculative decoding",
    "media": "Images, audio, video",
    "router": "Several models in one server",
    "tools": "Built-in tools",
    "preset": "Model presets",
}
"""Section name to its title, in the order help and docs show them."""


class OptionError(Exception):
    """A mistake in flags or environment; `str()` is one line to show to a person."""

    def __init__(self, message: str) -> None:
        super().__init__(f"llamaserve: {message}")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of the command line: how it is spelled, read, documented, and where its value goes."""

    dest: str
    """Name of the option; also the key its value gets in its scope, unless `into` says otherwise."""
    flags: tuple[str, ...]
    """Every spelling, in llama-server's order."""
    negative_flags: tuple[str, ...] = ()
    """Spellings that switch the option off."""
    type: ValueType
    help: str
    section: str
    scope: Scope
    """Who gets the value; 'none' means it is checked and then has no effect."""
    env: str | None = None
    metavar: str = ""
    """Placeholder for the value in help; the type's own when empty."""
    default: object = None
    default_text: str = ""
    """How the default reads in help, where the value alone would not tell."""
    supported: bool = True
    note: str = ""
    """Why the option is not supported yet, in a few words."""
    accepts: tuple[object, ...] = ()
    """Values accepted, with no effect, while the option is unsupported: they ask for what is off anyway."""
    removed: str = ""
    """What to use instead, for a flag that no longer exists."""
    into: str = ""
    group: str = ""
    """Options of one group replace each other; the last one given wins."""
    combine: Callable[[Any, Any], Any] | None = None
    """Joins the value so far with the next one; without it the last one wins."""
    escapes: bool = False
    r"""Whether \n, \t and the like in the value are read as the character they stand for."""
    nargs: int = 1

    @property
    def key(self) -> str:
        return self.into or self.dest

    @property
    def all_flags(self) -> tuple[str, ...]:
        return self.flags + self.negative_flags

    @property
    def choices(self) -> tuple[str, ...]:
        return self.type.choices if isinstance(self.type, Choice) else ()

    @property
    def takes_value(self) -> bool:
        return not isinstance(self.type, (Flag, Switch))

    @property
    def value_name(self) -> str:
        return (self.metavar or self.type.metavar) if self.takes_value else ""

    @property
    def negative_env(self) -> str | None:
        """The variable that switches the option off just by being set (LLAMA_ARG_NO_...)."""
        if self.env is None or not self.negative_flags or "LLAMA_ARG_" not in self.env:
            return None
        return self.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")

    @property
    def usable(self) -> bool:
        """Whether help shows it: supported, and not gone."""
        return self.supported and not self.removed

    def default_shown(self) -> str:
        if self.default_text:
            return self.default_text
        if self.default is None or isinstance(self.type, Flag):
            return ""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        if isinstance(self.default, (list, tuple)):
            return ", ".join(str(item) for item in self.default)
        return str(self.default)
