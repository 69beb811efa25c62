"""`Engine`: one loaded model that serves many requests at once, for synchronous and asynchronous callers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from llamaserve import _core
from llamaserve._chat_inputs import chat_inputs, with_stops
from llamaserve._embed import (
    EmbeddingRequest,
    embedding_of,
    embedding_params,
    inputs_of,
    ranking_of,
    rerank_params,
)
from llamaserve._events import AsyncStream, SyncStream, finish_of, metrics_of, slot_of
from llamaserve._loaded import LoadedModel
from llamaserve._request import make_request_params
from llamaserve.chat import ChatParams, ChatPrompt
from llamaserve.embeddings import Embedding, Ranking
from llamaserve.errors import EngineClosedError, RequestError
from llamaserve.params import ChatConstraint, CompletionParams, Prompt, merge
from llamaserve.results import (
    ChatChunk,
    ChatCompletion,
    Chunk,
    Completion,
    LoraAdapter,
    Metrics,
    SlotInfo,
    SlotTransfer,
    TokenProb,
)


class Engine(LoadedModel):
    """A GGUF model, loaded and ready to complete text.

    `model` is the path of a GGUF file. `defaults` are sampling parameters for requests that don't set their own. The
    keyword options carry the names of llama-server's flags (`ctx_size=4096`, `parallel=8`, ...; see `EngineOptions`).

    All methods may be called from any thread; those starting with `a` belong to an asyncio event loop. Several engines
    can live in one process. Close an engine with `close()`, or use it as a context manager (`with` or `async with`).

    Raises `ModelLoadError` if the file is missing, damaged, or can't be loaded with these options.
    """

    # -- completions --

    def complete(self, prompt: Prompt, params: CompletionParams | None = None, **overrides: Any) -> Completion:
        """The completion of `prompt`. Parameters come from `params`, with `overrides` (by field name) on top.

        Raises `RequestError` if the engine refuses the request, `EngineClosedError` if it is or gets closed.
        """
        sink = _core.EventSink()
        request_id = self._submit(prompt, params, None, overrides, sink, stream=False)
        with SyncStream(self.core, request_id, sink) as stream:
            return _collect(list(stream))

    def stream(
        self,
        prompt: Prompt,
        params: CompletionParams | None = None,
        *,
        constraint: ChatConstraint | None = None,
        **overrides: Any,
    ) -> SyncStream:
        """Starts a completion and returns an iterator over its chunks.

        It is a context manager, too: leaving it cancels the rest.
        """
        sink = _core.EventSink()
        request_id = self._submit(prompt, params, constraint, overrides, sink, stream=True)
        return SyncStream(self.core, request_id, sink)

    async def acomplete(self, prompt: Prompt, params: CompletionParams | None = None, **overrides: Any) -> Completion:
        """As `complete`, without blocking the event loop. Cancelling the task cancels the request."""
        async with self.astream(prompt, params, pieces=False, **overrides) as stream:
            return _collect([chunk async for chunk in stream])

    def astream(
        self,
        prompt: Prompt,
        params: CompletionParams | None = None,
        *,
        constraint: ChatConstraint | None = None,
        pieces: bool = True,
        **overrides: Any,
    ) -> AsyncStream:
        """As `stream`, for the running event loop. Without `pieces` the only chunk is the last one, with everything."""
        pump = self._pump()
        return pump.open(self.core, self._submit(prompt, params, constraint, overrides, pump.sink, stream=pieces))

    # -- chats --

    def apply_template(self, chat: ChatParams | Sequence[dict[str, Any]], **fields: Any) -> ChatPrompt:
        """Renders a chat with the model's template. `fields` are those of `ChatParams`.

        Raises `RequestError` ("invalid_request") where the template or a schema refuses the input.
        """
        if not isinstance(chat, ChatParams):
            chat = msgspec.convert({"messages": list(chat), **fields}, ChatParams)
        elif fields:
            chat = msgspec.structs.replace(chat, **fields)
        inputs = chat_inputs(chat)
        try:
            return ChatPrompt(self.core.apply_template(inputs), grammar_is_users=bool(chat.grammar))
        except ValueError as e:
            raise RequestError(str(e), "invalid_request") from None

    def chat(
        self, chat: ChatParams | Sequence[dict[str, Any]], params: CompletionParams | None = None, **overrides: Any
    ) -> ChatCompletion:
        """The model's answer to a chat.

        `chat` is a list of messages, or a `ChatParams` for tools, schemas and the like; `overrides` are completion
        parameters.
        """
        chunks: list[Chunk] = []
        message = None
        for part in self.stream_chat(chat, params, **overrides):
            chunks.append(part.chunk)
            message = part.message or message
        whole = _collect(chunks)
        assert message is not None
        return ChatCompletion(message, whole.finish, whole.probs)

    def stream_chat(
        self, chat: ChatParams | Sequence[dict[str, Any]], params: CompletionParams | None = None, **overrides: Any
    ) -> Iterator[ChatChunk]:
        """The answer piece by piece. Closing the iterator cancels the rest."""
        prompt = self.apply_template(chat, stream=True)
        parser = prompt.parser()
        params = with_stops(merge(params, overrides), prompt, self.defaults)
        with self.stream(prompt.prompt, params, constraint=prompt.constraint) as stream:
            for chunk in stream:
                deltas = parser.feed(chunk.text, final=chunk.finish is not None)
                yield ChatChunk(deltas, chunk, parser.message if chunk.finish else None)

    async def achat(
        self, chat: ChatParams | Sequence[dict[str, Any]], params: CompletionParams | None = None, **overrides: Any
    ) -> ChatCompletion:
        """As `chat`, without blocking the event loop."""
        chunks: list[Chunk] = []
        message = None
        async for part in self.astream_chat(chat, params, **overrides):
            chunks.append(part.chunk)
            message = part.message or message
        whole = _collect(chunks)
        assert message is not None
        return ChatCompletion(message, whole.finish, whole.probs)

    async def astream_chat(
        self, chat: ChatParams | Sequence[dict[str, Any]], params: CompletionParams | None = None, **overrides: Any
    ) -> AsyncIterator[ChatChunk]:
        """As `stream_chat`, for the running event loop. Templates and parsing run in a worker thread."""
        prompt = await asyncio.to_thread(self.apply_template, chat, stream=True)
        parser = prompt.parser()
        params = with_stops(merge(params, overrides), prompt, self.defaults)
        async with self.astream(prompt.prompt, params, constraint=prompt.constraint) as stream:
            async for chunk in stream:
                final = chunk.finish is not None
                deltas = await parser.afeed(chunk.text, final=final)
                yield ChatChunk(deltas, chunk, parser.message if final else None)

    # -- embeddings --

    def embed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        normalize: int | None = None,
        dimensions: int | None = None,
        priority: int = 0,
        t_max_ms: int = 0,
    ) -> list[Embedding]:
        """The embeddings of one input or several, in their order. Needs an engine made with `embedding=True`.

        An input is text, or a list of token ids (and texts). Several of them are computed in the same batches. With
        the model's pooling each embedding is one row of `info.n_embd_out` values; with pooling "none" it has a row for
        each token, which isn't normalized.

        `normalize`: -1 none, 0 the largest value becomes 32760, 1 taxicab, 2 euclidean, above that p-norm; default:
        the option `embd_normalize`. `dimensions` keeps that many values of each, normalized again: for models trained
        to allow it (Matryoshka).

        Raises `RequestError`: "context_size" for an input that is too long, "not_supported" if this engine makes no
        embeddings, "invalid_request" for an input that is empty or can't be used.
        """
        return self._embeddings(self._embedding_request(inputs, normalize, dimensions, priority, t_max_ms).wait())

    async def aembed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        normalize: int | None = None,
        dimensions: int | None = None,
        priority: int = 0,
        t_max_ms: int = 0,
    ) -> list[Embedding]:
        """As `embed`, without blocking the event loop. Cancelling the task cancels the request."""
        request = self._embedding_request(inputs, normalize, dimensions, priority, t_max_ms)
        return self._embeddings(await request.run(self._pump()))

    def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, priority: int = 0, t_max_ms: int = 0
    ) -> Ranking:
        """Documents by their relevance to `query`, best first; at most `top_n`. Needs an engine made with
        `reranking=True` and a model made for it.

        Raises `RequestError`: "context_size" for a query and document that are too long together, "not_supported" if
        this engine doesn't rank, "invalid_request" for texts that can't be used.
        """
        return ranking_of(self._rerank_request(query, documents, top_n, priority, t_max_ms).wait(), top_n)

    async def arerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, priority: int = 0, t_max_ms: int = 0
    ) -> Ranking:
        """As `rerank`, without blocking the event loop. Cancelling the task cancels the request."""
        request = self._rerank_request(query, documents, top_n, priority, t_max_ms)
        return ranking_of(await request.run(self._pump()), top_n)

    # -- tokens --

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of `text`. `add_special` adds what the model wants at the start (BOS); `parse_special` turns
        texts like `<|im_end|>` into their tokens."""
        return self.core.tokenize(text, add_special, parse_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included. Raises `ValueError` for an id outside the vocabulary."""
        return self.core.detokenize(list(tokens))

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one token (perhaps a part of a character). Raises `ValueError` for an id outside the vocabulary."""
        return self.core.token_bytes(token)

    # -- state --

    def slots(self) -> list[SlotInfo]:
        """What every slot is doing. Waits for the step that is running."""
        try:
            return [slot_of(s) for s in self.core.slots()]
        except _core.EngineClosed:
            raise EngineClosedError("the engine is closed") from None

    def lora_adapters(self) -> list[LoraAdapter]:
        """The adapters that were loaded, with the scales for requests that don't choose."""
        return msgspec.convert(self.core.lora_adapters(), list[LoraAdapter])

    def set_lora_adapters(self, scales: Mapping[int, float]) -> None:
        """Sets the adapters' scales, by number, for requests from now on that don't choose; others are off.

        Raises `RequestError` ("invalid_request") for an adapter that isn't there.
        """
        try:
            self.core.set_lora(list(scales.items()))
        except ValueError as e:
            raise RequestError(str(e), "invalid_request") from None

    def save_slot(self, slot: int, path: str | os.PathLike[str]) -> SlotTransfer:
        """Saves what an idle slot has computed to a file that `restore_slot` and llama-server can read.

        Raises `RequestError`: "unavailable" while the slot is busy, "invalid_request" if there is no such slot,
        "internal" if the file can't be written.
        """
        return self._transfer(_core.Engine.save_slot, slot, path)

    def restore_slot(self, slot: int, path: str | os.PathLike[str]) -> SlotTransfer:
        """Gives an idle slot what was saved to a file: requests that start with the same tokens go on from there.

        The engine must run the same model with the same KV cache types. Raises `RequestError` as `save_slot` does, and
        "invalid_request" for a file that is missing or doesn't fit.
        """
        return self._transfer(_core.Engine.restore_slot, slot, path)

    def erase_slot(self, slot: int) -> int:
        """Forgets what an idle slot has computed; returns how many tokens that was. Raises as `save_slot` does."""
        with _refusals():
            return self.core.erase_slot(slot)

    async def asave_slot(self, slot: int, path: str | os.PathLike[str]) -> SlotTransfer:
        """As `save_slot`, without blocking the event loop."""
        return await asyncio.to_thread(self.save_slot, slot, path)

    async def arestore_slot(self, slot: int, path: str | os.PathLike[str]) -> SlotTransfer:
        """As `restore_slot`, without blocking the event loop."""
        return await asyncio.to_thread(self.restore_slot, slot, path)

    async def aerase_slot(self, slot: int) -> int:
        """As `erase_slot`, without blocking the event loop."""
        return await asyncio.to_thread(self.erase_slot, slot)

    def metrics(self, *, reset_window: bool = False) -> Metrics:
        """Counters and gauges. Waits for the step that is running."""
        try:
            return metrics_of(self.core.metrics(reset_window))
        except _core.EngineClosed:
            raise EngineClosedError("the engine is closed") from None

    def effective_params(self, params: CompletionParams | None = None, **overrides: Any) -> dict[str, Any]:
        """All parameters that a request with these would run with: names as in the HTTP API."""
        return make_request_params(self.core, self.defaults, merge(params, overrides), None).as_dict()

    @staticmethod
    def system_info() -> dict[str, Any]:
        """What is in this build and on this machine: versions, backends, devices, CPU features."""
        return _core.system_info()

    # -- internals --

    def _transfer(
        self,
        call: Callable[[_core.Engine, int, str], tuple[int, int, float]],
        slot: int,
        path: str | os.PathLike[str],
    ) -> SlotTransfer:
        with _refusals():
            return SlotTransfer(slot, *call(self.core, slot, os.fspath(path)))

    def _submit(
        self,
        prompt: Prompt,
        params: CompletionParams | None,
        constraint: ChatConstraint | None,
        overrides: dict[str, Any],
        sink: _core.EventSink,
        *,
        stream: bool,
    ) -> int:
        core = self.core
        if overrides:
            params = merge(params, overrides)
        request = make_request_params(core, self.defaults, params, constraint)
        request.stream = stream
        try:
            return core.submit([prompt] if isinstance(prompt, str) else list(prompt), request, sink)
        except TypeError:
            raise RequestError("a prompt is text, or a list of texts and token ids", "invalid_request") from None
        except _core.EngineClosed:
            raise EngineClosedError("the engine is closed") from None

    def _embedding_request(
        self,
        inputs: Prompt | Sequence[Prompt],
        normalize: int | None,
        dimensions: int | None,
        priority: int,
        t_max_ms: int,
    ) -> EmbeddingRequest:
        norm = self.info.embd_normalize if normalize is None else normalize
        params = embedding_params(norm, dimensions, self.info.n_embd_out)
        kind = _core.RequestKind.embedding
        return EmbeddingRequest(self.core, kind, inputs_of(inputs), params, priority=priority, t_max_ms=t_max_ms)

    def _embeddings(self, events: list[_core.Event]) -> list[Embedding]:
        pooled = self.info.pooling != "none"
        return [embedding_of(event, pooled=pooled) for event in events]

    def _rerank_request(
        self, query: str, documents: Sequence[str], top_n: int | None, priority: int, t_max_ms: int
    ) -> EmbeddingRequest:
        params = rerank_params(query, documents, top_n)
        kind = _core.RequestKind.rerank
        return EmbeddingRequest(self.core, kind, documents, params, priority=priority, t_max_ms=t_max_ms)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """The core's exceptions as this package's."""
    try:
        yield
    except _core.Refused as e:
        kind, message = e.args
        raise RequestError(message, kind) from None
    except _core.EngineClosed:
        raise EngineClosedError("the engine is closed") from None


def _collect(chunks: list[Chunk]) -> Completion:
    finish = finish_of(chunks)
    tokens: list[int] = []
    probs: list[TokenProb] = []
    for chunk in chunks:
        tokens += chunk.tokens
        probs += chunk.probs
    return Completion(finish.text, tuple(tokens), finish, tuple(probs))
