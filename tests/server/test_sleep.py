"""Sleep: unloaded when idle, loaded again for who needs the model, and what is told meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from llamaserve.errors import ModelLoadError
from llamaserve.options import ServerSettings
from llamaserve.server.app import create_app
from llamaserve.server.sleep import Sleeper
from llamaserve.server.state import ServerState

from tests.server.conftest import MakeServer, Running
from tests.server.fake_engine import FakeEngine


class Sleepy:
    """The app around fake engines, with a sleeper that waits hardly at all. Used inside an event loop."""

    def __init__(self, seconds: float = 0.05, **settings: Any) -> None:
        self.loads: list[FakeEngine] = []
        self.fail: Exception | None = None
        self.slow = 0.0
        self.state = ServerState(ServerSettings(metrics=True, **settings), "fake", ["fake"], [], "b7")
        self.state.engine = self.load()
        self.state.sleeper = Sleeper(self.state, self.load, seconds)
        transport = httpx.ASGITransport(app=create_app(self.state))  # type: ignore[arg-type]
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    def load(self) -> Any:
        time.sleep(self.slow)
        if self.fail is not None:
            raise self.fail
        self.loads.append(FakeEngine())
        return self.loads[-1]

    async def until_asleep(self) -> None:
        for _ in range(1000):
            if (await self.client.get("/props")).json()["is_sleeping"]:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it doesn't fall asleep")


def test_read_only_routes_dont_wake() -> None:
    async def run() -> None:
        server = Sleepy(api_keys=["k"])
        server.client.headers["X-Api-Key"] = "k"
        assert server.state.sleeper is not None
        server.state.sleeper.start()
        awake = {path: (await server.client.get(path)).json() for path in ("/health", "/props", "/v1/models")}
        await server.until_asleep()
        assert (await server.client.get("/health")).json() == awake["/health"]
        assert (await server.client.get("/props")).json() == {**awake["/props"], "is_sleeping": True}
        assert (await server.client.get("/v1/models")).json()["data"][0]["meta"] == awake["/v1/models"]["data"][0][
            "meta"
        ]
        assert (await server.client.get("/metrics")).status_code == 200
        assert (await server.client.get("/nope")).status_code == 404
        assert (await server.client.post("/tokenize", json={}, headers={"X-Api-Key": "x"})).status_code == 401
        assert server.state.asleep is not None
        assert len(server.loads) == 1
        assert (await server.client.post("/tokenize", json={"content": "a"})).json() == {"tokens": [97]}
        assert len(server.loads) == 2
        assert (await server.client.get("/props")).json()["is_sleeping"] is False

    asyncio.run(run())


def test_one_load_for_all_who_wait() -> None:
    async def run() -> None:
        server = Sleepy()
        assert server.state.sleeper is not None
        server.state.sleeper.start()
        await server.until_asleep()
        server.slow = 0.1
        answers = await asyncio.gather(
            *(server.client.post("/completion", json={"prompt": "a", "n_predict": 2}) for _ in range(5))
        )
        assert [a.status_code for a in answers] == [200] * 5
        assert len(server.loads) == 2

    asyncio.run(run())


def test_a_load_that_fails_is_tried_again() -> None:
    async def run() -> None:
        server = Sleepy()
        assert server.state.sleeper is not None
        server.state.sleeper.start()
        await server.until_asleep()
        server.fail = ModelLoadError("it is gone")
        refused = await server.client.post("/tokenize", json={"content": "a"})
        assert refused.status_code == 503
        assert "it is gone" in refused.json()["error"]["message"]
        assert (await server.client.get("/health")).status_code == 200
        server.fail = None
        assert (await server.client.post("/tokenize", json={"content": "a"})).status_code == 200

    asyncio.run(run())


def test_it_stays_awake_while_it_works() -> None:
    async def run() -> None:
        server = Sleepy(0.02)
        assert server.state.sleeper is not None
        server.loads[0].hang = True
        work = asyncio.create_task(server.client.post("/completion", json={"prompt": "a"}))
        await asyncio.sleep(0.2)
        assert server.state.asleep is None
        server.loads[0].close()
        assert (await work).status_code == 503
        await server.until_asleep()

    asyncio.run(run())


def test_metrics_go_on() -> None:
    def value(text: str, name: str) -> float:
        return next(float(line.split(" ")[1]) for line in text.splitlines() if line.startswith(f"llamacpp:{name} "))

    async def run() -> None:
        server = Sleepy()
        assert server.state.sleeper is not None
        server.state.sleeper.start()
        await server.until_asleep()
        first, second = [(await server.client.get("/metrics")).text for _ in range(2)]
        assert value(first, "tokens_predicted_total") == value(second, "tokens_predicted_total") == 50
        assert value(first, "predicted_tokens_seconds") == 20
        assert value(second, "predicted_tokens_seconds") == 0
        await server.client.post("/tokenize", json={"content": "a"})
        third = (await server.client.get("/metrics")).text
        # The fake engine counts 50 from the start.
        assert value(third, "tokens_predicted_total") == 100
        assert value(third, "n_tokens_max") == 64
        await server.until_asleep()
        assert value((await server.client.get("/metrics")).text, "tokens_predicted_total") == 100

    asyncio.run(run())


def test_scales_of_adapters_are_kept() -> None:
    async def run() -> None:
        server = Sleepy()
        assert server.state.sleeper is not None
        server.state.sleeper.start()
        assert (await server.client.post("/lora-adapters", json=[{"id": 1, "scale": 0.25}])).status_code == 200
        await server.until_asleep()
        adapters = (await server.client.get("/lora-adapters")).json()
        assert len(server.loads) == 2
        assert [adapter["scale"] for adapter in adapters] == [0.0, 0.25]

    asyncio.run(run())


def wait(what: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def memory(server: Running) -> int:
    """Resident memory in kB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_comes_back(make_server: MakeServer) -> None:
    server = make_server("--sleep-idle-seconds", "1", "-c", "2048", "-np", "1", "--temp", "0")
    body = {"prompt": "The capital of France is", "n_predict": 4}
    first = httpx.post(f"{server.url}/completion", json=body, timeout=60).json()["content"]
    before = memory(server)
    wait(lambda: bool(httpx.get(f"{server.url}/props").json()["is_sleeping"]))
    wait(lambda: memory(server) < before - 80_000)  # the model has 98 MB
    again = httpx.post(f"{server.url}/completion", json=body, timeout=60).json()
    assert again["content"] == first
    assert httpx.get(f"{server.url}/props").json()["is_sleeping"] is False
