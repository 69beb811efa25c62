"""Options of the engine that reach llama.cpp: each has its effect, and a bad value is an error, never the end of the
process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from llamaserve import Engine, ModelLoadError

from tests import models
from tests.peer import llama_server, needs_peer, post

NAN, INF = float("nan"), float("inf")
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
PROMPT = list(range(300, 340))
GREEDY: dict[str, Any] = {"n_predict": 12, "temperature": 0, "ignore_eos": True}


def tokens(**options: Any) -> tuple[int, ...]:
    with Engine(models.tiny(), ctx_size=512, parallel=1, **{**EXACT, **options}) as engine:
        return engine.complete(PROMPT, **GREEDY).tokens


@needs_peer
@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"rope_scaling": "linear", "rope_scale": 4.0}, ["--rope-scaling", "linear", "--rope-scale", "4"]),
        ({"rope_freq_base": 500.0}, ["--rope-freq-base", "500"]),
        ({"rope_freq_scale": 0.25}, ["--rope-freq-scale", "0.25"]),
        (
            {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 512, "yarn_ext_factor": 0.5},
            [*("--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "512"), "--yarn-ext-factor", "0.5"],
        ),
    ],
    ids=["linear", "base", "scale", "yarn"],
)
def test_rope_is_llama_servers(options: dict[str, Any], flags: list[str]) -> None:
    exact = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
    with llama_server(models.tiny(), "-c", "512", "-np", "1", *exact, *flags) as url:
        theirs = post(f"{url}/completion", {"prompt": PROMPT, "return_tokens": True, **GREEDY})["tokens"]
    assert tokens(**options) == tuple(theirs)
    assert tokens() != tuple(theirs)


def test_metadata_can_be_overridden() -> None:
    with Engine(models.tiny(), ctx_size=512, override_kv=["llama.context_length=int:100"]) as engine:
        assert engine.info.n_ctx_train == engine.info.n_ctx_slot == 100
    with Engine(models.tiny(), ctx_size=512, override_kv=["tokenizer.ggml.add_bos_token=bool:false"]) as engine:
        assert engine.tokenize("a", add_special=True) == engine.tokenize("a")


def test_tensors_can_be_placed() -> None:
    assert tokens(override_tensor="ffn=CPU,attn=CPU") == tokens()
    # More layers than there are means all.
    assert tokens(n_cpu_ffn=60000, n_cpu_moe=60000) == tokens()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "cache_type_v: 'q8_0'.*flash attention"),
        ({"cache_type_k": "q8_0", "flash_attn": "on"}, "does not divide"),
        ({"rope_freq_base": NAN}, "rope_freq_base"),
        ({"rope_freq_base": -1.0}, "rope_freq_base"),
        ({"rope_freq_scale": INF}, "rope_freq_scale"),
        ({"rope_scale": -2.0}, "rope_scale"),
        ({"yarn_ext_factor": INF}, "yarn_ext_factor"),
        ({"yarn_attn_factor": NAN}, "yarn_attn_factor"),
        ({"yarn_orig_ctx": -1}, "yarn_orig_ctx"),
        ({"tensor_split": "1,x"}, "tensor_split"),
        ({"tensor_split": "-1"}, "tensor_split"),
        ({"tensor_split": "nan"}, "tensor_split"),
        ({"tensor_split": ",".join(["1"] * 200)}, "tensor_split"),
        ({"main_gpu": 1000}, "main_gpu"),
        ({"n_gpu_layers": "x"}, "n_gpu_layers"),
        ({"fit_ctx": -1}, "fit_ctx"),
        ({"device": "nope"}, "device: 'nope'"),
        ({"override_tensor": "[=CPU"}, r"override_tensor: '\['.*regular expression"),
        ({"override_tensor": "x=GPU9"}, "one of the buffer types"),
        ({"override_tensor": ",".join(["x=CPU"] * 5000)}, "fewer than"),
        ({"override_kv": ["llama.expert_count=int:4"]}, "0 of 4 experts"),
        ({"override_kv": ["llama.expert_used_count=int:4"]}, "4 of 0 experts"),
        ({"override_kv": ["llama.expert_count=int:-1"]}, "experts"),
        ({"override_kv": ["llama.expert_group_count=int:2"]}, "groups of experts"),
        ({"override_kv": ["llama.nextn_predict_layers=int:9"]}, "nextn_predict_layers"),
        ({"override_kv": ["llama.rope.scaling.type=str:nope"]}, "'nope' is no way to scale RoPE"),
        ({"override_kv": ["llama.block_count=int:9"]}, "can't be changed"),
        ({"override_kv": ["tokenizer.ggml.model=str:bert"]}, "can't be changed"),
        ({"override_kv": ["llama.attention.head_count=int:0"]}, "can't be loaded"),
        ({"override_kv": ["nothing"]}, "override_kv"),
        ({"chat_template": "nope", "jinja": False}, "chat_template: without jinja"),
    ],
)
def test_bad_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        Engine(models.tiny(), ctx_size=512, parallel=1, **options)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the platform has no such thing")
def test_threads_can_be_bound_to_cpus() -> None:
    """In a process of its own: what is bound stays bound."""
    cpu = min(os.sched_getaffinity(0))
    program = (
        "import os, sys\nfrom llamaserve import Engine\n"
        "def bound():\n"
        "    threads = os.listdir('/proc/self/task')\n"
        "    return [os.sched_getaffinity(int(t)) for t in threads].count({int(sys.argv[2])})\n"
        "with Engine(sys.argv[1], ctx_size=512, parallel=1, threads=2, cache_type_k='f32', cache_type_v='f32',\n"
        "            flash_attn='off', cpu_strict=True, poll=0, prio_batch=0, **eval(sys.argv[3])) as e:\n"
        "    before = bound()\n"
        "    print(e.complete(list(range(300, 340)), n_predict=12, temperature=0, ignore_eos=True).tokens)\n"
        "    print(bound() - before)\n"
    )
    for where in ({"cpu_mask": f"0x{1 << cpu:x}"}, {"cpu_range": f"{cpu}-{cpu}"}):
        arguments = [sys.executable, "-c", program, str(models.tiny()), str(cpu), repr(where)]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
        answer, n_bound = ended.stdout.splitlines()
        assert answer == str(tokens())
        assert len(os.sched_getaffinity(0)) == 1 or int(n_bound) > 0


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"cpu_mask": "xyz"}, "cpu_mask"),
        ({"cpu_mask": "0"}, "cpu_mask"),
        ({"cpu_mask": "f" * 200}, "cpu_mask"),
        ({"cpu_mask_batch": "0x"}, "cpu_mask_batch"),
        ({"cpu_range": "3"}, "cpu_range"),
        ({"cpu_range": "3-1"}, "cpu_range"),
        ({"cpu_range": "a-b"}, "cpu_range"),
        ({"cpu_range_batch": "0-99999999999999999999"}, "cpu_range_batch"),
        ({"prio": 4}, "prio"),
        ({"prio_batch": -2}, "prio_batch"),
        ({"poll": 101}, "poll"),
        ({"poll_batch": -1}, "poll_batch"),
    ],
)
def test_wrong_cpus(options: dict[str, Any], option: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{option}\\b"):
        Engine(models.tiny(), ctx_size=512, **options)
