"""Starts the two servers alike, one at a time."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peer import peer_binary

NAMES = ("llama-server", "llamaserve")


@dataclass
class Server:
    """A running server."""

    name: str
    port: int
    process: psutil.Process

    def peak_memory(self) -> float:
        """The most memory the process has had resident so far, in MB."""
        if sys.platform == "linux":
            for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) * 1024 / 1e6
        return float(self.process.memory_info().rss) / 1e6


def program(name: str) -> list[str]:
    """The command that starts a server."""
    if name == "llamaserve":
        path = Path(sys.executable).parent / "llamaserve"
        found = str(path) if path.exists() else shutil.which("llamaserve")
        return [found] if found else [sys.executable, "-m", "llamaserve.cli"]
    return [str(peer_binary(name))]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def launched(command: list[str], model: Path, *flags: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Runs a server on a free port until the block ends; gives the port once it is ready."""
    port = free_port()
    command = [*command, "-m", str(model), "--port", str(port), *flags]
    # A file, not a pipe: a pipe that nobody empties would stop the server once it is full of log lines.
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + 120
            while True:
                if process.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"{' '.join(command)}: {log.read().decode(errors='replace')[-2000:]}")
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response,
                ):
                    if response.status == 200:
                        break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} did not become ready")
                time.sleep(0.05)
            yield port, process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


@contextlib.contextmanager
def running(name: str, model: Path, *flags: str) -> Iterator[Server]:
    """Runs one of the two servers until the block ends."""
    with launched(program(name), model, *flags) as (port, process):
        yield Server(name, port, psutil.Process(process.pid))
