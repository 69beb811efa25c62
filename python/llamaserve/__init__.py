"""llamaserve: serve GGUF language models over HTTP and in-process."""

from llamaserve._version import __version__
from llamaserve.chat import ChatParams, ChatParser, ChatPrompt
from llamaserve.embeddings import Embedding, RankedDocument, Ranking
from llamaserve.engine import Engine
from llamaserve.errors import EngineClosedError, LlamaserveError, ModelLoadError, RequestError
from llamaserve.params import ChatConstraint, CompletionParams, SamplingParams
from llamaserve.results import (
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Chunk,
    Completion,
    Finish,
    Metrics,
    ModelInfo,
    Progress,
    SlotInfo,
    Timings,
    TokenProb,
    ToolCall,
)

__all__ = [
    "ChatChunk",
    "ChatCompletion",
    "ChatConstraint",
    "ChatDelta",
    "ChatMessage",
    "ChatParams",
    "ChatParser",
    "ChatPrompt",
    "Chunk",
    "Completion",
    "CompletionParams",
    "Embedding",
    "Engine",
    "EngineClosedError",
    "Finish",
    "LlamaserveError",
    "Metrics",
    "ModelInfo",
    "ModelLoadError",
    "Progress",
    "RankedDocument",
    "Ranking",
    "RequestError",
    "SamplingParams",
    "SlotInfo",
    "Timings",
    "TokenProb",
    "ToolCall",
    "__version__",
]
