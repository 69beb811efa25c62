"""Embeddings and reranking over HTTP: the forms of a request, of an answer, and of what is wrong."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamaserve.errors import RequestError

from tests.server.conftest import App

VECTOR = [0.5, -0.25, pytest.approx(1e-3), 1.0]
EMBEDDING_ROUTES = ["/embedding", "/embeddings", "/v1/embeddings"]
RERANK_ROUTES = ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"]


def app_with(**info: Any) -> App:
    app = App()
    app.engine.info = msgspec.structs.replace(app.engine.info, **info)
    return app


@pytest.fixture
def ranker() -> App:
    return app_with(pooling="rank")


def test_openai_form(app: App) -> None:
    body = app.post("/v1/embeddings", {"input": "a text", "model": "any"}).json()
    assert body == {
        "model": "any",
        "object": "list",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
        "data": [{"embedding": VECTOR, "index": 0, "object": "embedding"}],
    }
    several = app.post("/v1/embeddings", {"input": ["a", "b"]}).json()
    assert several["model"] == "fake-model"
    assert [d["index"] for d in several["data"]] == [0, 1]
    assert several["usage"]["total_tokens"] == 6


def test_base64(app: App) -> None:
    data = app.post("/v1/embeddings", {"input": "a", "encoding_format": "base64"}).json()["data"][0]
    assert data["encoding_format"] == "base64"
    assert list(struct.unpack("<4f", base64.b64decode(data["embedding"]))) == VECTOR


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_native_form(app: App, path: str) -> None:
    assert app.post(path, {"content": "a"}).json() == [{"index": 0, "embedding": [VECTOR]}]
    assert len(app.post(path, {"input": ["a", "b"]}).json()) == 2


def test_content_asks_for_the_native_form(app: App) -> None:
    assert app.post("/v1/embeddings", {"content": "a"}).json() == [{"index": 0, "embedding": [VECTOR]}]


def test_rows_without_pooling() -> None:
    app = app_with(pooling="none")
    assert app.post("/embeddings", {"input": "a"}).json() == [{"index": 0, "embedding": [VECTOR, VECTOR]}]
    refused = app.post("/v1/embeddings", {"input": "a"})
    assert refused.status_code == 400
    assert "not OAI compatible" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("a", ["a"]),
        ("", [""]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([1, "a", 2], [[1, "a", 2]]),
        (["a", "b"], ["a", "b"]),
        (["a", [1, 2]], ["a", [1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ({"prompt_string": "a"}, ["a"]),
        ({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}, ["a b"]),
        (["a", {"prompt_string": "b"}, {"content": [{"type": "text", "text": "c"}]}], ["a", "b", "c"]),
    ],
)
def test_forms_of_an_input(app: App, value: Any, inputs: list[Any]) -> None:
    assert app.post("/v1/embeddings", {"input": value}).status_code == 200
    assert app.engine.embedded == [(inputs, None, None, 0)]


def test_parameters_reach_the_engine(app: App) -> None:
    body = {"input": "a", "embd_normalize": -1, "dimensions": 2, "priority": 3}
    assert app.post("/v1/embeddings", body).status_code == 200
    assert app.post("/v1/embeddings", {"input": "a"}, headers={"X-Priority": "4"}).status_code == 200
    assert app.engine.embedded == [(["a"], -1, 2, 3), (["a"], None, None, 4)]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({}, 400, "'input' or 'content' must be provided"),
        ({"input": None}, 400, "'input' or 'content' must be provided"),
        ({"input": []}, 400, "'input' must not be empty"),
        ({"content": []}, 400, "'content' must not be empty"),
        ({"input": 1}, 400, "'input'"),
        ({"input": [None]}, 400, "'input[0]'"),
        ({"input": ["a", True]}, 400, "'input[1]'"),
        ({"input": [["a", "b"]]}, 400, "'input[0]'"),
        ({"input": [1, 300]}, 400, "300 is not a token"),
        ({"input": [[1], [-1]]}, 400, "'input[1][0]'"),
        ({"input": {"content": "a"}}, 400, "'input.content'"),
        ({"input": {"content": [{"type": "unknown"}]}}, 400, "'input.content[0]'"),
        ({"input": [{"content": [{"type": "text", "text": 1}]}]}, 400, "'input[0].content[0]'"),
        ({"input": {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}}, 501, "not supported yet"),
        ({"input": {"prompt_string": "a", "multimodal_data": ["x"]}}, 501, "not supported yet"),
        ({"input": "a", "encoding_format": "hex"}, 400, "'encoding_format'"),
        ({"input": "a", "dimensions": 0}, 400, "'dimensions'"),
        ({"input": "a", "dimensions": "2"}, 400, "'dimensions'"),
        ({"input": "a", "embd_normalize": -2}, 400, "'embd_normalize'"),
        ({"input": "a", "model": 1}, 400, "'model'"),
    ],
)
def test_wrong_inputs(app: App, body: dict[str, Any], status: int, told: str) -> None:
    response = app.post("/v1/embeddings", body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == status
    assert told in error["message"]
    assert app.engine.embedded == []


def test_what_the_engine_says(app: App) -> None:
    app.engine.refuse = RequestError("input (9 tokens) is too large", "context_size", n_prompt_tokens=9, n_ctx=8)
    error = app.post("/v1/embeddings", {"input": "a"}).json()["error"]
    assert (error["code"], error["type"], error["n_prompt_tokens"]) == (400, "exceed_context_size_error", 9)


@pytest.mark.parametrize("path", EMBEDDING_ROUTES)
def test_refused_without_the_flag(path: str) -> None:
    response = app_with(embedding=False).post(path, {"input": "a"})
    assert response.status_code == 501
    assert "--embeddings" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", RERANK_ROUTES)
def test_reranking_refused_without_the_flag(app: App, path: str) -> None:
    response = app.post(path, {"query": "a", "documents": ["b"]})
    assert response.status_code == 501
    assert "--reranking" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", RERANK_ROUTES)
def test_jina_form(ranker: App, path: str) -> None:
    body = ranker.post(path, {"query": "q", "documents": ["a", "bbb", {"text": "cc"}], "model": "m"}).json()
    assert body == {
        "model": "m",
        "usage": {"prompt_tokens": 15, "total_tokens": 15},
        "results": [
            {"index": 1, "relevance_score": 1.5},
            {"index": 2, "relevance_score": 1.0},
            {"index": 0, "relevance_score": 0.5},
        ],
        "object": "list",
    }


def test_jina_options(ranker: App) -> None:
    body = {"query": "q", "documents": ["a", "bbb", "cc"], "top_n": 2, "return_documents": True}
    results = ranker.post("/rerank", body).json()["results"]
    assert [r["document"]["text"] for r in results] == ["bbb", "cc"]
    assert len(ranker.post("/rerank", {**body, "top_n": 99}).json()["results"]) == 3


def test_tei_form(ranker: App) -> None:
    body = {"query": "q", "texts": ["a", "bbb"]}
    assert ranker.post("/rerank", body).json() == [{"index": 1, "score": 1.5}, {"index": 0, "score": 0.5}]
    with_text = ranker.post("/rerank", {**body, "return_text": True, "top_n": 1}).json()
    assert with_text == [{"index": 1, "score": 1.5, "text": "bbb"}]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"documents": ["a"]}, "'query' is required"),
        ({"query": 1, "documents": ["a"]}, "'query'"),
        ({"query": "q"}, "'documents'"),
        ({"query": "q", "documents": []}, "'documents'"),
        ({"query": "q", "documents": None}, "'documents'"),
        ({"query": "q", "documents": 123}, "'documents'"),
        ({"query": "q", "documents": "a"}, "'documents'"),
        ({"query": "q", "documents": [1, 2, 3]}, "'documents[0]'"),
        ({"query": "q", "documents": [{"title": "a"}]}, "documents[0]"),
        ({"query": "q", "texts": [None]}, "'texts[0]'"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "'top_n'"),
        ({"query": "q", "documents": ["a"], "top_n": "x"}, "'top_n'"),
    ],
)
def test_wrong_rankings(ranker: App, body: dict[str, Any], told: str) -> None:
    response = ranker.post("/rerank", body)
    assert response.status_code == 400, response.text
    assert told in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [*EMBEDDING_ROUTES, "/rerank"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b'{"input": NaN, "query": NaN}', b'{"input": ' + b"[" * 99999]
)
def test_broken_bodies(path: str, body: bytes) -> None:
    response = app_with(pooling="rank").request("POST", path, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_client_that_leaves_cancels(app: App) -> None:
    app.engine.hang = True
    sent: list[Any] = []

    async def call() -> None:
        messages = [{"type": "http.request", "body": b'{"input": "a"}', "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await app.engine.hanging.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/v1/embeddings", "raw_path": b"/v1/embeddings", "headers": [],
            "query_string": b"", "root_path": "", "scheme": "http", "server": ("t", 80), "client": ("c", 1),
            "http_version": "1.1", "asgi": {"version": "3.0"}, "extensions": {},
        }  # fmt: skip
        await asyncio.wait_for(app.asgi(scope, receive, send), 10)  # type: ignore[arg-type]
        await asyncio.sleep(0)

    asyncio.run(call())
    assert app.engine.cancelled
    assert sent == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "type", "text", "prompt_string", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.sampled_from(
    ["input", "content", "encoding_format", "dimensions", "embd_normalize", "query", "documents", "texts", "top_n"]
)


@settings(max_examples=100, deadline=None)
@given(path=st.sampled_from(["/embeddings", "/v1/embeddings", "/rerank"]), body=st.dictionaries(fields, json_values))
def test_any_json_gets_an_answer(path: str, body: dict[str, Any]) -> None:
    good = {"input": "x", "query": "x", "documents": ["x"]}
    response = app_with(pooling="rank").post(path, {**good, **body})
    assert response.status_code in (200, 400, 501), response.text


def test_openapi_describes_the_routes(app: App) -> None:
    paths = app.get("/schema/openapi.json").json()["paths"]
    for path in (*EMBEDDING_ROUTES, *RERANK_ROUTES):
        operation = paths[path]["post"]
        assert operation["requestBody"]["content"]
        assert {"200", "400"} <= set(operation["responses"])
