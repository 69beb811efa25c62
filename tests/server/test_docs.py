"""The curl examples of the docs work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import Running

DOCS = Path(__file__).parent.parent.parent / "docs"
HOST = "http://127.0.0.1:8080"


def examples() -> list[tuple[str, str | None]]:
    """Path and body of each curl command."""
    found: list[tuple[str, str | None]] = []
    for page in ("native.md", "openai.md", "operations.md"):
        for block in re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
            for command in re.findall(r"^curl .*?(?=^curl |\Z)", block, re.DOTALL | re.MULTILINE):
                words = shlex.split(command)
                body = words[words.index("-d") + 1] if "-d" in words else None
                found.append((words[1].removeprefix(HOST), body))
    return found


def test_there_are_examples() -> None:
    assert len(examples()) >= 10


@pytest.mark.parametrize(("path", "body"), examples())
def test_example(live: Running, path: str, body: str | None) -> None:
    response = httpx.request("GET" if body is None else "POST", live.url + path, content=body, timeout=60)
    assert response.status_code == 200, response.text
    assert response.json()


def test_json_blocks_are_json() -> None:
    for page in DOCS.glob("*.md"):
        for block in re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            json.loads(block)
