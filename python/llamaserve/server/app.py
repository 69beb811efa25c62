"""Puts the app together: routes, error format, OpenAPI document, and the gate in front."""

from __future__ import annotations

from litestar import Litestar
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.types import ASGIApp, ControllerRouterHandler

from llamaserve._version import __version__
from llamaserve.server import (
    errors,
    health,
    lora,
    metrics,
    models,
    native,
    openai_chat,
    openai_completions,
    props,
    slot_files,
    slots,
    tokens,
    ui,
    unsupported,
)
from llamaserve.server.gate import Gate
from llamaserve.server.state import ServerState

MAX_BODY = 512 * 1024 * 1024


def create_app(state: ServerState) -> ASGIApp:
    """The server as an ASGI app."""
    settings = state.settings
    routes: list[ControllerRouterHandler] = [
        health.health,
        models.list_models,
        native.complete,
        openai_completions.complete_text,
        openai_chat.complete_chat,
        openai_chat.apply_template,
        openai_chat.count_chat_tokens,
        tokens.tokenize,
        tokens.detokenize,
        props.get_props,
        props.post_props,
        slots.list_slots,
        slot_files.act_on_slot,
        metrics.get_metrics,
        lora.list_adapters,
        lora.set_adapters,
        *unsupported.handlers(),
    ]
    if settings.ui:
        routes += ui.handlers(settings.path, settings.api_prefix)
    app = Litestar(
        route_handlers=routes,
        path=settings.api_prefix or None,
        state=State({"server": state}),
        exception_handlers={Exception: errors.handle},
        request_max_body_size=MAX_BODY,
        openapi_config=OpenAPIConfig(
            title="llamaserve",
            version=__version__,
            path="/schema",
            render_plugins=[JsonRenderPlugin()],
        ),
        # Errors are logged in `errors`; Litestar's own logging setup would replace ours.
        logging_config=None,
        debug=False,
    )
    return Gate(app, state, [route.path for route in app.routes])
