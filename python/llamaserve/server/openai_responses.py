"""`/v1/responses`: OpenAI's responses API."""

from __future__ import annotations

from typing import Annotated

from litestar import post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp

from llamaserve.server.body import JsonBody
from llamaserve.server.chat_route import count_tokens, prepare
from llamaserve.server.errors import RESPONSES
from llamaserve.server.openai_chat import TokenCount
from llamaserve.server.request_fields import PriorityHeader
from llamaserve.server.responses_answer import ResponsesAnswer
from llamaserve.server.responses_request import chat_of
from llamaserve.server.responses_schema import Response, ResponsesRequest


@post(
    ["/v1/responses", "/responses"],
    status_code=200,
    dto=JsonBody[ResponsesRequest],
    return_dto=None,
    responses={200: ResponseSpec(Response, description="The response"), **RESPONSES},
    summary="Create a response",
    tags=["OpenAI"],
)
async def create_response(
    data: Annotated[ResponsesRequest, Body()], state: State, priority: PriorityHeader = None
) -> ASGIApp:
    """Answers a chat. With `"stream": true` the answer is a stream of server-sent events."""
    chat = await prepare(state.server, chat_of(data), priority)
    answer = ResponsesAnswer(chat, data)
    return chat.respond(answer, answer)


@post(
    ["/v1/responses/input_tokens", "/responses/input_tokens"],
    status_code=200,
    dto=JsonBody[ResponsesRequest],
    return_dto=None,
    responses=RESPONSES,
    summary="Count a chat's tokens",
    tags=["OpenAI"],
)
async def count_response_tokens(data: Annotated[ResponsesRequest, Body()], state: State) -> TokenCount:
    """Length of the prompt that a request makes, without answering it."""
    return TokenCount(await count_tokens(state.server, chat_of(data)))
