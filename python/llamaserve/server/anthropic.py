"""`/v1/messages`: Anthropic's messages API."""

from __future__ import annotations

from typing import Annotated

from litestar import post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp

from llamaserve.server.anthropic_answer import AnthropicAnswer
from llamaserve.server.anthropic_request import chat_of
from llamaserve.server.anthropic_schema import MessageResponse, MessagesRequest, MessageTokens
from llamaserve.server.body import JsonBody
from llamaserve.server.chat_route import count_tokens, prepare
from llamaserve.server.errors import ANTHROPIC_RESPONSES
from llamaserve.server.request_fields import PriorityHeader


@post(
    "/v1/messages",
    status_code=200,
    dto=JsonBody[MessagesRequest],
    return_dto=None,
    responses={200: ResponseSpec(MessageResponse, description="The answer"), **ANTHROPIC_RESPONSES},
    summary="Answer a chat",
    tags=["Anthropic"],
)
async def create_message(
    data: Annotated[MessagesRequest, Body()], state: State, priority: PriorityHeader = None
) -> ASGIApp:
    """Answers a chat. With `"stream": true` the answer is a stream of server-sent events."""
    request = chat_of(data)
    if request.streams:
        # The first event tells how much of the prompt was cached.
        request.return_progress = True
    chat = await prepare(state.server, request, priority)
    answer = AnthropicAnswer(chat, data.stop_sequences)
    return chat.respond(answer, answer)


@post(
    "/v1/messages/count_tokens",
    status_code=200,
    dto=JsonBody[MessagesRequest],
    return_dto=None,
    responses=ANTHROPIC_RESPONSES,
    summary="Count a chat's tokens",
    tags=["Anthropic"],
)
async def count_message_tokens(data: Annotated[MessagesRequest, Body()], state: State) -> MessageTokens:
    """Length of the prompt that a request makes, without answering it."""
    return MessageTokens(await count_tokens(state.server, chat_of(data)))
