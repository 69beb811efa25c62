"""What --help and --completion-bash print, and docs/flags.md: all written from the table."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator

from .spec import SECTIONS, Option
from .table import OPTIONS
from .values import Flag, Switch

_USAGE = """\
Usage: llamaserve -m model.gguf [flags]
       llamaserve -hf user/repo[:quant] [flags]
"""
_ABOUT = "Serves a GGUF model over HTTP, with the flags and routes of llama-server."
_ABOUT_ENV = "An environment variable sets what no flag sets. Switches take true, 1, on, enabled or their opposites."
_INDENT = " " * 8
_TIE = "\N{NULL}"
"""Stands for a blank at which a line may not break."""


def render_help(width: int | None = None, everything: bool = False) -> str:
    """The text of --help, or with `everything` of --help-all."""
    if width is None:
        width = shutil.get_terminal_size((100, 24)).columns
    width = max(60, min(width, 110))
    lines = [*_USAGE.splitlines(), "", *textwrap.wrap(_ABOUT, width), "", *textwrap.wrap(_ABOUT_ENV, width)]
    for title, options in _sections(o for o in OPTIONS if o.usable or (everything and not o.removed)):
        lines += ["", f"{title}:"]
        for option in options:
            lines.append(f"  {_heading(option)}")
            lines += _wrapped(_description(option), width)
    if not everything:
        later = sum(not o.supported and not o.removed for o in OPTIONS)
        text = f"--help-all also shows the {later} flags of llama-server that are known but not supported yet."
        lines += ["", *textwrap.wrap(text, width)]
    return "\n".join(lines) + "\n"


def render_flags_markdown() -> str:
    """docs/flags.md."""
    lines = [
        "# Flags and environment variables",
        "",
        "<!-- Written by `python -m llamaserve.options`; change the table of options, not this file. -->",
        "",
        "llamaserve takes the flags and environment variables of llama-server. A flag wins over its variable. Of one",
        "given twice the last one counts, unless the table says otherwise. `--flag value` and `--flag=value` are the",
        "same, and `_` may stand for `-` in long flags.",
        "",
        "A switch takes `true`, `1`, `on`, `enabled` or `false`, `0`, `off`, `disabled` from its variable. One with an",
        "*off* flag is also switched off by a variable with `NO_` after `LLAMA_ARG_`, such as",
        "`LLAMA_ARG_NO_KV_OFFLOAD`, whatever that is set to. Any other variable that is empty counts as not set.",
    ]
    for title, options in _sections(o for o in OPTIONS if o.usable):
        lines += ["", f"## {title}", "", "| Flag | Default | Environment | What it does |", "| --- | --- | --- | --- |"]
        lines += [_row(option, _cell(option.default_shown()), _cell(option.help)) for option in options]
    lines += [
        "",
        "## Not supported yet",
        "",
        "These flags of llama-server are known. Using one is an error that says so, except with what the last column",
        "calls accepted: that asks for what is off anyway.",
        "",
        "| Flag | Needs | Environment | What it would do |",
        "| --- | --- | --- | --- |",
    ]
    for option in OPTIONS:
        if not option.supported and not option.removed:
            lines.append(_row(option, option.note, _cell(option.help + _accepted(option))))
    lines += ["", "## Removed", "", "| Flag | Use |", "| --- | --- |"]
    for option in OPTIONS:
        if option.removed:
            lines.append(f"| {', '.join(f'`{flag}`' for flag in option.flags)} | {option.removed} |")
    return "\n".join(lines) + "\n"


def render_completion_bash() -> str:
    """A script for bash's `source`: completes flags, and file names after them."""
    flags = " ".join(flag for option in OPTIONS if option.usable for flag in option.all_flags)
    return f"""\
_llamaserve() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}"
    if [[ "$word" == -* ]]; then
        COMPREPLY=( $(compgen -W "{flags}" -- "$word") )
    else
        COMPREPLY=( $(compgen -f -- "$word") )
    fi
}}
complete -o filenames -F _llamaserve llamaserve
"""


def _sections(options: Iterable[Option]) -> Iterator[tuple[str, list[Option]]]:
    grouped: dict[str, list[Option]] = {name: [] for name in SECTIONS}
    for option in options:
        grouped[option.section].append(option)
    for name, members in grouped.items():
        if members:
            yield SECTIONS[name], members


def _heading(option: Option) -> str:
    text = ", ".join(option.flags)
    if option.value_name:
        text += f" {option.value_name}"
    if option.negative_flags:
        text += f"; off: {', '.join(option.negative_flags)}"
    return text


def _description(option: Option) -> str:
    facts = []
    if default := option.default_shown():
        facts.append(f"default{_TIE if len(default) < 12 else ' '}{default}")
    if option.env:
        facts.append(f"env{_TIE}{option.env}")
    if not option.supported:
        facts.append("not supported yet")
    return option.help + (f" ({'; '.join(facts)})" if facts else "")


def _wrapped(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TIE, " ") for line in lines]


def _accepted(option: Option) -> str:
    if not option.accepts:
        return ""
    if isinstance(option.type, (Flag, Switch)):
        return " Accepted: " + ", ".join(f"`{flag}`" for flag in option.negative_flags) + "."
    shown = (",".join(value) if isinstance(value, list) else str(value) for value in option.accepts)
    return " Accepted: " + ", ".join(f"`{value}`" for value in shown) + "."


def _row(option: Option, second: str, text: str) -> str:
    flags = ", ".join(f"`{flag}`" for flag in option.flags)
    if option.value_name:
        flags += f" `{_cell(option.value_name)}`"
    if option.negative_flags:
        flags += "; off: " + ", ".join(f"`{flag}`" for flag in option.negative_flags)
    env = f"`{option.env}`" if option.env else ""
    return f"| {flags} | {second} | {env} | {text} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
