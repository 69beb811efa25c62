"""`Engine`: one loaded model that serves many requests at once, for synchronous and asynchronous callers."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any

import msgspec
from typing_extensions import Self, Unpack

from llamaserve import _core
from llamaserve._events import AsyncPump, AsyncStream, SyncStream, finish_of, info_of, metrics_of, slot_of
from llamaserve._request import make_request_params
from llamaserve.chat import ChatParams, ChatPrompt
from llamaserve.engine_options import EngineOptions, make_engine_params
from llamaserve.errors import EngineClosedError, ModelLoadError, RequestError
from llamaserve.params import ChatConstraint, CompletionParams, Prompt, merge
from llamaserve.results import (
    ChatChunk,
    ChatCompletion,
    Chunk,
    Completion,
    Metrics,
    ModelInfo,
    SlotInfo,
    TokenProb,
)


class Engine:
    """A GGUF model, loaded and ready to complete text.

    `model` is the path of a GGUF file. `defaults` are sampling parameters for requests that don't set their own. The keyword
    options carry the names of llama-server's flags (`ctx_size=4096`, `parallel=8`, ...; see `EngineOptions`).

    All methods may be called from any thread; those starting with `a` belong to an asyncio event loop. Several engines can live
    in one process. Close an engine with `close()`, or use it as a (synchronous or asynchronous) context manager.

    Raises `ModelLoadError` if the file is missing, damaged, or can't be loaded with these options.
    """

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
            self._core = _core.Engine(params)
        except _core.LoadError as e:
            raise ModelLoadError(str(e)) from None
        self.info: ModelInfo = info_of(self._core.info())
        self._pumps: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncPump] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._closed = False

    # -- completions ---------------------------------------------------------------------------------------------------------

    def complete(self, prompt: Prompt, params: CompletionParams | None = None, **overrides: Any) -> Completion:
        """The completion of `prompt`. Parameters come from `params`, with `overrides` (by field name) on top.

        Raises `RequestError` if the engine refuses the request, `EngineClosedError` if it is or gets closed.
        """
        with self.stream(prompt, params, **overrides) as stream:
            return _collect(list(stream))

    def stream(
        self,
        prompt: Prompt,
        params: CompletionParams | None = None,
        *,
        constraint: ChatConstraint | None = None,
        **overrides: Any,
    ) -> SyncStream:
        """Starts a completion and returns its chunks as an iterator (also a context manager: leaving it cancels the rest)."""
        sink = _core.EventSink()
        return SyncStream(self._core, self._submit(prompt, params, constraint, overrides, sink), sink)

    async def acomplete(self, prompt: Prompt, params: CompletionParams | None = None, **overrides: Any) -> Completion:
        """As `complete`, without blocking the event loop. Cancelling the task cancels the request."""
        async with self.astream(prompt, params, **overrides) as stream:
            return _collect([chunk async for chunk in stream])

    def astream(
        self,
        prompt: Prompt,
        params: CompletionParams | None = None,
        *,
        constraint: ChatConstraint | None = None,
        **overrides: Any,
    ) -> AsyncStream:
        """As `stream`, for the running event loop."""
        pump = self._pump()
        return pump.open(self._core, self._submit(prompt, params, constraint, overrides, pump.sink))

    # -- chats ---------------------------------------------------------------------------------------------------------------

    def apply_template(self, chat: ChatParams | Sequence[dict[str, Any]], **fields: Any) -> ChatPrompt:
        """Renders a chat with the model's template. `fields` are those of `ChatParams`.

        Raises `RequestError` ("invalid_request") where the template or a schema refuses the input.
        """
        if not isinstance(chat, ChatParams):
            chat = msgspec.convert({"messages": list(chat), **fields}, ChatParams)
        elif fields:
            chat = msgspec.structs.replace(chat, **fields)
        inputs = _core.ChatInputs()
        inputs.messages = _json(chat.messages)
        inputs.tools = _json(chat.tools) if chat.tools else ""
        inputs.tool_choice = chat.tool_choice
        inputs.parallel_tool_calls = -1 if chat.parallel_tool_calls is None else int(chat.parallel_tool_calls)
        inputs.json_schema = "" if chat.json_schema is None else _json(chat.json_schema)
        inputs.grammar = chat.grammar
        inputs.add_generation_prompt = chat.add_generation_prompt
        inputs.continue_final_message = (
            chat.continue_final_message
            if isinstance(chat.continue_final_message, str)
            else ("true" if chat.continue_final_message else "")
        )
        inputs.reasoning_format = chat.reasoning_format or ""
        inputs.reasoning_effort = chat.reasoning_effort or ""
        if chat.reasoning_budget_tokens is not None:
            inputs.reasoning_budget = chat.reasoning_budget_tokens
        if chat.reasoning_budget_message is not None:
            inputs.reasoning_budget_message = chat.reasoning_budget_message
        inputs.chat_template_kwargs = {k: _json(v) for k, v in chat.chat_template_kwargs.items()}
        inputs.stream = chat.stream
        try:
            return ChatPrompt(self._core.apply_template(inputs), grammar_is_users=bool(chat.grammar))
        except ValueError as e:
            raise RequestError(str(e), "invalid_request") from None

    def chat(
        self, chat: ChatParams | Sequence[dict[str, Any]], params: CompletionParams | None = None, **overrides: Any
    ) -> ChatCompletion:
        """The model's answer to a chat.

        `chat` is a list of messages, or a `ChatParams` for tools, schemas and the like; `overrides` are completion parameters.
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
        params = _with_stops(merge(params, overrides), prompt, self.defaults)
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
        params = _with_stops(merge(params, overrides), prompt, self.defaults)
        async with self.astream(prompt.prompt, params, constraint=prompt.constraint) as stream:
            async for chunk in stream:
                final = chunk.finish is not None
                if prompt.plain:
                    deltas = parser.feed(chunk.text, final=final)
                else:
                    deltas = await asyncio.to_thread(parser.feed, chunk.text, final=final)
                yield ChatChunk(deltas, chunk, parser.message if final else None)

    # -- tokens --------------------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of `text`. `add_special` adds what the model wants at the start (BOS); `parse_special` turns
        texts like `<|im_end|>` into their tokens."""
        return self._core.tokenize(text, add_special, parse_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included. Raises `ValueError` for an id outside the vocabulary."""
        return self._core.detokenize(list(tokens))

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one token (they may end within a character). Raises `ValueError` for an id outside the vocabulary."""
        return self._core.token_bytes(token)

    # -- state ---------------------------------------------------------------------------------------------------------------

    def slots(self) -> list[SlotInfo]:
        """What every slot is doing. Waits for the step that is running."""
        self._check_open()
        return [slot_of(s) for s in self._core.slots()]

    def metrics(self, *, reset_window: bool = False) -> Metrics:
        """Counters and gauges. Waits for the step that is running."""
        self._check_open()
        return metrics_of(self._core.metrics(reset_window))

    def effective_params(self, params: CompletionParams | None = None, **overrides: Any) -> dict[str, Any]:
        """All parameters that a request with these would run with: names as in the HTTP API."""
        return make_request_params(self._core, self.defaults, merge(params, overrides), None).as_dict()

    @staticmethod
    def system_info() -> dict[str, Any]:
        """What is in this build and on this machine: versions, backends, devices, CPU features."""
        return _core.system_info()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends all requests in flight with `EngineClosedError` and frees the model. May be called more than once."""
        with self._lock:
            self._closed = True
        self._core.close()

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

    # -- internals -----------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("the engine is closed")

    def _submit(
        self,
        prompt: Prompt,
        params: CompletionParams | None,
        constraint: ChatConstraint | None,
        overrides: dict[str, Any],
        sink: _core.EventSink,
    ) -> int:
        self._check_open()
        if overrides:
            params = merge(params, overrides)
        request = make_request_params(self._core, self.defaults, params, constraint)
        return self._core.submit([prompt] if isinstance(prompt, str) else list(prompt), request, sink)

    def _pump(self) -> AsyncPump:
        loop = asyncio.get_running_loop()
        pump = self._pumps.get(loop)
        if pump is None:
            pump = self._pumps[loop] = AsyncPump(loop)
        return pump


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _with_stops(params: CompletionParams, prompt: ChatPrompt, defaults: CompletionParams | None) -> CompletionParams:
    if not prompt.stop:
        return params
    stop = params.stop if params.stop is not None else (defaults.stop if defaults else None)
    own = [stop] if isinstance(stop, str) else list(stop or ())
    return msgspec.structs.replace(params, stop=own + prompt.stop)


def _collect(chunks: list[Chunk]) -> Completion:
    finish = finish_of(chunks)
    tokens: list[int] = []
    probs: list[TokenProb] = []
    for chunk in chunks:
        tokens += chunk.tokens
        probs += chunk.probs
    return Completion(finish.text, tuple(tokens), finish, tuple(probs))
