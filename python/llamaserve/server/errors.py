"""Errors as clients see them: `{"error": {"code", "message", "type"}}`, as llama-server writes them.
Anthropic's routes have Anthropic's form."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from msgspec import UNSET, UnsetType

from llamaserve.errors import EngineClosedError, RequestError

log = logging.getLogger("llamaserve.http")

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""Status to the name llama-server gives that kind of error."""

ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Status to the name Anthropic gives that kind of error."""

_STATUS_OF_KIND = {
    "invalid_request": 400,
    "context_size": 400,
    "unavailable": 503,
    "not_supported": 501,
    "internal": 500,
}

RETRY_AFTER_S = 1


class ErrorInfo(msgspec.Struct, frozen=True):
    """What went wrong."""

    code: int
    """The HTTP status."""
    message: str
    type: str
    n_prompt_tokens: int | UnsetType = UNSET
    """Only where the prompt was too long."""
    n_ctx: int | UnsetType = UNSET


class ErrorBody(msgspec.Struct, frozen=True):
    """Body of every response that isn't a success."""

    error: ErrorInfo


class AnthropicErrorInfo(msgspec.Struct, frozen=True):
    """What went wrong, with Anthropic's names for the kinds of errors."""

    type: str
    message: str
    code: int
    """The HTTP status."""
    n_prompt_tokens: int | UnsetType = UNSET
    """Only where the prompt was too long."""
    n_ctx: int | UnsetType = UNSET


class AnthropicErrorBody(msgspec.Struct, frozen=True):
    """Body of every response of Anthropic's routes that isn't a success."""

    error: AnthropicErrorInfo
    type: str = "error"


RESPONSES = {
    400: ResponseSpec(ErrorBody, description="The request is wrong; the message says where", generate_examples=False),
    503: ResponseSpec(
        ErrorBody, description="The model is being loaded, or the queue is full", generate_examples=False
    ),
}
"""For the OpenAPI document."""

ANTHROPIC_RESPONSES = {
    status: ResponseSpec(AnthropicErrorBody, description=spec.description, generate_examples=False)
    for status, spec in RESPONSES.items()
}


class ConfigurationError(Exception):
    """The server can't be put together as the settings ask for."""


class ApiError(Exception):
    """Ends a request with this status and message."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        """`kind`: the error's type, where it isn't the usual one of its status."""
        super().__init__(message)
        self.status = status
        self.kind = kind or _type_of(status)


def info_of(error: BaseException) -> ErrorInfo:
    """What to tell the client about `error`. Anything unexpected is logged here and told without its details."""
    if isinstance(error, ApiError):
        return ErrorInfo(error.status, str(error), error.kind)
    if isinstance(error, RequestError):
        if error.kind == "context_size":
            return ErrorInfo(400, str(error), "exceed_context_size_error", error.n_prompt_tokens, error.n_ctx)
        status = _STATUS_OF_KIND.get(error.kind, 500)
        return ErrorInfo(status, str(error), _type_of(status))
    if isinstance(error, EngineClosedError):
        return ErrorInfo(503, "the server is shutting down", _type_of(503))
    if isinstance(error, HTTPException):
        return ErrorInfo(error.status_code, error.detail, _type_of(error.status_code))
    log.error("unexpected error: %s", "".join(traceback.format_exception(error)).rstrip())
    return ErrorInfo(500, "internal error; the server's log has the details", _type_of(500))


def _type_of(status: int) -> str:
    return TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def headers_of(info: ErrorInfo) -> dict[str, str]:
    """Response headers that belong to an error."""
    return {"Retry-After": str(RETRY_AFTER_S)} if info.code == 503 else {}


def body_of(info: ErrorInfo) -> bytes:
    return msgspec.json.encode(ErrorBody(info))


def anthropic_body_of(info: ErrorInfo) -> bytes:
    message = info.message
    if info.type == "exceed_context_size_error":
        # Clients that make long chats shorter by themselves know a full context by these words.
        message = f"prompt is too long: {info.n_prompt_tokens} tokens > {info.n_ctx} maximum"
    kind = ANTHROPIC_TYPES.get(info.code, "invalid_request_error" if info.code < 500 else "api_error")
    return msgspec.json.encode(
        AnthropicErrorBody(AnthropicErrorInfo(kind, message, info.code, info.n_prompt_tokens, info.n_ctx))
    )


def body_for(path: str, info: ErrorInfo) -> bytes:
    """The body in the form of the API family that `path` belongs to."""
    return anthropic_body_of(info) if "/v1/messages" in path else body_of(info)


def handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler for everything."""
    if isinstance(error, ValidationException):
        error = ApiError(400, _explain(error))
    elif isinstance(error, HTTPException):
        path = request.scope["path"]
        if error.status_code == 404:
            error = ApiError(404, f"there is nothing at {path}")
        elif error.status_code == 405:
            error = ApiError(405, f"{path} does not take {request.method}")
    info = info_of(error)
    body = body_for(request.scope["path"], info)
    return Response(body, status_code=info.code, media_type="application/json", headers=headers_of(info))


def _explain(error: ValidationException) -> str:
    """Litestar checks query parameters, and that there is a body; what is in the body is checked in `body`."""
    details = error.extra if isinstance(error.extra, list) else []
    if any(d.get("key") == "data" for d in details):
        return "the request body is empty"
    return "; ".join(f"{d.get('key')}: {d.get('message')}" for d in details) or error.detail
