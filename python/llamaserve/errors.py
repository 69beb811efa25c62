"""Exceptions of the public API. Each carries a message that says what to do about it."""

from __future__ import annotations


class LlamaserveError(Exception):
    """Base class of every exception that llamaserve raises on purpose."""


class ModelLoadError(LlamaserveError):
    """The model file is missing, damaged or not usable with these options."""


class EngineClosedError(LlamaserveError):
    """The engine was closed before or while the request ran."""


class RequestError(LlamaserveError):
    """The engine refused or ended a request. `kind` is one of the names in `KINDS`."""

    KINDS = ("invalid_request", "context_size", "unavailable", "not_supported", "internal")

    def __init__(self, message: str, kind: str, *, n_prompt_tokens: int = 0, n_ctx: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.n_prompt_tokens = n_prompt_tokens
        """Prompt length in tokens, where `kind` is "context_size"."""
        self.n_ctx = n_ctx
        """Tokens that one request may use, where `kind` is "context_size"."""
