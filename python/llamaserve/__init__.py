"""llamaserve: serve GGUF language models over HTTP and in-process."""

from llamaserve._version import __version__
from llamaserve.chat import ChatParams, ChatParser, ChatPrompt
from llamaserve.embeddings import Embedding, RankedDocument, Ranking
from llamaserve.engine import Engine
from llamaserve.errors import EngineClosedError, LlamaserveError, ModelLoadError, RequestError
from llamaserve.params import ChatConstraint, CompletionParams, LoraScale, SamplingParams
from llamaserve.results import (
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Chunk,
    Completion,
    Finish,
    LoraAdapter,
    Metrics,
    ModelInfo,
    Progress,
    SlotInfo,
    SlotTransfer,
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
    "LoraAdapter",
    "LoraScale",
    "Metrics",
    "ModelInfo",
    "ModelLoadError",
    "Progress",
    "RankedDocument",
    "Ranking",
    "RequestError",
    "SamplingParams",
    "SlotInfo",
    "SlotTransfer",
    "Timings",
    "TokenProb",
    "ToolCall",
    "__version__",
]
