"""What is measured. Each scenario runs against one server and gives figures by name."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.client import Connection, complete_all
from benchmarks.servers import Server

Figures = dict[str, float]
Series = dict[str, list[tuple[float, float]]]

WORDS = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education
""".split()  # noqa: SIM905 (as a list it would be a word a line)


GREEDY = {"temperature": 0, "ignore_eos": True}


def text(seed: int, n: int) -> str:
    """`n` words, always the same for a seed."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n))


@dataclass(frozen=True)
class Figure:
    """One number of a scenario: its unit, and what the ratio to llama-server's must be."""

    unit: str
    target: str = ""
    limit: float | None = None
    higher_is_better: bool = False


@dataclass(frozen=True)
class Scenario:
    title: str
    run: Callable[[Server, int], Coroutine[Any, Any, tuple[Figures, Series]]]
    figures: dict[str, Figure]
    flags: tuple[str, ...] = ("-c", "32768", "-np", "16")
    model: str = "smollm2"


async def wall(port: int, bodies: list[dict[str, Any]]) -> tuple[float, list[Any]]:
    answers = await complete_all(port, bodies)
    return max(a.end for a in answers) - min(a.sent for a in answers), answers


async def shared_prefix(server: Server, seed: int) -> tuple[Figures, Series]:
    prefix = text(seed, 900)
    bodies = [
        {
            "prompt": f"{prefix}\nQuestion {i}: {text(seed + i + 1, 6)}?",
            "n_predict": 16,
            "temperature": 0,
            "ignore_eos": True,
        }
        for i in range(16)
    ]
    cold, _ = await wall(server.port, bodies)
    warm, _ = await wall(server.port, bodies)
    return {"cold": cold, "warm": warm}, {}


async def distinct_prompts(server: Server, seed: int) -> tuple[Figures, Series]:
    bodies = [
        {"prompt": text(seed + 100 + i, 900), "n_predict": 16, "temperature": 0, "ignore_eos": True} for i in range(16)
    ]
    seconds, _ = await wall(server.port, bodies)
    return {"wall": seconds}, {}


async def long_prompt_arrives(server: Server, seed: int) -> tuple[Figures, Series]:
    streams = [
        asyncio.create_task(
            Connection(server.port).complete(
                prompt=text(seed + i, 20), n_predict=220, temperature=0, ignore_eos=True, cache_prompt=False
            )
        )
        for i in range(4)
    ]
    await asyncio.sleep(2.5)
    long = await Connection(server.port).complete(
        prompt=text(seed + 50, 1800), n_predict=1, temperature=0, ignore_eos=True, cache_prompt=False
    )
    answers = [await s for s in streams]
    gaps = [
        (b - long.sent, (b - a) * 1000)
        for x in answers
        for a, b in zip(x.arrivals, x.arrivals[1:], strict=False)
        if b > long.sent - 1
    ]
    during = [ms for at, ms in gaps if at > 0 and at - ms / 1000 < long.first_token]
    return {"worst gap": max(during), "first token": long.first_token}, {"gap in ms": sorted(gaps)}


async def many_streams(server: Server, seed: int) -> tuple[Figures, Series]:
    by_clients: list[tuple[float, float]] = []
    for n in (1, 2, 4, 8, 16):
        bodies = [
            {"prompt": text(seed + n * 100 + i, 8), "n_predict": 64, "temperature": 0, "ignore_eos": True}
            for i in range(n)
        ]
        seconds, answers = await wall(server.port, bodies)
        by_clients.append((n, sum(len(a.arrivals) for a in answers) / seconds))
    return {"16 streams": by_clients[-1][1], "peak memory": server.peak_memory()}, {"tokens/s": by_clients}


async def one_stream(server: Server, seed: int) -> tuple[Figures, Series]:
    answer = await Connection(server.port).complete(
        prompt=text(seed, 8), n_predict=192, temperature=0, ignore_eos=True, cache_prompt=False
    )
    return {"tokens/s": (len(answer.arrivals) - 1) / (answer.arrivals[-1] - answer.arrivals[0])}, {}


def listing(seed: int) -> str:
    """Lines of code, with other names for another seed."""
    rng = random.Random(seed)
    return "".join(f"    {n} = read({n!r}, {rng.randrange(100, 1000)})\n" for n in rng.sample(WORDS, 16))


async def repeated_text(server: Server, seed: int) -> tuple[Figures, Series]:
    """What a model says again: the same lines of code, a third time."""
    rates = []
    for i in range(3):
        lines = listing(seed + i)
        body = {
            "prompt": f"def load():\n{lines}\n\ndef load_again():\n{lines}\n\ndef load_again():\n",
            "n_predict": 192,
        }
        done = await Connection(server.port).post("/completion", {**body, **GREEDY})
        rates.append(done["timings"]["predicted_per_second"])
    return {"tokens/s": statistics.median(rates)}, {}


async def conversations(server: Server, seed: int) -> tuple[Figures, Series]:
    connection = Connection(server.port)
    talks = [f"A talk about {text(seed + i, 60)}.\n" for i in range(8)]
    evaluated = 0
    for turn in range(6):
        for i in range(8):
            talks[i] += f"Q{turn}: {text(seed + 100 * turn + i, 12)}?\nA:"
            done = await connection.post(
                "/completion", {"prompt": talks[i], "n_predict": 12, "temperature": 0, "ignore_eos": True}
            )
            evaluated += done["timings"]["prompt_n"]
            talks[i] += done["content"] + "\n"
    tokenized = [await connection.post("/tokenize", {"content": talk}) for talk in talks]
    unseen = sum(len(t["tokens"]) for t in tokenized) - 8 * 6 * 12
    # The last token of an answer is sampled, but goes through the model only with the next turn's prompt.
    unseen += 8 * 5
    return {"prompt tokens": float(evaluated), "never seen": float(unseen)}, {}


async def tiny_streams(server: Server, seed: int) -> tuple[Figures, Series]:
    bodies = [{"prompt": f"{seed} {i}", "n_predict": 256, "temperature": 0.8, "ignore_eos": True} for i in range(32)]
    seconds, answers = await wall(server.port, bodies)
    return {"tokens/s": sum(len(a.arrivals) for a in answers) / seconds}, {}


async def tiny_requests(server: Server, seed: int) -> tuple[Figures, Series]:
    connection = Connection(server.port)
    times = []
    loop = asyncio.get_running_loop()
    for _ in range(300):
        t0 = loop.time()
        await connection.post("/completion", {"prompt": "a", "n_predict": 1, "temperature": 0})
        times.append((loop.time() - t0) * 1000)
    return {"median": statistics.median(times)}, {}


async def embeddings(server: Server, seed: int) -> tuple[Figures, Series]:
    """32 clients with a document each, and one client with 32 documents in a request."""
    documents = [text(seed + i, 48) for i in range(256)]
    loop = asyncio.get_running_loop()
    waiting = iter(documents)

    async def client() -> None:
        connection = Connection(server.port)
        for document in waiting:
            await connection.post("/v1/embeddings", {"input": document})
        connection.close()

    t0 = loop.time()
    await asyncio.gather(*(client() for _ in range(32)))
    t1 = loop.time()
    connection = Connection(server.port)
    for i in range(0, 256, 32):
        await connection.post("/v1/embeddings", {"input": documents[i : i + 32]})
    connection.close()
    return {"32 clients": 256 / (t1 - t0), "32 in a request": 256 / (loop.time() - t1)}, {}


SCENARIOS: dict[str, Scenario] = {
    "shared": Scenario(
        "16 requests at once share a 900-word prefix, 16 tokens each",
        shared_prefix,
        {"cold": Figure("s", "at most 0.12", 0.12), "warm": Figure("s", "at most 0.8", 0.8)},
    ),
    "distinct": Scenario(
        "16 requests at once of 900 distinct words, 16 tokens each",
        distinct_prompts,
        {"wall": Figure("s", "not slower", 1.0)},
    ),
    "long-prompt": Scenario(
        "4 streams run when a prompt of 1800 words arrives",
        long_prompt_arrives,
        {
            "worst gap": Figure("ms", "at most 1/30", 1 / 30),
            "first token": Figure("s", "at most 1.25", 1.25),
        },
    ),
    "streams": Scenario(
        "16 distinct short streams of 64 tokens",
        many_streams,
        {
            "16 streams": Figure("tokens/s", "not slower", 1.0, higher_is_better=True),
            "peak memory": Figure("MB", "at most 80 MB more"),
        },
    ),
    "one-stream": Scenario(
        "one stream",
        one_stream,
        {"tokens/s": Figure("tokens/s", "0.95 of llama-bench", higher_is_better=True)},
    ),
    "conversations": Scenario(
        "8 conversations in turn on 4 slots, 6 turns each",
        conversations,
        {"prompt tokens": Figure("tokens", "only those never seen"), "never seen": Figure("tokens")},
        flags=("-c", "8192", "-np", "4"),
    ),
    "repeated": Scenario(
        "one answer that repeats its prompt, without drafts",
        repeated_text,
        {"tokens/s": Figure("tokens/s", "not slower", 1.0, higher_is_better=True)},
        flags=("-c", "4096", "-np", "1"),
    ),
    "repeated-drafted": Scenario(
        "one answer that repeats its prompt, with ngram-simple",
        repeated_text,
        {"tokens/s": Figure("tokens/s", "not slower", 1.0, higher_is_better=True)},
        flags=(
            *("-c", "4096", "-np", "1", "--spec-type", "ngram-simple"),
            *("--spec-ngram-simple-size-n", "8", "--spec-ngram-simple-size-m", "32"),
        ),
    ),
    "tiny-streams": Scenario(
        "tiny random model, 32 streams of 256 tokens",
        tiny_streams,
        {"tokens/s": Figure("tokens/s", "at least 1.5", 1.5, higher_is_better=True)},
        flags=("-c", "16384", "-np", "32"),
        model="tiny",
    ),
    "tiny-requests": Scenario(
        "tiny random model, one-token requests in sequence",
        tiny_requests,
        {"median": Figure("ms", "at most the same", 1.0)},
        flags=("-c", "16384", "-np", "32"),
        model="tiny",
    ),
    "embeddings": Scenario(
        "256 documents of 48 words, 32 at a time, all-MiniLM-L6-v2",
        embeddings,
        {
            "32 clients": Figure("documents/s", "at least 1.1", 1.1, higher_is_better=True),
            "32 in a request": Figure("documents/s", "at least 1.1", 1.1, higher_is_better=True),
        },
        flags=("--embeddings", "-np", "8"),
        model="minilm",
    ),
}


def model_path(name: str) -> Path:
    from tests import models  # noqa: PLC0415

    if name == "tiny":
        return models.tiny(n_ctx=4096)
    return models.minilm() if name == "minilm" else models.smollm2()
