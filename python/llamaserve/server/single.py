"""Sends one JSON body that takes a while to make."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from litestar.types import Receive, Scope, Send

from llamaserve.server import errors
from llamaserve.server.responder import disconnected, send_body

log = logging.getLogger("llamaserve.http")


class Single:
    """The ASGI response that waits for `work` and sends what it gives. A client that goes away cancels it."""

    def __init__(self, work: Callable[[], Awaitable[bytes]]) -> None:
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._work())
        gone = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await self._send(send, work)
            else:
                log.debug("client left %s", scope["path"])
        finally:
            work.cancel()
            gone.cancel()

    @staticmethod
    async def _send(send: Send, work: asyncio.Future[bytes]) -> None:
        try:
            await send_body(send, 200, work.result())
        except Exception as e:
            info = errors.info_of(e)
            try:
                await send_body(send, info.code, errors.body_of(info), errors.headers_of(info))
            except RuntimeError as broken:
                log.debug("could not answer: %s", broken)
