"""What the whole server shares: the engine once it is loaded, and the settings."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llamaserve.engine import Engine
from llamaserve.server.errors import ApiError

if TYPE_CHECKING:
    from llamaserve.options import ServerSettings
    from llamaserve.results import Metrics, ModelInfo
    from llamaserve.server.props import Props
    from llamaserve.server.sleep import Sleeper


@dataclass
class Snapshot:
    """What the server still tells while the model is unloaded."""

    info: ModelInfo
    props: Props
    metrics: Metrics
    lora_scales: dict[int, float]
    """As clients have set them."""


@dataclass
class ServerState:
    """One server. `engine` is `None` until the model is loaded, and while the server sleeps."""

    settings: ServerSettings
    model_name: str
    """Name that responses carry: the first alias, or the model's path or repository."""
    aliases: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    build_info: str = "b0"
    """Build of llama.cpp, as `system_fingerprint` tells it."""
    verbose: bool = False
    """Add `__verbose` to OpenAI responses."""
    engine: Engine | None = None
    sleeper: Sleeper | None = None
    """With `--sleep-idle-seconds`."""
    asleep: Snapshot | None = None
    """What is known of the model while it is unloaded."""
    metrics_before: Metrics | None = None
    """What was counted before the model was last loaded."""
    started_at: float = field(default_factory=time.time)

    @property
    def info(self) -> ModelInfo:
        """What is (or was) loaded. Raises `ApiError` (503) before that."""
        return self.asleep.info if self.asleep is not None else self.ready_engine().info

    def ready_engine(self) -> Engine:
        """The engine. Raises `ApiError` (503) while there is none."""
        if self.engine is None:
            raise loading()
        return self.engine


def loading() -> ApiError:
    return ApiError(503, "Loading model")
