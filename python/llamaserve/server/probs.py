"""Token probabilities in llama-server's form: `logprob`/`top_logprobs`, or `prob`/`top_probs` after sampling."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from llamaserve.engine import Engine
from llamaserve.results import Completion, TokenProb

_decoder = codecs.getincrementaldecoder("utf-8")

LOWEST = -3.4028234663852886e38
"""Logarithm of 0 as llama-server gives it: the lowest float, since JSON has no infinity."""


class Probability(msgspec.Struct):
    """A token that was possible."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET


class TokenProbability(msgspec.Struct):
    """A token that was generated, and what else was possible."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    top_logprobs: list[Probability] | UnsetType = UNSET
    prob: float | UnsetType = UNSET
    top_probs: list[Probability] | UnsetType = UNSET


class Logprobs(msgspec.Struct):
    """`logprobs` of OpenAI's chat API."""

    content: list[TokenProbability]


def probabilities(probs: Iterable[TokenProb], post_sampling: bool) -> list[TokenProbability]:
    if post_sampling:
        return [
            TokenProbability(
                p.id,
                _text(p.text),
                list(p.text),
                prob=p.prob,
                top_probs=[Probability(t.id, _text(t.text), list(t.text), prob=t.prob) for t in p.top],
            )
            for p in probs
        ]
    return [
        TokenProbability(
            p.id,
            _text(p.text),
            list(p.text),
            logprob=_log(p.prob),
            top_logprobs=[Probability(t.id, _text(t.text), list(t.text), logprob=_log(t.prob)) for t in p.top],
        )
        for p in probs
    ]


def shown_probs(engine: Engine, completion: Completion) -> tuple[TokenProb, ...]:
    """Probabilities of the tokens whose text is in the completion: those of a stop text are not."""
    probs = completion.probs
    word = completion.finish.stopping_word
    if probs and completion.finish.stop_type == "word" and word:
        hidden = len(engine.tokenize(word, parse_special=False))
        return probs[: max(0, len(probs) - hidden)]
    return probs


def _log(p: float) -> float:
    return math.log(p) if p > 0.0 else LOWEST


def _text(raw: bytes) -> str:
    # A token may end within a character, which is left out here; "bytes" has all of it.
    return _decoder("replace").decode(raw)
