"""`/health`."""

from __future__ import annotations

import msgspec
from litestar import get


class Health(msgspec.Struct):
    status: str = "ok"


@get(["/health", "/v1/health"], summary="Is the model loaded?", tags=["llama-server"])
async def health() -> Health:
    """Answers 200 once the model is loaded, and 503 until then."""
    return Health()
