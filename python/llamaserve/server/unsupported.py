"""Routes of llama-server that this version doesn't have yet: they say so, with 501."""

from __future__ import annotations

from litestar import route
from litestar.handlers import HTTPRouteHandler

from llamaserve.server.errors import ApiError

ROUTES: dict[str, tuple[str, ...]] = {
    "embeddings": ("POST /embedding", "POST /embeddings", "POST /v1/embeddings"),
    "reranking": ("POST /rerank", "POST /reranking", "POST /v1/rerank", "POST /v1/reranking"),
    "infill": ("POST /infill",),
    "OpenAI's responses API": (
        "POST /v1/responses",
        "POST /responses",
        "POST /v1/responses/input_tokens",
        "POST /responses/input_tokens",
    ),
    "Anthropic's messages API": ("POST /v1/messages", "POST /v1/messages/count_tokens"),
    "audio": ("POST /v1/audio/transcriptions", "POST /audio/transcriptions"),
    "control of running completions": ("POST /v1/chat/completions/control",),
    "resumable streams": ("GET /v1/stream", "DELETE /v1/stream", "POST /v1/streams/lookup"),
    "the CORS proxy": ("GET /cors-proxy", "POST /cors-proxy"),
    "built-in tools": ("GET /tools", "POST /tools"),
    "several models in one server": ("POST /models", "DELETE /models", "POST /models/load", "POST /models/unload"),
}


def handlers() -> list[HTTPRouteHandler]:
    """One handler for each route of the table."""
    return [_handler(name, *line.split(" ")) for name, lines in ROUTES.items() for line in lines]


def _handler(name: str, method: str, path: str) -> HTTPRouteHandler:
    message = f"llamaserve does not support {name} yet"

    @route(path, http_method=[method], status_code=501, include_in_schema=False)  # type: ignore[list-item]
    async def refuse() -> None:
        raise ApiError(501, message)

    return refuse
