"""What OpenAI's text completions have beyond llama-server's: echo, suffix, and probabilities in OpenAI's form."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.server.conftest import App

TEXT = ' one two three\n fo\u00fcr "five"'


def choices(app: App, **body: Any) -> list[dict[str, Any]]:
    response = app.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    found = response.json()["choices"]
    assert isinstance(found, list)
    return found


def test_echo(app: App) -> None:
    assert [c["text"] for c in choices(app, prompt="Hi,", echo=True)] == ["Hi," + TEXT]
    found = choices(app, prompt=["a", [66, "c"]], echo=True, n=2, n_predict=1)
    assert [c["text"] for c in found] == ["a one", "a one", "Bc one", "Bc one"]
    assert choices(app, prompt="Hi,", echo=False)[0]["text"] == TEXT


def test_echo_in_a_stream(app: App) -> None:
    events = app.events("/v1/completions", {"prompt": ["a", "b"], "echo": True, "timings_per_token": True})
    for index, prompt in enumerate("ab"):
        texts = [c["text"] for e in events[:-1] for c in e["choices"] if c["index"] == index]
        assert texts[0] == prompt
        assert "".join(texts) == prompt + TEXT


def test_echo_without_probabilities(app: App) -> None:
    response = app.post("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 1})
    assert response.status_code == 400
    assert "logprobs" in response.json()["error"]["message"]


def test_probabilities(app: App) -> None:
    """In both forms: the one that llama-server answers, and OpenAI's."""
    (choice,) = choices(app, prompt="a", logprobs=2, n_predict=3)
    found = choice["logprobs"]
    assert [item["token"] for item in found["content"]] == [" one", " two", " three\n"]
    assert found["tokens"] == [" one", " two", " three\n"]
    assert found["token_logprobs"] == [item["logprob"] for item in found["content"]]
    assert found["top_logprobs"][0] == {"x": found["content"][0]["top_logprobs"][1]["logprob"]}
    assert found["text_offset"] == [0, 4, 8]
    events = app.events("/v1/completions", {"prompt": "a", "logprobs": 2, "n_predict": 3})
    streamed = [e["choices"][0]["logprobs"] for e in events[:-1] if e["choices"][0]["logprobs"]]
    assert [p["text_offset"] for p in streamed] == [[0], [4], [8]]
    assert choices(app, prompt="a")[0]["logprobs"] is None


def test_suffix(app: App) -> None:
    """With a model that can fill in the middle."""
    (choice,) = choices(app, prompt="ab", suffix="c", echo=True)
    assert app.engine.submitted[-1][0] == [1, 290, 97, 98, 291, 99, 292]
    assert choice["text"] == "ab" + TEXT
    app.engine.info = msgspec.structs.replace(app.engine.info, fim_middle=-1)
    response = app.post("/v1/completions", {"prompt": "ab", "suffix": "c"})
    assert response.status_code == 501
    assert "Infill" in response.json()["error"]["message"]
    choices(app, prompt="ab", suffix="")


def test_best_of(app: App) -> None:
    """No more completions are made than are answered."""
    assert app.post("/v1/completions", {"prompt": "a", "best_of": 2}).status_code == 400
    choices(app, prompt="a", best_of=2, n=2)
    choices(app, prompt="a", best_of=1)
