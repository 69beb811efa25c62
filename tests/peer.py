"""llama-server as a peer to compare with.

`LLAMASERVE_PEER` names the program; without it, tests that need it are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import launched

PROGRAM = os.environ.get("LLAMASERVE_PEER", "")

needs_peer = pytest.mark.skipif(not PROGRAM, reason="LLAMASERVE_PEER names no llama-server to compare with")


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


@contextlib.contextmanager
def llama_server(model: Path, *flags: str) -> Iterator[str]:
    """Runs llama-server; gives its URL."""
    with launched([PROGRAM], model, *flags) as (port, _):
        yield f"http://127.0.0.1:{port}"
