"""The scheduler's promises: no prefix is computed twice, nobody is lost or starved, and sharing changes no output."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamaserve import Completion, Engine, RequestError

from tests import models

# Batches of another shape round differently. With 32-bit cells that is too little to change which token is best.
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
LAYOUTS = [pytest.param(True, id="unified"), pytest.param(False, id="streams")]


def words(seed: int, n: int) -> list[int]:
    """A prompt of `n` tokens of the tiny model."""
    rng = random.Random(seed)
    return [rng.randrange(259, 512) for _ in range(n)]


async def run_all(engine: Engine, prompts: list[list[int]], **params: Any) -> list[Completion]:
    return list(await asyncio.gather(*(engine.acomplete(p, **params) for p in prompts)))


def distinct(prompts: list[list[int]]) -> int:
    """Tokens that have to be computed if no prefix is computed twice."""
    return len({tuple(p[:i]) for p in prompts for i in range(1, len(p) + 1)})


def computed(engine: Engine) -> int:
    return engine.metrics().prompt_tokens_total


@pytest.mark.parametrize("unified", LAYOUTS)
def test_prefix_is_shared_while_it_is_computed(unified: bool) -> None:
    prefix = words(1, 400)
    prompts = [prefix + words(100 + i, 10) for i in range(8)]
    with Engine(models.tiny(), ctx_size=8 * 1024, parallel=8, kv_unified=unified, batch_size=64, **EXACT) as engine:
        alone = [engine.complete(p, n_predict=8, temperature=0, cache_prompt=False).tokens for p in prompts]
        before = computed(engine)
        together = asyncio.run(run_all(engine, prompts, n_predict=8, temperature=0))
        assert [c.tokens for c in together] == alone
        assert computed(engine) - before == distinct(prompts)
        assert sum(c.timings.cache_n > 0 for c in together) == 7


@pytest.mark.parametrize("unified", LAYOUTS)
def test_prefix_is_shared_across_slots(unified: bool) -> None:
    prefix = words(2, 300)
    with Engine(models.tiny(), ctx_size=4 * 1024, parallel=4, kv_unified=unified, **EXACT) as engine:
        first = engine.complete([*prefix, 300, *words(3, 49)], n_predict=4, temperature=0, id_slot=0)
        other = engine.complete([*prefix, 301, *words(4, 8)], n_predict=4, temperature=0, id_slot=2)
        assert other.timings.cache_n == 300
        again = engine.complete([*prefix, 300, *words(3, 49)], n_predict=4, temperature=0)
        assert again.timings.cache_n == 349
        assert again.tokens == first.tokens


@pytest.mark.parametrize("unified", LAYOUTS)
def test_same_prompt_n_times_is_computed_once(unified: bool) -> None:
    prompt = words(5, 500)
    with Engine(models.tiny(), ctx_size=8 * 1024, parallel=8, kv_unified=unified) as engine:
        before = computed(engine)
        done = asyncio.run(run_all(engine, [prompt] * 8, n_predict=3))
        # One computes all; each of the others computes the last token, whose logits it samples from.
        assert computed(engine) - before == 500 + 7
        assert sum(c.timings.cache_n for c in done) == 7 * 499


@pytest.mark.parametrize("unified", LAYOUTS)
def test_host_memory_keeps_what_slots_give_up(unified: bool) -> None:
    """More conversations than slots, in turn: only tokens that were never seen are computed."""
    with Engine(models.tiny(), ctx_size=4 * 2048, parallel=4, kv_unified=unified, **EXACT) as engine:
        talks = [words(10 + i, 60) for i in range(8)]
        new = sum(map(len, talks))
        before = computed(engine)
        for turn in range(4):
            for i, talk in enumerate(talks):
                done = engine.complete(talk, n_predict=6, temperature=0, ignore_eos=True)
                if turn < 3:
                    said = words(1000 + 10 * turn + i, 12)
                    # The last token was sampled, but didn't go through the model: it is computed with the next turn.
                    new += 1 + len(said)
                    talks[i] = [*talk, *done.tokens, *said]
        assert computed(engine) - before == new
        metrics = engine.metrics()
        assert metrics.cache_ram_entries >= 4
        assert metrics.cache_ram_bytes > 0


def test_host_memory_is_bounded_and_can_be_off() -> None:
    with Engine(models.tiny(), ctx_size=2048, parallel=1, cache_ram=1) as engine:
        for i in range(12):
            engine.complete(words(i, 300), n_predict=1)
            assert engine.metrics().cache_ram_bytes <= 1024 * 1024
        assert engine.metrics().cache_ram_entries >= 1
    with Engine(models.tiny(), ctx_size=2048, parallel=1, cache_ram=0) as engine:
        for i in range(3):
            engine.complete(words(i, 300), n_predict=1)
        assert engine.metrics().cache_ram_entries == 0


def test_cache_prompt_false_takes_and_leaves_nothing(tiny: Engine) -> None:
    prompt = words(20, 200)
    assert tiny.complete(prompt, n_predict=1, cache_prompt=False).timings.cache_n == 0
    assert tiny.complete(prompt, n_predict=1, cache_prompt=False).timings.cache_n == 0
    assert tiny.complete(prompt, n_predict=1).timings.cache_n == 0
    assert tiny.complete(prompt, n_predict=1).timings.cache_n == 199


@pytest.mark.parametrize("swa_full", [False, True])
@pytest.mark.parametrize("unified", LAYOUTS)
def test_sliding_window_model_shares_correctly(unified: bool, swa_full: bool) -> None:
    """Gemma 3 drops what has left its window; a prefix longer than that is shared at checkpoints."""
    with Engine(models.gemma3(), ctx_size=3 * 2048, parallel=3, kv_unified=unified, swa_full=swa_full) as engine:
        text = "The quick brown fox jumps over the lazy dog. " * 80
        prefix = engine.tokenize(text, add_special=True)
        assert len(prefix) > 700
        tails = [engine.tokenize(t) for t in (" Then it rains.", " The end is near.", " One more thing:")]
        alone = [engine.complete(prefix + t, n_predict=6, temperature=0, cache_prompt=False).tokens for t in tails]
        before = computed(engine)
        together = asyncio.run(run_all(engine, [prefix + t for t in tails], n_predict=6, temperature=0))
        assert [c.tokens for c in together] == alone
        assert computed(engine) - before <= len(prefix) + sum(map(len, tails)) + 8
        # The next turn of one of them finds its whole prompt.
        turn = engine.complete([*prefix, *tails[1], *together[1].tokens, *tails[2]], n_predict=2, temperature=0)
        assert turn.timings.cache_n >= len(prefix) + len(tails[1])
        # Back to the prompt itself: there is a checkpoint near its end.
        again = engine.complete(prefix + tails[1], n_predict=6, temperature=0)
        assert again.timings.cache_n >= len(prefix)
        assert again.tokens == alone[1]


def test_long_prompt_does_not_freeze_a_stream() -> None:
    """While one streams, another's prompt of 3000 tokens is computed in pieces of a few steps' length."""
    model = models.tiny(n_embd=256, n_layer=6, n_ff=1024, n_ctx=8192)
    with Engine(model, ctx_size=8192, parallel=2, step_target_ms=20) as engine:

        async def main() -> tuple[float, float]:
            gaps: list[float] = []
            stream = engine.astream("a", n_predict=2000, ignore_eos=True)
            started = finished = last = 0.0

            async def long_prompt() -> None:
                nonlocal started, finished
                started = time.monotonic()
                await engine.acomplete(words(30, 3000), n_predict=1)
                finished = time.monotonic()

            task = None
            async with stream:
                async for chunk in stream:
                    now = time.monotonic()
                    if task and not task.done():
                        gaps.append(now - last)
                    last = now
                    if task is None and chunk.n_predicted >= 20:  # the 20th may wait for the rest of its character
                        task = asyncio.create_task(long_prompt())
                    if task and task.done():
                        break
            assert task is not None
            await task
            return max(gaps), finished - started

        worst, whole = asyncio.run(main())
    assert worst < max(0.25 * whole, 0.2), f"a gap of {worst:.3f} s while the prompt took {whole:.3f} s"


def test_full_cache_preempts_and_resumes_with_the_same_output() -> None:
    """Four requests of which each fits alone, but not all at once."""
    with Engine(models.tiny(), ctx_size=1024, parallel=4, kv_unified=True, **EXACT) as engine:
        prompts = [words(40 + i, 200) for i in range(4)]
        alone = [
            engine.complete(p, n_predict=300, temperature=0, ignore_eos=True, cache_prompt=False).tokens
            for p in prompts
        ]
        assert engine.metrics().n_preempted_total == 0
        together = asyncio.run(run_all(engine, prompts, n_predict=300, temperature=0, ignore_eos=True))
        assert engine.metrics().n_preempted_total > 0
        assert [c.tokens for c in together] == alone
        assert all(c.finish.stop_type == "limit" and not c.finish.truncated for c in together)
        assert all(c.timings.prompt_n == 200 for c in together)


def test_sampled_output_survives_preemption() -> None:
    with Engine(models.tiny(), ctx_size=1024, parallel=6, kv_unified=True, cache_ram=0, **EXACT) as engine:
        params = {"n_predict": 300, "temperature": 1.0, "seed": 3, "ignore_eos": True, "repeat_penalty": 1.1}
        prompts = [words(50 + i, 200) for i in range(6)]
        alone = [engine.complete(p, cache_prompt=False, **params).tokens for p in prompts]
        together = asyncio.run(run_all(engine, prompts, **params))
        assert engine.metrics().n_preempted_total > 0
        assert [c.tokens for c in together] == alone


def test_time_limit(tiny: Engine) -> None:
    started = time.monotonic()
    done = tiny.complete("a", n_predict=-1, ignore_eos=True, t_max_ms=30)
    assert done.finish.stop_type == "limit"
    assert time.monotonic() - started < 2
    with Engine(models.tiny(), ctx_size=2048, parallel=1) as engine:

        async def main() -> None:
            first = asyncio.create_task(engine.acomplete("a", n_predict=1500, ignore_eos=True))
            await asyncio.sleep(0.02)
            with pytest.raises(RequestError, match="time limit"):
                await engine.acomplete("b", n_predict=1, t_max_ms=20)
            await first

        asyncio.run(main())


def test_waiting_outweighs_priority() -> None:
    """Priorities order those who arrive together; the order of two requests never depends on when it is looked at."""
    with Engine(models.tiny(), ctx_size=512, parallel=1) as engine:
        order: list[str] = []

        async def run(name: str, priority: int) -> None:
            n_predict = 400 if name == "first" else 5
            await engine.acomplete("a", n_predict=n_predict, ignore_eos=True, priority=priority)
            order.append(name)

        async def main() -> None:
            tasks = [asyncio.create_task(run("first", 0))]
            await asyncio.sleep(0.02)
            for name, priority in (("low", -1), ("normal", 0), ("high", 1)):
                tasks.append(asyncio.create_task(run(name, priority)))
            await asyncio.gather(*tasks)

        asyncio.run(main())
        assert order == ["first", "high", "normal", "low"]


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32), unified=st.booleans(), slots=st.integers(1, 5), ctx=st.sampled_from([256, 512, 1024])
)
def test_any_traffic_is_served(seed: int, unified: bool, slots: int, ctx: int) -> None:
    """Random arrivals, sizes, priorities, shared prefixes and cancellations: every request ends, and rightly."""
    rng = random.Random(seed)
    n_ctx = ctx if unified else ctx * slots
    with Engine(
        models.tiny(),
        ctx_size=n_ctx,
        parallel=slots,
        kv_unified=unified,
        batch_size=rng.choice([16, 64, 512]),
        cache_ram=rng.choice([0, 1, 64]),
        **EXACT,
    ) as engine:
        limit = engine.info.n_ctx_slot
        roots = [words(rng.randrange(4), rng.randrange(1, limit)) for _ in range(3)]
        prompts = []
        for _ in range(20):
            root = rng.choice(roots)
            prompt = root[: rng.randrange(1, len(root) + 1)] + words(rng.randrange(100), rng.randrange(0, 20))
            prompts.append(prompt[: limit - 2])
        sizes = [rng.choice([0, 1, 3, 40]) for _ in prompts]
        expected: dict[int, tuple[int, ...]] = {}
        for i in rng.sample(range(20), 4):
            done = engine.complete(prompts[i], n_predict=sizes[i], temperature=0, cache_prompt=False)
            expected[i] = done.tokens

        async def one(i: int) -> Completion | None:
            await asyncio.sleep(rng.random() * 0.05)
            task = engine.acomplete(
                prompts[i],
                n_predict=sizes[i],
                temperature=0,
                priority=rng.randrange(-2, 3),
                cache_prompt=rng.random() < 0.9,
                id_slot=rng.choice([-1, -1, -1, slots - 1]),
            )
            if i not in expected and rng.random() < 0.3:
                try:
                    return await asyncio.wait_for(task, rng.random() * 0.02)
                except TimeoutError:
                    return None
            return await task

        async def main() -> list[Completion | None]:
            return await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(20))), 60)

        for i, done in enumerate(asyncio.run(main())):
            if done is None:
                continue
            assert done.finish.n_prompt_tokens == len(prompts[i])
            assert done.finish.n_predicted <= sizes[i]
            if i in expected:
                assert done.tokens == expected[i]
        metrics = engine.metrics()
        assert (metrics.requests_processing, metrics.requests_deferred) == (0, 0)
        assert metrics.kv_cells_used <= slots * limit
        assert not any(slot.is_processing for slot in engine.slots())
