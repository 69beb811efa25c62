"""Two ways to a server: the app in this process around a fake engine, and the real command with a real model."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from llamaserve.options import ServerSettings
from llamaserve.server.app import create_app
from llamaserve.server.state import ServerState

from tests import models
from tests.server.fake_engine import FakeEngine

START_S = 60.0


class App:
    """The app around a fake engine, called without a network."""

    def __init__(self, **settings: Any) -> None:
        self.engine = FakeEngine()
        self.state = ServerState(ServerSettings(**settings), "fake-model", ["fake-model", "other"], ["tag"], "b7-abc")
        self.state.engine = self.engine  # type: ignore[assignment]
        self.asgi = create_app(self.state)

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.asgi)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(call())

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self.request("GET", path, **kwargs)

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **kwargs)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream; `[DONE]` as that string."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return parse_events(response.text)


def parse_events(text: str) -> list[Any]:
    frames = text.split("\n\n")
    assert frames.pop() == ""
    data = [frame.removeprefix("data: ") for frame in frames if frame != ":"]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def parse_named_events(text: str) -> list[tuple[str, Any]]:
    """Events that have names, each with its data."""
    frames = text.split("\n\n")
    assert frames.pop() == ""
    out: list[tuple[str, Any]] = []
    for frame in frames:
        name, data = frame.split("\n")
        out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return out


@pytest.fixture
def app() -> App:
    return App()


@dataclass
class Running:
    """A server in a process of its own. `log` grows while it runs."""

    process: subprocess.Popen[str]
    port: int
    log: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> int:
        """Asks it to stop; returns its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=30)


def start(*flags: str, wait: bool = True) -> Running:
    """Starts `llamaserve`, with SmolLM2 unless `flags` name a model, and waits until the model is loaded."""
    named = {"-m", "--model", "-hf", "--hf-repo", "-mu", "--model-url"} & set(flags)
    model = [] if named else ["-m", str(models.smollm2())]
    command = [sys.executable, "-m", "llamaserve.cli", "--port", "0", "--host", "127.0.0.1", *model, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace")
    running = Running(process, 0, [])
    stderr = process.stderr
    assert stderr is not None

    def read() -> None:
        running.log.extend(iter(stderr.readline, ""))

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + START_S
    while running.port == 0 or (wait and not any("ready: " in line for line in running.log)):
        for line in list(running.log):
            if found := re.search(r"listening on https?://\S+:(\d+)", line):
                running.port = int(found[1])
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"the server did not start: {''.join(running.log)}")
        time.sleep(0.02)
    return running


MakeServer = Callable[..., Running]


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """`make_server(*flags)` starts a server that ends with the test."""
    servers: list[Running] = []

    def make(*flags: str, wait: bool = True) -> Running:
        servers.append(start(*flags, wait=wait))
        return servers[-1]

    yield make
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def live() -> Iterator[Running]:
    """One server for all tests that don't need flags of their own."""
    server = start("-c", "4096", "-np", "4", "--metrics", "--temp", "0")
    yield server
    server.process.kill()
    server.process.wait()
