"""Embeddings and rerank scores: against numpy, against llama-server, in batches, beside completions, and gone wrong."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llamaserve import Embedding, Engine, EngineClosedError, ModelLoadError, RequestError

from tests import models
from tests.bert_numpy import MiniLM
from tests.peer import llama_server, needs_peer, post

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A fast auburn fox leapt across a sleeping hound.",
    "Interest rates rose by half a percent in March, and bonds fell.",
    "",
    "How do I reset my password?",
    "one two three four five six seven eight nine ten " * 12,
]
DOCUMENTS = ["a machine uses power", "learning is understanding", "paris", "machine learning, a study", "learning"]


@pytest.fixture(scope="module")
def minilm() -> Iterator[Engine]:
    with Engine(models.minilm(), embedding=True, parallel=8) as engine:
        yield engine


@pytest.fixture(scope="module")
def ranker() -> Iterator[Engine]:
    with Engine(models.reranker(), reranking=True, parallel=4) as engine:
        yield engine


def cosine(a: Any, b: Any) -> float:
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


# -- the right numbers --


def test_agrees_with_the_published_model(minilm: Engine) -> None:
    reference = MiniLM()
    for text, embedding in zip(TEXTS, minilm.embed(TEXTS), strict=True):
        assert minilm.tokenize(text, add_special=True) == reference.tokenize(text)
        assert embedding.n_tokens == len(reference.tokenize(text))
        assert 1 - cosine(embedding.vector, reference.embed(text)) < 1e-3
        assert np.linalg.norm(embedding.vector) == pytest.approx(1, abs=1e-5)


@needs_peer
def test_agrees_with_llama_server(minilm: Engine) -> None:
    with llama_server(models.minilm(), "--embeddings", "-np", "4") as url:
        theirs = post(f"{url}/v1/embeddings", {"input": TEXTS})
        for item, embedding in zip(theirs["data"], minilm.embed(TEXTS), strict=True):
            assert 1 - cosine(item["embedding"], embedding.vector) < 1e-5
        assert theirs["usage"]["prompt_tokens"] == sum(e.n_tokens for e in minilm.embed(TEXTS))
        for norm in (-1, 0, 1, 3):
            (item,) = post(f"{url}/embeddings", {"input": TEXTS[0], "embd_normalize": norm})
            (ours,) = minilm.embed(TEXTS[0], normalize=norm)
            np.testing.assert_allclose(ours.vector, item["embedding"][0], rtol=2e-2, atol=1e-4 * max(ours.vector))


@needs_peer
@pytest.mark.parametrize("pooling", ["none", "cls", "last"])
@pytest.mark.parametrize("model", ["minilm", "tiny"])
def test_poolings_agree_with_llama_server(model: str, pooling: Any) -> None:
    path = getattr(models, model)()
    texts = ["the rain in spain", "stays", "mainly in the plain, and so it does"]
    with llama_server(path, "--embeddings", "--pooling", pooling, "-c", "2048", "-np", "2", "-kvu") as url:
        theirs = post(f"{url}/embeddings", {"input": texts})
    with Engine(path, embedding=True, pooling=pooling, ctx_size=2048, parallel=3) as engine:
        for item, embedding in zip(theirs, engine.embed(texts), strict=True):
            assert embedding.n_rows == len(item["embedding"]) == (embedding.n_tokens if pooling == "none" else 1)
            for row, vector in zip(item["embedding"], embedding.vectors, strict=True):
                assert 1 - cosine(row, vector) < 1e-5


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
@pytest.mark.parametrize("kv_unified", [False, True])
def test_inputs_of_a_batch_do_not_touch_each_other(pooling: Any, kv_unified: bool) -> None:
    """Of different lengths, on a model with a KV cache: computed together they give what each gives alone."""
    texts = ["the rain in spain", "stays", "mainly in the plain, and so it does", "again", "the end"]
    options: Any = {"embedding": True, "pooling": pooling, "ctx_size": 2048, "kv_unified": kv_unified}
    with Engine(models.tiny(), parallel=4, **options) as engine:
        together = engine.embed(texts)
        for text, embedding in zip(texts, together, strict=True):
            (alone,) = engine.embed(text)
            assert alone.n_rows == embedding.n_rows
            for a, b in zip(alone.vectors, embedding.vectors, strict=True):
                assert 1 - cosine(a, b) < 1e-5


def test_normalisations(minilm: Engine) -> None:
    raw = np.array(minilm.embed(TEXTS[0], normalize=-1)[0].vector)
    lengths = {1: np.abs(raw).sum(), 2: np.linalg.norm(raw), 3: (np.abs(raw) ** 3).sum() ** (1 / 3)}
    lengths[0] = np.abs(raw).max() / 32760
    lengths[400] = np.abs(raw).max() * ((np.abs(raw) / np.abs(raw).max()) ** 400).sum() ** (1 / 400)
    for norm, length in lengths.items():
        np.testing.assert_allclose(minilm.embed(TEXTS[0], normalize=norm)[0].vector, raw / length, rtol=1e-4)
    with Engine(models.minilm(), embedding=True, embd_normalize=-1) as engine:
        np.testing.assert_allclose(engine.embed(TEXTS[0])[0].vector, raw, rtol=1e-4, atol=1e-5)


def test_dimensions_cut_and_normalize_again(minilm: Engine) -> None:
    (whole,) = minilm.embed(TEXTS[0])
    (cut,) = minilm.embed(TEXTS[0], dimensions=64)
    first = np.array(whole.vector[:64])
    np.testing.assert_allclose(cut.vector, first / np.linalg.norm(first), rtol=1e-4, atol=1e-6)
    with pytest.raises(RequestError, match="dimensions"):
        minilm.embed("x", dimensions=385)


# -- batches --


def test_many_inputs_share_batches(minilm: Engine) -> None:
    before = minilm.metrics()
    texts = [f"document number {i} about something" for i in range(96)]
    embeddings = minilm.embed(texts)
    after = minilm.metrics()
    assert after.n_decode_total - before.n_decode_total <= 48
    assert after.prompt_tokens_total - before.prompt_tokens_total == sum(e.n_tokens for e in embeddings)
    assert after.tokens_predicted_total == before.tokens_predicted_total
    assert len({e.data for e in embeddings}) == 96
    (alone,) = minilm.embed(texts[50])
    assert 1 - cosine(alone.vector, embeddings[50].vector) < 1e-5


def test_token_ids_are_inputs(minilm: Engine) -> None:
    ids = minilm.tokenize(TEXTS[0], add_special=True)
    (text,) = minilm.embed(TEXTS[0])
    for same in (ids, [ids]):
        (tokens,) = minilm.embed(same)  # type: ignore[arg-type]
        assert 1 - cosine(tokens.vector, text.vector) < 1e-5


def test_async(minilm: Engine) -> None:
    async def main() -> None:
        lists = await asyncio.gather(*(minilm.aembed([f"text {i}", "same"]) for i in range(20)))
        assert [len(e) for e in lists] == [2] * 20
        for embeddings in lists:
            assert 1 - cosine(embeddings[1].vector, lists[0][1].vector) < 1e-5
        assert await minilm.aembed([]) == []

    asyncio.run(main())
    assert minilm.embed([]) == []


def test_cancelled_inputs_leave(minilm: Engine) -> None:
    async def main() -> None:
        task = asyncio.create_task(minilm.aembed(["word " * 300] * 200))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (embedding,) = await minilm.aembed("after that")
        assert embedding.n_tokens == 4

    asyncio.run(main())
    metrics = minilm.metrics()
    assert (metrics.requests_processing, metrics.requests_deferred) == (0, 0)


def test_closing_ends_inputs() -> None:
    engine = Engine(models.minilm(), embedding=True)
    threading.Timer(0.3, engine.close).start()
    with pytest.raises(EngineClosedError):
        engine.embed(["word " * 300] * 2000)
    with pytest.raises(EngineClosedError):
        engine.embed("x")


def test_more_inputs_than_the_queue_holds() -> None:
    with Engine(models.reranker(), embedding=True, pooling="cls", parallel=2, queue_size=4) as engine:
        assert len(engine.embed(["ab"] * 300)) == 300


# -- models that also complete text --


def test_completions_and_embeddings_side_by_side() -> None:
    prompt = "the rain in spain"
    with Engine(models.tiny(), ctx_size=2048, parallel=4) as plain:
        expected = plain.complete(prompt, n_predict=60, temperature=0, ignore_eos=True).tokens
    with Engine(models.tiny(), ctx_size=2048, parallel=4, embedding=True, pooling="mean") as engine:
        (alone,) = engine.embed("stays mainly")

        async def main() -> None:
            completion = asyncio.create_task(engine.acomplete(prompt, n_predict=60, temperature=0, ignore_eos=True))
            embeddings: list[Embedding] = []
            while not completion.done():
                embeddings += await engine.aembed(["stays mainly", "in the plain" * 5])
            assert (await completion).tokens == expected
            for embedding in embeddings[::2]:
                assert 1 - cosine(embedding.vector, alone.vector) < 1e-5

        asyncio.run(main())
        # The slot that computed an embedding holds nothing of it.
        assert engine.complete(prompt, n_predict=60, temperature=0, ignore_eos=True).tokens == expected


def test_a_long_input_is_split_where_its_end_counts() -> None:
    text = "the rain in spain stays mainly " * 20
    options: Any = {"embedding": True, "ctx_size": 2048, "parallel": 2}
    with Engine(models.tiny(), pooling="last", ubatch_size=64, **options) as small:
        with Engine(models.tiny(), pooling="last", ubatch_size=512, **options) as large:
            (a, b), (c, d) = small.embed([text, "short"]), large.embed([text, "short"])
        assert a.n_tokens > 128
        assert 1 - cosine(a.vector, c.vector) < 1e-5
        assert 1 - cosine(b.vector, d.vector) < 1e-5
        with pytest.raises(RequestError, match="too large to process") as e:
            small.embed("x" * 3000)
        assert (e.value.kind, e.value.n_ctx) == ("context_size", 1024)
    with Engine(models.tiny(), pooling="mean", ubatch_size=64, **options) as engine:
        with pytest.raises(RequestError, match="too large to process") as e:
            engine.embed(text)
        assert (e.value.kind, e.value.n_prompt_tokens, e.value.n_ctx) == ("context_size", a.n_tokens, 64)


def test_inputs_make_room_for_each_other() -> None:
    """A shared KV cache that holds one of them at a time, and completions' cells in it."""
    texts = ["the rain in spain stays mainly " * 8, "in the plain and so it does " * 8, "again " * 30]
    with Engine(
        models.tiny(), embedding=True, pooling="last", ctx_size=256, parallel=3, kv_unified=True, ubatch_size=64
    ) as engine:
        engine.complete("the rain in spain stays mainly " * 6, n_predict=4)
        assert all(100 < e.n_tokens <= 256 for e in engine.embed(texts))


# -- reranking --


@needs_peer
@pytest.mark.parametrize("model", ["reranker", "templated_reranker"])
def test_scores_agree_with_llama_server(model: str) -> None:
    path: Path = getattr(models, model)()
    with llama_server(path, "--reranking", "-np", "2", "-fa", "on") as url:
        theirs = post(f"{url}/rerank", {"query": "machine learning is", "documents": DOCUMENTS})
    with Engine(path, reranking=True, parallel=2, flash_attn="on") as engine:
        ours = engine.rerank("machine learning is", DOCUMENTS)
    assert ours.n_tokens == theirs["usage"]["total_tokens"]
    assert [d.index for d in ours.documents] == [r["index"] for r in theirs["results"]]
    for document, result in zip(ours.documents, theirs["results"], strict=True):
        assert document.score == pytest.approx(result["relevance_score"], abs=1e-4)


def test_ranking(ranker: Engine) -> None:
    ranking = ranker.rerank("machine learning is", DOCUMENTS)
    scores = [d.score for d in ranking.documents]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 5
    assert sorted(d.index for d in ranking.documents) == [0, 1, 2, 3, 4]
    best = ranker.rerank("machine learning is", DOCUMENTS, top_n=2)
    assert [d.index for d in best.documents] == [d.index for d in ranking.documents[:2]]
    assert best.n_tokens == ranking.n_tokens
    other = asyncio.run(ranker.arerank("something else", DOCUMENTS))
    assert [d.score for d in other.documents] != scores


def test_a_query_is_not_filled_in_twice() -> None:
    with Engine(models.templated_reranker(), reranking=True) as engine:
        plain = engine.rerank("x {document} y", ["abc"]).n_tokens
        # "{document}" in the query stays as it is, whatever the document.
        assert engine.rerank("x {document} y", ["abc" * 10]).n_tokens - plain == (
            engine.rerank("x y", ["abc" * 10]).n_tokens - engine.rerank("x y", ["abc"]).n_tokens
        )


# -- what is wrong --


@pytest.mark.parametrize(
    "bad",
    [
        [30522],
        [-1],
        [2**40],
        [1.5],
        [None],
        [b"bytes"],
        [["a", None]],
        "\ud800",
        "word " * 600,
        [["word " * 300, "word " * 300]],
    ],
)
def test_inputs_that_cannot_be_used(minilm: Engine, bad: Any) -> None:
    with pytest.raises(RequestError) as e:
        minilm.embed(bad)
    assert e.value.kind in ("invalid_request", "context_size")
    assert minilm.embed("fine")[0].n_tokens == 3


@pytest.mark.parametrize(
    "bad", [{"normalize": -2}, {"normalize": 2.5}, {"normalize": float("nan")}, {"dimensions": 0}, {"dimensions": "3"}]
)
def test_parameters_that_cannot_be_used(minilm: Engine, bad: Any) -> None:
    with pytest.raises(RequestError) as e:
        minilm.embed("x", **bad)
    assert e.value.kind == "invalid_request"


def test_one_bad_input_fails_the_call_alone(minilm: Engine) -> None:
    with pytest.raises(RequestError, match="too large"):
        minilm.embed(["fine", "word " * 600, "fine"])
    assert len(minilm.embed(["fine"] * 3)) == 3


def test_odd_texts(minilm: Engine) -> None:
    for text in ("\0", "a\0b", "\U0001f600" * 50, "\u202e\u0301\ufffd", " \t\n ", "[CLS][SEP][MASK]", "x" * 400):
        (embedding,) = minilm.embed(text)
        assert all(np.isfinite(embedding.vector))


def test_rankings_that_cannot_be_made(ranker: Engine) -> None:
    bad: Any
    for bad in (["a", 1], "abc", [None], [["a"]]):
        with pytest.raises(RequestError):
            ranker.rerank("q", bad)
    with pytest.raises(RequestError, match="top_n"):
        ranker.rerank("q", ["a"], top_n=-1)
    with pytest.raises(RequestError, match="too large"):
        ranker.rerank("q", ["a", "long " * 400])
    assert ranker.rerank("q", []).documents == ()
    assert len(ranker.rerank("", [""]).documents) == 1


def test_what_an_engine_is_not_made_for(ranker: Engine, minilm: Engine, tiny: Engine) -> None:
    with pytest.raises(RequestError, match="--embeddings") as e:
        tiny.embed("x")
    assert e.value.kind == "not_supported"
    with pytest.raises(RequestError, match="--reranking"):
        minilm.rerank("q", ["d"])
    with pytest.raises(RequestError, match="embeddings"):
        ranker.embed("x")
    with pytest.raises(RequestError, match="can't complete text"):
        minilm.complete("x")
    with pytest.raises(ModelLoadError, match="needs a reranker"):
        Engine(models.minilm(), reranking=True)
    bad: Any = {"pooling": "max"}
    with pytest.raises(ModelLoadError, match="pooling"):
        Engine(models.minilm(), embedding=True, **bad)


def test_a_time_limit_ends_inputs(minilm: Engine) -> None:
    started = time.monotonic()
    with pytest.raises(RequestError, match="time limit") as e:
        minilm.embed(["word " * 400] * 400, t_max_ms=50)
    assert e.value.kind == "unavailable"
    assert time.monotonic() - started < 30


def test_json_of_an_embedding() -> None:
    values = [0.1, -1.5, 0.0, 1e-30, 3.4e38, float("nan"), float("inf")]
    embedding = Embedding(struct.pack("7f", *values), 3)
    text = embedding.json()
    assert text == b"[0.1,-1.5,0,1e-30,3.4e+38,null,null]"
    assert Embedding(struct.pack("4f", 1, 2, 3, 4), 2, 2).json(rows=True) == b"[[1,2],[3,4]]"
    assert Embedding(struct.pack("4f", 1, 2, 3, 4), 2, 2).vectors == [[1, 2], [3, 4]]
