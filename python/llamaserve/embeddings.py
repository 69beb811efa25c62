"""Embeddings and rerank scores: what the engine gives back for inputs that are read, not continued."""

from __future__ import annotations

import msgspec

from llamaserve import _core


class Embedding(msgspec.Struct, frozen=True):
    """The embedding of one input."""

    data: bytes
    """The values as 32-bit floats in the machine's byte order, row after row; `numpy.frombuffer(e.data, "f4")` reads
    them."""
    n_tokens: int
    """Length of the input, special tokens included."""
    n_rows: int = 1
    """1; without pooling, one for each token."""
    pooled: bool = True

    @property
    def vector(self) -> list[float]:
        """The values of a pooled embedding (of the first token, without pooling)."""
        return self.vectors[0]

    @property
    def vectors(self) -> list[list[float]]:
        """All rows: `n_rows` lists of the same length."""
        values: list[float] = list(memoryview(self.data).cast("f"))
        size = len(values) // self.n_rows
        return [values[i : i + size] for i in range(0, len(values), size)]

    def json(self, *, rows: bool = False) -> bytes:
        """The values as JSON: a list, or with `rows` a list of lists. Numbers are as short as 32-bit floats allow."""
        return _core.floats_json(self.data, len(self.data) // 4 // self.n_rows if rows else 0)


class RankedDocument(msgspec.Struct, frozen=True):
    """A document's place in a ranking."""

    index: int
    """Which of the documents that were handed in."""
    score: float
    """Higher is more relevant; the scale is the model's."""


class Ranking(msgspec.Struct, frozen=True):
    """Documents by how relevant they are to a query, best first."""

    documents: tuple[RankedDocument, ...]
    n_tokens: int
    """Tokens of all inputs that were read: the query and its document, for each document."""
