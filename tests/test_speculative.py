"""Drafting changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from llamaserve import Completion, Engine, ModelLoadError

from tests import models
from tests.test_scheduler import EXACT, LAYOUTS, run_all, words

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
DRAFTERS: dict[str, dict[str, Any]] = {
    "the same model": {
        "spec_draft_model": models.tiny(),
        "spec_draft_n_max": 7,
        "spec_draft_type_k": "f32",
        "spec_draft_type_v": "f32",
    },
    "another model": {"spec_draft_model": models.tiny(seed=2), "spec_draft_n_max": 4},
    "ngram-simple": {"spec_type": ["ngram-simple"], "spec_ngram_simple_size_n": 3, "spec_ngram_simple_size_m": 8},
    "ngram-map-k": {"spec_type": ["ngram-map-k"], "spec_ngram_map_k_size_n": 3, "spec_ngram_map_k_size_m": 8},
    "ngram-map-k4v": {"spec_type": ["ngram-map-k4v"], "spec_ngram_map_k4v_size_n": 3, "spec_ngram_map_k4v_size_m": 8},
    "ngram-mod": {"spec_type": ["ngram-mod"], "spec_ngram_mod_n_match": 4, "spec_ngram_mod_n_min": 2},
    "ngram-cache": {"spec_type": ["ngram-cache"]},
    "two kinds": {
        "spec_type": ["ngram-simple", "draft-simple"],
        "spec_draft_model": models.tiny(),
        "spec_ngram_simple_size_n": 3,
        "spec_ngram_simple_size_m": 8,
    },
}
SELF = DRAFTERS["the same model"]

# A draft model takes a prompt in by steps of a time that was learned: on a slow machine, too, in one.
LONG_STEPS: dict[str, Any] = {"step_target_ms": 60_000}

# What repeats soon: all kinds of drafts find something.
LOOP = [*words(1, 20)] * 4


def tiny(**options: Any) -> Engine:
    return Engine(models.tiny(), **{"ctx_size": 4096, "parallel": 4, **EXACT, **options})


@pytest.fixture(scope="module")
def plain() -> Any:
    """Without drafting."""
    with tiny() as engine:
        yield engine


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("unified", LAYOUTS)
def test_same_text(plain: Engine, drafter: str, unified: bool) -> None:
    prompts = [LOOP, words(11, 60), words(12, 60)]
    expected = [plain.complete(p, n_predict=48, **GREEDY).tokens for p in prompts]
    hot = {"n_predict": 20, "temperature": 1.0, "seed": 7, "repeat_penalty": 1.1}
    sampled = [plain.complete(p, **hot).tokens for p in prompts]
    with tiny(kv_unified=unified, **DRAFTERS[drafter]) as engine:
        assert [engine.complete(p, n_predict=48, **GREEDY).tokens for p in prompts] == expected
        together = asyncio.run(run_all(engine, prompts * 2, n_predict=48, **GREEDY))
        assert [c.tokens for c in together] == expected * 2
        assert [engine.complete(p, **hot).tokens for p in prompts] == sampled
        metrics = engine.metrics()
        assert metrics.n_draft_accepted_total == sum(metrics.n_draft_accepted_by_place)
        if drafter != "ngram-cache":  # it wants more of a text before it drafts
            assert 0 < metrics.n_draft_tokens_total >= metrics.n_draft_accepted_total


def test_fewer_steps() -> None:
    with tiny(**SELF, **LONG_STEPS) as engine:
        steps = engine.metrics().n_decode_total
        done = engine.complete(words(2, 50), n_predict=81, **GREEDY)
        # The prompt's step gives one token; each step after it the seven that were drafted, and one more.
        assert engine.metrics().n_decode_total - steps == 11
        assert (done.timings.draft_n, done.timings.draft_n_accepted) == (70, 70)
        metrics = engine.metrics()
        assert (metrics.n_drafts_total, metrics.n_draft_tokens_total, metrics.n_draft_accepted_total) == (10, 70, 70)
        assert metrics.n_draft_accepted_by_place == [10] * 7
        assert metrics.tokens_predicted_total == 81
    with tiny(**DRAFTERS["ngram-mod"]) as engine:
        steps = engine.metrics().n_decode_total
        done = engine.complete(LOOP, n_predict=300, **GREEDY)
        accepted = done.timings.draft_n_accepted
        assert isinstance(accepted, int)
        assert engine.metrics().n_decode_total - steps == 300 - accepted
        assert accepted > 30


def test_draft_model_shares_prefixes() -> None:
    """What one request's draft model has computed, that of another takes; both are in step with their slots."""
    prefix = words(3, 300)
    with tiny(**SELF, **LONG_STEPS) as engine:
        prompts = [[*prefix, *words(30 + i, 5)] for i in range(4)]
        done = asyncio.run(run_all(engine, prompts, n_predict=33, **GREEDY))
        assert all(c.timings.draft_n_accepted == c.timings.draft_n for c in done)
        # A later turn goes on from a part of an earlier one.
        again = engine.complete([*prefix, *words(40, 5)], n_predict=33, **GREEDY)
        assert again.timings.draft_n_accepted == again.timings.draft_n == 28


@pytest.mark.parametrize("n_predict", [0, 1, 2, 3, 9, 30])
def test_limit(plain: Engine, n_predict: int) -> None:
    with tiny(**SELF) as engine:
        done = engine.complete(words(4, 30), n_predict=n_predict, **GREEDY)
        assert done.tokens == plain.complete(words(4, 30), n_predict=n_predict, **GREEDY).tokens
        assert done.finish.stop_type == "limit"
        # The token sampled last is in no cell, drafted or not.
        assert done.finish.tokens_cached == 30 + max(0, n_predict - 1)


def test_context_limit(plain: Engine) -> None:
    del plain
    with tiny(ctx_size=256, parallel=1) as engine:
        expected = engine.complete(words(5, 200), n_predict=-1, **GREEDY)
    with tiny(ctx_size=256, parallel=1, **SELF) as engine:
        done = engine.complete(words(5, 200), n_predict=-1, **GREEDY)
        assert (done.tokens, done.finish.truncated) == (expected.tokens, True)


def test_stop_texts(plain: Engine) -> None:
    text = plain.complete(words(6, 30), n_predict=60, **GREEDY).text
    with tiny(**SELF) as engine:
        stops = [text[i : i + 3] for i in range(5, 60) if text[i : i + 3].isascii()]
        assert len(stops) >= 3
        for stop in stops[::3]:
            params = {"n_predict": 60, "stop": [stop], **GREEDY}
            expected, done = plain.complete(words(6, 30), **params), engine.complete(words(6, 30), **params)
            assert (done.text, done.tokens) == (expected.text, expected.tokens)
            assert (done.finish.stop_type, done.finish.stopping_word) == ("word", stop)
            # The cells that are left are right.
            more = [*words(6, 30), *done.tokens, 300]
            assert (
                engine.complete(more, n_predict=5, **GREEDY).tokens
                == plain.complete(more, n_predict=5, **GREEDY).tokens
            )


@pytest.mark.parametrize("drafter", ["the same model", "ngram-mod"])
def test_grammar(plain: Engine, drafter: str) -> None:
    grammar = 'root ::= ("abc" | "abd"){8}'
    schema = {"type": "array", "items": {"enum": ["on", "off"]}, "minItems": 6, "maxItems": 6}
    with tiny(**DRAFTERS[drafter]) as engine:
        for params in ({"grammar": grammar}, {"json_schema": schema}):
            expected = plain.complete("a", n_predict=100, temperature=0, **params)
            done = engine.complete("a", n_predict=100, temperature=0, **params)
            assert (done.text, done.tokens) == (expected.text, expected.tokens)


def test_probabilities_and_streams(plain: Engine) -> None:
    expected = plain.complete(words(7, 30), n_predict=20, n_probs=3, **GREEDY)
    with tiny(**SELF, **LONG_STEPS) as engine:
        chunks = list(engine.stream(words(7, 30), n_predict=20, n_probs=3, timings_per_token=True, **GREEDY))
        probs = [p for c in chunks for p in c.probs]
        assert [p.id for p in probs] == list(expected.tokens)
        assert [round(p.prob, 3) for p in probs] == [round(p.prob, 3) for p in expected.probs]
        assert "".join(c.text for c in chunks) == expected.text
        assert chunks[-1].timings
        assert chunks[-1].timings.draft_n_accepted == 16


def test_what_a_request_may_set() -> None:
    with tiny(**SELF) as engine:
        off = engine.complete(words(8, 30), n_predict=20, speculative_n_max=0, **GREEDY)
        few = engine.complete(words(8, 30), n_predict=20, speculative_n_max=2, **GREEDY)
        long = engine.complete(words(8, 30), n_predict=20, speculative_n_min=8, **GREEDY)
        assert not isinstance(off.timings.draft_n, int)
        assert not isinstance(long.timings.draft_n, int)
        # 19 tokens after the first, three a step: two drafted and one more.
        assert few.timings.draft_n == few.timings.draft_n_accepted == 12
        assert few.tokens == off.tokens == long.tokens
        assert engine.slots()[0].speculative
        assert engine.effective_params()["speculative.types"] == "draft-simple"


def test_full_cache_and_shifts() -> None:
    """Requests that leave and come back, and contexts that shift, with drafts in between."""
    shape: dict[str, Any] = {
        "ctx_size": 1024,
        "parallel": 6,
        "kv_unified": True,
        "kv_unified_per_slot": 300,
        "context_shift": True,
    }
    prompts = [words(70 + i, 200) for i in range(6)]
    with tiny(**shape) as engine:
        expected = [engine.complete(p, n_predict=130, cache_prompt=False, **GREEDY).tokens for p in prompts]
    for drafter in ("the same model", "ngram-map-k4v"):
        with tiny(**shape, **DRAFTERS[drafter]) as engine:
            done = asyncio.run(run_all(engine, prompts, n_predict=130, **GREEDY))
            assert engine.metrics().n_preempted_total > 0
            assert engine.metrics().n_draft_accepted_total > 0
            assert [c.tokens for c in done] == expected


@pytest.mark.parametrize("drafter", ["the same model", "two kinds", "ngram-map-k"])
@pytest.mark.parametrize("unified", LAYOUTS)
def test_any_traffic(plain: Engine, drafter: str, unified: bool) -> None:
    """Random arrivals, sizes, shared prefixes and cancellations."""
    rng = random.Random(drafter)
    roots = [words(60 + i, 150) for i in range(3)]
    prompts = [rng.choice(roots)[: rng.randrange(1, 150)] + words(rng.randrange(9), 9) for _ in range(24)]
    sizes = [rng.choice([1, 2, 9, 40]) for _ in prompts]
    expected = [plain.complete(p, n_predict=n, **GREEDY).tokens for p, n in zip(prompts, sizes, strict=True)]
    options = {"ctx_size": 1024, "kv_unified": unified, "batch_size": 48, "cache_ram": 1, **DRAFTERS[drafter]}
    with tiny(**options) as engine:

        async def one(i: int) -> Completion | None:
            await asyncio.sleep(rng.random() * 0.1)
            task = engine.acomplete(prompts[i], n_predict=sizes[i], priority=rng.randrange(3), **GREEDY)
            if i % 4:
                return await task
            try:
                return await asyncio.wait_for(task, rng.random() * 0.02)
            except TimeoutError:
                return None

        async def main() -> list[Completion | None]:
            return await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(24))), 60)

        for done, tokens in zip(asyncio.run(main()), expected, strict=True):
            assert done is None or done.tokens == tokens
        metrics = engine.metrics()
        assert (metrics.requests_processing, metrics.requests_deferred) == (0, 0)


def test_sliding_window() -> None:
    """Its cells can't be cut anywhere, but those of a draft can be taken back."""
    with Engine(models.gemma3(), ctx_size=256, parallel=1, spec_draft_model=models.gemma3()) as engine:
        expected = engine.complete("One, two, three,", n_predict=13, speculative_n_max=0, **GREEDY)
        done = engine.complete("One, two, three,", n_predict=13, cache_prompt=False, **GREEDY)
        assert done.text == expected.text
        assert done.timings.draft_n_accepted == done.timings.draft_n == 9


def test_pretended_acceptance() -> None:
    prompt = words(9, 30)
    with tiny(**DRAFTERS["another model"], spec_synth_rates="1,1,1,1") as engine:
        done = engine.complete(prompt, n_predict=31, **GREEDY)
        assert done.timings.draft_n == done.timings.draft_n_accepted == 24
    with tiny(**DRAFTERS["another model"], spec_synth_len=2.5) as engine:
        runs = [engine.complete(prompt, n_predict=40, seed=3, **GREEDY) for _ in range(2)]
        assert runs[0].tokens == runs[1].tokens
        assert runs[0].timings.draft_n_accepted == runs[1].timings.draft_n_accepted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec_draft_model": "missing.gguf"}, "missing.gguf: no such file"),
        ({"spec_type": ["draft-simple"]}, "draft-simple needs a draft model"),
        ({"spec_type": ["draft-mtp"], "spec_draft_model": models.tiny()}, "draft-mtp is not supported yet"),
        ({"spec_type": ["ngram"]}, "spec_type: 'ngram' can't be used; expected one of none, draft-simple"),
        ({"spec_type": ["ngram-simple"], "spec_ngram_simple_size_n": 0}, "spec_ngram_simple_size_n"),
        ({"spec_type": ["ngram-cache"], "lookup_cache_static": __file__}, "is no lookup cache"),
        ({"spec_type": ["ngram-cache"], "spec_synth_rates": "0.5,x"}, "spec_synth_rates: 'x' can't be used"),
        ({"spec_type": ["ngram-cache"], "spec_synth_rates": "0.5"}, "must contain 8 values"),
        ({"spec_synth_len": 2.0}, "at least one speculative token"),
        ({"spec_draft_model": models.tiny(), "spec_draft_type_k": "q3"}, "spec_draft_type_k"),
    ],
)
def test_options_that_cant_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        tiny(**options)
    assert message in str(caught.value)


def test_vocabulary_of_the_draft_model() -> None:
    with pytest.raises(ModelLoadError, match=r"can't draft for .*vocab"):
        tiny(spec_draft_model=models.smollm2())


def test_lookup_cache(tmp_path: Path) -> None:
    """A file as llama-lookup-create makes it: an n-gram of at most four tokens, and what came after it how often."""
    plain_text = LOOP[:20]
    path = tmp_path / "cache"
    numbers = [*plain_text[:2], -1, -1, 1, plain_text[2], 100]
    path.write_bytes(b"".join(n.to_bytes(4, "little", signed=True) for n in numbers))
    with tiny(spec_type=["ngram-cache"], lookup_cache_static=path) as engine:
        assert len(engine.complete(LOOP, n_predict=30, **GREEDY).tokens) == 30
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ModelLoadError, match="is no lookup cache, or is damaged"):
        tiny(spec_type=["ngram-cache"], lookup_cache_dynamic=path)
