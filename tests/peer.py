"""llama-server as a peer to compare with.

`LLAMASERVE_PEER` names the program; without it, tests that need it are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = os.environ.get("LLAMASERVE_PEER", "")

needs_peer = pytest.mark.skipif(not PROGRAM, reason="LLAMASERVE_PEER names no llama-server to compare with")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


@contextlib.contextmanager
def llama_server(model: Path, *flags: str) -> Iterator[str]:
    """Runs llama-server; gives its URL."""
    port = free_port()
    command = [PROGRAM, "-m", str(model), "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, "llama-server has stopped"
            with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health", timeout=5) as response:
                if response.status == 200:
                    break
            assert time.monotonic() < deadline, "llama-server did not become ready"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)
