"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.datastructures import State
from litestar.params import Body

from llamaserve.engine import Engine
from llamaserve.params import Int32
from llamaserve.server.body import JsonBody
from llamaserve.server.errors import RESPONSES, ApiError
from llamaserve.server.prompts import mixed_of
from llamaserve.server.state import ServerState

LONG_TEXT = 4096
"""Characters (or tokens) from which the work is done in a worker thread instead of on the event loop."""


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of `/tokenize`."""

    content: str | list[Any] | None = None
    """Text, or a list of texts and token ids."""
    add_special: bool | None = None
    """Add what the model wants at the start, such as BOS."""
    parse_special: bool | None = None
    """Turn texts like `<|im_end|>` into their tokens (the default)."""
    with_pieces: bool | None = None
    """Return each token's text as well."""


class TokenPiece(msgspec.Struct):
    """A token and its text; a list of bytes where the token isn't whole characters."""

    id: int
    piece: str | list[int]


class TokenizeResponse(msgspec.Struct):
    tokens: list[int | TokenPiece]


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of `/detokenize`."""

    tokens: list[Int32] | None = None
    """Token ids."""


class DetokenizeResponse(msgspec.Struct):
    content: str


@post(
    "/tokenize",
    status_code=200,
    dto=JsonBody[TokenizeRequest],
    return_dto=None,
    responses=RESPONSES,
    summary="Turn text into tokens",
    tags=["llama-server"],
)
async def tokenize(data: Annotated[TokenizeRequest, Body()], state: State) -> TokenizeResponse:
    server: ServerState = state.server
    engine = server.ready_engine()
    content = data.content
    if content is None:
        return TokenizeResponse([])
    if isinstance(content, str) and len(content) < LONG_TEXT:
        return TokenizeResponse(_tokens(engine, data, content))
    return TokenizeResponse(await asyncio.to_thread(_tokens, engine, data, content))


def _tokens(engine: Engine, request: TokenizeRequest, content: str | list[Any]) -> list[int | TokenPiece]:
    parts = [content] if isinstance(content, str) else mixed_of(content, engine.info.n_vocab, "content")
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            tokens += engine.tokenize(
                part,
                add_special=bool(request.add_special) and i == 0,
                parse_special=request.parse_special is not False,
            )
        else:
            tokens.append(part)
    if not request.with_pieces:
        return list(tokens)
    return [TokenPiece(token, _piece(engine.token_bytes(token))) for token in tokens]


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


@post(
    "/detokenize",
    status_code=200,
    dto=JsonBody[DetokenizeRequest],
    return_dto=None,
    responses=RESPONSES,
    summary="Turn tokens into text",
    tags=["llama-server"],
)
async def detokenize(data: Annotated[DetokenizeRequest, Body()], state: State) -> DetokenizeResponse:
    server: ServerState = state.server
    engine = server.ready_engine()
    tokens = data.tokens or []
    try:
        if len(tokens) < LONG_TEXT:
            return DetokenizeResponse(engine.detokenize(tokens))
        return DetokenizeResponse(await asyncio.to_thread(engine.detokenize, tokens))
    except ValueError as e:
        raise ApiError(400, f"Field 'tokens': {e}") from None
