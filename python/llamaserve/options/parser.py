"""From argv and environment to `Settings`."""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .settings import Command, LogSettings, ModelSettings, ServerSettings, Settings
from .spec import Option, OptionError
from .table import BY_FLAG, OPTIONS
from .values import FALSE_WORDS, BadValue, Flag, shorten
from .vertex import vertex_settings

_ESCAPE = re.compile(r"""\\(?:([nrt'"\\])|x([0-9a-fA-F]{2}))""")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True)
class _Given:
    option: Option
    value: Any


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """What `argv` (without the program's name) and `environ` ask for. A flag beats the environment.

    Parsing stops at the first command (`--help`, `--version`, ...). Raises `OptionError`.
    """
    given: list[_Given] = []
    for item in _from_argv(argv):
        if item.option.scope == "command":
            return Settings(command=cast(Command, item.option.dest.replace("_", "-")))
        given.append(item)
    by_flag = {item.option.dest for item in given}
    settings = _collect([*_from_environ(environ, by_flag), *given])
    settings.server.vertex = vertex_settings(environ)
    if settings.server.vertex is not None:
        settings.server.port = settings.server.vertex.port
    return settings


def _from_argv(argv: Sequence[str]) -> Iterator[_Given]:
    tokens = deque(argv)
    while tokens:
        flag, attached = _split(tokens.popleft())
        option, positive = BY_FLAG[flag]
        if option.removed:
            raise OptionError(f"{flag} was removed; use {option.removed}")
        if not option.takes_value:
            yield _given(option, flag, _presence(option, flag, positive, attached))
            continue
        if not option.supported and not option.accepts:
            raise _unsupported(option, flag)
        if attached is None:
            if len(tokens) < option.nargs or _known_long_flag(tokens[0]):
                raise OptionError(f"{flag} needs a value: {option.type.expected}")
            attached = " ".join(tokens.popleft() for _ in range(option.nargs))
        yield _given(option, flag, _read(option, flag, attached))


def _split(token: str) -> tuple[str, str | None]:
    """The flag a token spells, and the value attached to it with '='."""
    for name, equals, value in ((token, "", ""), token.partition("=")):
        flag = name.replace("_", "-") if name.startswith("--") else name
        if flag in BY_FLAG:
            return flag, value if equals else None
    if not re.match("-[^0-9.]", token):
        raise OptionError(f"unexpected argument {shorten(token)}; to load a model file, use -m FILE")
    raise OptionError(f"unknown flag {shorten(token.partition('=')[0])}{_suggestion(token)}")


def _suggestion(token: str) -> str:
    attached = re.fullmatch("(-[A-Za-z]+)([0-9.]+)", token)
    if attached and attached[1] in BY_FLAG:
        return f"; did you mean {attached[1]} {attached[2]}?"
    name = token.partition("=")[0].lstrip("-").replace("_", "-")
    by_name: dict[str, list[str]] = {}
    for flag, (option, _) in BY_FLAG.items():
        if not option.removed:
            by_name.setdefault(flag.lstrip("-"), []).append(flag)
    close = difflib.get_close_matches(name[:80], by_name, n=1, cutoff=0.7)
    if not close:
        return "; see --help"
    return f"; did you mean {by_name[close[0]][0]}?"


def _known_long_flag(token: str) -> bool:
    return token.startswith("--") and token.replace("_", "-") in BY_FLAG


def _presence(option: Option, flag: str, positive: bool, attached: str | None) -> Any:
    value: Any = positive
    if attached is not None:
        constant = isinstance(option.type, Flag) and option.type.value is not True
        if not positive or constant or option.scope == "command":
            raise OptionError(f"{flag} takes no value")
        value = _read(option, flag, attached)
    if isinstance(option.type, Flag) and value is True:
        return option.type.value
    return value


def _from_environ(environ: Mapping[str, str], by_flag: set[str]) -> Iterator[_Given]:
    for option in OPTIONS:
        if option.env is None or option.dest in by_flag:
            continue
        if option.negative_env is not None and option.negative_env in environ:
            yield _given(option, option.negative_env, False)
            continue
        text = environ.get(option.env)
        if not text:
            continue
        if option.removed:
            raise OptionError(f"{option.env} was removed; use {option.removed}")
        if isinstance(option.type, Flag):
            if text in FALSE_WORDS:
                continue
            _read(option, option.env, text)
            yield _given(option, option.env, option.type.value)
        elif option.supported or option.accepts:
            yield _given(option, option.env, _read(option, option.env, text))
        else:
            raise _unsupported(option, option.env)


def _read(option: Option, name: str, text: str) -> Any:
    try:
        return option.type.parse(text)
    except BadValue as error:
        if error.reason:
            raise OptionError(f"{name}: {error.reason}") from None
        raise OptionError(f"{name} expects {option.type.expected}, not {shorten(text)}") from None


def _given(option: Option, name: str, value: Any) -> _Given:
    """The value of an option that is supported, or asked for what is off anyway."""
    if option.supported or any(value == off and type(value) is type(off) for off in option.accepts):
        return _Given(option, value)
    if isinstance(option.type, Flag) and value is False:
        return _Given(option, value)
    if option.takes_value:
        shown = ",".join(value) if isinstance(value, list) else str(value)
        name += (" " if name.startswith("-") else "=") + shorten(shown)[1:-1]
    raise _unsupported(option, name)


def _unsupported(option: Option, name: str) -> OptionError:
    return OptionError(f"{name} is not supported yet ({option.note})")


def _collect(given: Sequence[_Given]) -> Settings:
    values: dict[tuple[str, str], Any] = {}
    groups: dict[tuple[str, str], str] = {}
    escape = True
    escaped: set[tuple[str, str]] = set()
    for item in given:
        option = item.option
        if not option.supported:
            continue
        if option.scope == "none":
            escape = item.value if option.dest == "escape" else escape
            continue
        key: tuple[str, str] = (option.scope, option.key)
        if option.group:
            for other in [k for k, group in groups.items() if group == option.group]:
                values.pop(other, None)
            groups[key] = option.group
        if option.escapes:
            escaped.add(key)
        if option.combine is not None and key in values:
            values[key] = option.combine(values[key], item.value)
        else:
            values[key] = item.value
    if escape:
        for key in escaped:
            values[key] = [_unescape(text) for text in values[key]]

    def of(scope: str) -> dict[str, Any]:
        return {name: value for (owner, name), value in values.items() if owner == scope}

    server = ServerSettings(**of("server"))
    if (server.ssl_key_file is None) != (server.ssl_cert_file is None):
        missing, has = ("--ssl-cert-file", "--ssl-key-file")[:: 1 if server.ssl_key_file else -1]
        raise OptionError(f"{has} needs {missing} too")
    return Settings(
        engine=of("engine"),
        sampling=of("sampling"),
        server=server,
        log=LogSettings(**of("log")),
        model=ModelSettings(**of("model")),
    )


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        char, code = match.groups()
        return chr(int(code, 16)) if code else _ESCAPES.get(char, char)

    return _ESCAPE.sub(replace, text)
