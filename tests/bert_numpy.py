"""all-MiniLM-L6-v2 computed with numpy from its published files, to compare with."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.bert_models import minilm_folder, read_safetensors

Array = np.ndarray[Any, Any]


class MiniLM:
    def __init__(self) -> None:
        folder = minilm_folder()
        self.weights = read_safetensors(folder / "model.safetensors")
        words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self.ids = {word: i for i, word in enumerate(words)}

    def tokenize(self, text: str) -> list[int]:
        """WordPiece for plain English."""
        out = [self.ids["[CLS]"]]
        for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()):
            start, pieces = 0, []
            while start < len(word):
                end = len(word)
                while (piece := ("##" if start else "") + word[start:end]) not in self.ids:
                    end -= 1
                pieces.append(self.ids[piece])
                start = end
            out += pieces
        return [*out, self.ids["[SEP]"]]

    def embed(self, text: str) -> Array:
        """Mean over the tokens, of length 1."""
        x = self._run(self.tokenize(text)).mean(axis=0)
        return x / np.linalg.norm(x)

    def _run(self, ids: list[int]) -> Array:
        w = self.weights
        n = len(ids)
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:n]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for i in range(6):
            x = self._layer(x, f"encoder.layer.{i}")
        return x

    def _layer(self, x: Array, name: str) -> Array:
        q, k, v = (self._linear(x, f"{name}.attention.self.{p}").reshape(-1, 12, 32) for p in ("query", "key", "value"))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(32)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", scores, v).reshape(-1, 384)
        x = self._norm(x + self._linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        inner = self._linear(x, f"{name}.intermediate.dense")
        inner = inner * 0.5 * (1 + _erf(inner / np.sqrt(2)))
        return self._norm(x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def _erf(x: Array) -> Array:
    """Abramowitz and Stegun 7.1.26: within 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - p * np.exp(-x * x))
