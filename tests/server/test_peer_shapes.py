"""The same requests to llama-server and to this server: every key it answers with is here too, with the same type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import models
from tests.peer import llama_server, needs_peer
from tests.server.conftest import parse_events, start

pytestmark = needs_peer

FLAGS = ("-c", "1024", "-np", "2", "--temp", "0", "-s", "7", "--metrics", "--props", "--slots", "--api-key", "k,l")
KEY = {"Authorization": "Bearer k"}
PROMPT = {"prompt": "the sea ", "n_predict": 4}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}

REQUESTS: list[tuple[str, str, Any]] = [
    *(("GET", path, None) for path in ("/health", "/v1/health", "/props", "/models", "/v1/models")),
    ("POST", "/props", {}),
    ("POST", "/completion", PROMPT),
    ("POST", "/completions", PROMPT | {"prompt": ["a", "b"]}),
    ("POST", "/completion", PROMPT | {"n_probs": 2}),
    ("POST", "/completion", PROMPT | {"n_probs": 2, "post_sampling_probs": True}),
    ("POST", "/completion", PROMPT | {"stream": True, "timings_per_token": True}),
    ("POST", "/completion", PROMPT | {"stream": True, "n_probs": 1}),
    ("POST", "/v1/completions", PROMPT),
    ("POST", "/v1/completions", PROMPT | {"n": 2, "logprobs": 1}),
    ("POST", "/v1/completions", PROMPT | {"stream": True}),
    ("POST", "/v1/completions", PROMPT | {"verbose": True}),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", CHAT | {"n": 2, "logprobs": True}),
    ("POST", "/v1/chat/completions", CHAT | {"verbose": True}),
    ("POST", "/tokenize", {"content": "the \u00e9", "add_special": True}),
    ("POST", "/tokenize", {"content": "the \u00e9<s>", "with_pieces": True}),
    ("POST", "/tokenize", {"content": "<s>", "parse_special": False}),
    ("POST", "/tokenize", {"content": ["a", 300, "<s>"], "add_special": True}),
    ("POST", "/tokenize", {}),
    ("POST", "/detokenize", {"tokens": [1, 300, 198]}),
    ("POST", "/detokenize", {}),
    ("POST", "/apply-template", CHAT),
    ("POST", "/apply-template", CHAT | {"add_generation_prompt": False}),
    ("POST", "/v1/chat/completions/input_tokens", CHAT),
    # errors
    ("GET", "/nope", None),
    ("POST", "/completion", {"prompt": "x", "n_predict": -2}),
    ("POST", "/completion", {"prompt": []}),
    ("POST", "/completion", {"prompt": "the sea " * 400}),
    ("POST", "/completion", {"prompt": "x", "grammar": "root :="}),
    ("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ("GET", "/tools", None),
    ("GET", "/cors-proxy", None),
]

# What the answer to these says is the same, not only how it is built.
SAME = ("/tokenize", "/detokenize", "/apply-template", "/v1/chat/completions/input_tokens", "/health", "/v1/health")


class Pair:
    """Both servers, with the same model and flags."""

    def __init__(self, theirs: str, ours: str) -> None:
        self.urls = (theirs, ours)

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] = KEY) -> list[httpx.Response]:
        return [httpx.request(method, url + path, json=body, headers=headers, timeout=60) for url in self.urls]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    server = start("-m", str(models.tiny()), *FLAGS)
    with llama_server(models.tiny(), *FLAGS) as theirs:
        yield Pair(theirs, server.url)
    server.stop()


def read(response: httpx.Response) -> Any:
    if response.headers["content-type"].startswith("text/event-stream"):
        # How many events there are depends on how fast they are fetched; the first and the last are there always.
        events = [e for e in parse_events(response.text) if e != "[DONE]"]
        return [events[0], events[-1]]
    return response.json()


def kind(value: Any) -> str:
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    if kind(theirs) != kind(ours):
        return [f"{path}: {theirs!r} and {ours!r}"]
    if isinstance(theirs, dict):
        missing = [f"{path}/{key} is missing" for key in theirs if key not in ours]
        both = theirs.keys() & ours.keys()
        return missing + [d for key in both for d in differences(theirs[key], ours[key], f"{path}/{key}")]
    if isinstance(theirs, list) and theirs:
        return differences(theirs[0], ours[0], f"{path}/0") if ours else [f"{path} is empty"]
    return []


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_answers(pair: Pair, method: str, path: str, body: Any) -> None:
    theirs, ours = pair.send(method, path, body)
    assert ours.status_code == theirs.status_code
    assert ours.headers["content-type"].partition(";")[0] == theirs.headers["content-type"].partition(";")[0]
    assert not differences(read(theirs), read(ours)), json.dumps(read(theirs))[:500]
    if theirs.status_code >= 400:
        assert ours.json()["error"]["type"] == theirs.json()["error"]["type"]
    if path in SAME:
        assert ours.json() == theirs.json()


def test_slots(pair: Pair) -> None:
    """Of a slot that has served a request, wherever that is."""
    pair.send("POST", "/completion", PROMPT)
    theirs, ours = (response.json() for response in pair.send("GET", "/slots"))
    assert len(theirs) == len(ours) == 2
    used = [max(slots, key=len) for slots in (theirs, ours)]
    assert not differences(*used)


def test_metrics(pair: Pair) -> None:
    theirs, ours = (
        {line for line in response.text.splitlines() if line.startswith("# TYPE")}
        for response in pair.send("GET", "/metrics")
    )
    assert theirs <= ours


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer l"}, {"X-Api-Key": "k"}]
)
@pytest.mark.parametrize("path", ["/props", "/health", "/v1/models", "/nope"])
def test_keys(pair: Pair, headers: dict[str, str], path: str) -> None:
    theirs, ours = pair.send("GET", path, headers=headers)
    assert ours.status_code == theirs.status_code
    if ours.status_code == 401:
        assert ours.json() == theirs.json()


@pytest.mark.parametrize("origin", ["https://page.example", ""])
def test_cors(pair: Pair, origin: str) -> None:
    theirs, ours = pair.send("OPTIONS", "/completion", headers={"Origin": origin} if origin else {})
    assert ours.status_code == theirs.status_code == 200
    names = [name for name in theirs.headers if name.startswith("access-control-") and theirs.headers[name]]
    assert len(names) >= 3
    for name in names:
        assert ours.headers[name] == theirs.headers[name]
