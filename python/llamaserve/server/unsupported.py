"""Routes of llama-server that this version doesn't have yet: they say so, with 501."""

from __future__ import annotations

from litestar import route
from litestar.handlers import HTTPRouteHandler

from llamaserve.server.errors import ApiError

ROUTES: dict[str, tuple[str, ...]] = {
    "audio": ("POST /v1/audio/transcriptions", "POST /audio/transcriptions"),
    "control of running completions": ("POST /v1/chat/completions/control",),
    "resumable streams": ("GET /v1/stream", "DELETE /v1/stream", "POST /v1/streams/lookup"),
    "several models in one server": (
        "POST /models",
        "DELETE /models",
        "POST /models/load",
        "POST /models/unload",
        "GET /models/sse",
    ),
}

DISABLED: dict[str, tuple[str, ...]] = {
    "the CORS proxy": ("GET /cors-proxy", "POST /cors-proxy"),
    "built-in tools": ("GET /tools", "POST /tools"),
}
"""llama-server answers these with 403 unless a flag switches them on; here no flag does yet."""


def handlers() -> list[HTTPRouteHandler]:
    """One handler for each route of the tables."""
    handlers = [
        _handler(line, 501, f"llamaserve does not support {n} yet") for n, lines in ROUTES.items() for line in lines
    ]
    for name, lines in DISABLED.items():
        message = f"this feature is disabled: llamaserve does not support {name} yet"
        handlers += [_handler(line, 403, message, "feature_disabled") for line in lines]
    return handlers


def _handler(line: str, status: int, message: str, kind: str = "") -> HTTPRouteHandler:
    method, path = line.split(" ")

    @route(path, http_method=[method], status_code=status, include_in_schema=False)  # type: ignore[list-item]
    async def refuse() -> None:
        raise ApiError(status, message, kind)

    return refuse
