"""From the bytes of a request body to a checked Struct."""

from __future__ import annotations

import json
import math
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

MAX_MEMBERS = 4096
"""Most members of an object in such fields: templates' JSON finds a member by going through all of them."""

_AT_PATH = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$(?P<path>.*)`$", re.DOTALL)


# An integer of so many digits may be more than a float can hold, which JSON libraries of other languages refuse.
_LONG_NUMBER = re.compile(rb"[0-9]{309}")

_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as a `kind`. Raises `ApiError` (400) that names the field which is wrong."""
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    if _LONG_NUMBER.search(body):
        _refuse_huge_numbers(body)
    try:
        return _checked(decoder, body, kind)
    except msgspec.ValidationError as e:
        if "out of range" in str(e):  # said without the names of the fields
            _refuse_huge_numbers(body)
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
        return msgspec.convert(_whole(fields), kind)


def _whole(value: Any) -> Any:
    """`value` with integers in place of the floats in it that are whole numbers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _refuse_huge_numbers(body: bytes) -> None:
    """Raises `ApiError` (400) that names the first number which no float can hold."""
    try:
        value = json.loads(
            body,
            parse_int=lambda digits: math.inf if math.isinf(float(digits)) else 0,
            parse_constant=lambda _: None,
        )
    except (ValueError, RecursionError):
        return  # something else is wrong as well
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, float) and math.isinf(item):
            raise ApiError(400, f"Field '{path.removeprefix('.')}': the number is out of range")
        if isinstance(item, dict):
            waiting += [(f"{path}.{name}", child) for name, child in reversed(item.items())]
        elif isinstance(item, list):
            waiting += [(f"{path}[{i}]", child) for i, child in reversed(list(enumerate(item)))]


def _explain(message: str) -> str:
    found = _AT_PATH.match(message)
    what, path = (found["what"], found["path"].lstrip(".")) if found else (message, "")
    what = what[:1].lower() + what[1:]
    if not path:
        missing = re.match(r"object missing required field `(.+)`$", what)
        return f"'{missing[1]}' is required" if missing else what
    return f"Field '{path}': {what}"


def check_depth(value: Any, field: str) -> None:
    """Refuses (400) values nested so deeply that code which walks them by recursion could run out of stack, and objects
    so large that it would take long."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                if len(item) > MAX_MEMBERS:
                    raise ApiError(400, f"Field '{field}': an object with more than {MAX_MEMBERS} members")
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
