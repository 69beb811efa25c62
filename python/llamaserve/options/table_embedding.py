"""Embeddings and reranking."""

from __future__ import annotations

from .spec import Option
from .values import Choice, Flag, Int

EMBEDDING = (
    Option(
        dest="embedding",
        flags=("--embedding", "--embeddings"),
        env="LLAMA_ARG_EMBEDDINGS",
        type=Flag(),
        section="server",
        scope="engine",
        help="Serve embeddings; for models that are made for them.",
    ),
    Option(
        dest="reranking",
        flags=("--rerank", "--reranking"),
        env="LLAMA_ARG_RERANKING",
        type=Flag(),
        section="server",
        scope="engine",
        help="Serve reranking; for models that are made for it.",
    ),
    Option(
        dest="pooling",
        flags=("--pooling",),
        env="LLAMA_ARG_POOLING",
        type=Choice(("none", "mean", "cls", "last", "rank"), "TYPE"),
        section="server",
        scope="engine",
        help="How token embeddings become one: none, mean, cls, last or rank.",
        default_text="from the model",
    ),
    Option(
        dest="embd_normalize",
        flags=("--embd-normalize",),
        type=Int(min=-1),
        section="server",
        scope="engine",
        help="Norm of embeddings: -1 none, 0 largest is 32760, 1 taxicab, 2 euclidean, above that p-norm.",
        default=2,
    ),
)
