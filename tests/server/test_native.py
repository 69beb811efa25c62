"""`/completion`: the shapes that llama-server's clients rely on."""

from __future__ import annotations

import pytest
from llamaserve import LoraScale
from llamaserve.server.native import pick
from llamaserve.server.prompts import prompts_of

from tests.server.conftest import App

FIELDS = {
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
    "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached",
    "timings",
}  # fmt: skip


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_completion(app: App, path: str) -> None:
    body = app.post(path, {"prompt": "hi", "n_predict": 2}).json()
    assert set(body) == FIELDS
    assert body["content"] == " one two"
    assert body["tokens"] == []
    assert body["stop"] is True
    assert body["model"] == "fake-model"
    assert body["generation_settings"]["n_predict"] == 2
    assert body["generation_settings"]["stream"] is False
    assert body["timings"]["cache_n"] == 3


def test_tokens_come_when_asked_for(app: App) -> None:
    body = app.post("/completion", {"prompt": "hi", "n_predict": 2, "return_tokens": True}).json()
    assert body["tokens"] == [10, 11]


@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
def test_names_of_the_limit(app: App, name: str) -> None:
    assert app.post("/completion", {"prompt": "hi", name: 3}).json()["tokens_predicted"] == 3


def test_null_means_not_set_and_unknown_fields_are_ignored(app: App) -> None:
    body = {"prompt": "hi", "n_predict": None, "temperature": None, "stop": None, "stream": None, "something": [1]}
    assert app.post("/completion", body).status_code == 200


def test_content_type_does_not_matter(app: App) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = app.request("POST", "/completion", content=b'{"prompt": "hi"}', headers=headers)
    assert response.status_code == 200


def test_stream(app: App) -> None:
    *events, last = app.events("/completion", {"prompt": "hi", "n_predict": 3})
    assert [e["content"] for e in events] == [" one", " two", " three\n"]
    assert [e["tokens"] for e in events] == [[10], [11], [12]]
    assert all(e["stop"] is False for e in events)
    assert [e["tokens_predicted"] for e in events] == [1, 2, 3]
    assert set(last) == FIELDS
    assert (last["content"], last["tokens"], last["stop"]) == ("", [], True)
    assert last["generation_settings"]["stream"] is True


def test_stream_with_progress_and_timings(app: App) -> None:
    first, second, _ = app.events(
        "/completion", {"prompt": "hi", "n_predict": 1, "return_progress": True, "timings_per_token": True}
    )
    assert first["prompt_progress"] == {"total": 7, "cache": 3, "processed": 7, "time_ms": 1}
    assert first["content"] == ""
    assert second["timings"]["predicted_n"] == 5


def test_several_prompts_and_choices(app: App) -> None:
    body = app.post("/completion", {"prompt": ["a", "b"], "n": 2, "n_predict": 1, "seed": 4, "id_slot": 1}).json()
    assert [c["index"] for c in body] == [0, 1, 2, 3]
    assert [c["prompt"] for c in body] == ["a", "a", "b", "b"]
    assert [p.seed for _, p, _ in app.engine.submitted] == [4, 5, 4, 5]
    assert [p.id_slot for _, p, _ in app.engine.submitted] == [1, None, 1, None]
    events = app.events("/completion", {"prompt": ["a", "b"], "n_predict": 2})
    for index in (0, 1):
        assert "".join(e["content"] for e in events if e["index"] == index) == " one two"
        assert [e["stop"] for e in events if e["index"] == index] == [False, False, True]


def test_probabilities(app: App) -> None:
    body = app.post("/completion", {"prompt": "hi", "n_predict": 2, "n_probs": 2}).json()
    first, second = body["completion_probabilities"]
    assert first["token"] == " one"
    assert first["bytes"] == list(b" one")
    assert first["logprob"] == pytest.approx(-1.3863, abs=1e-4)
    # The logarithm of 0, in a form that JSON has.
    assert [t["logprob"] for t in second["top_logprobs"]] == [
        pytest.approx(-3.4028e38, rel=1e-3),
        pytest.approx(-0.6931, abs=1e-4),
    ]
    body = app.post("/completion", {"prompt": "hi", "n_predict": 1, "logprobs": 1, "post_sampling_probs": True}).json()
    (only,) = body["completion_probabilities"]
    assert only["prob"] == 0.25
    assert only["top_probs"][0]["prob"] == 0.0
    assert "logprob" not in only


def test_probabilities_in_a_stream(app: App) -> None:
    *events, last = app.events("/completion", {"prompt": "hi", "n_predict": 2, "n_probs": 1})
    assert [len(e["completion_probabilities"]) for e in events] == [1, 1]
    assert "completion_probabilities" not in last


def test_response_fields(app: App) -> None:
    fields = ["content", "generation_settings/n_predict", "nothing/here"]
    body = app.post("/completion", {"prompt": "hi", "n_predict": 1, "response_fields": fields}).json()
    assert body == {"content": " one", "generation_settings/n_predict": 1}
    assert pick({"a": {"b": {"c": 1}}}, ["a/b/c", "a/b", "a/x", "a/b/c/d"]) == {"a/b/c": 1, "a/b": {"c": 1}}


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        ([1, "a"], [[1, "a"]]),
        (["a", "b"], ["a", "b"]),
        (["a", [1, 2], [3, "b"]], ["a", [1, 2], [3, "b"]]),
        ({"prompt_string": "a"}, ["a"]),
        ([{"prompt_string": "a"}, "b"], ["a", "b"]),
    ],
)
def test_forms_of_a_prompt(value: object, prompts: object) -> None:
    assert prompts_of(value, 10) == prompts  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ([], 400),
        (None, 400),
        (1, 400),
        ([["a", "b"]], 400),
        ([True], 400),
        ([-1], 400),
        ([300], 400),
        ([10**30, 1], 400),
        ([1, None], 400),
        ({}, 400),
        ({"prompt_string": 1}, 400),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, 501),
    ],
)
def test_prompts_that_are_none(app: App, value: object, status: int) -> None:
    response = app.post("/completion", {"prompt": value})
    assert response.status_code == status
    assert response.json()["error"]["code"] == status


def test_adapters_go_to_the_engine(app: App) -> None:
    assert app.post("/completion", {"prompt": "a", "lora": [{"id": 1, "scale": 0.5}]}).status_code == 200
    assert app.engine.submitted[-1][1].lora == [LoraScale(1, 0.5)]
    assert app.post("/completion", {"prompt": "a", "lora": []}).status_code == 200
    wrong = app.post("/completion", {"prompt": "a", "lora": [{"scale": 1}]})
    assert (wrong.status_code, "lora" in wrong.json()["error"]["message"]) == (400, True)
