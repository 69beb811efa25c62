"""Prompts that ask a model to fill in the middle between two texts (`/infill`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from llamaserve.errors import RequestError

if TYPE_CHECKING:
    from llamaserve.engine import Engine

Mixed: TypeAlias = str | Sequence[str | int]
"""Text, or texts and token ids."""

# What stands in for names that nobody told us; the files of `extra` have names of their own.
_PROJECT = "myproject\n"
_FILE = "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"


class ExtraFile(msgspec.Struct, kw_only=True):
    """Another file of the project, as context."""

    text: str
    """What is in it."""
    filename: str = "tmp"
    """Its name, for models that were trained with names."""


def infill_prompt(
    engine: Engine,
    prefix: Mixed,
    suffix: Mixed,
    *,
    prompt: str = "",
    extra: Sequence[ExtraFile] = (),
    suffix_first: bool = False,
    n_predict: int | None = None,
) -> list[int]:
    """Tokens that ask for what belongs between `prefix` and `suffix`; `prompt` is where it starts.

    What doesn't fit is left out: the beginning of the prefix, the end of the suffix (three to one, together as much as
    one batch), and the first files of `extra`, which get the rest of the context that `n_predict` tokens leave.

    Raises `RequestError` ("not_supported") for a model that has no tokens for this.
    """
    info = engine.info
    missing = [
        name
        for name, token in (("prefix", info.fim_prefix), ("suffix", info.fim_suffix), ("middle", info.fim_middle))
        if token < 0
    ]
    if missing:
        what = ", ".join(f"{name} token" for name in missing)
        raise RequestError(f"Infill is not supported by this model: it has no {what}", "not_supported")
    begin = engine.tokenize(prompt)
    before = _tokens(engine, prefix)
    after = _tokens(engine, suffix)
    files = _files(engine, extra)

    limit = info.n_predict if n_predict is None else n_predict
    # The four tokens are BOS, prefix, suffix and middle; one more is left to generate.
    window = max(min(info.n_batch, info.n_ctx_slot - 5 - min(max(limit, 0), info.n_ctx_slot // 2)), 4)
    before = before[max(0, len(before) - 3 * (window // 4)) :]
    after = after[: max(0, window // 4 - 2 - len(begin))]

    head = [info.fim_prefix, *before, *begin]
    tail = [info.fim_suffix, *after]
    if suffix_first:
        head, tail = tail, head
    if info.bos_added >= 0:
        head.insert(0, info.bos_added)
    used = len(head) + len(tail) + 1
    output = limit if limit > 0 else info.n_batch // 8
    rest = min(info.n_ctx_slot - info.n_batch - 2 * limit, info.n_ctx_slot - used - output)
    files = files[max(0, len(files) - max(rest, 0)) :]
    return [*files, *head, *tail, info.fim_middle]


def _files(engine: Engine, extra: Sequence[ExtraFile]) -> list[int]:
    """The other files, in the form that models are trained on where they have tokens for it."""
    info = engine.info
    tokens: list[int] = []
    if info.fim_repo >= 0:
        tokens += [info.fim_repo, *_plain(engine, _PROJECT)]
    for file in extra:
        if info.fim_separator >= 0:
            tokens += [info.fim_separator, *_plain(engine, f"{file.filename}\n")]
        else:
            tokens += _plain(engine, _SNIPPET)
        tokens += _plain(engine, file.text)
    if info.fim_separator >= 0:
        tokens += [info.fim_separator, *_plain(engine, _FILE)]
    return tokens


def _tokens(engine: Engine, value: Mixed) -> list[int]:
    if isinstance(value, str):
        return _plain(engine, value)
    tokens: list[int] = []
    for part in value:
        tokens += _plain(engine, part) if isinstance(part, str) else [part]
    return tokens


def _plain(engine: Engine, text: str) -> list[int]:
    # Code may hold texts that look like special tokens; they are text here.
    return engine.tokenize(text, parse_special=False)
