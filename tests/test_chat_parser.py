"""Answers parsed piece by piece: the pieces make up the whole, and the work grows with the text, not its square."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llamaserve import Engine, ModelLoadError, RequestError
from llamaserve.chat import ChatPrompt
from llamaserve.results import ChatDelta, ChatMessage

from tests import models

MESSAGES = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Writes a file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "lines": {"type": "array"}},
            "required": ["path", "text"],
        },
    },
}

TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}CALL"
    "{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOLS = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</tools>{% endif %}"
JSON_CALL = (
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
)
TAGGED_CALL = (
    "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}"
    "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

TEMPLATES = {
    "own form": THINKING.replace("<think>\n{{", "{{").replace("\n</think>\n\n{% endif %}{{ m", "{% endif %}{{ m"),
    "json calls": TOOLS + TURNS.replace("CALL", JSON_CALL),
    # llama-common knows this form by its marks, and wants the roles to be marked so, too.
    "tagged calls": TOOLS
    + TURNS.replace("CALL", TAGGED_CALL)
    .replace("<|{{ m.role }}|>", "<|im_start|>{{ m.role }}\n")
    .replace("<|assistant|>", "<|im_start|>assistant\n"),
    "thoughts": THINKING,
}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    loaded = {
        name: Engine(models.tiny(), ctx_size=512, parallel=1, chat_template=text) for name, text in TEMPLATES.items()
    }
    yield loaded
    for engine in loaded.values():
        engine.close()


def json_call(arguments: dict[str, Any]) -> str:
    call = {"name": "write_file", "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def tagged_call(arguments: dict[str, Any]) -> str:
    values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}
    inside = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function=write_file>\n{inside}</function>\n</tool_call>"


def gathered(deltas: Sequence[ChatDelta]) -> tuple[str, str, list[list[str]]]:
    content = "".join(d.content for d in deltas)
    thoughts = "".join(d.reasoning_content for d in deltas)
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        if delta.tool_call is not None:
            call = calls.setdefault(delta.tool_call_index, ["", ""])
            call[0] += delta.tool_call.name
            call[1] += delta.tool_call.arguments
    return content, thoughts, [calls[i] for i in sorted(calls)]


def parts_of(message: ChatMessage) -> tuple[str, str, list[list[str]]]:
    return message.content, message.reasoning_content, [[c.name, c.arguments] for c in message.tool_calls]


def whole(prompt: ChatPrompt, text: str) -> tuple[str, str, list[list[str]]]:
    parser = prompt.parser()
    parser.feed(text, final=True)
    return parts_of(parser.message)


odd_text = st.lists(
    st.sampled_from(["word ", "<", "<b>", "</", "{", "}", '"', "\\", "\n", "é", "<tool", "<think>", "[1]", "'", " "]),
    max_size=12,
).map("".join)
# In the order that the templates ask for: what is required first.
arguments = st.fixed_dictionaries(
    {"path": st.just("a b.txt"), "text": odd_text}, optional={"lines": st.lists(odd_text, max_size=2)}
).map(lambda given: {name: given[name] for name in ("path", "text", "lines") if name in given})


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_pieces_make_up_the_whole(engines: dict[str, Engine], name: str, data: st.DataObject) -> None:
    tools = data.draw(st.sampled_from(["auto", "required", None]))
    fields = {"tools": [TOOL], "tool_choice": tools} if tools else {}
    prompt = engines[name].apply_template(MESSAGES, stream=True, **fields)
    write = tagged_call if name == "tagged calls" else json_call
    text = "".join(
        (
            data.draw(st.sampled_from(["", "<think>\n"])),
            data.draw(odd_text),
            data.draw(st.sampled_from(["", "\n</think>\n\n"])),
            data.draw(odd_text),
            "".join(write(a) for a in data.draw(st.lists(arguments, max_size=2))),
        )
    )  # fmt: skip
    text = text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text
    parser = prompt.parser()
    deltas: list[ChatDelta] = []
    at = 0
    while at < len(text):
        n = data.draw(st.integers(1, 9))
        deltas += parser.feed(text[at : at + n])
        at += n
    deltas += parser.feed("", final=True)
    assert parts_of(parser.message) == gathered(deltas)
    assert parts_of(parser.message) == whole(prompt, text)


LONG = 30_000
CODE = 'if (a < b && s == "x") {\n\treturn <b>é</b>;  // {1, 2}\n}\n'


def long_answers(name: str) -> dict[str, str]:
    code = CODE * (LONG // len(CODE))
    write = tagged_call if name == "tagged calls" else json_call
    return {
        "content": code,
        "one call": "Now.\n" + write({"path": "a", "text": code}),
        "many calls": "".join(write({"path": "a", "text": CODE * 4}) for _ in range(LONG // len(CODE) // 4)),
        "thoughts": f"<think>\n{code}</think>\n\nDone.",
    }


@pytest.mark.parametrize("name", TEMPLATES)
def test_work_grows_with_the_text(engines: dict[str, Engine], name: str) -> None:
    """Counted in bytes that the parser reads; a parse for every piece would make it thousands of times the text."""
    prompt = engines[name].apply_template(MESSAGES, stream=True, tools=[TOOL], parallel_tool_calls=True)
    for kind, text in long_answers(name).items():
        parser = prompt.parser()
        deltas = [d for i in range(0, len(text), 4) for d in parser.feed(text[i : i + 4])]
        deltas += parser.feed("", final=True)
        assert gathered(deltas) == whole(prompt, text), kind
        assert parser.parsed_bytes <= 70 * len(text.encode()) + 300_000, kind
        if kind == "content":
            assert parser.parsed_bytes <= 10 * len(text.encode())
            assert len(deltas) > len(text) / 16, "pieces are handed on as they come"


def test_text_alone_needs_no_parser(engines: dict[str, Engine]) -> None:
    prompt = engines["json calls"].apply_template(MESSAGES)
    assert prompt.plain
    parser = prompt.parser()
    assert [d.content for d in parser.feed("<tool_call>")] == ["<tool_call>"]
    parser.feed("{", final=True)
    assert parser.message.content == "<tool_call>{"
    assert parser.parsed_bytes == 0


def test_an_answer_in_no_known_form_is_content(engines: dict[str, Engine]) -> None:
    prompt = engines["json calls"].apply_template(MESSAGES, tools=[TOOL])
    text = 'See <tool_call>\n{"name": "other", '
    parser = prompt.parser()
    deltas = [d for c in text for d in parser.feed(c)]
    deltas += parser.feed("", final=True)
    assert gathered(deltas) == (text, "", [])
    assert whole(prompt, text) == (text, "", [])


def test_a_template_that_can_not_be_parsed_says_why() -> None:
    with pytest.raises(ModelLoadError, match=r"chat template can't be parsed: (?!std::exception)\S"):
        Engine(models.tiny(), ctx_size=512, parallel=1, chat_template="{% if %}{{ messages[")


def test_a_call_needs_tools(engines: dict[str, Engine]) -> None:
    with pytest.raises(RequestError, match="no tools"):
        engines["own form"].apply_template(MESSAGES, tool_choice="required")
    with pytest.raises(RequestError, match="another tool named"):
        engines["own form"].apply_template(MESSAGES, tools=[TOOL, TOOL])
