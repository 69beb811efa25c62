"""Embeddings and reranking over real HTTP, by OpenAI's client and by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from llamaserve import Engine

from tests import models
from tests.server.conftest import MakeServer


def test_openai_client(make_server: MakeServer) -> None:
    server = make_server("-m", str(models.minilm()), "--embeddings", "-np", "4", "--metrics")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    texts = [f"text number {i}" for i in range(40)]
    whole = client.embeddings.create(model="any", input=texts)
    with Engine(models.minilm(), embedding=True) as engine:
        expected = [e.vector for e in engine.embed(texts)]
    for item, vector in zip(whole.data, expected, strict=True):
        assert np.dot(item.embedding, vector) > 1 - 1e-5
    assert whole.usage.prompt_tokens == whole.usage.total_tokens == 40 * 5

    def single(text: str) -> list[float]:
        return client.embeddings.create(model="any", input=text, encoding_format="float").data[0].embedding

    with ThreadPoolExecutor(8) as pool:
        for vector, other in zip(pool.map(single, texts), expected, strict=True):
            assert np.dot(vector, other) > 1 - 1e-5
    short = client.embeddings.create(model="any", input=[[101, 7592, 102]], dimensions=16).data[0].embedding
    assert len(short) == 16
    assert np.linalg.norm(short) == pytest.approx(1, abs=1e-4)
    with pytest.raises(openai.BadRequestError, match="too large"):
        client.embeddings.create(model="any", input=["fine", "word " * 600])
    with pytest.raises(openai.BadRequestError, match="'input'"):
        client.embeddings.create(model="any", input=[])
    surrogate = httpx.post(f"{server.url}/v1/embeddings", content=b'{"input": "\\ud800"}')
    assert surrogate.status_code == 400
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="any", input="x", dimensions=1000)
    completion = httpx.post(f"{server.url}/completion", json={"prompt": "x"})
    assert completion.status_code == 501
    assert "llamacpp:tokens_predicted_total 0" in httpx.get(f"{server.url}/metrics").text
    slots = httpx.get(f"{server.url}/slots").json()
    assert [s["is_processing"] for s in slots] == [False] * 4


def test_reranking(make_server: MakeServer) -> None:
    server = make_server("-m", str(models.reranker()), "--reranking", "-np", "2")
    body = {"query": "what is it", "documents": ["a machine", "a study of learning", "paris"], "top_n": 2}
    for path in ("/rerank", "/v1/rerank"):
        answer = httpx.post(f"{server.url}{path}", json=body)
        assert answer.status_code == 200
        results = answer.json()["results"]
        assert len(results) == 2
        assert results[0]["relevance_score"] > results[1]["relevance_score"]
    tei = httpx.post(f"{server.url}/rerank", json={"query": "what is it", "texts": body["documents"]}).json()
    assert [t["index"] for t in tei[:2]] == [r["index"] for r in results]
    too_long = httpx.post(f"{server.url}/rerank", json={"query": "x", "documents": ["y" * 3000, "long " * 400]})
    assert too_long.status_code == 400
    assert too_long.json()["error"]["type"] == "exceed_context_size_error"
    refused = httpx.post(f"{server.url}/v1/embeddings", json={"input": "x"})
    assert refused.status_code == 501
