"""`/v1/chat/completions` and the routes that take the same chats."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from litestar import post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp

from llamaserve.server.body import JsonBody
from llamaserve.server.chat_answer import ChatAnswer
from llamaserve.server.chat_request import ChatRequest, chat_params, sampling
from llamaserve.server.errors import RESPONSES
from llamaserve.server.generation import Generation
from llamaserve.server.openai_schema import ChatCompletionResponse
from llamaserve.server.request_fields import PriorityHeader, jobs_of, ping_interval
from llamaserve.server.responder import Responder
from llamaserve.server.state import ServerState


class RenderedPrompt(msgspec.Struct):
    """A chat as the model sees it."""

    prompt: str


class TokenCount(msgspec.Struct):
    """Length of a rendered chat."""

    input_tokens: int
    object: str = "response.input_tokens"


@post(
    ["/v1/chat/completions", "/chat/completions"],
    status_code=200,
    dto=JsonBody[ChatRequest],
    return_dto=None,
    responses={200: ResponseSpec(ChatCompletionResponse, description="The answer"), **RESPONSES},
    summary="Answer a chat",
    tags=["OpenAI"],
)
async def complete_chat(data: Annotated[ChatRequest, Body()], state: State, priority: PriorityHeader = None) -> ASGIApp:
    """Answers a chat. With `"stream": true` the answer is a stream of server-sent events."""
    server: ServerState = state.server
    engine = server.ready_engine()
    chat = chat_params(data)
    prompt = await asyncio.to_thread(engine.apply_template, chat)
    params = sampling(data, chat, prompt.stop, engine.defaults.stop if engine.defaults else None)
    jobs = jobs_of(engine, [prompt.prompt], params, priority)
    for job in jobs:
        job.constraint = prompt.constraint
    return Responder(
        Generation(engine, jobs, pieces=data.streams),
        ChatAnswer(engine, server, params, prompt, jobs),
        stream=data.streams,
        ping_interval=ping_interval(data, server.settings.sse_ping_interval),
    )


@post(
    "/apply-template",
    status_code=200,
    dto=JsonBody[ChatRequest],
    return_dto=None,
    responses=RESPONSES,
    summary="Show a chat as the model sees it",
    tags=["llama-server"],
)
async def apply_template(data: Annotated[ChatRequest, Body()], state: State) -> RenderedPrompt:
    """Renders a chat with the model's template, without answering it."""
    engine = state.server.ready_engine()
    prompt = await asyncio.to_thread(engine.apply_template, chat_params(data))
    return RenderedPrompt(prompt.prompt)


@post(
    ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
    status_code=200,
    dto=JsonBody[ChatRequest],
    return_dto=None,
    responses=RESPONSES,
    summary="Count a chat's tokens",
    tags=["llama-server"],
)
async def count_chat_tokens(data: Annotated[ChatRequest, Body()], state: State) -> TokenCount:
    """Length of a chat in tokens, without answering it."""
    engine = state.server.ready_engine()
    prompt = await asyncio.to_thread(engine.apply_template, chat_params(data))
    tokens = await asyncio.to_thread(engine.tokenize, prompt.prompt, add_special=True)
    return TokenCount(len(tokens))
