"""Requests and files made to bring the process down: each gets an error soon, and everybody else is served on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from llamaserve import Engine, ModelLoadError, RequestError

from tests import models


def ref_chain(n: int, link: Any) -> dict[str, Any]:
    defs: dict[str, Any] = {f"a{i}": link(f"#/$defs/a{i + 1}") for i in range(n)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{n}": {"type": "null"}}}


def nested_schema(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


GRAMMARS = {
    "open nesting": "root ::= " + "(" * 50_000,
    "closed nesting": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "chain of rules": "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(100_000)) + '\nr100000 ::= "a"',
    "chain of empty rules": "root ::= r0\n"
    + "\n".join(f'r{i} ::= r{i + 1} | ""' for i in range(9_000))
    + '\nr9000 ::= "a"',
    "more at least than at most": 'root ::= "a"{5,2}',
    "exponential": "root ::= a0 a0\n"
    + "\n".join(f"a{i} ::= a{i + 1} a{i + 1} | a{i + 1}" for i in range(25))
    + '\na25 ::= "a"',
    "optional parts in a row": "root ::= " + '"a"* ' * 3000,
    "alternatives": "root ::= " + " | ".join(f'"w{i}"' for i in range(30_000)),
    "left recursion": 'root ::= root "a" | "a"',
    "only itself": "root ::= root",
    "repetition": 'root ::= "a"{1,100000000}',
    "nested repetition": 'root ::= ((("a"{1,1000}){1,1000}){1,1000}){1,1000}',
    "undefined rule": "root ::= other",
    "no root": 'other ::= "a"',
    "zero byte": 'root ::= "a\0"',
    "long": 'root ::= "' + "a" * 1_000_000 + '"',
}

SCHEMAS = {
    "minLength above maxLength": {"type": "string", "minLength": 9, "maxLength": 3},
    "minItems above maxItems": {"type": "array", "items": {"type": "string"}, "minItems": 5, "maxItems": 3},
    "minimum above maximum": {"type": "integer", "minimum": 9, "maximum": 3},
    "anyOf chain": ref_chain(5000, lambda ref: {"anyOf": [{"$ref": ref}, {"type": "null"}]}),
    "reference chain": ref_chain(60_000, lambda ref: {"$ref": ref}),
    "optional properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}},
    "large enum": {"enum": [f"value {i}" for i in range(20_000)]},
    "nesting": nested_schema(190),
    "huge minimum length": {"type": "string", "minLength": 1_000_000_000},
    "circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
}


# llama.cpp copes with these: they may be served, as long as it doesn't take long.
HARMLESS = {"chain of empty rules", "repetition", "huge minimum length", "circle"}


def refused_or_done(call: Callable[[], object], name: str) -> None:
    try:
        call()
    except RequestError as e:
        assert e.kind == "invalid_request"  # noqa: PT017
    else:
        assert name in HARMLESS


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammar_that_would_hurt(tiny: Engine, name: str) -> None:
    started = time.monotonic()
    refused_or_done(lambda: tiny.complete("a", n_predict=1, grammar=GRAMMARS[name]), name)
    assert time.monotonic() - started < 3
    assert tiny.complete("a", n_predict=1).finish.n_predicted == 1


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_that_would_hurt(tiny: Engine, name: str) -> None:
    started = time.monotonic()
    refused_or_done(lambda: tiny.complete("a", n_predict=1, json_schema=SCHEMAS[name]), name)
    chat = [{"role": "user", "content": "a"}]
    refused_or_done(lambda: tiny.apply_template(chat, json_schema=SCHEMAS[name]), name)
    assert time.monotonic() - started < 6


def test_tools_with_a_schema_that_would_hurt(tiny: Engine) -> None:
    for schema in SCHEMAS.values():
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        chat = [{"role": "user", "content": "a"}]
        with contextlib.suppress(RequestError):
            tiny.apply_template(chat, tools=[tool], tool_choice="required")
    assert tiny.complete("a", n_predict=1).finish.n_predicted == 1


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "yes" | "no"',
        'root ::= [a-z]+ (" " [a-z]+)* "."?',
        "root ::= " + " | ".join(f'"w{i}"' for i in range(1500)),
        'root ::= item{1,200}\nitem ::= "a" | "b"',
        'root ::= # a comment with ( and {5,2}\n "(((" [({|] "{5,2}"',
        'root ::= object\nobject ::= "{" ws (pair ("," ws pair)*)? "}"\n'
        'pair ::= "a:" value\nvalue ::= object | "1"\nws ::= " "*',
    ],
)
def test_ordinary_grammars_pass(tiny: Engine, grammar: str) -> None:
    tiny.complete("a", n_predict=4, grammar=grammar)


def test_ordinary_schemas_pass(tiny: Engine) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}
    schemas: list[Any] = [
        {"$ref": "#/$defs/node", "$defs": {"node": node}},
        {"type": "object", "properties": {f"p{i}": {"type": "number"} for i in range(100)}},
        {"enum": [f"value {i}" for i in range(1000)]},
        nested_schema(30),
        {"type": "string", "minLength": 3, "maxLength": 200},
        {},
    ]
    for schema in schemas:
        tiny.complete("a", n_predict=2, json_schema=schema)


def damaged(path: Path, key: str, value: Any) -> Path:
    """The tiny model with one metadata value changed."""
    data = bytearray(models.tiny().read_bytes())
    field = gguf.GGUFReader(models.tiny()).fields[key]
    offset = field.offset + sum(part.nbytes for part in field.parts[:-1])
    dtype = field.parts[-1].dtype
    data[offset : offset + dtype.itemsize] = memoryview(field.parts[-1].dtype.type(value).tobytes())
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.block_count", 2**31 - 1),
        ("llama.block_count", 2**32 - 1),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.context_length", 0),
        ("llama.attention.head_count", 0),
        ("llama.embedding_length", 0),
    ],
)
def test_model_with_impossible_metadata(tmp_path: Path, key: str, value: Any) -> None:
    path = damaged(tmp_path / "bad.gguf", key, value)
    program = (
        "import sys\nfrom llamaserve import Engine, ModelLoadError\n"
        f"try:\n    Engine({str(path)!r}, parallel=1)\nexcept ModelLoadError as e:\n    sys.exit(str(e))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert str(path) in ended.stderr


def test_options_that_would_end_the_process() -> None:
    with pytest.raises(ModelLoadError, match="ctx_size"):
        Engine(models.tiny(), ctx_size=1, parallel=1)
    with pytest.raises(ModelLoadError, match="override_kv"):
        Engine(models.tiny(), override_kv=["llama.block_count=int:0"])


def test_numbers_too_large_name_the_field(tiny: Engine) -> None:
    for field, value in (("t_max_predict_ms", 10**30), ("temperature", 10**400)):
        with pytest.raises((RequestError, ValueError), match=field):
            tiny.complete("a", n_predict=1, **{field: value})
    assert tiny.complete("a", n_predict=1, logit_bias=[[99999999999, 5]]).finish.n_predicted == 1


def test_a_repetition_of_what_may_be_empty_is_served(tiny: Engine) -> None:
    """llama-common writes tool calls of some chat templates this way."""
    grammar = 'root ::= "<" (call? space)+ ">"\ncall ::= "x"\nspace ::= " "?'
    text = tiny.complete("a", n_predict=40, grammar=grammar, seed=1).text
    assert text.startswith("<")
    assert set(text) <= set("<x >")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samplers", ["top_k"] * 1000),
        ("samplers", "k" * 1000),
        ("samplers", ["dry", "top_k", "dry"]),
        ("dry_sequence_breakers", [f"b{i}" for i in range(1000)]),
    ],
)
def test_samplers_that_would_take_long(tiny: Engine, field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as refused:
        tiny.complete("a", n_predict=1, dry_multiplier=1.0, **{field: value})
    assert refused.value.kind == "invalid_request"
    fine = {"samplers": ["dry", "top_k", "temperature"], "dry_sequence_breakers": [f"b{i}" for i in range(100)]}
    assert tiny.complete("a", n_predict=1, dry_multiplier=1.0, **fine).finish.n_predicted == 1
