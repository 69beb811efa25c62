"""Every field of `/completion`: what it takes, what it refuses, and that it does what llama-server's does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from llamaserve.params import CompletionParams
from llamaserve.server.native_schema import CompletionRequest

from tests import models
from tests.peer import llama_server, needs_peer, post
from tests.server.conftest import App, Running, start

# Flash attention or not: llamaserve chooses otherwise for heads as small as this model's, which changes last digits.
FLAGS = ("-c", "1024", "-np", "2", "--temp", "0", "-s", "7", "-fa", "on")
PROMPT = "the sea "

# For each field: values to take, then values to refuse.
FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "prompt": (
        ["", "a", [1, 2], ["a", 3, "b"], ["a", "b"], [["a", 3], [4], "c"], {"prompt_string": ["a", 1]}],
        [None, 5, True, [], {}, [1.5], [300], [-1], [[1, None]], {"prompt_string": 1}],
    ),
    "n_predict": ([-1, 0, 3, 2.0, None], [-2, "3", 2.5, True, 2**31]),
    "max_tokens": ([3, None], [-2, "3"]),
    "max_completion_tokens": ([3, None], [-2, []]),
    "n_indent": ([0, 4], [-1, "x"]),
    "n_keep": ([-1, 0, 5], [-2, "x"]),
    "n_discard": ([0, 5], [-1, "x"]),
    "n_cache_reuse": ([0, 5], [-1, "x"]),
    "speculative.n_max": ([0, 5], [-1, "x"]),
    "speculative.n_min": ([0, 5], [-1, "x"]),
    "n_cmpl": ([1, 2], [0, -1, "2"]),
    "n": ([1, 2], [0, -1, 129]),
    "stream": ([True, False, None], ["yes", 1]),
    "stream_options": ([{}, {"include_usage": True}], [True, {"include_usage": 1}]),
    "stop": (["a", [], ["a", "b"], [""]], [5, [5], {}]),
    "temperature": ([0, 1.5, -1], ["hot", True]),
    "dynatemp_range": ([0.5], ["x"]),
    "dynatemp_exponent": ([2], [[]]),
    "top_k": ([-1, 0, 40], [1.5, "x"]),
    "top_p": ([0, 1, 7], ["x"]),
    "min_p": ([0.1, -1], ["x"]),
    "top_n_sigma": ([-1, 1.5], ["x"]),
    "xtc_probability": ([0.5, 2], ["x"]),
    "xtc_threshold": ([0.5, -1], ["x"]),
    "typical_p": ([0.5], ["x"]),
    "repeat_last_n": ([0, 64], [-1, "x"]),
    "repeat_penalty": ([1.1], ["x"]),
    "presence_penalty": ([-2, 2], ["x"]),
    "frequency_penalty": ([-2, 2], ["x"]),
    "dry_multiplier": ([0.8], ["x"]),
    "dry_base": ([0.5, 1.75], ["x"]),
    "dry_allowed_length": ([0, 2], [-1]),
    "dry_penalty_last_n": ([0, 64], [-1]),
    "dry_sequence_breakers": ([["x"]], ["x", [1]]),
    "mirostat": ([0, 1, 2, 9], ["x"]),
    "mirostat_tau": ([5], ["x"]),
    "mirostat_eta": ([0.1], ["x"]),
    "adaptive_target": ([-1, 0.5], ["x"]),
    "adaptive_decay": ([0.5], ["x"]),
    "grammar": (["", 'root ::= "a"'], [5, {}]),
    "json_schema": ([{}, {"type": "integer"}, True], []),
    "seed": ([-1, 0, 2**32 - 1], [-2, 2**63, "x"]),
    "ignore_eos": ([True, False], ["x"]),
    "logit_bias": ([[], {}, [[1, 2.5]], [["a", -1]], [[1, False]], {"1": 2, "a": False}, [[1, True], "x"]], [5, "x"]),
    "n_probs": ([0, 3, -1], ["x", 1.5]),
    "logprobs": ([0, 3, True], ["x"]),
    "post_sampling_probs": ([True], [1]),
    "min_keep": ([0, 3], [-1]),
    "t_max_predict_ms": ([-1, 0, 1000], ["x"]),
    "t_max_ms": ([0, 1000], [-1]),
    "id_slot": ([-1, 0], [-2, "x"]),
    "cache_prompt": ([True, False], ["x"]),
    "return_tokens": ([True], ["x"]),
    "return_progress": ([True], ["x"]),
    "timings_per_token": ([True], ["x"]),
    "samplers": ([[], "", ["top_k", "nope"], "kt"], [5, [5]]),
    "response_fields": ([[], ["content", "a/b"]], ["content", [1]]),
    "sse_ping_interval": ([-1, 0, 30], [-2]),
    "priority": ([-5, 5], ["x"]),
    "verbose": ([True], [1]),
    "model": (["any"], [5]),
    "lora": ([[]], ["x"]),
}


def test_the_table_has_every_field() -> None:
    assert set(FIELDS) >= set(CompletionParams.__struct_encode_fields__)
    assert set(FIELDS) >= set(CompletionRequest.__struct_encode_fields__)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (good, _) in FIELDS.items() for v in good])
def test_values_to_take(app: App, field: str, value: Any) -> None:
    response = app.post("/completion", {"prompt": "x", field: value})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (_, bad) in FIELDS.items() for v in bad])
def test_values_to_refuse(app: App, field: str, value: Any) -> None:
    response = app.post("/completion", {"prompt": "x", field: value})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]
    assert app.engine.submitted == []


@pytest.fixture(scope="module")
def tiny() -> Iterator[Running]:
    """A server with a random model."""
    server = start("-m", str(models.tiny()), *FLAGS)
    yield server
    server.stop()


def complete(server: Running, **body: Any) -> httpx.Response:
    body = {"prompt": PROMPT, "n_predict": 6, "cache_prompt": False} | body
    return httpx.post(f"{server.url}/completion", json=body, timeout=60)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"adaptive_decay": 1}, "adaptive_decay"),
        ({"dry_sequence_breakers": []}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"grammar": "root :="}, "grammar"),
        ({"json_schema": {"type": "nope"}}, "json_schema"),
        ({"json_schema": 5}, "json_schema"),
        ({"id_slot": 2}, "id_slot"),
        ({"temperature": 1e39}, "temperature"),
        ({"prompt": [1, 512]}, "prompt[1]"),
    ],
)
def test_what_only_the_model_can_tell(tiny: Running, body: dict[str, Any], message: str) -> None:
    response = complete(tiny, **body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_the_settings_are_those_it_ran_with(tiny: Running) -> None:
    """Moved into their range, texts turned into tokens, schemas into grammars."""
    body: dict[str, Any] = {
        "temperature": -4,
        "top_k": -3,
        "top_p": 4,
        "mirostat": 9,
        "dry_base": 0.5,
        "json_schema": {"type": "integer"},
        "logit_bias": [["ab", -3], [301, False], [99999, 1]],
    }
    settings = complete(tiny, **body).json()["generation_settings"]
    assert (settings["temperature"], settings["top_k"], settings["top_p"], settings["mirostat"]) == (0, 0, 1, 2)
    assert settings["dry_base"] == 1.75
    assert "root ::=" in settings["grammar"]
    biases = [(b["token"], b["bias"]) for b in settings["logit_bias"]]
    ids = httpx.post(f"{tiny.url}/tokenize", json={"content": "ab"}).json()["tokens"]
    assert biases == [(301, None), *((token, -3) for token in ids)]


def test_a_seed_repeats_itself(tiny: Running) -> None:
    hot: dict[str, Any] = {"temperature": 2.0, "top_k": 0, "top_p": 1, "min_p": 0, "n_predict": 12}
    first, second = (complete(tiny, seed=5, **hot).json() for _ in range(2))
    assert first["content"] == second["content"]
    assert first["generation_settings"]["seed"] == 5
    several = complete(tiny, seed=5, n=3, **hot).json()
    assert several[0]["content"] == first["content"]
    assert len({answer["content"] for answer in several}) == 3
    assert several[2]["content"] == complete(tiny, seed=7, **hot).json()["content"]


# What greedy sampling makes of these is the same in both servers.
SAME: list[dict[str, Any]] = [
    {},
    {"prompt": [1, 300, 301]},
    {"prompt": ["a", 300, "b"]},
    {"prompt": [300, "b"]},
    {"prompt": ["a", "b"]},
    {"prompt": [["a", 300], [301], "c", {"prompt_string": "d"}]},
    {"prompt": ""},
    {"prompt": {"prompt_string": ["d", 300]}},
    {"samplers": ["top_k", "temperature"]},
    {"samplers": ["nope", "top-p", "nucleus"]},
    {"samplers": "ekt"},
    {"samplers": []},
    {"repeat_penalty": 1.5},
    {"repeat_penalty": 2, "repeat_last_n": 0},
    {"frequency_penalty": 1.0},
    {"presence_penalty": 1.0},
    {"dry_multiplier": 0.8, "dry_base": 0.5, "dry_allowed_length": 1, "dry_sequence_breakers": ["x"]},
    {"xtc_probability": 2, "xtc_threshold": -1},
    {"typical_p": 0.5},
    {"top_n_sigma": 1},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 2},
    {"top_k": -3, "top_p": 4, "min_p": -1, "temperature": -4},
    {"min_keep": 3},
    {"seed": 3, "temperature": 1},
    {"seed": 3, "temperature": 1, "mirostat": 1, "mirostat_tau": 3},
    {"seed": 3, "temperature": 1, "mirostat": 2, "mirostat_eta": 0.3},
    {"seed": 3, "temperature": 1.5, "adaptive_target": 0.5, "adaptive_decay": 0.5},
    {"seed": 3, "temperature": 1.5, "top_k": 5, "samplers": ["temperature", "top_k"]},
    {"seed": 3, "temperature": 1, "xtc_probability": 1, "xtc_threshold": 0.01},
    {"grammar": 'root ::= "ab" | "cd"'},
    {"grammar": 'root ::= "a"', "json_schema": {"type": "integer"}},
    {"json_schema": {}},
    {"json_schema": {"type": "integer"}},
    {"n_probs": 2},
    {"logprobs": 2},
    {"n_probs": 3, "stop": ["o"]},
    {"n_probs": 2, "post_sampling_probs": True, "temperature": 1, "seed": 1},
    {"logit_bias": [[300, 5], ["ab", -3], [301, False], [302, True], [99999, 1], "x", [1]]},
    {"logit_bias": {"300": 5, "ab": -2, "301": False}},
    {"ignore_eos": True},
    {"n_cmpl": 2},
    {"prompt": ["a", "b"], "n": 2},
    {"t_max_predict_ms": 10_000},
    {"response_fields": ["content", "generation_settings/n_predict", "nope/x", "timings/prompt_n"]},
    {"return_tokens": True},
    {"stop": "o"},
    {"stop": ["#r"]},
    {"n_predict": None, "max_completion_tokens": 3, "max_tokens": 2},
    {"max_tokens": 2, "n_predict": 4},
]

# What differs, and why.
UNLIKE = {
    "model": "llama-server gives the path that -m named",
    "id_slot": "which slot is free is the scheduler's business",
    "timings": "times",
    "grammar": "llamaserve makes its own of a schema",
    "reasoning_format": "llama-server shows its default for chats also where there is no chat",
}


def differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    if path.rpartition("/")[2] in UNLIKE:
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict):
        missing = [f"{path}/{key} is missing" for key in theirs if key not in ours]
        both = theirs.keys() & ours.keys()
        return missing + [d for key in both for d in differences(theirs[key], ours[key], f"{path}/{key}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        if path.endswith("logit_bias"):  # in any order
            theirs, ours = (sorted(biases, key=lambda b: b["token"]) for biases in (theirs, ours))
        return [d for i, pair in enumerate(zip(theirs, ours, strict=True)) for d in differences(*pair, f"{path}/{i}")]
    if isinstance(theirs, float) and isinstance(ours, (int, float)):
        return [] if theirs == pytest.approx(ours, rel=1e-3) else [f"{path}: {theirs} and {ours}"]
    return [] if theirs == ours and type(theirs) is type(ours) else [f"{path}: {theirs!r} and {ours!r}"]


@needs_peer
def test_as_llama_server(tiny: Running) -> None:
    found: list[str] = []
    with llama_server(models.tiny(), *FLAGS) as url:
        for body in SAME:
            whole = {"prompt": PROMPT, "n_predict": 6, "cache_prompt": False} | body
            theirs = post(f"{url}/completion", whole)
            found += [f"{body}: {d}" for d in differences(theirs, complete(tiny, **body).json())]
    assert not found, "\n".join(found)


def test_indentation_and_time(tiny: Running) -> None:
    """`n_indent` ends a text at a line that is indented less; `t_max_predict_ms` at a line break after that time."""
    grammar = 'root ::= "a\\n    b\\n  c" [d]*'
    whole = complete(tiny, grammar=grammar, n_predict=30).json()
    assert whole["content"].startswith("a\n    b\n  c")
    short = complete(tiny, grammar=grammar, n_predict=30, n_indent=4).json()
    assert (short["content"], short["stop_type"]) == ("a\n    b\n  ", "limit")
    lines = 'root ::= ("a"{20} "\\n")+'
    timed = complete(tiny, grammar=lines, n_predict=400, t_max_predict_ms=1).json()
    assert timed["content"].endswith("\n")
    assert timed["tokens_predicted"] < 400
    assert timed["stop_type"] == "limit"
