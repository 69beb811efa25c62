"""An engine without a model, for tests of what is around it: every prompt is answered with the same words."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
from llamaserve.embeddings import Embedding, RankedDocument, Ranking
from llamaserve.errors import EngineClosedError, RequestError
from llamaserve.params import ChatConstraint, CompletionParams, Prompt
from llamaserve.results import (
    ChatDelta,
    ChatMessage,
    Chunk,
    Finish,
    LoraAdapter,
    Metrics,
    ModelInfo,
    Progress,
    SlotInfo,
    Timings,
    TokenProb,
)

WORDS = (" one", " two", " three\n", " fo\u00fcr", ' "five"')
TIMINGS = Timings(3, 4, 2.0, 0.5, 2000.0, 5, 10.0, 2.0, 500.0)

INFO = ModelInfo(
    path="/models/fake.gguf",
    description="fake",
    ftype="F16",
    n_params=1000,
    size=2000,
    n_ctx_train=512,
    n_embd=8,
    n_vocab=300,
    vocab_type=1,
    n_ctx=512,
    n_ctx_slot=256,
    n_slots=2,
    n_batch=64,
    n_ubatch=64,
    kv_unified=False,
    embedding=True,
    n_embd_out=4,
    pooling="mean",
    embd_normalize=2,
    bos_token="<s>",
    eos_token="</s>",
    chat_template="{{ messages }}",
    chat_template_tool_use="",
    chat_template_caps={"supports_tools": True},
    supports_thinking=False,
    bos_added=1,
    fim_prefix=290,
    fim_suffix=291,
    fim_middle=292,
)


class FakeStream:
    """Stands in for `AsyncStream`. With `hang`, nothing ever comes."""

    def __init__(self, chunks: list[Chunk], *, hang: bool = False, fail_after: int | None = None) -> None:
        self._chunks = chunks
        self._hang = hang
        self._fail_after = fail_after
        self._at = 0
        self.closed = False
        self.engine_closed = asyncio.Event()

    async def chunks(self) -> list[Chunk]:
        if self._hang:
            await self.engine_closed.wait()
            raise EngineClosedError("the engine is closed")
        await asyncio.sleep(0)
        if self._at == self._fail_after:
            raise RequestError("it broke", "internal")
        self._at += 1
        return self._chunks[self._at - 1 : self._at]

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """What the server uses of `Engine`."""

    closed = False
    all_busy = False

    def __init__(self) -> None:
        self.info = INFO
        self.defaults: CompletionParams | None = None
        self.streams: list[FakeStream] = []
        self.embedded: list[tuple[list[Prompt], int | None, int | None, int]] = []
        self.hanging = asyncio.Event()
        self.cancelled = False
        self.submitted: list[tuple[Prompt, CompletionParams, ChatConstraint | None]] = []
        self.hang = False
        self.fail_after: int | None = None
        self.refuse: RequestError | None = None
        self.plain = True
        self.lora_scales = {0: 1.0, 1: 0.5}
        self.finish_fields: dict[str, Any] = {}
        """Changes how completions end."""

    def astream(
        self,
        prompt: Prompt,
        params: CompletionParams,
        *,
        constraint: ChatConstraint | None = None,
        pieces: bool = True,
    ) -> FakeStream:
        if self.refuse is not None:
            raise self.refuse
        self.submitted.append((prompt, params, constraint))
        chunks = _chunks(prompt, params)
        if self.finish_fields:
            assert chunks[-1].finish is not None
            finish = msgspec.structs.replace(chunks[-1].finish, **self.finish_fields)
            chunks[-1] = msgspec.structs.replace(chunks[-1], finish=finish)
        stream = FakeStream(chunks, hang=self.hang, fail_after=self.fail_after)
        self.streams.append(stream)
        return stream

    async def aembed(
        self, inputs: Sequence[Prompt], *, normalize: int | None, dimensions: int | None, priority: int
    ) -> list[Embedding]:
        if self.refuse is not None:
            raise self.refuse
        self.embedded.append((list(inputs), normalize, dimensions, priority))
        if self.hang:
            await self._hang()
        rows = 2 if self.info.pooling == "none" else 1
        values = [0.5, -0.25, 1e-3, float(len(inputs))] * rows
        return [Embedding(struct.pack(f"{len(values)}f", *values), 3, rows) for _ in inputs]

    async def arerank(self, query: str, documents: Sequence[str], *, top_n: int | None, priority: int) -> Ranking:
        """A document's score is its length."""
        if self.refuse is not None:
            raise self.refuse
        order = sorted(range(len(documents)), key=lambda i: -len(documents[i]))
        return Ranking(tuple(RankedDocument(i, len(documents[i]) / 2) for i in order[:top_n]), 5 * len(documents))

    async def _hang(self) -> None:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True

    def apply_template(self, chat: Any) -> Any:
        text = "".join(f"<{m.get('role')}>{m.get('content')}" for m in chat.messages)
        return SimpleNamespace(
            prompt=text, stop=["<end>"], plain=self.plain, constraint=ChatConstraint(), parser=FakeParser
        )

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return [*([1] if add_special else []), *text.encode()]

    def detokenize(self, tokens: Sequence[int]) -> str:
        if any(not 0 <= t < 256 for t in tokens):
            raise ValueError("no such token")
        return bytes(tokens).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def effective_params(self, params: CompletionParams | None = None) -> dict[str, Any]:
        known = {} if params is None else {f: getattr(params, f) for f in CompletionParams.__struct_fields__}
        return {"n_predict": -1, "logit_bias": []} | {k: v for k, v in known.items() if v is not None}

    def lora_adapters(self) -> list[LoraAdapter]:
        return [LoraAdapter(i, "lora.gguf", scale, "", "", "", ()) for i, scale in self.lora_scales.items()]

    def set_lora_adapters(self, scales: Mapping[int, float]) -> None:
        self.lora_scales = {i: scales.get(i, 0.0) for i in self.lora_scales}

    def close(self) -> None:
        for stream in self.streams:
            stream.engine_closed.set()

    def slots(self) -> list[SlotInfo]:
        idle = SlotInfo(0, 256, "idle", self.all_busy, -1, 0, 0, 0, 0, -1, False, False, "", "", {})
        return [idle, msgspec.structs.replace(idle, id=1, is_processing=True, id_task=7, params={"seed": 1})]

    def metrics(self, *, reset_window: bool = False) -> Metrics:
        return Metrics(100, 20, 1.5, 50, 2.0, 10, 64, 15, 10, 0.5, 5, 0.25, 1, 2, 30, 0, 4096, 2)


class FakeParser:
    """Calls one tool, letter by letter, after the text."""

    def __init__(self) -> None:
        self.message = ChatMessage("")

    def feed(self, text: str, *, final: bool = False) -> tuple[ChatDelta, ...]:
        from llamaserve.results import ToolCall  # noqa: PLC0415

        calls = (ToolCall("f", "{}", "id1"),) if final else ()
        self.message = ChatMessage(self.message.content + text, "", calls)
        deltas: tuple[ChatDelta, ...] = (ChatDelta(content=text),) if text else ()
        if final:
            deltas += (
                ChatDelta(tool_call_index=0, tool_call=ToolCall("f", "", "id1")),
                ChatDelta(tool_call_index=0, tool_call=ToolCall("", "{}", "")),
            )
        return deltas

    async def afeed(self, text: str, *, final: bool = False) -> tuple[ChatDelta, ...]:
        return self.feed(text, final=final)


class ThinkingParser:
    """Takes the first word for thoughts."""

    def __init__(self) -> None:
        self.message = ChatMessage("")

    def feed(self, text: str, *, final: bool = False) -> tuple[ChatDelta, ...]:
        thoughts = "" if self.message.reasoning_content else WORDS[0]
        content = text.removeprefix(thoughts)
        self.message = ChatMessage(self.message.content + content, WORDS[0])
        return (ChatDelta(content, thoughts),) if content or thoughts else ()

    async def afeed(self, text: str, *, final: bool = False) -> tuple[ChatDelta, ...]:
        return self.feed(text, final=final)


def _chunks(prompt: Prompt, params: CompletionParams) -> list[Chunk]:
    words = WORDS if params.n_predict is None or params.n_predict < 0 else WORDS[: params.n_predict]
    timings = TIMINGS if params.timings_per_token else None
    out = [Chunk(started=True, n_prompt_tokens=7)]
    if params.return_progress:
        out.append(Chunk(progress=Progress(7, 3, 7, 1), n_prompt_tokens=7, timings=timings))
    for i, word in enumerate(words):
        probs: tuple[TokenProb, ...] = ()
        if params.n_probs:
            top = tuple(TokenProb(j, b"x", 0.5 if j else 0.0) for j in range(params.n_probs))
            probs = (TokenProb(10 + i, word.encode(), 0.25, top),)
        out.append(Chunk(word, (10 + i,), i + 1, 7, probs, timings=timings))
    finish = Finish(
        stop_type="limit" if params.n_predict else "eos",
        stopping_word="",
        truncated=False,
        has_new_line=True,
        id_slot=1,
        tokens_cached=11,
        n_prompt_tokens=7,
        n_predicted=len(words),
        prompt_text=str(prompt),
        text="".join(words),
        timings=TIMINGS,
        params=FakeEngine().effective_params(params),
    )
    out.append(Chunk(n_predicted=len(words), n_prompt_tokens=7, timings=TIMINGS, finish=finish))
    return out
