"""Runs the app: sockets, loading, signals. All that is particular to the ASGI server (uvicorn) is in this file."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import uvicorn
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from llamaserve.engine import Engine
from llamaserve.errors import LlamaserveError
from llamaserve.logs import TRACE, flush
from llamaserve.models import ModelNotFoundError
from llamaserve.server import sockets
from llamaserve.server.app import create_app
from llamaserve.server.errors import ConfigurationError
from llamaserve.server.http_protocol import http_protocol
from llamaserve.server.sleep import Sleeper
from llamaserve.server.state import ServerState

log = logging.getLogger("llamaserve")

KEEP_ALIVE_S = 120
"""Longer than clients and proxies keep idle connections, so that it is they who close them."""

FORCE_AFTER_S = 2.0
"""How long connections get to take their last bytes once the engine is closed."""


def serve(state: ServerState, load: Callable[[], Engine]) -> int:
    """Listens, loads the model meanwhile, and serves until told to stop. Returns the exit status."""
    try:
        listening = sockets.bind(state.settings)
    except sockets.ListenError as e:
        log.error("%s", e)
        return 1
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    runner = _Runner(state, load, listening)
    try:
        return loop.run_until_complete(runner.run())
    finally:
        sockets.close(listening)
        sockets.remove_files(state.settings.hosts)
        if runner.loading:
            # The thread that loads can't be stopped, and must not be surprised by an interpreter that is gone.
            flush()
            os._exit(runner.exit_status)
        _finish(loop)


class _Runner:
    """One run of the server."""

    def __init__(self, state: ServerState, load: Callable[[], Engine], listening: list[socket.socket]) -> None:
        self._state = state
        self._load = load
        self._listening = listening
        self._signals = 0
        self._closing: asyncio.Task[None] | None = None
        self.loading = False
        self.exit_status = 0
        tls = bool(state.settings.ssl_cert_file)
        self._addresses = [sockets.address(sock, tls=tls) for sock in listening]

    async def run(self) -> int:
        settings = self._state.settings
        loop = asyncio.get_running_loop()
        workers = settings.threads_http if settings.threads_http > 0 else min(32, (os.cpu_count() or 1) + 4)
        loop.set_default_executor(ThreadPoolExecutor(workers, thread_name_prefix="http"))
        try:
            config = _config(_spelling(create_app(self._state)), self._state)
            config.load()
        except ConfigurationError as e:
            log.error("%s", e)
            return 1
        except OSError as e:
            log.error("can't read the TLS key or certificate: %s", e.strerror or e)
            return 1
        self._server = _Server(config, self._on_listening)
        self._catch_signals(loop)
        await self._server.serve(sockets=self._listening)
        await self._close_engine()
        return self.exit_status

    # -- loading -------------------------------------------------------------------------------------------------------

    def _on_listening(self) -> None:
        for address in self._addresses:
            log.info("listening on %s", address)
        _warn_if_open(self._state)
        self._start_loading(asyncio.get_running_loop())

    def _start_loading(self, loop: asyncio.AbstractEventLoop) -> None:
        def work() -> None:
            try:
                result: Engine | Exception = self._load()
            except Exception as e:
                result = e
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._loaded, result)

        self.loading = True
        threading.Thread(target=work, name="load", daemon=True).start()

    def _loaded(self, result: Engine | Exception) -> None:
        self.loading = False
        if isinstance(result, Engine):
            self._state.engine = result
            seconds = self._state.settings.sleep_idle_seconds
            if seconds > 0:
                self._state.sleeper = Sleeper(self._state, self._load, seconds)
                self._state.sleeper.start()
            log.info("%s", _describe(result))
            log.info("ready: %s", ", ".join(self._addresses))
            return
        if isinstance(result, (LlamaserveError, ModelNotFoundError)):
            log.error("%s", result)
        else:
            log.error("loading the model failed", exc_info=result)
        self.exit_status = 1
        self._server.should_exit = True

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, self._on_signal)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._on_signal))

    def _on_signal(self) -> None:
        self._signals += 1
        self._server.should_exit = True
        if self._signals > 1:
            self._stop_now()
            return
        seconds = self._state.settings.shutdown_timeout
        running = len(self._server.server_state.tasks)
        if running:
            requests = "request" if running == 1 else "requests"
            log.info(
                "stopping; %d running %s may take %g s to finish; signal again to stop at once",
                running,
                requests,
                seconds,
            )
        else:
            log.info("stopping")
        asyncio.get_running_loop().call_later(seconds, self._stop_now)

    def _stop_now(self) -> None:
        """Ends what is running: closing the engine makes every request answer with an error."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_engine())
        asyncio.get_running_loop().call_later(FORCE_AFTER_S, setattr, self._server, "force_exit", True)
        # Whatever hangs then, the process ends.
        end = threading.Timer(2 * FORCE_AFTER_S, os._exit, (self.exit_status,))
        end.daemon = True
        end.start()

    async def _close_engine(self) -> None:
        if self._state.engine is not None:
            await asyncio.to_thread(self._state.engine.close)


class _Spelled(bytes):
    """A header's name that stays as it is: uvicorn writes what a name's `lower()` gives."""

    def lower(self) -> bytes:
        return self


@cache
def _spelled(name: bytes) -> bytes:
    """A header's name as llama-server spells it, since some clients look for just that."""
    if name in (b"content-length", b"transfer-encoding", b"connection"):
        return name  # the HTTP server looks for these
    return _Spelled(b"-".join(part.capitalize() for part in name.split(b"-")))


def _spelling(app: ASGIApp) -> ASGIApp:
    """`app` with header names spelled."""

    async def spelled(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_spelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(_spelled(name), value) for name, value in message["headers"]]
            await send(message)

        await app(scope, receive, send_spelled)

    return spelled


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process the way of the signal."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: ASGIApp, state: ServerState) -> uvicorn.Config:
    settings = state.settings
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    trace = log.isEnabledFor(TRACE)
    if trace:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    return uvicorn.Config(
        app,
        http=http_protocol(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=trace,
        proxy_headers=False,
        server_header=False,
        headers=[("server", "llamaserve")],
        timeout_keep_alive=KEEP_ALIVE_S,
        ssl_keyfile=settings.ssl_key_file,
        ssl_certfile=settings.ssl_cert_file,
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    if importlib.util.find_spec("uvloop"):
        import uvloop  # noqa: PLC0415

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels what is left and closes the loop, as `asyncio.run` does."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(Exception):
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    asyncio.set_event_loop(None)
    loop.close()


def _describe(engine: Engine) -> str:
    """The model in a line."""
    info = engine.info
    return (
        f"model {info.description}: {info.n_params / 1e6:.0f} M parameters, {info.size / 1e6:.0f} MB; "
        f"{info.n_slots} slot{'' if info.n_slots == 1 else 's'}, {info.n_ctx_slot} tokens for each request"
    )


def _warn_if_open(state: ServerState) -> None:
    settings = state.settings
    if settings.api_keys:
        return
    for host in settings.hosts:
        if not sockets.is_unix(host) and not _is_loopback(host):
            log.warning("%s can be reached from the network and no --api-key is set: anyone may use the model", host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
