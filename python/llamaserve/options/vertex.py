"""The environment that Google's Vertex AI gives to a container which serves predictions (AIP_*)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .spec import OptionError

DEFAULT_PORT = 8080


@dataclass(frozen=True)
class VertexSettings:
    """What Vertex AI expects of the server."""

    predict_route: str = "/predict"
    health_route: str = ""
    """Another path for `/health`; empty for none."""
    port: int = DEFAULT_PORT


def vertex_settings(environ: Mapping[str, str]) -> VertexSettings | None:
    """What the environment asks for, or `None` outside of Vertex AI. Raises `OptionError`."""
    if environ.get("AIP_MODE") != "PREDICTION":
        return None
    text = environ.get("AIP_HTTP_PORT") or str(DEFAULT_PORT)
    if not (text.isascii() and text.isdecimal() and int(text) < 2**16):
        raise OptionError(f"AIP_HTTP_PORT expects a port, not '{text}'")
    return VertexSettings(
        predict_route=_route(environ.get("AIP_PREDICT_ROUTE") or "/predict"),
        health_route=_route(environ.get("AIP_HEALTH_ROUTE") or ""),
        port=int(text),
    )


def _route(path: str) -> str:
    return f"/{path.strip('/')}" if path else ""
