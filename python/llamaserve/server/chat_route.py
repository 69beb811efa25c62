"""What the routes of all chat APIs do, once the request is in OpenAI's form."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from llamaserve.chat import ChatPrompt
from llamaserve.engine import Engine
from llamaserve.server.chat_request import ChatRequest, chat_params, sampling
from llamaserve.server.generation import Generation, Job
from llamaserve.server.request_fields import jobs_of, ping_interval
from llamaserve.server.responder import Answer, Failures, Responder
from llamaserve.server.state import ServerState


@dataclass
class PreparedChat:
    """A chat that is ready to run."""

    server: ServerState
    engine: Engine
    request: ChatRequest
    """With the stop texts and the schema that apply."""
    prompt: ChatPrompt
    jobs: list[Job]

    def respond(self, answer: Answer, failures: Failures | None = None) -> Responder:
        """The response that runs the chat and writes it as `answer` does."""
        return Responder(
            Generation(self.engine, self.jobs, pieces=self.request.streams),
            answer,
            stream=self.request.streams,
            ping_interval=ping_interval(self.request, self.server.settings.sse_ping_interval),
            failures=failures,
        )


async def prepare(server: ServerState, request: ChatRequest, priority: int | None) -> PreparedChat:
    """Renders the chat. Raises `ApiError` or `RequestError` where it can't be answered."""
    engine = server.ready_engine()
    chat = chat_params(request)
    prompt = await asyncio.to_thread(engine.apply_template, chat)
    request = sampling(request, chat, prompt.stop, engine.defaults.stop if engine.defaults else None)
    jobs = jobs_of(engine, [prompt.prompt], request, priority)
    for job in jobs:
        job.constraint = prompt.constraint
    return PreparedChat(server, engine, request, prompt, jobs)


async def count_tokens(server: ServerState, request: ChatRequest) -> int:
    """Length of the rendered chat."""
    engine = server.ready_engine()
    prompt = await asyncio.to_thread(engine.apply_template, chat_params(request))
    return len(await asyncio.to_thread(engine.tokenize, prompt.prompt, add_special=True))
