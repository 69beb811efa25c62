"""Sleep: the model is unloaded while nobody needs it, and loaded again for the next request that does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable

from llamaserve.engine import Engine
from llamaserve.errors import EngineClosedError, LlamaserveError
from llamaserve.models import ModelNotFoundError
from llamaserve.server.errors import ApiError
from llamaserve.server.metrics import join
from llamaserve.server.props import describe
from llamaserve.server.state import ServerState, Snapshot

log = logging.getLogger("llamaserve")


class Sleeper:
    """Watches how long the server is idle. Belongs to the event loop."""

    def __init__(self, state: ServerState, load: Callable[[], Engine], seconds: float) -> None:
        self._state = state
        self._load = load
        self._seconds = seconds
        self._users = 0
        self._timer: asyncio.TimerHandle | None = None
        self._falling: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """The model is loaded: from now on time counts."""
        self._idle()

    @contextlib.asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """The model is there, and stays, in this context. Raises `ApiError` (503) if it can't be loaded again."""
        self._users += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            await self._wake()
            yield
        finally:
            self._users -= 1
            self._idle()

    def _idle(self) -> None:
        if self._users == 0 and self._state.asleep is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._falling = asyncio.create_task(self._sleep())

    async def _sleep(self) -> None:
        state, engine = self._state, self._state.engine
        if engine is None or engine.closed:
            return
        try:
            metrics = await asyncio.to_thread(engine.metrics)
        except EngineClosedError:  # the server is stopping
            return
        if self._users > 0:  # someone came just now
            return
        scales = {adapter.id: adapter.scale for adapter in engine.lora_adapters()}
        state.asleep = Snapshot(engine.info, describe(state, engine), join(state.metrics_before, metrics), scales)
        state.engine = None
        log.info("no requests for %g s: the model is unloaded until the next one", self._seconds)
        await asyncio.to_thread(engine.close)
        del engine
        # The memory comes back when the last reference is gone, and some may be in cycles.
        await asyncio.to_thread(gc.collect)

    async def _wake(self) -> None:
        if self._falling is not None:
            await asyncio.shield(self._falling)
        if self._state.asleep is None:
            return
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._reload())
        await asyncio.shield(self._waking)

    async def _reload(self) -> None:
        state = self._state
        log.info("loading the model again")
        try:
            engine = await asyncio.to_thread(self._load)
        except (LlamaserveError, ModelNotFoundError) as e:
            log.error("%s", e)
            raise ApiError(503, f"the model was unloaded and can't be loaded again: {e}") from None
        if state.asleep is not None:
            state.metrics_before = state.asleep.metrics
            engine.set_lora_adapters(state.asleep.lora_scales)
        state.engine, state.asleep = engine, None
