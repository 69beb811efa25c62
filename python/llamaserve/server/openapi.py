"""The OpenAPI document: Litestar makes it from the handlers and Structs, this adds what their docstrings say."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from llamaserve._version import __version__

DESCRIPTION = """llama-server's HTTP API, served by llamaserve.

Errors have one form, `{"error": {"code", "message", "type"}}`. Answers to `"stream": true` are server-sent events."""


class DocumentedJson(JsonRenderPlugin):
    """The document as JSON, with the descriptions of schemas and of their fields."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        describe(openapi_schema)
        return super().render(request, openapi_schema)


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="llamaserve",
        version=__version__,
        description=DESCRIPTION,
        path="/schema",
        render_plugins=[DocumentedJson()],
        use_handler_docstrings=True,
    )


def describe(document: dict[str, Any]) -> None:
    """Adds descriptions to the schemas of Structs, where they have none."""
    structs = {struct.__name__: struct for struct in _structs(msgspec.Struct)}
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        struct = structs.get(name)
        if struct is None:
            continue
        if struct.__doc__:
            schema.setdefault("description", inspect.cleandoc(struct.__doc__))
        texts = field_docs(struct)
        for field, encoded in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
            prop = schema.get("properties", {}).get(encoded)
            if prop is not None and field in texts:
                prop.setdefault("description", texts[field])


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the docstrings under the fields of a Struct say."""
    docs: dict[str, str] = {}
    for kind in reversed(struct.__mro__):
        docs |= _module_docs(kind.__module__).get(kind.__name__, {})
    return docs


def _structs(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("llamaserve"):
            yield kind
        yield from _structs(kind)


@functools.cache
def _module_docs(module: str) -> dict[str, dict[str, str]]:
    """Docstrings of fields, by class; Python itself doesn't keep them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    return {node.name: dict(_field_docs(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _field_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield field.target.id, inspect.cleandoc(value.value)
