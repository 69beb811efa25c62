"""`/embeddings`: llama-server's own form. `/v1/embeddings`: OpenAI's."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from litestar import post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp
from msgspec import UNSET, UnsetType

from llamaserve.embeddings import Embedding
from llamaserve.params import Int32, Limit, Prompt
from llamaserve.server.body import JsonBody
from llamaserve.server.errors import RESPONSES, ApiError
from llamaserve.server.prompts import PromptField, prompts_of
from llamaserve.server.request_fields import PriorityHeader
from llamaserve.server.single import Single
from llamaserve.server.state import ServerState

Vector: TypeAlias = list[float]

_encode = msgspec.json.Encoder().encode


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """Body of `/embeddings` and `/v1/embeddings`. `null` means not set; unknown fields are ignored."""

    input: PromptField | None = None
    """Text, token ids, both mixed, or a list of such inputs. `{"content": [{"type": "text", "text": "..."}]}` is taken
    for an input, too."""
    content: PromptField | None = None
    """Same as `input`; the answer then has llama-server's own form on every route."""
    model: str | None = None
    """Comes back in the answer."""
    encoding_format: Literal["float", "base64"] | None = None
    """`/v1/embeddings`: numbers, or the bytes of 32-bit floats as base64."""
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """Keep this many values of each embedding, and normalize it again: for models trained to allow it."""
    embd_normalize: Limit | None = None
    """-1 none, 0 the largest value becomes 32760, 1 taxicab, 2 euclidean, above that p-norm."""
    priority: Int32 | None = None
    """Higher goes first. Default 0."""


class InputEmbedding(msgspec.Struct):
    """An embedding in llama-server's own form: one row, or without pooling one for each token."""

    index: int
    embedding: list[Vector]


class OpenAIEmbedding(msgspec.Struct):
    """An embedding; as base64 the bytes of its 32-bit floats, lowest byte first."""

    embedding: Vector | str
    index: int
    object: str = "embedding"
    encoding_format: str | UnsetType = UNSET


class EmbeddingUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddings(msgspec.Struct):
    """Embeddings, in the order of the inputs."""

    model: str
    usage: EmbeddingUsage
    data: list[OpenAIEmbedding]
    object: str = "list"


@post(
    ["/embedding", "/embeddings"],
    status_code=200,
    dto=JsonBody[EmbeddingRequest],
    return_dto=None,
    responses={200: ResponseSpec(list[InputEmbedding], description="The embeddings"), **RESPONSES},
    summary="Embed texts",
    tags=["llama-server"],
)
async def embed(data: Annotated[EmbeddingRequest, Body()], state: State, priority: PriorityHeader = None) -> ASGIApp:
    """Embeds inputs. Needs `--embeddings`."""
    return Single(_work(state.server, data, priority, openai=False))


@post(
    "/v1/embeddings",
    status_code=200,
    dto=JsonBody[EmbeddingRequest],
    return_dto=None,
    responses={200: ResponseSpec(OpenAIEmbeddings, description="The embeddings"), **RESPONSES},
    summary="Embed texts",
    tags=["OpenAI"],
)
async def embed_openai(
    data: Annotated[EmbeddingRequest, Body()], state: State, priority: PriorityHeader = None
) -> ASGIApp:
    """Embeds inputs. Needs `--embeddings`, and a pooling other than "none"."""
    return Single(_work(state.server, data, priority, openai=True))


def _work(
    server: ServerState, request: EmbeddingRequest, priority: int | None, *, openai: bool
) -> Callable[[], Awaitable[bytes]]:
    engine = server.ready_engine()
    if not engine.info.embedding:
        raise ApiError(501, "This server does not support embeddings. Start it with `--embeddings`")
    if openai and engine.info.pooling == "none":
        raise ApiError(
            400, "Pooling type 'none' is not OAI compatible. Please use a different pooling type, or /embeddings"
        )
    inputs = _inputs(request, engine.info.n_vocab)
    openai = openai and request.input is not None

    async def work() -> bytes:
        embeddings = await engine.aembed(
            inputs,
            normalize=request.embd_normalize,
            dimensions=request.dimensions,
            priority=request.priority if request.priority is not None else priority or 0,
        )
        if openai:
            return _openai(
                embeddings, request.model or server.model_name, as_base64=request.encoding_format == "base64"
            )
        return (
            b"["
            + b",".join(b'{"index":%d,"embedding":%b}' % (i, e.json(rows=True)) for i, e in enumerate(embeddings))
            + b"]"
        )

    return work


def _openai(embeddings: list[Embedding], model: str, *, as_base64: bool) -> bytes:
    """The body, put together from the vectors' JSON: a Python object for every number would take longer than the
    model."""
    n_tokens = sum(e.n_tokens for e in embeddings)
    parts: list[bytes] = []
    for i, e in enumerate(embeddings):
        vector = b'"%b"' % base64.b64encode(e.data) if as_base64 else e.json()
        form = b',"encoding_format":"base64"' if as_base64 else b""
        parts.append(b'{"embedding":%b,"index":%d,"object":"embedding"%b}' % (vector, i, form))
    return b'{"model":%b,"object":"list","usage":{"prompt_tokens":%d,"total_tokens":%d},"data":[%b]}' % (
        _encode(model),
        n_tokens,
        n_tokens,
        b",".join(parts),
    )


def _inputs(request: EmbeddingRequest, n_vocab: int) -> list[Prompt]:
    field = "content" if request.input is None else "input"
    value = request.content if request.input is None else request.input
    if value is None:
        raise ApiError(400, "'input' or 'content' must be provided")
    if isinstance(value, dict):
        value = _as_text(value, field)
    elif isinstance(value, list):
        value = [_as_text(item, f"{field}[{i}]") if isinstance(item, dict) else item for i, item in enumerate(value)]
    return prompts_of(value, n_vocab, field)


def _as_text(item: dict[str, Any], field: str) -> Any:
    """The text of an input in the form of a chat message's content; other objects as they are."""
    if "content" not in item:
        return item
    parts = item["content"]
    if not isinstance(parts, list):
        raise ApiError(400, f"Field '{field}.content': expected a list of parts")
    text = ""
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image_url", "input_audio", "input_video"):
            raise ApiError(501, f"Field '{field}.content[{i}]': images, audio and video are not supported yet")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"Field '{field}.content[{i}]': expected a part of type 'text' with a 'text'")
        text += part["text"]
    return text
