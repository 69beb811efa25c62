"""Cells that move: a full context goes on, chunks of a prompt are reused, and nobody else notices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llamaserve import Completion, Engine

from tests import models
from tests.test_scheduler import EXACT, LAYOUTS, run_all, words

LONG: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("unified", LAYOUTS)
def test_a_full_context_goes_on(unified: bool) -> None:
    ctx = 256 if unified else 512
    with Engine(models.tiny(), ctx_size=ctx, parallel=2, kv_unified=unified, context_shift=True) as engine:
        done = engine.complete(words(1, 200), n_predict=300, **LONG)
        assert (done.timings.prompt_n, done.timings.predicted_n) == (200, 300)
        assert (done.finish.stop_type, done.finish.truncated) == ("limit", True)
        assert done.finish.tokens_cached < 256
        short = engine.complete(words(1, 200), n_predict=50, **LONG)
        assert not short.finish.truncated
        assert short.tokens == done.tokens[:50]


def test_without_it_a_full_context_ends_the_answer() -> None:
    with Engine(models.tiny(), ctx_size=256, parallel=1) as engine:
        done = engine.complete(words(1, 200), n_predict=300, **LONG)
        assert (done.timings.predicted_n, done.finish.stop_type, done.finish.truncated) == (56, "limit", True)


def test_what_is_kept_and_dropped() -> None:
    """After the shift the model sees the first tokens (and BOS) and the last ones."""
    with Engine(models.tiny(), ctx_size=256, parallel=1, context_shift=True, **EXACT) as engine:
        slots = []
        for keep, discard in ((0, 0), (20, 0), (20, 5), (-1, 0), (10_000, 0)):
            engine.complete(words(2, 200), n_predict=57, n_keep=keep, n_discard=discard, cache_prompt=True, **LONG)
            slots.append(engine.slots()[0].n_prompt_tokens)
        # What stays in the cache is the plain prefix: BOS counts as kept where the model wants one. At most ctx - 4.
        assert slots == [1, 21, 21, 201, 252]


@pytest.mark.parametrize("unified", LAYOUTS)
def test_shared_cells_stay_where_they_are(unified: bool) -> None:
    """One of two requests with the same prompt shifts; the other's cells, shared in a unified cache, don't move."""
    ctx = 1024 if unified else 512
    with Engine(
        models.tiny(),
        ctx_size=ctx,
        parallel=2,
        kv_unified=unified,
        kv_unified_per_slot=256,
        context_shift=True,
        **EXACT,
    ) as engine:
        prompt = words(3, 200)
        alone = engine.complete(prompt, n_predict=40, cache_prompt=False, **LONG)
        shifted = engine.complete(prompt, n_predict=400, cache_prompt=False, **LONG)
        first = engine.complete(prompt, n_predict=40, id_slot=1, **LONG)
        assert first.tokens == alone.tokens

        async def both() -> tuple[Completion, Completion]:
            long = asyncio.create_task(engine.acomplete(prompt, n_predict=400, id_slot=0, **LONG))
            short = asyncio.create_task(engine.acomplete(prompt, n_predict=40, id_slot=1, **LONG))
            return await long, await short

        long, short = asyncio.run(both())
        assert long.tokens == shifted.tokens
        assert short.tokens == alone.tokens
        again = engine.complete(prompt, n_predict=40, id_slot=1, **LONG)
        assert again.timings.cache_n == 199
        assert again.tokens == alone.tokens


def test_no_room_to_copy_shared_cells() -> None:
    """Two that share cells fill the cache: the one that shifts first has to compute what it keeps, or leave."""
    with Engine(
        models.tiny(), ctx_size=512, parallel=2, kv_unified=True, kv_unified_per_slot=300, context_shift=True
    ) as engine:
        done = asyncio.run(run_all(engine, [words(4, 280)] * 2, n_predict=200, **LONG))
        assert [c.timings.predicted_n for c in done] == [200, 200]
        assert all(c.finish.truncated for c in done)


@pytest.mark.parametrize("unified", LAYOUTS)
def test_shifted_cells_are_given_to_nobody(unified: bool) -> None:
    with Engine(
        models.tiny(),
        ctx_size=512,
        parallel=2,
        kv_unified=unified,
        kv_unified_per_slot=256,
        context_shift=True,
        **EXACT,
    ) as engine:
        prompt = words(5, 250)
        done = engine.complete(prompt, n_predict=20, n_keep=50, n_discard=100, **LONG)
        assert done.finish.truncated
        # The tokens that its cells stood for, in the order of their positions.
        context = [*prompt, *done.tokens]
        tail = [*context[:51], *context[151:]]
        plain = engine.complete(tail, n_predict=20, cache_prompt=False, **LONG)
        taken = engine.complete(tail, n_predict=20, **LONG)
        assert taken.timings.cache_n == 51
        assert taken.tokens == plain.tokens


def test_preempted_after_a_shift() -> None:
    """Six that don't fit together, each of which shifts: all go on as if they were alone."""
    with Engine(
        models.tiny(),
        ctx_size=1024,
        parallel=6,
        kv_unified=True,
        kv_unified_per_slot=300,
        context_shift=True,
        **EXACT,
    ) as engine:
        prompts = [words(10 + i, 200) for i in range(6)]
        params = {"n_predict": 350, **LONG}
        alone = [engine.complete(p, cache_prompt=False, **params).tokens for p in prompts]
        together = asyncio.run(run_all(engine, prompts, **params))
        assert engine.metrics().n_preempted_total > 0
        assert [c.tokens for c in together] == alone


@pytest.mark.parametrize("unified", LAYOUTS)
def test_chunks_are_reused_where_they_moved_to(unified: bool) -> None:
    head, middle, tail = words(20, 50), words(21, 100), words(22, 120)
    ctx = 1024 if unified else 2048
    with Engine(models.tiny(), ctx_size=ctx, parallel=2, kv_unified=unified, cache_reuse=32, **EXACT) as engine:
        engine.complete([*head, *middle, *tail], n_predict=1, **LONG)
        moved = [*head, *tail, *words(23, 5)]
        plain = engine.complete(moved, n_predict=8, cache_prompt=False, id_slot=1, **LONG)
        reused = engine.complete(moved, n_predict=8, **LONG)
        assert (reused.timings.cache_n, reused.timings.prompt_n) == (170, 5)
        # Without it, only the plain part is taken, and the output is exact.
        strict = engine.complete(moved, n_predict=8, n_cache_reuse=0, **LONG)
        assert strict.timings.cache_n == 50
        assert strict.tokens == plain.tokens
        # Chunks shorter than asked for are computed.
        head, middle, tail = words(24, 50), words(25, 100), words(26, 120)
        engine.complete([*head, *middle, *tail], n_predict=1, **LONG)
        assert engine.complete([*head, *tail, 300], n_predict=1, n_cache_reuse=121, **LONG).timings.cache_n == 50


def test_memory_that_cant_be_shifted() -> None:
    """A sliding window has dropped what a shift would need: the options are off, and the context ends as usual."""
    with Engine(models.gemma3(), ctx_size=256, parallel=1, context_shift=True, cache_reuse=16) as engine:
        done = engine.complete([2] * 250, n_predict=20, n_cache_reuse=4, **LONG)
        assert (done.finish.stop_type, done.finish.truncated) == ("limit", True)
        assert done.timings.predicted_n == 6


@pytest.mark.parametrize("n_cache_reuse", [0, 16])
def test_quantized_keys_that_cant_be_moved(n_cache_reuse: int) -> None:
    """llama.cpp would crash: heads of 32 numbers aren't rotated, which its graph for a shift takes for granted."""
    with Engine(
        models.tiny(n_embd=256, n_head=8, n_head_kv=2, n_layer=3),
        ctx_size=512,
        parallel=1,
        context_shift=True,
        cache_type_k="q8_0",
        flash_attn="on",
    ) as engine:
        words = " ".join(f"word {i}" for i in range(40))
        engine.complete(words, n_predict=4, temperature=0, ignore_eos=True)
        reused = engine.complete(
            "x " + words[40:], n_predict=4, n_cache_reuse=n_cache_reuse, temperature=0, ignore_eos=True
        )
        assert reused.finish.n_predicted == 4
        full = engine.complete("a", n_predict=600, temperature=0, ignore_eos=True)
        assert full.finish.stop_type == "limit"
