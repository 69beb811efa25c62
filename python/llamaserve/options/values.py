"""The kinds of value an option can take: how text becomes a value, and what to say when it cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TRUE_WORDS = ("on", "enabled", "true", "1")
FALSE_WORDS = ("off", "disabled", "false", "0")
AUTO_WORDS = ("auto", "-1")

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


class BadValue(ValueError):
    """A value that cannot be used, with the reason when 'expects X, not Y' would not tell."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class ValueType(Protocol):
    """How the text of one option is read. `parse` raises BadValue."""

    @property
    def metavar(self) -> str: ...

    @property
    def expected(self) -> str:
        """What is accepted, as it reads after 'expects'."""
        ...

    def parse(self, text: str) -> Any: ...


def parse_bool(text: str) -> bool:
    if text in TRUE_WORDS:
        return True
    if text in FALSE_WORDS:
        return False
    raise BadValue


def parse_float(text: str) -> float:
    text = text.strip()
    if not _FLOAT.fullmatch(text):
        raise BadValue
    number = float(text)
    if not math.isfinite(number):
        raise BadValue
    return number


@dataclass(frozen=True)
class Flag:
    """Present or not. `value` is what its presence means."""

    value: Any = True
    metavar: str = ""
    expected: str = "true or false"

    def parse(self, text: str) -> bool:
        return parse_bool(text)


@dataclass(frozen=True)
class Switch:
    """On with one flag, off with another."""

    metavar: str = ""
    expected: str = "true or false"

    def parse(self, text: str) -> bool:
        return parse_bool(text)


@dataclass(frozen=True)
class OnOff:
    """A boolean that takes a value."""

    metavar: str = "on|off"
    expected: str = "on or off"

    def parse(self, text: str) -> bool:
        return parse_bool(text)


@dataclass(frozen=True)
class OnOffAuto:
    metavar: str = "on|off|auto"
    expected: str = "on, off or auto"

    def parse(self, text: str) -> str:
        if text in AUTO_WORDS:
            return "auto"
        return "on" if parse_bool(text) else "off"


@dataclass(frozen=True)
class Int:
    """A whole number. With `clamp`, one outside the range becomes the nearest inside it."""

    min: int = INT32_MIN
    max: int = INT32_MAX
    clamp: bool = False
    forbid: tuple[int, ...] = ()
    metavar: str = "N"

    @property
    def expected(self) -> str:
        text = "a whole number" + _range(self.min, self.max, INT32_MIN, INT32_MAX)
        return text + "".join(f" and not {n}" for n in self.forbid)

    def parse(self, text: str) -> int:
        text = text.strip()
        if not _INT.fullmatch(text) or len(text) > 20:
            raise BadValue
        number = int(text)
        if self.clamp:
            number = max(self.min, min(self.max, number))
        if not self.min <= number <= self.max or number in self.forbid:
            raise BadValue
        return number


@dataclass(frozen=True)
class Float:
    """A finite number. `above` is an open lower bound; with `clamp`, one below `min` becomes `min`."""

    min: float = -math.inf
    max: float = math.inf
    above: float | None = None
    clamp: bool = False
    metavar: str = "N"

    @property
    def expected(self) -> str:
        if self.above is not None:
            return f"a number above {self.above:g}"
        return "a number" + _range(self.min, self.max, -math.inf, math.inf)

    def parse(self, text: str) -> float:
        number = parse_float(text)
        if self.clamp:
            number = max(float(self.min), number)
        if not self.min <= number <= self.max or (self.above is not None and number <= self.above):
            raise BadValue
        return number


@dataclass(frozen=True)
class Str:
    metavar: str = "TEXT"
    expected: str = "text"
    empty: bool = True

    def parse(self, text: str) -> str:
        if not text and not self.empty:
            raise BadValue
        return text


def path(metavar: str = "FILE") -> Str:
    return Str(metavar, "the path of a file or folder", empty=False)


@dataclass(frozen=True)
class Choice:
    choices: tuple[str, ...]
    metavar: str = ""

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.choices)

    def parse(self, text: str) -> str:
        if text not in self.choices:
            raise BadValue
        return text


@dataclass(frozen=True)
class ChoiceInt:
    """One of a few whole numbers."""

    choices: tuple[int, ...]
    metavar: str = "N"

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(str(n) for n in self.choices)

    def parse(self, text: str) -> int:
        number = Int().parse(text)
        if number not in self.choices:
            raise BadValue
        return number


@dataclass(frozen=True)
class Custom:
    """A value with a syntax of its own."""

    read: Callable[[str], Any]
    metavar: str
    expected: str

    def parse(self, text: str) -> Any:
        return self.read(text)


@dataclass(frozen=True)
class FileOf:
    """The path of a file, whose text is read as another type."""

    content: ValueType
    metavar: str = "FILE"
    expected: str = "the path of a file"

    def parse(self, text: str) -> Any:
        try:
            content = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise BadValue(f"cannot read {shorten(text)}: {error.strerror or error}") from None
        except ValueError:
            raise BadValue(f"cannot read {shorten(text)}: not a UTF-8 text file") from None
        try:
            return self.content.parse(content)
        except BadValue as error:
            raise BadValue(f"{shorten(text)}: {error.reason or 'expected ' + self.content.expected}") from None


def shorten(text: str, limit: int = 60) -> str:
    """The text in quotes, on one line, cut when long."""
    shown = repr(text if len(text) <= limit else text[: limit - 3] + "...")
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def _range(low: float, high: float, no_low: float, no_high: float) -> str:
    if low == no_low and high == no_high:
        return ""
    if high == no_high:
        return f", {low:g} or more"
    if low == no_low:
        return f", {high:g} or less"
    return f" from {_plain(low)} to {_plain(high)}"


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"
