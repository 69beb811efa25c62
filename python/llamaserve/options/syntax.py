"""Values with a syntax of their own, and the ways to join repeated ones."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from .values import BadValue, Float, Int, parse_float, shorten

_LOGIT_BIAS = re.compile(r"\s*([0-9]+)\s*([+-])\s*(\S+)\s*")


def csv_row(text: str) -> list[str]:
    """Comma-separated fields; one that starts with a double quote may contain commas, and "" for a quote."""
    fields: list[str] = []
    field, quoted, i = "", False, 0
    while i < len(text):
        char = text[i]
        if quoted:
            if char != '"':
                field += char
            elif text[i + 1 : i + 2] == '"':
                field += '"'
                i += 1
            else:
                quoted = False
        elif char == '"' and not field:
            quoted = True
        elif char == ",":
            fields.append(field)
            field = ""
        else:
            field += char
        i += 1
    return [*fields, field]


def bit(text: str) -> bool:
    if text not in ("0", "1"):
        raise BadValue
    return text == "1"


def names(text: str) -> list[str]:
    """Comma-separated names without the blanks around them; empty ones are dropped."""
    return [name for field in csv_row(text) if (name := field.strip())]


def names_required(text: str) -> list[str]:
    found = names(text)
    if not found:
        raise BadValue
    return found


def json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise BadValue("the JSON is nested too deeply") from None
    except ValueError as error:
        raise BadValue(f"not valid JSON: {error}") from None


def json_object(text: str) -> dict[str, Any]:
    value = json_value(text)
    if not isinstance(value, dict):
        raise BadValue
    return value


def json_schema(text: str) -> dict[str, Any] | bool:
    value = json_value(text)
    if not isinstance(value, (dict, bool)):
        raise BadValue
    return value


def key_lines(text: str) -> list[str]:
    """API keys, one a line; lines that start with # are comments."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def logit_bias(text: str) -> list[tuple[int, float]]:
    match = _LOGIT_BIAS.fullmatch(text)
    if not match:
        raise BadValue
    token, sign, amount = match.groups()
    bias = math.inf if amount.lower() in ("inf", "infinity") else parse_float(amount)
    return [(Int(min=0).parse(token), -bias if sign == "-" else bias)]


def kv_overrides(text: str) -> list[str]:
    items = csv_row(text)
    for item in items:
        key, _, typed = item.partition("=")
        kind, colon, value = typed.partition(":")
        if not key or not colon or len(key) > 127 or kind not in ("int", "float", "bool", "str"):
            raise BadValue
        if kind == "bool" and value not in ("true", "false"):
            raise BadValue
        if kind == "str" and len(value.encode(errors="replace")) > 127:
            raise BadValue("a text value of --override-kv can have at most 127 bytes")
        if kind == "int" and not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise BadValue(f"'{value}' is no whole number")
        if kind == "float" and not re.fullmatch(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?", value):
            raise BadValue(f"'{value}' is no number")
    return items


def tensor_overrides(text: str) -> str:
    if not all("=" in item for item in text.split(",")):
        raise BadValue
    return text


def proportions(text: str) -> str:
    parts = [part.strip() for part in re.split("[,/]+", text)]
    for part in parts:
        Float(min=0).parse(part)
    return ",".join(parts)


def mebibytes(text: str) -> str:
    return ",".join(str(Int(min=0).parse(part)) for part in re.split("[,/]+", text))


def folder(text: str) -> str:
    if not Path(text).is_dir():
        raise BadValue(f"{shorten(text)} is no folder")
    return text


def files(text: str) -> list[tuple[str, float]]:
    """Files, each with the scale 1."""
    paths = csv_row(text)
    if not all(paths):
        raise BadValue
    return [(path, 1.0) for path in paths]


def scaled_files(text: str) -> list[tuple[str, float]]:
    pairs = [field.rpartition(":") for field in csv_row(text)]
    if not all(path for path, _, _ in pairs):
        raise BadValue
    return [(path, parse_float(scale)) for path, _, scale in pairs]


def layer_range(text: str) -> list[int]:
    first, _, last = text.partition(" ")
    numbers = [Int(min=1).parse(first), Int(min=1).parse(last)]
    if numbers[0] > numbers[1]:
        raise BadValue
    return numbers


def gpu_layers(text: str) -> str:
    """'auto', 'all' or a count; as a count, -1 means auto and -2 means all."""
    if text in ("auto", "all"):
        return text
    count = Int().parse(text)
    return str(count) if count >= 0 else "auto" if count == -1 else "all"


def api_prefix(text: str) -> str:
    stripped = text.strip("/")
    return f"/{stripped}" if stripped else ""


_SAMPLERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
    "infill": "i",
    "adaptive_p": "a",
}
_SAMPLER_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
for _name in _SAMPLERS:
    _SAMPLER_ALIASES |= {_name: _name, _name.replace("_", "-"): _name, _name.replace("_", ""): _name}
_SAMPLER_LETTERS = {letter: name for name, letter in _SAMPLERS.items()}


def samplers(text: str) -> list[str]:
    wanted = [name.strip() for name in text.split(";") if name.strip()]
    for name in wanted:
        if name not in _SAMPLER_ALIASES:
            raise BadValue(f"there is no sampler {shorten(name)}; there are {', '.join(_SAMPLERS)}")
    return [_SAMPLER_ALIASES[name] for name in wanted]


def sampler_letters(text: str) -> list[str]:
    for letter in text:
        if letter not in _SAMPLER_LETTERS:
            known = ", ".join(f"{letter} ({name})" for letter, name in _SAMPLER_LETTERS.items())
            raise BadValue(f"there is no sampler {shorten(letter)}; there are {known}")
    return [_SAMPLER_LETTERS[letter] for letter in text]


def extend(old: list[Any], new: list[Any]) -> list[Any]:
    return old + new


def union(old: list[str], new: list[str]) -> list[str]:
    return sorted({*old, *new})


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**old, **new}


def join(old: str, new: str) -> str:
    return f"{old},{new}"


def extend_or_clear(old: list[str], new: list[str]) -> list[str]:
    """Like `extend`, but an empty list takes everything back."""
    return old + new if new else []
