"""The forms a `prompt` may take: text, token ids, both mixed, or a list of such prompts."""

from __future__ import annotations

from typing import Any, TypeAlias

from llamaserve.params import Prompt
from llamaserve.server.errors import ApiError

PromptField: TypeAlias = str | list[Any] | dict[str, Any]
"""As it comes in JSON. An object is `{"prompt_string": "..."}`."""


def prompts_of(value: PromptField, n_vocab: int, field: str = "prompt") -> list[Prompt]:
    """The prompts in a `prompt` field. Raises `ApiError` (400) for anything else."""
    if isinstance(value, list) and not any(_is_token(item) for item in value):
        prompts = [_one(item, n_vocab, f"{field}[{i}]") for i, item in enumerate(value)]
    else:
        prompts = [_one(value, n_vocab, field)]
    if not prompts:
        raise ApiError(400, f"'{field}' must not be empty")
    return prompts


def mixed_of(value: Any, n_vocab: int, field: str) -> list[int | str]:
    """A list of token ids and texts."""
    for i, item in enumerate(value):
        if _is_token(item):
            if not 0 <= item < n_vocab:
                raise ApiError(400, f"Field '{field}[{i}]': {item} is not a token of this model (it has {n_vocab})")
        elif not isinstance(item, str):
            raise ApiError(400, f"Field '{field}[{i}]': expected a token id or a string")
    return list(value)


def _one(value: Any, n_vocab: int, field: str) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and (not value or any(_is_token(item) for item in value)):
        return mixed_of(value, n_vocab, field)
    if isinstance(value, dict) and "prompt_string" in value:
        if value.get("multimodal_data") is not None:
            raise ApiError(501, "images and audio are not supported yet")
        text = value["prompt_string"]
        if isinstance(text, str):
            return text
        if isinstance(text, list):
            return mixed_of(text, n_vocab, f"{field}.prompt_string")
    raise ApiError(
        400,
        f"Field '{field}': expected a string, a list of token ids (strings may be among them), or an object "
        "with 'prompt_string'",
    )


def _is_token(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
