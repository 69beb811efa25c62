"""Puts the app together: routes, error format, OpenAPI document, and the gate in front."""

from __future__ import annotations

from litestar import Litestar
from litestar.datastructures import State
from litestar.types import ASGIApp, ControllerRouterHandler

from llamaserve.server import (
    anthropic,
    embeddings,
    errors,
    health,
    infill,
    lora,
    metrics,
    models,
    native,
    openai_chat,
    openai_completions,
    openai_responses,
    props,
    rerank,
    slot_files,
    slots,
    tokens,
    ui,
    unsupported,
    vertex,
)
from llamaserve.server.direct import DirectRoute
from llamaserve.server.gate import Gate
from llamaserve.server.openapi import openapi_config
from llamaserve.server.state import ServerState

MAX_BODY = 512 * 1024 * 1024


def create_app(state: ServerState) -> ASGIApp:
    """The server as an ASGI app."""
    settings = state.settings
    routes: list[ControllerRouterHandler] = [
        health.health,
        models.list_models,
        native.complete,
        infill.infill,
        openai_completions.complete_text,
        openai_chat.complete_chat,
        openai_chat.apply_template,
        openai_chat.count_chat_tokens,
        openai_responses.create_response,
        openai_responses.count_response_tokens,
        anthropic.create_message,
        anthropic.count_message_tokens,
        embeddings.embed,
        embeddings.embed_openai,
        rerank.rerank,
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
    if settings.vertex is not None:
        routes += vertex.handlers(settings.vertex, routes, settings.api_prefix)
    if settings.ui:
        routes += ui.handlers(settings.path, settings.api_prefix)
    app = Litestar(
        route_handlers=routes,
        path=settings.api_prefix or None,
        state=State({"server": state}),
        exception_handlers={Exception: errors.handle},
        request_max_body_size=MAX_BODY,
        openapi_config=openapi_config(),
        # Errors are logged in `errors`; Litestar's own logging setup would replace ours.
        logging_config=None,
        debug=False,
    )
    direct = {
        settings.api_prefix + path: DirectRoute(handler, state)
        for handler in (native.complete, openai_completions.complete_text, openai_chat.complete_chat)
        for path in handler.paths
    }
    return Gate(app, state, direct, [route.path for route in app.routes])
