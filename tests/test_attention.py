"""Whoever computes attention, and in whatever batches: the answers are those of llama.cpp's plain product."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llamaserve import Completion, Engine, ModelLoadError

from tests import models

WORDS = [
    "the",
    "river",
    "runs",
    "past",
    "old",
    "stone",
    "houses",
    "where",
    "people",
    "keep",
    "bread",
    "and",
    "salt",
    "for",
]


def text(seed: int, n: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n))


def wide_heads() -> Path:
    """Random weights; heads of 32 numbers: smaller ones have a rule of their own."""
    return models.tiny(n_embd=256, n_head=8, n_head_kv=2, n_layer=3)


async def together(engine: Engine, prompts: list[str], **params: Any) -> list[Completion]:
    return await asyncio.gather(*(engine.acomplete(p, **params) for p in prompts))


async def beside_streams(engine: Engine, prompts: list[str], **params: Any) -> list[Completion]:
    """The prompts' answers, begun while another request generates, so that a step has few of their tokens."""
    stream = engine.astream("Once upon a time", n_predict=-1, ignore_eos=True, temperature=0)
    await stream.chunks()
    try:
        return await together(engine, prompts, **params)
    finally:
        stream.close()


# By how much a token's probability may differ. Weights of 4 and activations of 8 bits turn the last bits of a sum into
# this much: so much llama.cpp's own ways differ from each other.
QUANTIZED, EXACT = 0.12, 0.0015


def agree(expected: Completion, got: Completion, tolerance: float) -> None:
    """The likeliest tokens are as likely, as long as the texts are the same; only a tie may part them."""
    for i, (a, b) in enumerate(zip(expected.probs, got.probs, strict=False)):
        likely = {p.id: p.prob for p in b.top}
        expect = {p.id: p.prob for p in a.top}
        assert likely.get(a.id, 0.0) == pytest.approx(expect[a.id], abs=tolerance), f"token {i}"
        if a.id != b.id:
            assert expect[a.id] - expect.get(b.id, 0.0) < 2 * tolerance, f"token {i}"
            return


@pytest.mark.parametrize("model", [models.smollm2, models.gemma3])
def test_small_chunks(model: Callable[[], Path]) -> None:
    path = model()
    shape: dict[str, Any] = {"ctx_size": 4 * 1024, "parallel": 4, "step_target_ms": 20}
    params: dict[str, Any] = {"n_predict": 1, "temperature": 0, "n_probs": 5, "cache_prompt": False}
    # Two lengths: batches of two sequences, of different depths.
    prompts = [text(1, 330), text(2, 290)]
    with Engine(path, flash_attn="off", **shape) as engine:
        alone = [engine.complete(p, **params) for p in prompts]
    with Engine(path, **shape) as engine:
        steps = engine.metrics().n_decode_total
        beside = asyncio.run(beside_streams(engine, prompts, **params))
        assert engine.metrics().n_decode_total - steps > 8  # not in a few batches
    for expected, got in zip(alone, beside, strict=True):
        agree(expected, got, QUANTIZED)


@pytest.mark.parametrize("kv_unified", [False, True])
@pytest.mark.parametrize("cpu_attention", ["auto", "ggml"])
def test_kernels(cpu_attention: str, kv_unified: bool) -> None:
    """Prompts of all lengths, and their answers, at once."""
    shape: dict[str, Any] = {"ctx_size": 6 * 1024, "parallel": 6}
    params: dict[str, Any] = {"n_predict": 12, "temperature": 0, "n_probs": 4, "cache_prompt": False}
    prompts = [text(i, n) for i, n in enumerate([3, 40, 63, 130, 170, 10])]
    with Engine(wide_heads(), flash_attn="off", **shape) as engine:
        alone = [engine.complete(p, **params) for p in prompts]
    with Engine(wide_heads(), cpu_attention=cpu_attention, kv_unified=kv_unified, **shape) as engine:
        for expected, got in zip(alone, asyncio.run(together(engine, prompts, **params)), strict=True):
            agree(expected, got, EXACT)


@pytest.mark.parametrize(("k", "v"), [("q8_0", "q8_0"), ("f32", "f32"), ("bf16", "f16"), ("f16", "q4_0")])
def test_cache_types(k: Any, v: Any) -> None:
    shape: dict[str, Any] = {
        "ctx_size": 4 * 1024,
        "parallel": 4,
        "cache_type_k": k,
        "cache_type_v": v,
        "flash_attn": "on",
    }
    params: dict[str, Any] = {"n_predict": 12, "temperature": 0, "n_probs": 4}
    prefix = text(1, 100)
    prompts = [prefix + end for end in (" and", " stone", " for")] + [text(2, 60)]
    with Engine(wide_heads(), cpu_attention="ggml", **shape) as engine:
        alone = [engine.complete(p, **params, cache_prompt=False) for p in prompts]
    with Engine(wide_heads(), **shape) as engine:
        for expected, got in zip(alone, asyncio.run(together(engine, prompts, **params)), strict=True):
            agree(expected, got, EXACT)


@pytest.mark.parametrize("model", [models.smollm2, models.gemma3, wide_heads])
def test_shared_prefix(model: Callable[[], Path]) -> None:
    """Those who generate after the same prompt read its cells together; those after another one, and after a longer or
    shorter part of it, do as well as alone."""
    path = model()
    shape: dict[str, Any] = {"ctx_size": 8 * 2048, "parallel": 8, "batch_size": 512}
    params: dict[str, Any] = {"n_predict": 16, "temperature": 0, "n_probs": 4}
    prefix, other = text(1, 300), text(2, 260)
    prompts = [f"{prefix} {end}" for end in ("and", "of stone", "for " + text(3, 40), "bread")]
    prompts += [f"{other} {end}" for end in ("river", "old")] + [prefix[: len(prefix) // 2], "the river"]
    with Engine(path, flash_attn="off", **shape) as engine:
        alone = [engine.complete(p, **params, cache_prompt=False) for p in prompts]
    with Engine(path, **shape) as engine:
        for _ in range(2):  # cold, and from the cache
            for expected, got in zip(alone, asyncio.run(together(engine, prompts, **params)), strict=True):
                agree(expected, got, EXACT if model is wide_heads else QUANTIZED)


def test_shared_prefix_and_shifts() -> None:
    """A context shift moves cells after the shared ones, and drops some of these."""
    shape: dict[str, Any] = {"ctx_size": 4 * 512, "parallel": 4, "context_shift": True}
    params: dict[str, Any] = {"n_predict": 200, "temperature": 0, "n_probs": 4, "n_keep": 20, "ignore_eos": True}
    prefix = text(1, 115)
    prompts = [f"{prefix} {end}" for end in ("and", "stone", "for", "bread")]
    with Engine(wide_heads(), cpu_attention="ggml", **shape) as engine:
        n = len(engine.tokenize(prompts[0], add_special=True))
        assert 320 < n < 480  # shared cells are worth it, and there is too little room behind them
        expected = [engine.complete(p, **params) for p in prompts]
    with Engine(wide_heads(), **shape) as engine:
        for _ in range(2):
            for alone, got in zip(expected, asyncio.run(together(engine, prompts, **params)), strict=True):
                agree(alone, got, EXACT)


@pytest.mark.parametrize("kv_unified", [False, True])
def test_slots_come_and_go(kv_unified: bool) -> None:
    """Requests on one prefix end at different times, and others take their slots: who shares with whom changes."""
    shape: dict[str, Any] = {"ctx_size": 5 * 1024, "parallel": 5, "kv_unified": kv_unified}
    prefixes = [text(1, 110), text(2, 120)]
    prompts = [f"{prefixes[i % 7 == 0]} {text(i, 1 + i % 5)}" for i in range(24)]
    lengths = [3 + 11 * i % 29 for i in range(24)]

    def params(i: int) -> dict[str, Any]:
        return {"n_predict": lengths[i], "temperature": 0, "n_probs": 4, "ignore_eos": True}

    with Engine(wide_heads(), flash_attn="off", **shape) as engine:
        alone = [engine.complete(p, **params(i), cache_prompt=False) for i, p in enumerate(prompts)]

    async def all_of(engine: Engine) -> list[Completion]:
        return await asyncio.gather(*(engine.acomplete(p, **params(i)) for i, p in enumerate(prompts)))

    with Engine(wide_heads(), **shape) as engine:
        for expected, got in zip(alone, asyncio.run(all_of(engine)), strict=True):
            agree(expected, got, EXACT)


def test_unknown_kernel() -> None:
    with pytest.raises(ModelLoadError, match="cpu_attention"):
        Engine(wide_heads(), cpu_attention="fast")  # type: ignore[arg-type]
