"""What happens to every request before it is routed: CORS, loading, API keys."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from llamaserve.server import errors
from llamaserve.server.direct import DirectRoute
from llamaserve.server.errors import ApiError
from llamaserve.server.state import ServerState, loading

_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")

# What a sleeping server answers without waking up.
_WITHOUT_MODEL = frozenset(
    ("/", "/index.html", "/health", "/v1/health", "/metrics", "/models", "/v1/models", "/props", "/schema/openapi.json")
)

Headers = list[tuple[bytes, bytes]]


class Gate:
    """Wraps the app. CORS preflights are answered here, and so are requests that may not pass.

    `direct`: routes by path that POST requests may take instead of the app's. `paths`: those of all routes.
    """

    def __init__(
        self, app: ASGIApp, state: ServerState, direct: Mapping[str, DirectRoute], paths: Iterable[str]
    ) -> None:
        self.app = app
        self._direct = direct
        self._state = state
        self._cors = Cors(state)
        self._keys = [key.encode() for key in state.settings.api_keys]
        prefix = self._prefix = state.settings.api_prefix
        self._paths = {path.removeprefix(prefix) for path in paths}
        self._pages = {f"{prefix}/", f"{prefix}/index.html", prefix}
        self._public = self._pages | {f"{prefix}/health", f"{prefix}/v1/health"}
        vertex = state.settings.vertex
        if vertex is not None and vertex.health_route:
            self._public.add(prefix + vertex.health_route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        sent = dict(scope["headers"])
        extra = self._cors.headers(sent.get(b"origin", b""))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        if scope["method"] == "OPTIONS":
            await _respond(send_with_headers, 200, b"", [(b"content-type", b"text/html"), *self._cors.preflight])
            return
        if scope["method"] == "HEAD":
            # The answer to GET; the HTTP server leaves out its body.
            scope = {**scope, "method": "GET"}
        path = scope["path"]
        refusal: ApiError | None = None
        if self._state.engine is None and self._state.asleep is None and path not in self._pages:
            refusal = loading()
        elif self._keys and path not in self._public and not self._key_fits(sent):
            refusal = ApiError(401, "Invalid API Key")
        if refusal is None:
            try:
                if self._needs_model(scope["method"], path):
                    await self._run_awake(scope, receive, send_with_headers, sent)
                else:
                    await self._run(scope, receive, send_with_headers, sent)
                return
            except ApiError as e:
                refusal = e
        await _refuse(send_with_headers, path, refusal)

    def _needs_model(self, method: str, path: str) -> bool:
        """Whether the model must be awake: not for what is known without it, nor for routes that aren't there."""
        if self._state.sleeper is None:
            return False
        path = path.removeprefix(self._prefix)
        if path in _WITHOUT_MODEL and (path != "/props" or method == "GET"):
            return False
        return path in self._paths or path.startswith("/slots/")

    async def _run_awake(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        """Raises `ApiError` if the model can't be loaded again."""
        assert self._state.sleeper is not None
        async with self._state.sleeper.awake():
            await self._run(scope, receive, send, headers)

    async def _run(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        direct = self._direct.get(scope["path"])
        if direct is not None and scope.get("method") == "POST" and direct.fits(headers):
            await direct(scope, receive, send, _refuse)
        else:
            await self.app(scope, receive, send)

    def _key_fits(self, headers: dict[bytes, bytes]) -> bool:
        sent = headers.get(b"authorization") or headers.get(b"x-api-key", b"")
        sent = sent.removeprefix(b"Bearer ")
        # All keys are compared, and in constant time, so that timing tells nothing about them.
        return sum(hmac.compare_digest(sent, key) for key in self._keys) > 0


class Cors:
    """The answer to "may this page call us?", after the --cors-* flags."""

    def __init__(self, state: ServerState) -> None:
        s = state.settings
        self._origins = set(s.cors_origins)
        self._any = "*" in self._origins
        self._credentials = s.cors_credentials
        self.preflight: Headers = [
            (b"access-control-allow-credentials", b"true" if s.cors_credentials else b"false"),
            (b"access-control-allow-methods", _joined(s.cors_methods)),
            (b"access-control-allow-headers", _joined(s.cors_headers)),
        ]

    def headers(self, origin: bytes) -> Headers:
        allowed = self._allowed(origin.decode("latin-1"))
        if not allowed:
            return []
        headers = [(b"access-control-allow-origin", allowed.encode("latin-1"))]
        return headers if allowed == "*" else [*headers, (b"vary", b"Origin")]

    def _allowed(self, origin: str) -> str:
        if self._any:
            # A browser refuses "*" for requests with credentials, so the origin itself is answered.
            return (origin or "*") if self._credentials else "*"
        if origin in self._origins or ("localhost" in self._origins and _LOCAL_ORIGIN.fullmatch(origin)):
            return origin
        return ""


def _joined(items: Iterable[str]) -> bytes:
    return ", ".join(items).encode("latin-1")


async def _refuse(send: Send, path: str, error: Exception) -> None:
    info = errors.info_of(error)
    more = [(name.lower().encode(), value.encode()) for name, value in errors.headers_of(info).items()]
    await _respond(send, info.code, errors.body_for(path, info), [(b"content-type", b"application/json"), *more])


async def _respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
