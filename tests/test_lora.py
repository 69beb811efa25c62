"""LoRA adapters and control vectors: what they change, what they keep apart, and files that don't fit."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llamaserve import Completion, CompletionParams, Engine, LoraScale, ModelLoadError, RequestError

from tests import models
from tests.peer import llama_server, needs_peer, post

# Batches of another shape round differently. With 32-bit cells that is too little to change which token is best.
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
FLAGS = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
LAYOUTS = [pytest.param(True, id="unified"), pytest.param(False, id="streams")]
GREEDY: dict[str, Any] = {"n_predict": 12, "temperature": 0, "ignore_eos": True}


def words(seed: int, n: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(259, 512) for _ in range(n)]


def use(*scales: float) -> list[LoraScale]:
    return [LoraScale(i, scale) for i, scale in enumerate(scales)]


def adapters() -> list[Path]:
    return [models.lora(seed=1), models.lora(seed=2)]


async def run_all(engine: Engine, requests: list[tuple[list[int], list[LoraScale]]], **params: Any) -> list[Completion]:
    calls = [engine.acomplete(prompt, CompletionParams(lora=lora, **params)) for prompt, lora in requests]
    return list(await asyncio.gather(*calls))


@needs_peer
def test_outputs_are_llama_servers() -> None:
    prompt = words(1, 40)
    files = adapters()
    sets = [(0.0, 0.0), (1.0, 0.0), (0.5, 0.0), (0.0, 1.0), (0.7, -0.4)]
    with llama_server(
        models.tiny(), "-c", "2048", "-np", "2", *FLAGS, "--lora", ",".join(map(str, files)), "--no-warmup"
    ) as url:
        theirs = []
        for scales in sets:
            lora = [{"id": i, "scale": scale} for i, scale in enumerate(scales)]
            body = {"prompt": prompt, "lora": lora, "cache_prompt": False, "return_tokens": True, **GREEDY}
            theirs.append(tuple(post(f"{url}/completion", body)["tokens"]))
        # llama-server would take cells that were computed with other adapters.
        body = {"prompt": prompt, "cache_prompt": False, "return_tokens": True, **GREEDY}
        default = tuple(post(f"{url}/completion", body)["tokens"])
    with Engine(models.tiny(), ctx_size=2048, parallel=2, lora=files, **EXACT) as engine:
        ours = [engine.complete(prompt, lora=use(*s), cache_prompt=False, **GREEDY).tokens for s in sets]
        assert ours == theirs
        assert len(set(ours)) == len(sets)
        assert engine.complete(prompt, **GREEDY).tokens == default


@pytest.mark.parametrize("unified", LAYOUTS)
def test_adapters_are_kept_apart(unified: bool) -> None:
    """Requests with different adapters at the same time, with prefixes in common: each gets what it gets alone, and no
    cells of another's."""
    prefix = words(2, 120)
    sets = [use(), use(1.0, 0.0), use(0.0, 1.0), use(0.5, 0.5)]
    requests = [(prefix + words(10 + i % 3, 10), sets[i % 4]) for i in range(12)]
    options: dict[str, Any] = {"ctx_size": 6 * 512, "parallel": 6, "kv_unified": unified, "batch_size": 64, **EXACT}
    with Engine(models.tiny(), lora=adapters(), lora_init_without_apply=True, **options) as engine:
        alone = [engine.complete(p, lora=lora, cache_prompt=False, **GREEDY).tokens for p, lora in requests]
        assert len(set(alone)) == 12
        counts = [engine.metrics().prompt_tokens_total]
        for _ in range(2):
            together = asyncio.run(run_all(engine, requests, **GREEDY))
            assert [c.tokens for c in together] == alone
            counts.append(engine.metrics().prompt_tokens_total)
        # Each set computes the prefix once, and its three prompts' own tokens.
        assert counts[1] - counts[0] == 4 * (120 + 3 * 10)
        assert counts[2] - counts[1] <= 12 * 10


def test_nobody_starves() -> None:
    """One request of one set among many of another, whose steps never end."""
    with Engine(models.tiny(), ctx_size=8 * 2048, parallel=8, lora=adapters()) as engine:

        async def run() -> None:
            many = [engine.astream(words(i, 20), lora=use(1.0), n_predict=1900, ignore_eos=True) for i in range(7)]
            try:
                for stream in many:
                    while not any(chunk.n_predicted for chunk in await stream.chunks()):
                        pass
                one = await engine.acomplete(words(9, 300), lora=use(0.0, 1.0), n_predict=20, ignore_eos=True)
                assert one.finish.n_predicted == 20
                seen = [max((c.n_predicted for c in await s.chunks()), default=0) for s in many]
                # Sets take turns, however many requests are in each.
                assert all(10 <= n < 1900 for n in seen), seen
            finally:
                for stream in many:
                    stream.close()

        asyncio.run(run())


def test_scales_of_the_engine() -> None:
    prompt = words(3, 30)
    files = adapters()
    with Engine(models.tiny(), ctx_size=1024, parallel=2, lora=[files[0], (files[1], 0.5)], **EXACT) as engine:
        assert [(a.id, a.path, a.scale) for a in engine.lora_adapters()] == [
            (0, str(files[0]), 1.0),
            (1, str(files[1]), 0.5),
        ]
        both = engine.complete(prompt, **GREEDY).tokens
        assert both == engine.complete(prompt, lora=use(1.0, 0.5), **GREEDY).tokens
        engine.set_lora_adapters({1: 2.0})
        assert [a.scale for a in engine.lora_adapters()] == [0.0, 2.0]
        second = engine.complete(prompt, **GREEDY)
        assert second.timings.cache_n == 0
        assert second.tokens == engine.complete(prompt, lora=use(0.0, 2.0), **GREEDY).tokens
        assert second.tokens != both
        engine.set_lora_adapters({})
        off = engine.complete(prompt, **GREEDY).tokens
        for wrong in ({2: 1.0}, {-1: 1.0}, {0: float("nan")}, {0: 1e4}, {0: -101.0}):
            with pytest.raises(RequestError, match="lora: "):
                engine.set_lora_adapters(wrong)
        with pytest.raises(RequestError, match="there are 0 to 1") as refused:
            engine.complete(prompt, lora=use(0, 0, 1.0))
        assert refused.value.kind == "invalid_request"
        assert engine.effective_params(lora=use(1.0))["lora"] == [{"id": 0, "scale": 1.0}]
    with Engine(models.tiny(), ctx_size=1024, parallel=2, **EXACT) as engine:
        assert engine.lora_adapters() == []
        assert engine.complete(prompt, **GREEDY).tokens == off
        with pytest.raises(RequestError, match="none is loaded"):
            engine.complete(prompt, lora=use(1.0))


@needs_peer
def test_activated_adapter() -> None:
    """It works from its invocation on: what is before can be shared with requests that don't use it."""
    invocation = (300, 301, 302)
    file = models.lora(seed=3, invocation=invocation)
    before, after = words(4, 50), words(5, 10)
    prompts = [[*before, *invocation, *after], [*before, *after], [*invocation, *after], [300, *invocation]]
    body: dict[str, Any] = {"lora": [{"id": 0, "scale": 1.0}], "cache_prompt": False, "return_tokens": True, **GREEDY}
    with llama_server(models.tiny(), "-c", "1024", "-np", "2", *FLAGS, "--lora", str(file)) as url:
        theirs = [tuple(post(f"{url}/completion", {**body, "prompt": prompt})["tokens"]) for prompt in prompts]
    with Engine(models.tiny(), ctx_size=1024, parallel=2, lora=[file], lora_init_without_apply=True, **EXACT) as engine:
        (adapter,) = engine.lora_adapters()
        assert adapter.alora_invocation_tokens == invocation
        assert adapter.alora_invocation_string == engine.detokenize(invocation)
        engine.complete(before, n_predict=1, id_slot=0)
        first = engine.complete(prompts[0], lora=use(1.0), **GREEDY)
        # llama-server switches the adapter on one token ahead.
        assert first.timings.cache_n == 49
        rest = [engine.complete(prompt, lora=use(1.0), cache_prompt=False, **GREEDY).tokens for prompt in prompts]
        assert rest == theirs
        assert first.tokens == theirs[0]
        assert engine.complete(prompts[0], lora=use(1.0), **GREEDY).timings.cache_n == 62
        plain = engine.complete(prompts[0], **GREEDY)
        assert plain.timings.cache_n == 49
        assert plain.tokens != first.tokens
    twice = [file, models.lora(seed=4, invocation=(305,))]
    with Engine(models.tiny(), ctx_size=1024, parallel=2, lora=twice) as engine:
        with pytest.raises(RequestError, match="multiple aLoRAs"):
            engine.complete(before)
        assert engine.complete(before, lora=use(1.0), n_predict=1).tokens


F32 = np.float32
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"type": "model"}, "is not a LoRA adapter"),
    "kind": ({"adapter_type": "x"}, "is not a LoRA adapter"),
    "architecture": ({"architecture": "bert"}, "arch mismatch"),
    "alpha": ({"alpha": "four"}, "alpha is no number"),
    "nan": ({"alpha": float("nan")}, "alpha is no number"),
    "width": ({"n_embd": 32}, "made for another model"),
    "layers": ({"n_layer": 6}, "made for another model"),
    "half": ({"blk.0.attn_q.weight.lora_b": None}, "only a half"),
    "other-half": ({"blk.0.attn_q.weight.lora_a": None}, "missing one component"),
    "rank": ({"blk.0.attn_q.weight.lora_a": np.ones((3, 64), F32)}, "made for another model"),
    "deep": (
        {
            "blk.0.attn_q.weight.lora_a": np.ones((2, 4, 64), F32),
            "blk.0.attn_q.weight.lora_b": np.ones((2, 64, 4), F32),
        },
        "made for another model",
    ),
    "integers": ({"blk.0.attn_q.weight.lora_a": np.ones((4, 64), np.int32)}, "type that isn't supported"),
    "name": ({"blk.0.attn_q.weight.lora_c": np.ones((4, 64), F32)}, "unexpected suffix"),
    "embeddings": (
        {
            "token_embd.weight.lora_a": np.ones((512, 3), F32),
            "token_embd.weight.lora_b": np.ones((64, 4), F32),
        },
        "made for another model",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files(case: str) -> None:
    changes, message = WRONG[case]
    file = models.lora(name=f"-wrong-{case}", **changes)
    with pytest.raises(ModelLoadError, match=message) as failed:
        Engine(models.tiny(), ctx_size=512, lora=[file])
    assert str(file) in str(failed.value)


def test_damaged_files(tmp_path: Path) -> None:
    file = tmp_path / "adapter.gguf"
    data = models.lora().read_bytes()
    for content in (b"", b"something else", data[:40], data[:-10]):
        file.write_bytes(content)
        with pytest.raises(ModelLoadError, match=r"adapter\.gguf"):
            Engine(models.tiny(), ctx_size=512, lora=[file])
    with pytest.raises(ModelLoadError, match="no such file"):
        Engine(models.tiny(), ctx_size=512, lora=[tmp_path / "missing"])
    with pytest.raises(ModelLoadError, match="is not a LoRA adapter"):
        Engine(models.tiny(), ctx_size=512, lora=[models.tiny()])
    with pytest.raises(ModelLoadError, match="finite number"):
        Engine(models.tiny(), ctx_size=512, lora=[(models.lora(), float("inf"))])
    with pytest.raises(TypeError, match="lora"):
        Engine(models.tiny(), ctx_size=512, lora=str(models.lora()))  # type: ignore[arg-type]


@needs_peer
@pytest.mark.parametrize("layers", [(), (2, 3)])
def test_control_vectors_are_llama_servers(layers: tuple[int, ...]) -> None:
    prompt = words(6, 40)
    one, two = models.control_vector(), models.control_vector(seed=2, layers=(2, 4))
    flags = ["--control-vector", str(one), "--control-vector-scaled", f"{two}:0.5"]
    options: dict[str, Any] = {"control_vector": [one, (two, 0.5)]}
    if layers:
        flags += ["--control-vector-layer-range", *map(str, layers)]
        options["control_vector_layer_range"] = layers
    with llama_server(models.tiny(), "-c", "1024", "-np", "2", *FLAGS, *flags) as url:
        theirs = tuple(post(f"{url}/completion", {"prompt": prompt, "return_tokens": True, **GREEDY})["tokens"])
    with Engine(models.tiny(), ctx_size=1024, parallel=2, **options, **EXACT) as engine:
        assert engine.complete(prompt, **GREEDY).tokens == theirs
    with Engine(models.tiny(), ctx_size=1024, parallel=2, **EXACT) as engine:
        assert engine.complete(prompt, **GREEDY).tokens != theirs


def test_wrong_control_vectors() -> None:
    good = models.control_vector()
    for file, message in (
        (models.control_vector(n_embd=32), "made for another model"),
        (models.control_vector(layers=(0, 1)), "is not a control vector"),
        (models.control_vector(layers=(99999,)), "is not a control vector"),
        (models.control_vector(prefix="x"), "is not a control vector"),
        (models.tiny(), "is not a control vector"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            Engine(models.tiny(), ctx_size=512, control_vector=[file])
        with pytest.raises(ModelLoadError, match=message):
            Engine(models.tiny(), ctx_size=512, control_vector=[good, file])
    for layers in ((0, 3), (3, 2), (1,)):
        with pytest.raises(ModelLoadError, match="control_vector_layer_range"):
            Engine(models.tiny(), ctx_size=512, control_vector=[good], control_vector_layer_range=layers)
