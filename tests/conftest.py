"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from llamaserve import Engine

from tests import models


@pytest.fixture(scope="session")
def smol() -> Iterator[Engine]:
    """SmolLM2 with four slots of 2048 tokens."""
    with Engine(models.smollm2(), ctx_size=8192, parallel=4) as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny() -> Iterator[Engine]:
    """A random llama with four slots of 512 tokens."""
    with Engine(models.tiny(), ctx_size=2048, parallel=4) as engine:
        yield engine
