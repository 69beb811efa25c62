"""What `/v1/completions` takes and gives back beyond `/completion`."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from llamaserve.engine import Engine
from llamaserve.infill import infill_prompt
from llamaserve.params import Prompt
from llamaserve.server.errors import ApiError
from llamaserve.server.native_schema import CompletionRequest
from llamaserve.server.probs import TokenProbability
from llamaserve.server.prompts import prompts_of


class TextCompletionRequest(CompletionRequest, kw_only=True):
    """Body of `/v1/completions`: OpenAI's fields, and all of `/completion`."""

    echo: bool | None = None
    """Begin the answer with the prompt."""
    suffix: str | None = None
    """What comes after the completion. Needs a model that was trained to fill in the middle."""
    best_of: int | None = None
    """Only as many as `n`."""


class TextLogprobs(msgspec.Struct):
    """Log probabilities of the tokens, as llama-server gives them (`content`) and as OpenAI does."""

    content: list[TokenProbability]
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def text_logprobs(content: list[TokenProbability], offset: int) -> TextLogprobs:
    """`offset`: characters of text before the first token."""
    out = TextLogprobs(content, [], [], [], [])
    for item in content:
        out.tokens.append(item.token)
        out.token_logprobs.append(_value(item))
        tops = item.top_logprobs if isinstance(item.top_logprobs, list) else item.top_probs
        out.top_logprobs.append({top.token: _value(top) for top in tops} if isinstance(tops, list) else {})
        out.text_offset.append(offset)
        offset += len(item.token)
    return out


def _value(item: Any) -> float:
    value: float = item.logprob if item.prob is msgspec.UNSET else item.prob
    return value


def check(request: TextCompletionRequest) -> None:
    """Refuses (400) what OpenAI's API has and this server can't do."""
    if request.best_of is not None and request.best_of != request.choices:
        raise ApiError(400, "Field 'best_of': only as many completions as 'n' are made")
    if request.echo and request.n_probs:
        raise ApiError(400, "'echo' can't be used together with 'logprobs': the prompt's tokens have none")


async def text_prompts(engine: Engine, request: TextCompletionRequest, *, suffix_first: bool) -> list[Prompt]:
    """The prompts of a request. Raises `ApiError` (400), or `RequestError` where the model can't take a suffix."""
    prompts = prompts_of(request.prompt, engine.info.n_vocab)
    suffix = request.suffix
    if not suffix:
        return prompts

    def fill(prompt: Prompt) -> Prompt:
        return infill_prompt(engine, prompt, suffix, suffix_first=suffix_first, n_predict=request.n_predict)

    return [await asyncio.to_thread(fill, prompt) for prompt in prompts]


async def echoes(engine: Engine, request: TextCompletionRequest) -> list[str]:
    """What each answer begins with, in the order of the answers."""
    if not request.echo:
        return []
    texts = []
    for prompt in prompts_of(request.prompt, engine.info.n_vocab):
        texts.append(prompt if isinstance(prompt, str) else await asyncio.to_thread(_text, engine, prompt))
    return [text for text in texts for _ in range(request.choices)]


def _text(engine: Engine, prompt: Prompt) -> str:
    tokens: list[int] = []
    for part in prompt:
        tokens += [part] if isinstance(part, int) else engine.tokenize(part)
    return engine.detokenize(tokens)
