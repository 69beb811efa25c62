"""Measures ASGI servers on what llamaserve asks of one: many small server-sent events in bursts, short answers, and
news of clients that go away.

    pip install granian
    python -m benchmarks.asgi [--rounds 5]

Each server (uvicorn with httptools and uvloop; granian with uvloop) runs the same small app in a process of its own,
one worker. The servers take turns, and the medians over the rounds are printed:

- stream: 32 clients take 256 events each. A ticker makes one event for every stream at once, as a step of the engine
  does, and each event carries the time it was made, so that its way to the client is timed. `cpu` is the server's time
  on the processor for all of them.
- post: one client sends 300 small POST requests, one after the other, over one connection.
- leave: a client closes its connection in the middle of a stream; the time until the app sees `http.disconnect`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

STREAMS = 32
EVENTS = 256
TICK_S = 0.005
POSTS = 300
LEAVES = 20

# -- the app ----------------------------------------------------------------------------------------------------------


class Ticker:
    """Wakes all streams at once, every `TICK_S`."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[int]] = []
        self.task: asyncio.Task[None] | None = None

    def next(self) -> asyncio.Future[int]:
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.run())
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            waiting, self.waiting = self.waiting, []
            now = time.monotonic_ns()
            for future in waiting:
                if not future.done():
                    future.set_result(now)


ticker = Ticker()
left_at: list[int] = []


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """`POST /stream`, `POST /echo`, and `GET /left`: when clients were seen to go away."""
    if scope["type"] != "http":
        return
    if scope["path"] == "/stream":
        await _stream(receive, send)
    elif scope["path"] == "/left":
        await _answer(send, json.dumps(left_at).encode())
    else:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await _answer(send, b'{"length": %d}' % len(body))


async def _answer(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _stream(receive: Receive, send: Send) -> None:
    await receive()
    work = asyncio.ensure_future(_events(send))
    gone = asyncio.ensure_future(_disconnected(receive))
    await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        left_at.append(time.monotonic_ns())
    work.cancel()
    gone.cancel()


async def _events(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(EVENTS):
        made = await ticker.next()
        data = b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}],"model":"some-model"}\n\n' % made
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- the measurement --------------------------------------------------------------------------------------------------

SERVERS = {
    "uvicorn": [
        "-m", "uvicorn", "benchmarks.asgi:app", "--http", "httptools", "--loop", "uvloop", "--lifespan", "off",
        "--no-access-log", "--log-level", "warning",
    ],
    "granian": [
        "-m", "granian", "benchmarks.asgi:app", "--interface", "asginl", "--loop", "uvloop", "--workers", "1",
        "--no-ws", "--http", "1", "--log-level", "warning",
    ],
}  # fmt: skip


@contextlib.contextmanager
def serving(name: str) -> Iterator[tuple[int, int]]:
    """Runs a server; gives its port and the id of its process."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen([sys.executable, *SERVERS[name], "--host", "127.0.0.1", "--port", str(port)])
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)


def post(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body


def cpu_seconds(pid: int) -> float:
    """Time on the processor of a process and its children, where the system tells it (Linux)."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            if int(stat.parent.name) == pid or int(fields[1]) == pid:
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


async def measure_stream(port: int, pid: int) -> dict[str, float]:
    lags: list[float] = []

    async def client() -> None:
        reader, writer = await connect(port)
        writer.write(post("/stream", b"{}"))
        while b"[DONE]" not in (line := await reader.readline()):
            if b'"content":"' in line:
                made = int(line.split(b'"content":"')[1].split(b'"')[0])
                lags.append((time.monotonic_ns() - made) / 1e6)
        writer.close()

    before, started = cpu_seconds(pid), time.monotonic()
    await asyncio.gather(*(client() for _ in range(STREAMS)))
    seconds = time.monotonic() - started
    lags.sort()
    assert len(lags) == STREAMS * EVENTS
    return {
        "stream wall s": seconds,
        "stream cpu s": cpu_seconds(pid) - before,
        "event lag ms, median": statistics.median(lags),
        "event lag ms, 99%": lags[len(lags) * 99 // 100],
    }


async def measure_post(port: int) -> dict[str, float]:
    reader, writer = await connect(port)
    times: list[float] = []
    for _ in range(POSTS):
        started = time.monotonic()
        writer.write(post("/echo", b'{"prompt": "' + b"x" * 500 + b'"}'))
        length = 0
        while (line := await reader.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        await reader.readexactly(length)
        times.append((time.monotonic() - started) * 1e3)
    writer.close()
    times.sort()
    return {"post ms, median": statistics.median(times), "post ms, 99%": times[len(times) * 99 // 100]}


async def measure_leave(port: int) -> dict[str, float]:
    closed: list[int] = []
    for _ in range(LEAVES):
        reader, writer = await connect(port)
        writer.write(post("/stream", b"{}"))
        await reader.readuntil(b"data: ")
        closed.append(time.monotonic_ns())
        writer.transport.abort()
        await asyncio.sleep(0.05)
    reader, writer = await connect(port)
    writer.write(b"GET /left HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    seen: list[int] = json.loads(answer[answer.index(b"[") : answer.rindex(b"]") + 1])
    times = [(b - a) / 1e6 for a, b in zip(closed, seen, strict=False)]
    return {"leave ms, median": statistics.median(times) if times else float("nan"), "leaves seen": len(seen)}


def measure(name: str) -> dict[str, float]:
    with serving(name) as (port, pid):
        results = asyncio.run(measure_post(port))
        results |= asyncio.run(measure_stream(port, pid))
        results |= asyncio.run(measure_leave(port))
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--servers", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    args = parser.parse_args()
    names = [name for name in args.servers if importlib.util.find_spec(name)]
    for name in set(args.servers) - set(names):
        print(f"{name} is not installed; left out")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for i in range(args.rounds):
        for name in names if i % 2 == 0 else reversed(names):
            rounds[name].append(measure(name))
    print(f"{'median of ' + str(args.rounds) + ' rounds':24}" + "".join(f"{name:>12}" for name in names))
    for metric in rounds[names[0]][0]:
        values = [statistics.median(result[metric] for result in rounds[name]) for name in names]
        print(f"{metric:24}" + "".join(f"{value:12.3f}" for value in values))


if __name__ == "__main__":
    main()
