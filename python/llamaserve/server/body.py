"""From the bytes of a request body to a checked Struct."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from litestar.dto import AbstractDTO

from llamaserve.server.errors import ApiError

if TYPE_CHECKING:
    from litestar._openapi.schema_generation import SchemaCreator
    from litestar.dto.data_structures import DTOFieldDefinition
    from litestar.openapi.spec import Reference, Schema
    from litestar.typing import FieldDefinition

T = TypeVar("T")

MAX_DEPTH = 200
"""Deepest nesting of lists and objects in fields that are handed on as they are (messages, tools, schemas)."""

_AT_PATH = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$(?P<path>.*)`$", re.DOTALL)


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as a `kind`. Raises `ApiError` (400) that names the field which is wrong."""
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return _checked(decoder, body, kind)
    except msgspec.ValidationError as e:
        raise ApiError(400, _explain(str(e))) from None
    except (msgspec.DecodeError, ValueError) as e:
        raise ApiError(400, f"the request body is not valid JSON: {e}") from None
    except RecursionError:
        raise ApiError(400, "the request body is nested too deeply") from None


def _checked(decoder: msgspec.json.Decoder[T], body: bytes, kind: type[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        # llama-server takes 2.0 for 2. It is rare enough to be looked for only when something was wrong.
        fields = msgspec.json.decode(body)
        whole = {k: int(v) for k, v in fields.items() if _is_whole(v)} if isinstance(fields, dict) else {}
        if not whole:
            raise
        return msgspec.convert(fields | whole, kind)


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _explain(message: str) -> str:
    found = _AT_PATH.match(message)
    what, path = (found["what"], found["path"].lstrip(".")) if found else (message, "")
    what = what[:1].lower() + what[1:]
    if not path:
        missing = re.match(r"object missing required field `(.+)`$", what)
        return f"'{missing[1]}' is required" if missing else what
    return f"Field '{path}': {what}"


def check_depth(value: Any, field: str) -> None:
    """Refuses (400) values nested so deeply that code which walks them by recursion could run out of stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise ApiError(400, f"Field '{field}': nested too deeply")


class JsonBody(AbstractDTO[T]):
    """Litestar's hook for reading a body: JSON whatever the content type says (as llama-server does), straight into the
    handler's Struct."""

    def decode_bytes(self, value: bytes) -> Any:
        return decode(value, self.model_type)

    @classmethod
    def create_for_field_definition(cls, field_definition: FieldDefinition, *args: Any, **kwargs: Any) -> None:
        pass

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: SchemaCreator
    ) -> Reference | Schema:
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Generator[DTOFieldDefinition, None, None]:
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        return False
