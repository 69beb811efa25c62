"""`/rerank`: documents by their relevance to a query, in Jina's form and in that of text-embeddings-inference (TEI)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp
from msgspec import UNSET, UnsetType

from llamaserve.params import Int32, UInt
from llamaserve.results import ModelInfo
from llamaserve.server.body import JsonBody
from llamaserve.server.embeddings import EmbeddingUsage
from llamaserve.server.errors import RESPONSES, ApiError
from llamaserve.server.request_fields import PriorityHeader
from llamaserve.server.single import Single
from llamaserve.server.state import ServerState

_encode = msgspec.json.Encoder().encode


class DocumentText(msgspec.Struct):
    """A document as an object."""

    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    """Body of `/rerank`. `null` means not set; unknown fields are ignored."""

    query: str
    """What the documents are ranked by."""
    documents: list[str | DocumentText] | None = None
    """Texts, or objects with a `text`: the answer has Jina's form."""
    texts: list[str] | None = None
    """Texts: the answer has TEI's form, a plain list."""
    top_n: UInt | None = None
    """Return the best N only."""
    return_documents: bool | None = None
    """With `documents`: put each document into its result."""
    return_text: bool | None = None
    """With `texts`: put each text into its result."""
    model: str | None = None
    """Comes back in the answer."""
    priority: Int32 | None = None
    """Higher goes first. Default 0."""


class JinaResult(msgspec.Struct):
    index: int
    relevance_score: float
    document: DocumentText | UnsetType = UNSET


class JinaRanking(msgspec.Struct):
    """Documents, best first."""

    model: str
    usage: EmbeddingUsage
    results: list[JinaResult]
    object: str = "list"


class TeiResult(msgspec.Struct):
    index: int
    score: float
    text: str | UnsetType = UNSET


# Typed so because Litestar's annotation leaves out unions, which it takes.
ANSWER: Any = JinaRanking | list[TeiResult]


@post(
    ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"],
    status_code=200,
    dto=JsonBody[RerankRequest],
    return_dto=None,
    responses={
        200: ResponseSpec(ANSWER, description="The ranking: a list if `texts` was given"),
        **RESPONSES,
    },
    summary="Rank documents",
    tags=["llama-server"],
)
async def rerank(data: Annotated[RerankRequest, Body()], state: State, priority: PriorityHeader = None) -> ASGIApp:
    """Ranks documents by their relevance to a query. Needs `--reranking`."""
    server: ServerState = state.server
    engine = server.ready_engine()
    if not can_rerank(engine.info):
        raise ApiError(501, "This server does not support reranking. Start it with `--reranking`")
    tei = data.texts is not None
    documents = data.documents if data.documents is not None else data.texts
    if not documents:
        raise ApiError(400, "'documents' must be a list of at least one text")
    texts = [d if isinstance(d, str) else d.text for d in documents]

    async def work() -> bytes:
        turn = data.priority if data.priority is not None else priority or 0
        ranking = await engine.arerank(data.query, texts, top_n=data.top_n, priority=turn)
        if tei:
            with_text = bool(data.return_text)
            return _encode(
                [TeiResult(d.index, d.score, texts[d.index] if with_text else UNSET) for d in ranking.documents]
            )
        with_document = bool(data.return_documents)
        results = [
            JinaResult(d.index, d.score, DocumentText(texts[d.index]) if with_document else UNSET)
            for d in ranking.documents
        ]
        usage = EmbeddingUsage(ranking.n_tokens, ranking.n_tokens)
        return _encode(JinaRanking(data.model or server.model_name, usage, results))

    return Single(work)


def can_rerank(info: ModelInfo) -> bool:
    return info.embedding and info.pooling == "rank"
