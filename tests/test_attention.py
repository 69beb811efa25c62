"""Both of ggml's ways to compute attention give the same answers, also where one follows the other in a prompt."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from llamaserve import Completion, Engine

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
    "winter",
    "guests",
]


def text(seed: int, n: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n))


async def beside_streams(engine: Engine, prompts: list[str], **params: Any) -> list[Completion]:
    """The prompts' answers, begun while another request generates, so that a step has few of their tokens."""
    stream = engine.astream("Once upon a time", n_predict=-1, ignore_eos=True, temperature=0)
    await stream.chunks()
    try:
        return await asyncio.gather(*(engine.acomplete(p, **params) for p in prompts))
    finally:
        stream.close()


@pytest.mark.parametrize("model", [models.smollm2, models.gemma3])
def test_small_chunks(model: Any) -> None:
    path: Path = model()
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
        likely = {p.id: p.prob for p in got.probs[0].top}
        for p in expected.probs[0].top[:2]:
            # Half floats are summed up in another order.
            assert likely.get(p.id, 0.0) == pytest.approx(p.prob, rel=0.2, abs=0.01)
