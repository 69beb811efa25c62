"""`POST /slots/{id}`: a slot saved to a file, restored from one, or erased."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from litestar import Request, post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import FromPath, Parameter

from llamaserve.server.body import decode
from llamaserve.server.errors import RESPONSES, ApiError, ErrorBody
from llamaserve.server.state import ServerState

_MAX_NAME = 255
_FORBIDDEN = frozenset('/\\:*?"<>|\x7f\ufffd\ufeff\uff0e\u2215\u2216')


class SlotFileRequest(msgspec.Struct, kw_only=True):
    """Body of `save` and `restore`."""

    filename: str
    """A name without folders; the file is in the folder of `--slot-save-path`."""


class SaveTimings(msgspec.Struct):
    save_ms: float


class RestoreTimings(msgspec.Struct):
    restore_ms: float


class SlotSaved(msgspec.Struct):
    id_slot: int
    filename: str
    n_saved: int
    """Tokens."""
    n_written: int
    """Bytes."""
    timings: SaveTimings


class SlotRestored(msgspec.Struct):
    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    timings: RestoreTimings


class SlotErased(msgspec.Struct):
    id_slot: int
    n_erased: int


SlotActionResponse: TypeAlias = SlotSaved | SlotRestored | SlotErased


@dataclass
class SlotOperation(Operation):
    """The handler reads its body itself, since `erase` has none; this tells the OpenAPI document of it."""

    def __post_init__(self) -> None:
        name = Schema(type=OpenAPIType.STRING, description="A name without folders, in the folder of --slot-save-path")
        body = Schema(
            type=OpenAPIType.OBJECT,
            properties={"filename": name},
            required=["filename"],
            description="Body of `save` and `restore`.",
        )
        self.request_body = RequestBody(content={"application/json": OpenAPIMediaType(schema=body)}, required=False)


@post(
    "/slots/{id_slot:str}",
    status_code=200,
    operation_class=SlotOperation,
    responses=RESPONSES
    | {501: ResponseSpec(ErrorBody, description="There is no --slot-save-path", generate_examples=False)},
    summary="Save, restore or erase a slot",
    tags=["llama-server"],
)
async def act_on_slot(
    request: Request[Any, Any, Any],
    state: State,
    id_slot: FromPath[str],
    action: Annotated[str | None, Parameter(description="`save`, `restore` or `erase`")] = None,
) -> SlotActionResponse:
    """Needs `--slot-save-path`. `save` and `restore` take a body, `{"filename": "name"}`. A busy slot answers 503."""
    server: ServerState = state.server
    folder = server.settings.slot_save_path
    if folder is None:
        raise ApiError(501, "saving slots is switched off; start the server with --slot-save-path")
    if not (id_slot.isascii() and id_slot.isdecimal() and len(id_slot) < 10):
        raise ApiError(400, "Invalid slot ID")
    slot = int(id_slot)
    engine = server.ready_engine()
    if action == "erase":
        return SlotErased(slot, await engine.aerase_slot(slot))
    if action not in ("save", "restore"):
        raise ApiError(400, "Invalid action: it must be save, restore or erase")
    body = await request.body()
    if not body:
        raise ApiError(400, "the request body is empty")
    name = decode(body, SlotFileRequest).filename
    if not is_file_name(name):
        raise ApiError(400, "Invalid filename: it must be a plain name, without folders and special characters")
    path = Path(folder) / name
    if action == "save":
        if path.is_dir():
            raise ApiError(400, "Invalid filename: there is a folder of that name")
        done = await engine.asave_slot(slot, path)
        return SlotSaved(slot, name, done.n_tokens, done.n_bytes, SaveTimings(done.ms))
    done = await engine.arestore_slot(slot, path)
    return SlotRestored(slot, name, done.n_tokens, done.n_bytes, RestoreTimings(done.ms))


def is_file_name(name: str) -> bool:
    """Whether `name` is that of a file in one folder, on any system."""
    if not name or ".." in name or name[0] == " " or name[-1] in " .":
        return False
    try:
        if len(name.encode()) > _MAX_NAME:
            return False
    except UnicodeEncodeError:
        return False
    return not any(c in _FORBIDDEN or c < " " or "\x80" <= c <= "\x9f" for c in name)
