"""From inputs to the core's embedding requests, and from its events to results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from llamaserve import _core
from llamaserve._events import AsyncPump, error_of
from llamaserve.embeddings import Embedding, RankedDocument, Ranking
from llamaserve.errors import EngineClosedError, RequestError
from llamaserve.params import Prompt


class EmbeddingRequest:
    """Inputs that go to the engine together."""

    def __init__(
        self,
        core: _core.Engine,
        kind: _core.RequestKind,
        inputs: Sequence[Prompt],
        params: _core.EmbeddingParams,
        *,
        priority: int,
        t_max_ms: int,
    ) -> None:
        self._core, self._kind, self._params = core, kind, params
        self._inputs: list[list[str | int]] = [[p] if isinstance(p, str) else list(p) for p in inputs]
        self._request = core.new_params()
        try:
            self._request.priority = priority
            self._request.t_max_ms = t_max_ms
        except (TypeError, OverflowError):
            raise RequestError("priority and t_max_ms must be whole numbers", "invalid_request") from None

    def wait(self) -> list[_core.Event]:
        """Runs it; gives one event for each input, in their order. Raises what ended any of them."""
        sink = _core.EventSink()
        first = self._submit(sink)
        events: dict[int, _core.Event] = {}
        try:
            while len(events) < len(self._inputs):
                # Short waits, so that Ctrl-C is answered.
                for event in sink.wait(0.2):
                    if event.kind == _core.EventKind.error:
                        raise error_of(event)
                    events[event.request_id] = event
        except BaseException:
            self._cancel(first, events)
            raise
        return [events[first + i] for i in range(len(self._inputs))]

    async def run(self, pump: AsyncPump) -> list[_core.Event]:
        """As `wait`, for an event loop. Cancelling the task cancels the request."""
        if not self._inputs:
            return []
        receiver = _Receiver(pump.loop, len(self._inputs))
        first = self._submit(pump.sink)
        ids = range(first, first + len(self._inputs))
        pump.attach(ids, receiver)
        try:
            await receiver.done
        except BaseException:
            self._cancel(first, receiver.events)
            raise
        finally:
            for request_id in ids:
                pump.forget(request_id)
        return [receiver.events[i] for i in ids]

    def _submit(self, sink: _core.EventSink) -> int:
        try:
            return self._core.embed(self._kind, self._inputs, self._params, self._request, sink)
        except TypeError:
            raise RequestError("an input is text, or a list of texts and token ids", "invalid_request") from None
        except _core.EngineClosed:
            raise EngineClosedError("the engine is closed") from None

    def _cancel(self, first: int, done: dict[int, _core.Event]) -> None:
        for i in range(len(self._inputs)):
            if first + i not in done:
                self._core.cancel(first + i)


class _Receiver:
    """Gathers the events of one request's inputs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, n: int) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.events: dict[int, _core.Event] = {}
        self._n = n

    def push(self, event: _core.Event) -> None:
        if self.done.done():
            return
        if event.kind == _core.EventKind.error:
            self.done.set_exception(error_of(event))
            return
        self.events[event.request_id] = event
        if len(self.events) == self._n:
            self.done.set_result(None)


def inputs_of(inputs: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One input, or several."""
    if isinstance(inputs, str):
        return [inputs]
    items = list(inputs)
    if any(isinstance(item, int) for item in items):
        return [items]  # type: ignore[list-item]
    for item in items:
        if not isinstance(item, (str, Sequence)) or isinstance(item, (bytes, bytearray)):
            raise RequestError("an input is text, or a list of texts and token ids", "invalid_request")
    return items  # type: ignore[return-value]


def embedding_params(normalize: int, dimensions: int | None, n_embd: int) -> _core.EmbeddingParams:
    """Raises `RequestError` ("invalid_request") for values that can't be used."""
    params = _core.EmbeddingParams()
    for name, value in (("dimensions", dimensions), ("embd_normalize", normalize)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise RequestError(f"Field '{name}': {value!r} is not a whole number", "invalid_request")
    if dimensions is not None and not 1 <= dimensions <= n_embd:
        raise RequestError(
            f"Field 'dimensions': {dimensions} can't be used; the model's embeddings have {n_embd} values",
            "invalid_request",
        )
    if not -1 <= normalize < 2**31:
        raise RequestError(f"Field 'embd_normalize': {normalize} can't be used; -1 is the lowest", "invalid_request")
    params.n_dims = dimensions or 0
    params.normalize = normalize
    return params


def rerank_params(query: str, documents: Sequence[str], top_n: int | None) -> _core.EmbeddingParams:
    """Raises `RequestError` ("invalid_request") for what can't be ranked."""
    if isinstance(documents, str) or not all(isinstance(d, str) for d in (query, *documents)):
        raise RequestError("a query is text, and documents are a list of texts", "invalid_request")
    if top_n is not None and top_n < 0:
        raise RequestError("Field 'top_n': must not be below 0", "invalid_request")
    params = _core.EmbeddingParams()
    params.query = query
    return params


def embedding_of(event: _core.Event, *, pooled: bool) -> Embedding:
    return Embedding(event.embedding, event.n_prompt_tokens, event.n_rows, pooled)


def ranking_of(events: list[_core.Event], top_n: int | None) -> Ranking:
    scores = [memoryview(event.embedding).cast("f")[0] for event in events]
    # A score that is no number is the worst.
    order = sorted(
        range(len(scores)), key=lambda i: scores[i] if scores[i] == scores[i] else float("-inf"), reverse=True
    )
    documents = tuple(RankedDocument(i, scores[i]) for i in order[:top_n])
    return Ranking(documents, sum(event.n_prompt_tokens for event in events))
