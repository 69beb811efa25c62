"""The attention kernel against the formula, in numpy: softmax(scale * Q K^T + mask) V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamaserve import _core

pytestmark = pytest.mark.skipif(not _core.attention_supports(64, 64), reason="not built for this machine")


@dataclass
class Problem:
    q: np.ndarray  # [stream, head, query, number], 32-bit floats
    k: np.ndarray  # [stream, head, cell, number], 16-bit floats, like v
    v: np.ndarray
    mask: np.ndarray | None = None  # [stream, 1, query, cell], 16-bit floats
    sinks: list[float] = field(default_factory=list)
    scale: float = 0.125
    softcap: float = 0.0

    def expected(self) -> np.ndarray:
        group = self.q.shape[1] // self.k.shape[1]
        k, v = (np.repeat(a.astype(np.float64), group, axis=1) for a in (self.k, self.v))
        scores = np.einsum("shqd,shcd->shqc", self.q.astype(np.float64), k) * self.scale
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if self.mask is not None:
            scores = scores + self.mask.astype(np.float64)
        sinks = np.array(self.sinks)[None, :, None, None]
        most = scores.max(axis=-1, keepdims=True)
        if self.sinks:
            most = np.maximum(most, sinks)
        most = np.where(np.isinf(most), 0.0, most)
        weights = np.exp(scores - most)
        total = weights.sum(axis=-1, keepdims=True)
        if self.sinks:
            total = total + np.exp(sinks - most)
        out = np.einsum("shqc,shcd->shqd", weights / np.where(total == 0.0, 1.0, total), v)
        return out.transpose(0, 2, 1, 3)  # [stream, query, head, number]

    def computed(self, shared: Sequence[tuple[list[int], int]] = (), n_threads: int = 2) -> np.ndarray:
        n_streams, n_heads, n_queries, _ = self.q.shape
        # A NaN that stays was never written.
        out = np.full((n_streams, n_queries, n_heads, self.v.shape[3]), np.nan, np.float32)
        mask = np.zeros((0, 0, 0, 0), np.float16) if self.mask is None else self.mask
        k, v, mask = (a.view(np.uint16) for a in (self.k, self.v, mask))
        _core.attention(self.q, k, v, mask, self.sinks, out, self.scale, self.softcap, list(shared), n_threads)
        return out


@st.composite
def problems(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_streams, n_kv, group = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 2, 3, 5, 8, 70])),
    )
    n_queries = draw(st.one_of(st.integers(1, 9), st.integers(10, 80)))
    n_cells = draw(st.one_of(st.integers(1, 200), st.sampled_from([64, 128, 256, 512, 768, 1100])))
    head_k, head_v = draw(st.sampled_from([(16, 16), (32, 32), (64, 64), (80, 80), (96, 64), (112, 112), (128, 128)]))
    q = (
        random.standard_normal((n_streams, n_kv * group, n_queries, head_k)) * draw(st.sampled_from([0.1, 1, 9]))
    ).astype(np.float32)
    k = random.standard_normal((n_streams, n_kv, n_cells, head_k)).astype(np.float16)
    v = random.standard_normal((n_streams, n_kv, n_cells, head_v)).astype(np.float16)
    seen = draw(st.sampled_from(["all", "no mask", "causal", "window", "random", "little", "nothing"]))
    mask = None
    if seen != "no mask":
        cell, query = np.arange(n_cells)[None, :], np.arange(n_queries)[:, None] + n_cells - n_queries
        visible = {
            "all": cell >= 0,
            "causal": cell <= query,
            "window": (cell <= query) & (cell > query - 70),
            "random": random.random((n_queries, n_cells)) < 0.5,
            "little": random.random((n_queries, n_cells)) < 0.01,
            "nothing": cell < 0,
        }[seen]
        visible = np.broadcast_to(visible, (n_streams, 1, n_queries, n_cells))
        mask = np.where(visible, np.float16(0), np.float16(-np.inf)).astype(np.float16)
    sinks = draw(st.sampled_from([[], list(random.standard_normal(n_kv * group).astype(np.float32))]))
    shared = []
    if n_streams > 1 and draw(st.booleans()):
        members = draw(st.lists(st.integers(0, n_streams - 1), min_size=2, max_size=n_streams, unique=True))
        n_shared = draw(st.integers(0, n_cells))
        for s in members[1:]:
            k[s, :, :n_shared], v[s, :, :n_shared] = k[members[0], :, :n_shared], v[members[0], :, :n_shared]
        shared.append((members, n_shared))
    softcap = draw(st.sampled_from([0.0, 0.0, 5.0]))
    return Problem(q, k, v, mask, sinks, 1 / np.sqrt(head_k), softcap), shared, draw(st.integers(1, 4))


@settings(max_examples=300, deadline=None)
@given(problems())
def test_formula(case: tuple[Problem, list[tuple[list[int], int]], int]) -> None:
    problem, shared, n_threads = case
    np.testing.assert_allclose(problem.computed(shared, n_threads), problem.expected(), rtol=2e-5, atol=2e-5)


def test_large_scores() -> None:
    """Weights that no float holds without the largest score taken off, and a largest score that comes late."""
    random = np.random.default_rng(1)
    q = np.full((1, 2, 1, 64), 40, np.float32)
    k = (np.linspace(-1, 1, 700)[None, None, :, None] * np.ones((1, 1, 1, 64))).astype(np.float16)
    v = random.standard_normal((1, 1, 700, 64)).astype(np.float16)
    problem = Problem(q, k, v, scale=1.0)
    np.testing.assert_allclose(problem.computed(), problem.expected(), rtol=2e-5, atol=2e-5)


def test_not_a_number_stays_one() -> None:
    """A broken model must not look like one that works."""
    random = np.random.default_rng(1)
    q = random.standard_normal((1, 1, 2, 64)).astype(np.float32)
    q[0, 0, 1, 3] = np.nan
    k, v = (random.standard_normal((1, 1, 100, 64)).astype(np.float16) for _ in range(2))
    out = Problem(q, k, v).computed()
    assert np.isfinite(out[0, 0]).all()
    assert np.isnan(out[0, 1]).all()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_queries", [1, 30])
def test_what_is_hidden_is_of_no_account(broken: float, n_queries: int) -> None:
    """Cells of others in the same cache, whose model or adapter is broken."""
    random = np.random.default_rng(1)
    q = random.standard_normal((1, 3, n_queries, 64)).astype(np.float32)
    k, v = (random.standard_normal((1, 1, 200, 64)).astype(np.float16) for _ in range(2))
    mask = np.zeros((1, 1, n_queries, 200), np.float16)
    mask[..., ::7] = -np.inf
    mask[..., 64:128] = -np.inf
    healthy = Problem(q, k.copy(), v.copy(), mask).expected()
    for array in (k, v):
        array[:, :, ::7, 5] = broken
        array[:, :, 100, :] = broken
    np.testing.assert_allclose(Problem(q, k, v, mask).computed(), healthy, rtol=2e-5, atol=2e-5)


def test_sizes_that_it_leaves_to_ggml() -> None:
    assert not _core.attention_supports(63, 63)
    assert not _core.attention_supports(0, 64)
    assert not _core.attention_supports(4096, 64)
