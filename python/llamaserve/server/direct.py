"""A short way to the busiest routes.

For a small model's short answers, reading the request and finding its handler would take as long as the model does. So
plain requests for completions go from the gate straight to the handler's function. Whatever is out of the ordinary
takes Litestar's way, which also gives the OpenAPI document; both ways run the same handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from llamaserve.server.body import decode
from llamaserve.server.errors import ApiError

MAX_BODY = 1 << 20
"""Larger bodies take Litestar's way."""

Failed = Callable[[Send, str, Exception], Awaitable[None]]


class DirectRoute:
    """A handler with the parameters `data`, `state` and an optional priority header."""

    def __init__(self, handler: HTTPRouteHandler, state: Any) -> None:
        self._call: Callable[..., Awaitable[ASGIApp]] = handler.fn
        dto = handler.dto
        assert dto is not None
        self._kind: type[Any] = dto.model_type  # type: ignore[union-attr]
        self._state = State({"server": state})

    @staticmethod
    def fits(headers: dict[bytes, bytes]) -> bool:
        length = headers.get(b"content-length", b"")
        return length.isdigit() and 0 < int(length) <= MAX_BODY and b"x-priority" not in headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send, failed: Failed) -> None:
        message = await receive()
        body: bytes = message.get("body", b"")  # type: ignore[assignment]
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")  # type: ignore[operator]
        if message["type"] == "http.disconnect":
            return
        try:
            if not body:
                raise ApiError(400, "the request body is empty")
            response = await self._call(decode(body, self._kind), self._state)
        except Exception as e:
            await failed(send, scope["path"], e)
            return
        await response(scope, receive, send)
