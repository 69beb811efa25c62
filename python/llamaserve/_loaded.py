"""A model from its loading to its end: closed, dropped, or left behind by a program that ends or forks."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import threading
import time
import weakref
from types import TracebackType

from typing_extensions import Self, Unpack

from llamaserve import _core
from llamaserve._events import AsyncPump, info_of
from llamaserve.engine_options import EngineOptions, make_engine_params
from llamaserve.errors import EngineClosedError, ModelLoadError
from llamaserve.params import CompletionParams
from llamaserve.results import ModelInfo


class LoadedModel:
    """The compiled engine and what holds on to it. `Engine` adds what can be asked of it."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        defaults: CompletionParams | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.defaults = defaults
        params = make_engine_params(os.fspath(model), options)
        try:
            core = _core.Engine(params)
        except _core.LoadError as e:
            raise ModelLoadError(str(e)) from None
        self.info: ModelInfo = info_of(core.info())
        """What was loaded."""
        self._core: _core.Engine | None = core
        self._pumps: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncPump] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        _open.add(self)

    @property
    def core(self) -> _core.Engine:
        """The compiled engine; for this package only. Raises `EngineClosedError` once closed."""
        core = self._core
        if core is None:
            if self._pid != os.getpid():
                raise EngineClosedError("the engine belongs to the parent process; load one after the fork")
            raise EngineClosedError("the engine is closed")
        return core

    @property
    def closed(self) -> bool:
        return self._core is None

    def close(self) -> None:
        """Ends all requests in flight with `EngineClosedError` and frees the model. May be called more than once."""
        with self._lock:
            core, self._core = self._core, None
        if core is not None:
            core.close()

    def _forget(self) -> None:
        """For a forked child, which has none of the engine's threads and can't even close it: leaves it for good."""
        core, self._core = self._core, None
        if core is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(core))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _pump(self) -> AsyncPump:
        loop = asyncio.get_running_loop()
        pump = self._pumps.get(loop)
        if pump is None:
            pump = self._pumps[loop] = AsyncPump(loop)
        return pump


_open: weakref.WeakSet[LoadedModel] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Threads that wait for an engine must find their way out before the interpreter goes."""
    for model in list(_open):
        model.close()
    # Closing wakes them; then they must get the GIL, which takes a while on a busy machine.
    deadline = time.monotonic() + 5.0
    while _core.n_waiting() > 0 and time.monotonic() < deadline:
        time.sleep(0.001)


def _forget_all() -> None:
    for model in list(_open):
        model._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
