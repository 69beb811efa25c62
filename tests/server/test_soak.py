"""Many clients that come, go away in the middle and come back: every request ends, no slot leaks, memory stays flat."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import urllib.request
from collections import Counter
from typing import Any

import psutil
import pytest

from tests import models

SECONDS = float(os.environ.get("LLAMASERVE_SOAK_SECONDS", "120"))
CLIENTS = 64
SLOTS = 16


async def request(port: int, body: dict[str, Any], leave_after: float | None) -> str:
    """Sends one request over its own connection; leaves after so many seconds. Says how it went."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        payload = json.dumps(body).encode()
        head = f"POST {body['path']} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        try:
            answer = await asyncio.wait_for(reader.read(-1), leave_after)
        except TimeoutError:
            return "left"
        status = answer.split(b" ", 2)[1].decode()
        if status != "200":
            return status
        if not body["stream"]:
            json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])
            return "whole"
        return "whole" if b"data: [DONE]" in answer else "cut off"
    finally:
        writer.close()


async def client(port: int, seed: int, until: float, seen: Counter[str]) -> None:
    rng = random.Random(seed)
    while time.monotonic() < until:
        body: dict[str, Any] = {
            "path": rng.choice(["/v1/chat/completions", "/v1/completions"]),
            "messages": [{"role": "user", "content": "rain " * rng.randrange(1, 40)}],
            "prompt": "rain " * rng.randrange(1, 60),
            "max_tokens": rng.choice([1, 5, 20, 60]),
            "stream": rng.random() < 0.7,
            "temperature": 0.8,
        }
        leave_after = rng.choice([None, 60.0, rng.random() * 0.02, rng.random() * 0.5])
        seen[await request(port, body, leave_after)] += 1


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        return response.read().decode()


@pytest.mark.timeout(SECONDS + 120)
def test_clients_that_come_and_go(make_server: Any) -> None:
    # Saved prompts soon take all of the 8 MiB that they may, and are not mistaken for a leak from then on.
    flags = ("-c", str(SLOTS * 512), "-np", str(SLOTS), "--metrics", "--cache-ram", "8")
    server = make_server("-m", str(models.tiny()), *flags)
    process = psutil.Process(server.process.pid)
    seen: Counter[str] = Counter()
    memory: list[int] = []

    async def watch(until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(1)
            memory.append(process.memory_info().rss)

    async def main() -> None:
        until = time.monotonic() + SECONDS
        await asyncio.gather(watch(until), *(client(server.port, i, until, seen) for i in range(CLIENTS)))

    asyncio.run(main())
    print(dict(seen), f"memory {memory[0] / 1e6:.0f} to {memory[-1] / 1e6:.0f} MB")
    assert set(seen) == {"whole", "left"}
    assert seen["whole"] > 100
    assert seen["left"] > 100

    deadline = time.monotonic() + 10
    while any(slot["is_processing"] for slot in json.loads(get(server.port, "/slots"))):
        assert time.monotonic() < deadline, "a slot leaks"
        time.sleep(0.1)
    metrics = dict(line.split(" ") for line in get(server.port, "/metrics").splitlines() if not line.startswith("#"))
    assert float(metrics["llamacpp:requests_processing"]) == 0
    assert float(metrics["llamacpp:requests_deferred"]) == 0
    # The first third warms up caches and pools.
    settled = memory[len(memory) // 3 :]
    early, late = sorted(settled[: len(settled) // 3]), sorted(settled[-len(settled) // 3 :])
    growth = late[len(late) // 2] - early[len(early) // 2]
    assert growth < 8e6, f"memory grew by {growth / 1e6:.1f} MB"
