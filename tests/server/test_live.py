"""Over HTTP, with a real model: the whole way from the socket to the model and back."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import MakeServer, Running, parse_events

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


def wait_until_idle(server: Running, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while any(slot["is_processing"] for slot in httpx.get(f"{server.url}/slots").json()):
        assert time.monotonic() < deadline, "a slot is still busy"
        time.sleep(0.05)


@pytest.fixture
def client(live: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")


def test_completion(live: Running) -> None:
    body = {"prompt": "The capital of France is", "n_predict": 6}
    answer = httpx.post(f"{live.url}/completion", json=body, timeout=60).json()
    assert "Paris" in answer["content"]
    assert answer["tokens_predicted"] == 6
    streamed = httpx.post(f"{live.url}/completion", json={**body, "stream": True}, timeout=60)
    events = parse_events(streamed.text)
    assert "".join(e["content"] for e in events) == answer["content"]
    assert events[-1]["stop_type"] == "limit"


def test_openai_client(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["SmolLM2-135M-Instruct.Q4_1.gguf"]
    answer = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=24)
    text = answer.choices[0].message.content
    assert text
    assert answer.usage
    assert answer.usage.completion_tokens <= 24
    stream = client.chat.completions.create(
        model="any", messages=MESSAGES, max_tokens=24, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens
    completion = client.completions.create(model="any", prompt="One, two, three,", max_tokens=4)
    assert "four" in completion.choices[0].text
    pieces = client.completions.create(model="any", prompt="One, two, three,", max_tokens=4, stream=True)
    assert "".join(p.choices[0].text for p in pieces) == completion.choices[0].text


def test_openai_client_async(live: Running) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=8) for _ in range(3))
            )
            texts = {a.choices[0].message.content for a in answers}
            assert len(texts) == 1
            text = ""
            async for chunk in await client.chat.completions.create(
                model="any", messages=MESSAGES, max_tokens=8, stream=True
            ):
                text += chunk.choices[0].delta.content or ""
            assert texts == {text}

    asyncio.run(main())


def test_openai_client_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"exceed|context") as caught:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "rain " * 3000}], stream=True)
    assert caught.value.body["type"] == "exceed_context_size_error"  # type: ignore[index]
    with pytest.raises(openai.BadRequestError, match="grammar"):
        client.completions.create(model="any", prompt="x", extra_body={"grammar": "root ::= ("})
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.list()


def test_json_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        max_tokens=64,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    assert isinstance(json.loads(answer.choices[0].message.content or "")["n"], int)


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.content
    assert "".join(t.token for t in logprobs.content) == answer.choices[0].message.content
    for token in logprobs.content:
        assert token.logprob <= 0
        assert token.top_logprobs[0].logprob >= token.logprob
        assert len(token.top_logprobs) == 3


def test_choices_and_seeds(live: Running) -> None:
    body = {"prompt": "Once", "n": 3, "seed": 7, "temperature": 1.5, "n_predict": 8}
    answers = httpx.post(f"{live.url}/completion", json=body, timeout=60).json()
    assert [a["generation_settings"]["seed"] for a in answers] == [7, 8, 9]
    alone = {**body, "n": 1, "seed": 8}
    assert httpx.post(f"{live.url}/completion", json=alone, timeout=60).json()["content"] == answers[1]["content"]


def test_stop_texts_and_their_probabilities(live: Running) -> None:
    body = {"prompt": "One, two, three, four,", "n_predict": 16, "stop": [" six"], "n_probs": 1}
    answer = httpx.post(f"{live.url}/completion", json=body, timeout=60).json()
    assert answer["stop_type"] == "word"
    assert answer["stopping_word"] == " six"
    assert "".join(p["token"] for p in answer["completion_probabilities"]) == answer["content"]


def test_tokens(live: Running) -> None:
    text = "Hello, wörld! 🤗"
    tokens = httpx.post(f"{live.url}/tokenize", json={"content": text}).json()["tokens"]
    assert httpx.post(f"{live.url}/detokenize", json={"tokens": tokens}).json()["content"] == text
    pieces = httpx.post(f"{live.url}/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert raw.decode() == text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(live: Running, stream: bool) -> None:
    body = json.dumps({"prompt": "x", "n_predict": 900, "ignore_eos": True, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", live.port)) as s:
        s.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 20
        while not any(slot["is_processing"] for slot in httpx.get(f"{live.url}/slots").json()):
            assert time.monotonic() < deadline
    started = time.monotonic()
    wait_until_idle(live)
    assert time.monotonic() - started < 6


def test_bad_grammar_schema_and_values(live: Running) -> None:
    for body in (
        {"prompt": "x", "grammar": "root ::= ("},
        {"prompt": "x", "json_schema": {"type": "hiccup"}},
        {"prompt": "x", "samplers": ["none such"]},
        {"prompt": [[999_999]]},
    ):
        response = httpx.post(f"{live.url}/completion", json={**body, "n_predict": 1}, timeout=60)
        assert response.status_code in (200, 400), (body, response.text)
    assert httpx.get(f"{live.url}/health").status_code == 200


def test_a_long_prompt(live: Running) -> None:
    response = httpx.post(f"{live.url}/completion", json={"prompt": "rain " * 100_000}, timeout=60)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["n_prompt_tokens"] > 99_000
    assert error["n_ctx"] == 1024


def test_many_at_once(live: Running) -> None:
    def ask(i: int) -> str:
        body = {"prompt": f"Number {i}:", "n_predict": 8}
        response = httpx.post(f"{live.url}/v1/completions", json=body, timeout=120)
        return str(response.json()["choices"][0]["text"])

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(16)))
    assert together[3] == ask(3)


def test_header_names_are_spelled_as_llama_server_does(live: Running) -> None:
    response = httpx.get(f"{live.url}/metrics", headers={"Origin": "http://x"})
    names = {name.decode() for name, _ in response.headers.raw}
    assert {"Access-Control-Allow-Origin", "Process-Start-Time-Unix", "Content-Type", "server"} <= names


def test_metrics_and_slots(live: Running) -> None:
    text = httpx.get(f"{live.url}/metrics").text
    values = dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    assert float(values["llamacpp:requests_processing"]) == 0
    slots = httpx.get(f"{live.url}/slots").json()
    assert [s["n_ctx"] for s in slots] == [1024] * 4


def test_keys_and_names(make_server: MakeServer) -> None:
    server = make_server("--api-key", "secret", "--alias", "zeta,alpha", "-c", "1024", "-np", "1", "--no-ui")
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret")
    assert [m.id for m in client.models.list()] == ["alpha"]
    assert client.completions.create(model="x", prompt="x", max_tokens=1).model == "alpha"
    assert httpx.get(f"{server.url}/").status_code == 404


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
@pytest.mark.parametrize("chunked", [False, True])
def test_offers_of_other_protocols_are_ignored(live: Running, protocol: str, chunked: bool) -> None:
    """Java's HTTP client offers HTTP/2 so."""
    body = json.dumps({"content": "hello"}).encode()
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\n"
        b"HTTP2-Settings: AAEAAEAA\r\n%b\r\n\r\n" % (protocol.encode(), framing)
    )
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    with socket.create_connection(("127.0.0.1", live.port)) as s:
        s.settimeout(20)
        with s.makefile("rb") as answers:

            def answer() -> Any:
                assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
                lines = list(iter(answers.readline, b"\r\n"))
                length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
                return json.loads(answers.read(length))

            s.sendall(head + sent)  # in one piece
            first = answer()
            assert first["tokens"]
            for part in (head[:50], head[50:], sent[:3], sent[3:]):
                s.sendall(part)
                time.sleep(0.02)  # so that they come apart; the answer is the same if they don't
            assert answer() == first
            s.sendall(head.replace(b"Upgrade: ", b"X: ") + sent)
            assert answer() == first
            s.sendall((head + sent) * 3)
            assert [answer() for _ in range(3)] == [first] * 3
            s.sendall(b"GET /health HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHost: x\r\n\r\n" * 2)
            assert [answer() for _ in range(2)] == [{"status": "ok"}] * 2
            s.sendall(head.replace(b"POST /tokenize", b"HEAD /health") + sent)
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            list(iter(answers.readline, b"\r\n"))
            s.sendall(head + sent)
            assert answer() == first
