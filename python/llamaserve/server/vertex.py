"""Google Vertex AI's prediction protocol: one route that passes each instance on to the route that its format names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body
from litestar.types import ASGIApp, ControllerRouterHandler, Message, Receive, Scope, Send

from llamaserve.options import VertexSettings
from llamaserve.server import errors
from llamaserve.server.body import JsonBody
from llamaserve.server.errors import RESPONSES, ApiError, ConfigurationError
from llamaserve.server.health import Health
from llamaserve.server.responder import JSON_HEADERS

FORMAT = "@requestFormat"
MAX_INSTANCES = 128


class PredictRequest(msgspec.Struct):
    """Body of the prediction route."""

    instances: Annotated[list[Any], msgspec.Meta(max_length=MAX_INSTANCES)]
    """Request bodies; `@requestFormat` of each names its route (`chatCompletions`, or `/v1/chat/completions`)."""


class Predictions(msgspec.Struct):
    """The answers, in the order of the instances; errors are among them."""

    predictions: list[Any]


def handlers(
    settings: VertexSettings, routes: Iterable[ControllerRouterHandler], prefix: str
) -> list[ControllerRouterHandler]:
    """The routes of the protocol. Raises `ConfigurationError` where one is taken."""
    methods = _methods(routes)
    for path in filter(None, (settings.predict_route, settings.health_route)):
        if path in methods or "{" in path:
            raise ConfigurationError(f"Vertex AI's route {path} can't be used: the server has a route of that name")
    targets = _targets(methods)

    @post(
        settings.predict_route,
        status_code=200,
        dto=JsonBody[PredictRequest],
        return_dto=None,
        responses={200: ResponseSpec(Predictions, description="The predictions"), **RESPONSES},
        summary="Predict (Vertex AI)",
        tags=["Vertex AI"],
    )
    async def predict(data: Annotated[PredictRequest, Body()], request: Request[Any, Any, Any]) -> ASGIApp:
        """Answers each instance as the route does that it names."""
        return _Predict(request.app, data.instances, targets, prefix)

    @get(settings.health_route, summary="Is the model loaded? (Vertex AI)", tags=["Vertex AI"])
    async def health() -> Health:
        return Health()

    return [predict, health] if settings.health_route else [predict]


def _methods(routes: Iterable[ControllerRouterHandler]) -> dict[str, str]:
    """Each path, with the method to call it by."""
    methods: dict[str, str] = {}
    for route in routes:
        if isinstance(route, HTTPRouteHandler):
            for path in route.paths:
                for method in route.http_methods:
                    if method == "POST" or path not in methods:
                        methods[path] = str(method)
    return methods


def _targets(methods: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Method and path by every name that a format may have."""
    targets: dict[str, tuple[str, str]] = {}
    # Where a name stands for two paths, it is OpenAI's that is meant.
    for path in sorted(methods, key=lambda p: not p.startswith("/v1/")):
        targets[path] = (methods[path], path)
        targets.setdefault(_camel(path), (methods[path], path))
    return targets


def _camel(path: str) -> str:
    """`/v1/chat/completions` as `chatCompletions`."""
    path = path.removeprefix("/v1").partition("{")[0].strip("/")
    return re.sub("[/_-]([a-z])", lambda match: match[1].upper(), path)


class _Predict:
    """Calls the app for all instances at once. A client that goes away cancels them."""

    def __init__(self, app: ASGIApp, instances: list[Any], targets: dict[str, tuple[str, str]], prefix: str) -> None:
        self._app = app
        self._instances = instances
        self._targets = targets
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_disconnected(receive))
        calls = [asyncio.create_task(self._one(scope, instance, gone)) for instance in self._instances]
        try:
            predictions = await asyncio.gather(*calls)
        finally:
            gone.cancel()
            for call in calls:
                call.cancel()
        if gone.done() and not gone.cancelled():
            return
        body = msgspec.json.encode(Predictions(list(predictions)))
        headers = [*JSON_HEADERS, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _one(self, scope: Scope, instance: Any, gone: asyncio.Task[None]) -> msgspec.Raw | str:
        try:
            method, path, body = self._request(instance)
        except ApiError as e:
            return msgspec.Raw(errors.body_of(errors.info_of(e)))
        answer = await _call(self._app, _inner_scope(scope, method, self._prefix + path, body), body, gone)
        try:
            msgspec.json.decode(answer)
        except msgspec.DecodeError:
            return answer.decode("utf-8", "replace")
        return msgspec.Raw(answer)

    def _request(self, instance: Any) -> tuple[str, str, bytes]:
        if not isinstance(instance, dict):
            raise ApiError(400, "each instance must be a JSON object")
        name = instance.get(FORMAT)
        if not isinstance(name, str):
            raise ApiError(400, f"each instance must include a string {FORMAT}")
        if name not in self._targets:
            raise ApiError(400, f"there is no route for the {FORMAT} {name}")
        fields = {key: value for key, value in instance.items() if key != FORMAT}
        if "stream" in fields:  # there is one answer for all instances, which can't be a stream
            fields["stream"] = False
        method, path = self._targets[name]
        return method, path, msgspec.json.encode(fields)


def _inner_scope(outer: Scope, method: str, path: str, body: bytes) -> Scope:
    about_body = (b"content-length", b"content-type", b"transfer-encoding")
    headers = [(name, value) for name, value in outer["headers"] if name not in about_body]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": outer.get("client"),
        "server": outer.get("server"),
        "state": {},
    }
    return scope  # type: ignore[return-value]


async def _call(app: ASGIApp, scope: Scope, body: bytes, gone: asyncio.Task[None]) -> bytes:
    """Body of the app's answer."""
    given = False
    answer = bytearray()

    async def receive() -> Any:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.wait([gone])
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            answer.extend(message["body"])

    await app(scope, receive, send)
    return bytes(answer)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
