"""`/v1/models`: the one model, in OpenAI's form and in the one that Ollama's clients read."""

from __future__ import annotations

import time

import msgspec
from litestar import get
from litestar.datastructures import State

from llamaserve.results import ModelInfo
from llamaserve.server.state import ServerState


class ModelMeta(msgspec.Struct):
    vocab_type: int
    n_vocab: int
    n_ctx: int
    """Tokens one request may use."""
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    ftype: str


class Model(msgspec.Struct):
    id: str
    aliases: list[str]
    tags: list[str]
    created: int
    meta: ModelMeta
    object: str = "model"
    owned_by: str = "llamacpp"


class OllamaDetails(msgspec.Struct):
    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: list[str] = msgspec.field(default_factory=lambda: [""])
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(msgspec.Struct):
    """Only names and capabilities mean something here."""

    name: str
    model: str
    modified_at: str = ""
    size: str = ""
    digest: str = ""
    type: str = "model"
    description: str = ""
    tags: list[str] = msgspec.field(default_factory=lambda: [""])
    capabilities: list[str] = msgspec.field(default_factory=lambda: ["completion"])
    parameters: str = ""
    details: OllamaDetails = msgspec.field(default_factory=OllamaDetails)


class ModelList(msgspec.Struct):
    models: list[OllamaModel]
    data: list[Model]
    object: str = "list"


@get(["/v1/models", "/models"], summary="List the model", tags=["OpenAI"])
async def list_models(state: State) -> ModelList:
    server: ServerState = state.server
    name = server.model_name
    meta = _meta(server.info)
    return ModelList([OllamaModel(name, name)], [Model(name, server.aliases, server.tags, int(time.time()), meta)])


def _meta(info: ModelInfo) -> ModelMeta:
    return ModelMeta(
        vocab_type=info.vocab_type,
        n_vocab=info.n_vocab,
        n_ctx=info.n_ctx_slot,
        n_ctx_train=info.n_ctx_train,
        n_embd=info.n_embd,
        n_params=info.n_params,
        size=info.size,
        ftype=info.ftype,
    )
