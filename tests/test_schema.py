"""JSON schemas: what is accepted is enforced in full, what can't be enforced is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llamaserve import Engine, RequestError

# -- schemas that are enforced ----------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "ab", "abc", "long name", "x-y", "n_1", "é"])
small = st.integers(0, 3)

patterns = st.sampled_from(
    [r"^[a-z]{2,4}$", r"^\d{3}-\d{4}$", r"^(foo|bar)+$", r"^.{0,5}$", r"[A-F]\w?", r"^a|b$", r"^[^x]{1,3}$", r"^\"\\$",
     r"^(?:\s|\S){2}$", r"^[\w.-]+@[a-z]+\.[a-z]{2,3}$", r"^é?[à-ÿ]*$", r"^\n\t?$", r"^(a*b?){0,2}$"]
)  # fmt: skip


def with_some(base: dict[str, Any], optional: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=optional).map(lambda extra: {**base, **extra})


def ordered(low: str, high: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(small, small).map(lambda pair: {low: min(pair), high: max(pair)})


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        properties = draw(st.dictionaries(names, inner, max_size=3))
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        required = draw(st.lists(names, unique=True, max_size=2))
        others = draw(st.sampled_from(["absent", False, True, {"type": "integer"}]))
        if others != "absent":
            schema["additionalProperties"] = others
        schema["required"] = [name for name in required if name in properties or others is not False]
        return schema

    return build()


scalars = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.just({"type": "number"}),
    st.just({"type": "string"}),
    st.tuples(st.integers(-2000, 2000), st.integers(0, 2000)).flatmap(
        lambda pair: st.sampled_from([
            {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]},
            {"type": "integer", "exclusiveMinimum": pair[0] - 0.5, "maximum": pair[0] + pair[1] + 1},
            {"type": "integer", "minimum": pair[0]},
            {"type": "integer", "exclusiveMaximum": pair[0]},
            {"minimum": pair[0], "type": "integer", "multipleOf": 1},
        ])
    ),
    ordered("minLength", "maxLength").map(lambda lengths: {"type": "string", **lengths}),
    patterns.map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(["date", "time", "date-time", "uuid"]).map(lambda f: {"type": "string", "format": f}),
    st.lists(st.sampled_from([1, -2.5, "x", 'q"\\', None, True, [1], {"a": "é"}]), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from([0, "c", {"k": [1, 2]}, None]).map(lambda value: {"const": value}),
    st.just({"type": ["string", "null"], "maxLength": 4, "minimum": 3}),
    st.just({"type": ["string", "integer"], "enum": ["a", 1, None]}),
    st.just({"maxLength": 3}),
    st.just({}),
)  # fmt: skip


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        objects(inner),
        st.tuples(inner, ordered("minItems", "maxItems")).map(
            lambda both: {"type": "array", "items": both[0], **both[1]}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: {"type": "array", "prefixItems": items}),
        st.lists(inner, min_size=1, max_size=3).map(lambda alternatives: {"anyOf": alternatives}),
        inner.map(
            lambda one: {
                "oneOf": [
                    {"type": "object", "properties": {"k": {"const": 1}, "v": one}, "required": ["k"]},
                    {"type": "object", "properties": {"k": {"const": 2}}, "required": ["k"]},
                    {"type": "string"},
                ]
            }
        ),
        st.tuples(inner, inner).map(
            lambda both: {
                "allOf": [
                    {"type": "object", "properties": {"p": both[0]}, "required": ["p"]},
                    {"properties": {"q": both[1]}, "title": "annotated"},
                ]
            }
        ),
        inner.map(
            lambda one: {
                "type": "object",
                "properties": {"a": one, "b": {"type": "integer"}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            }
        ),
    )


schemas = st.recursive(scalars, compound, max_leaves=6)


def with_references(schema: dict[str, Any]) -> dict[str, Any]:
    node = {"type": "object", "properties": {"v": schema, "next": {"$ref": "#/$defs/a~1node"}}, "required": ["v"]}
    return {"$defs": {"a/node": node}, "title": "list", "$ref": "#/$defs/a~1node"}


def conforms(text: str, schema: dict[str, Any]) -> None:
    if "\ufffd" in text:
        return  # a random model writes bytes that are no text, and each is replaced by a character
    value = json.loads(text)
    assert json.dumps(value, ensure_ascii=False).encode(), text  # no half surrogates
    jsonschema.Draft202012Validator(schema).validate(value)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(schema=st.one_of(schemas, schemas.map(with_references)), seed=st.integers(0, 1000))
def test_output_conforms(tiny: Engine, schema: dict[str, Any], seed: int) -> None:
    # A random model never comes to an end of its own: endings are made likely.
    ends = [[text, 6] for text in ('"', "}", "]")]
    answer = tiny.complete("x", n_predict=400, seed=seed, temperature=1.5, json_schema=schema, logit_bias=ends)
    if answer.finish.stop_type == "eos":
        conforms(answer.text, schema)


@pytest.mark.parametrize("pattern", [r"^[a-z]{2,4}$", r"^\d{3}-\d{4}$", r"[A-F]\w?", r"^a|b$", r"^\"\\$", r"^\W\D\S$"])
def test_patterns(tiny: Engine, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    for seed in range(4):
        answer = tiny.complete("x", n_predict=60, seed=seed, temperature=2, json_schema=schema, logit_bias=[['"', 9]])
        if answer.finish.stop_type == "eos":
            conforms(answer.text, schema)


# -- schemas that can't be ---------------------------------------------------------------------------------------------

REFUSED = {
    "#/not": {"not": {"type": "string"}},
    "#/if": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "#/properties/a/multipleOf": {"properties": {"a": {"type": "integer", "multipleOf": 3}}},
    "#/minimum": {"type": "number", "minimum": 0},
    "#/uniqueItems": {"type": "array", "uniqueItems": True},
    "#/contains": {"type": "array", "contains": {"type": "string"}},
    "#/patternProperties": {"type": "object", "patternProperties": {"^a": {"type": "string"}}},
    "#/propertyNames": {"type": "object", "propertyNames": {"maxLength": 3}},
    "#/minProperties": {"type": "object", "minProperties": 1},
    "#/format": {"type": "string", "format": "email"},
    "#/$ref": {"$ref": "https://example.com/schema"},
    "#/$defs/x/not": {"$ref": "#/$defs/x", "$defs": {"x": {"not": {}}}},
    "#/type can't be enforced (it is beside $ref)": {"$ref": "#/$defs/x", "type": "string", "$defs": {"x": {}}},
    "#/enum can't be enforced (it is beside const)": {"const": 1, "enum": [1, 2]},
    "#/pattern can't be enforced (together": {"type": "string", "pattern": "^a$", "minLength": 1},
    "#/oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "#/allOf": {"allOf": [{"type": "string", "minLength": 1}, {"type": "string", "minLength": 2}]},
    "#/required": {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
    "#/type can't be enforced (it is missing": {"minLength": 1, "minItems": 1},
    "#/prefixItems": {"type": "array", "prefixItems": [{}], "minItems": 2},
    "lookaround": {"type": "string", "pattern": "^(?=a)b$"},
    "unknown type": {"type": "text"},
    "there is nothing at $ref": {"$ref": "#/$defs/y"},
    "leads back": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "minLength is above": {"type": "string", "minLength": 3, "maxLength": 2},
    "must be a list of names": {"type": "object", "required": "a"},
    "no value of": {"type": "string", "enum": [1, 2]},
}


@pytest.mark.parametrize("place", REFUSED)
def test_what_can_not_be_enforced_is_refused(tiny: Engine, place: str) -> None:
    with pytest.raises(RequestError) as native:
        tiny.complete("x", n_predict=1, json_schema=REFUSED[place])
    with pytest.raises(RequestError) as chat:
        tiny.apply_template([{"role": "user", "content": "x"}], json_schema=REFUSED[place])
    for caught in (native, chat):
        assert caught.value.kind == "invalid_request"
        assert place in str(caught.value)


@pytest.mark.parametrize(
    "pattern", ["(", "a)", "[a", "a{2,1}", "*", "a**", r"\1", r"\p{L}", "(?<n>a)", "a^", "$a", "\\"]
)
def test_patterns_that_are_refused(tiny: Engine, pattern: str) -> None:
    with pytest.raises(RequestError, match="pattern"):
        tiny.complete("x", n_predict=1, json_schema={"type": "string", "pattern": pattern})


def test_annotations_are_no_constraints(tiny: Engine) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "description": "D",
        "type": "object",
        "properties": {"a": {"type": "boolean", "default": True, "examples": [True], "deprecated": True, "x-odd": 1}},
        "required": ["a"],
        "unevaluatedProperties": False,
        "minProperties": 1,
    }
    conforms(tiny.complete("x", n_predict=60, temperature=0, json_schema=schema, logit_bias=[["}", 9]]).text, schema)


def test_a_grammar_that_does_not_parse_is_refused(tiny: Engine) -> None:
    with pytest.raises(RequestError, match="grammar"):
        tiny.complete("x", n_predict=1, grammar="root ::= (")


# -- tools ------------------------------------------------------------------------------------------------------------

CHAT = [{"role": "user", "content": "x"}]


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def test_calls_that_must_be_valid_refuse_what_can_not_be_enforced(tiny: Engine) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "number", "minimum": 0}}, "not": {"required": ["b"]}}
    with pytest.raises(RequestError, match=r'tools\[0\].function.parameters: #/not .*"strict": false'):
        tiny.apply_template(CHAT, tools=[tool(odd)], tool_choice="required")
    with pytest.raises(RequestError, match="#/not"):
        tiny.apply_template(CHAT, tools=[tool(odd, strict=True)])
    for prompt in (
        tiny.apply_template(CHAT, tools=[tool(odd, strict=False)], tool_choice="required"),
        tiny.apply_template(CHAT, tools=[tool(odd)]),
    ):
        assert prompt.constraint.grammar
        assert '"minimum":0' in prompt.prompt.replace(": ", ":")  # the model sees the schema as it is


@pytest.mark.parametrize(
    "parameters",
    [{"$ref": "https://x"}, {"type": "object", "properties": {"a": True, "b": {"pattern": "(?=x)", "type": "string"}}},
     {"allOf": [{"type": "string"}, {"minLength": 3, "type": "string", "format": "x"}]}, {}, None,
     {"oneOf": [{"type": "object"}, {"required": ["a"]}]}, {"type": "object", "properties": {"a": False}}],
)  # fmt: skip
def test_calls_that_may_be_valid_take_odd_schemas(tiny: Engine, parameters: Any) -> None:
    assert tiny.apply_template(CHAT, tools=[tool(parameters)]).constraint.grammar
