"""The parameters of a request as llama-server shows them (`generation_settings`)."""

from __future__ import annotations

from typing import Any

from llamaserve.engine import Engine
from llamaserve.results import Finish

# What llama-server shows of features that this server doesn't have.
_ABSENT: dict[str, Any] = {
    "grammar_triggers": [],
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "backend_sampling": False,
}

# Long, or users' own texts: left out where the settings aren't shown to the one who made the request.
_PRIVATE = frozenset(
    (
        "dry_sequence_breakers",
        "stop",
        "logit_bias",
        "grammar",
        "grammar_lazy",
        "grammar_triggers",
        "preserved_tokens",
    )
)


def default_settings(engine: Engine) -> dict[str, Any]:
    """All parameters that a request runs with which sets none."""
    return _ABSENT | engine.effective_params() | {"stream": False}


def settings_of(finish: Finish, *, stream: bool) -> dict[str, Any]:
    """All parameters that a request ran with."""
    return _ABSENT | finish.params | {"stream": stream}


def without_texts(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as `/props` and `/slots` show them."""
    return {name: value for name, value in (_ABSENT | settings).items() if name not in _PRIVATE}
