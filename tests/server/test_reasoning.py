"""Thoughts, answers that are continued, and template variables: what a client sees, here and from llama-server.

The model is random. What it writes is forced: by a grammar, or by a bias for one letter with a schema for the answer.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests import models
from tests.peer import PROGRAM, llama_server
from tests.server.conftest import parse_events, start

# The prompt's end opens the thoughts, or leaves that to the model, or closes them (`enable_thinking` false).
TEMPLATE = """
{%- for m in messages %}
{{- "<|im_start|>" + m.role + "\\n" }}
{%- if m.role == "assistant" and m.reasoning_content %}{{- "<think>\\n" + m.reasoning_content + "\\n</think>\\n\\n" }}
{%- endif %}
{{- m.content + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- "<|im_start|>assistant\\n" }}
{%- if enable_thinking is defined and not enable_thinking %}{{- "<think>\\n\\n</think>\\n\\n" }}
{%- elif OPENS %}{{- "<think>\\n" }}{% endif %}
{%- if reasoning_effort is defined %}{{- reasoning_effort }}{% endif %}
{%- if mood is defined %}{{- mood }}{% endif %}
{%- endif %}
"""

SERVERS: dict[str, tuple[str, ...]] = {
    "may think": (),
    "thinks": (),
    "raw": ("--reasoning-format", "none", "--no-prefill-assistant"),
    "kwargs": (
        "--chat-template-kwargs",
        '{"mood": "sad"}',
        "--reasoning-budget",
        "4",
        "--reasoning-budget-message",
        "ok",
    ),
    "off": ("--reasoning", "off"),
}

USER = {"role": "user", "content": "hi"}
PLAIN = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
THOUGHT = "<think>\nabc\n</think>\n\nhello"
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"enum": ["aa"]}}}
BIASED = {"messages": [USER], "response_format": SCHEMA, "logit_bias": [["a", 50.0]], "max_tokens": 48}

Get = Callable[[str], list[str]]


def forced(text: str, **fields: Any) -> dict[str, Any]:
    """A request whose answer is this text."""
    return {"messages": [USER], "grammar": f"root ::= {json.dumps(text)}", **fields}


def assistant(content: str | None, thoughts: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"reasoning_content": thoughts} if thoughts else {})}


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """`get(name)`: the URLs of our server with the flags of that name and of llama-server, if there is one."""
    model = models.tiny(n_layer=2, marks=("<think>", "</think>"))
    folder = tmp_path_factory.mktemp("templates")
    running: dict[str, list[str]] = {}
    with contextlib.ExitStack() as stack:

        def make(name: str) -> list[str]:
            if name not in running:
                path: Path = folder / f"{name}.jinja"
                path.write_text(TEMPLATE.replace("OPENS", "false" if name == "may think" else "true"), encoding="utf-8")
                flags = ("-c", "1024", "-np", "1", "--temp", "0", "--chat-template-file", str(path), *SERVERS[name])
                ours = start("-m", str(model), *flags)
                stack.callback(ours.stop)
                theirs = [stack.enter_context(llama_server(model, *flags))] if PROGRAM else []
                running[name] = [ours.url, *theirs]
            return running[name]

        yield make


def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=60)


def whole(url: str, body: dict[str, Any]) -> tuple[str, str]:
    """Thoughts and content of an answer."""
    response = post(url, "/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    assert set(message) <= {"role", "content", "reasoning_content"}
    return message.get("reasoning_content", ""), message["content"]


def pieces(url: str, body: dict[str, Any]) -> tuple[str, str]:
    """The same of a stream."""
    response = post(url, "/v1/chat/completions", {**body, "stream": True})
    assert response.status_code == 200, response.text
    events = parse_events(response.text)
    assert events.pop() == "[DONE]"
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return tuple("".join(d.get(name) or "" for d in deltas) for name in ("reasoning_content", "content"))  # type: ignore[return-value]


def rendered(url: str, body: dict[str, Any]) -> str:
    return str(post(url, "/apply-template", body).json()["prompt"])


# Which server, what is asked, and the thoughts and the content that come back.
ANSWERS: list[tuple[str, dict[str, Any], str, str]] = [
    ("may think", forced(THOUGHT), "abc\n", "hello"),
    ("may think", forced(THOUGHT, reasoning_format="auto"), "abc\n", "hello"),
    ("may think", forced(THOUGHT, reasoning_format="deepseek"), "abc\n", "hello"),
    ("may think", forced(THOUGHT, reasoning_format="deepseek-legacy"), "abc\n", "hello"),
    ("may think", forced(THOUGHT, reasoning_format="none"), "", THOUGHT),
    ("may think", forced("hello"), "", "hello"),
    ("may think", forced("<think>\nabc"), "abc", ""),
    ("may think", forced("<think>\n</think>\n\nx"), "", "x"),
    ("may think", forced("x<think>a</think>y"), "", "x<think>a</think>y"),
    ("may think", forced(THOUGHT, chat_template_kwargs={"enable_thinking": False}), "", THOUGHT),
    ("may think", forced(THOUGHT, reasoning_effort="none"), "", THOUGHT),
    ("thinks", forced("abc\n</think>\n\nhello"), "abc\n", "hello"),
    ("thinks", forced("abc"), "abc", ""),
    ("thinks", forced("hello", chat_template_kwargs={"enable_thinking": False}), "", "hello"),
    ("thinks", forced("abc\n</think>\n\nhello", reasoning_format="none"), "", "<think>\nabc\n</think>\n\nhello"),
    # The assistant's last message is gone on with.
    ("may think", forced("lo", messages=[USER, assistant("hel")]), "", "hello"),
    ("may think", forced("lo", messages=[USER, assistant("hel", "hm")]), "hm\n", "hello"),
    ("may think", forced("x</think>lo", messages=[USER, assistant("", "hm")]), "hmx", "lo"),
    ("thinks", forced("lo", messages=[USER, assistant("hel")]), "", "hello"),
    ("thinks", forced("lo", messages=[USER, assistant("hel", "hm")]), "hm\n", "hello"),
    ("thinks", forced("x</think>lo", messages=[USER, assistant("", "hm")]), "hmx", "lo"),
    ("thinks", forced("x</think>lo", messages=[USER, assistant(None, "hm")]), "hmx", "lo"),
    # Flags.
    ("raw", forced("abc\n</think>\n\nhello"), "", "<think>\nabc\n</think>\n\nhello"),
    ("raw", forced("abc\n</think>\n\nhello", reasoning_format="deepseek"), "abc\n", "hello"),
    ("raw", forced("a</think>b", messages=[USER, assistant("hel")], reasoning_format="auto"), "a", "b"),
    ("off", forced("hello"), "", "hello"),
    ("off", forced("a</think>b", chat_template_kwargs={"enable_thinking": True}), "a", "b"),
]


@pytest.mark.parametrize(("name", "body", "thoughts", "content"), ANSWERS)
def test_answers(get: Get, name: str, body: dict[str, Any], thoughts: str, content: str) -> None:
    for url in get(name):
        assert whole(url, body) == (thoughts, content)
        assert pieces(url, body) == (thoughts, content)


@pytest.mark.parametrize("text", ["<", "<thi", "<think>", "<think>\n \n"])
def test_no_answer_is_lost(get: Get, text: str) -> None:
    """One that is nothing but the beginning of thoughts. llama-server's streams lose it."""
    ours, *theirs = get("may think")
    assert whole(ours, forced(text)) == pieces(ours, forced(text)) == ("", text)
    for url in theirs:
        assert whole(url, forced(text)) == ("", text)


# Which server, what is asked, and the prompt that the template makes of it.
PROMPTS: list[tuple[str, dict[str, Any], str]] = [
    ("may think", {}, PLAIN),
    ("may think", {"chat_template_kwargs": {"enable_thinking": False}}, PLAIN + "<think>\n\n</think>\n\n"),
    ("may think", {"chat_template_kwargs": {"mood": "glad"}}, PLAIN + "glad"),
    ("may think", {"chat_template_kwargs": None}, PLAIN),
    ("may think", {"reasoning_effort": "none"}, PLAIN + "<think>\n\n</think>\n\n"),
    ("may think", {"reasoning_effort": "high"}, PLAIN + "high"),
    ("may think", {"messages": [USER, assistant("hel")]}, PLAIN + "<think>\n\n</think>\n\nhel"),
    ("may think", {"messages": [USER, assistant("hel", "hm")]}, PLAIN + "<think>\nhm\n</think>\n\nhel"),
    ("may think", {"messages": [USER, assistant("", "hm")]}, PLAIN + "<think>\nhm"),
    ("may think", {"add_generation_prompt": False}, PLAIN.removesuffix("<|im_start|>assistant\n")),
    ("thinks", {}, PLAIN + "<think>\n"),
    ("raw", {"messages": [USER, assistant("hel")]}, PLAIN + "hel<|im_end|>\n<|im_start|>assistant\n<think>\n"),
    ("kwargs", {}, PLAIN + "<think>\nsad"),
    ("kwargs", {"chat_template_kwargs": {"mood": "glad"}}, PLAIN + "<think>\nglad"),
    ("kwargs", {"chat_template_kwargs": {"enable_thinking": False}}, PLAIN + "<think>\n\n</think>\n\nsad"),
    ("off", {}, PLAIN + "<think>\n\n</think>\n\n"),
]


@pytest.mark.parametrize(("name", "body", "prompt"), PROMPTS)
def test_prompts(get: Get, name: str, body: dict[str, Any], prompt: str) -> None:
    body = {"messages": [USER], **body}
    counts: list[int] = []
    for url in get(name):
        assert rendered(url, body) == prompt
        count = post(url, "/v1/chat/completions/input_tokens", body).json()
        assert count["object"] == "response.input_tokens"
        answer = post(url, "/v1/chat/completions", {**body, "max_tokens": 1}).json()
        assert answer["usage"]["prompt_tokens"] == count["input_tokens"]
        counts.append(count["input_tokens"])
    assert len(set(counts)) == 1


@pytest.mark.parametrize("part", [True, "content", "reasoning_content"])
def test_what_to_continue(get: Get, part: bool | str) -> None:
    """A stream then has only what is new; without `continue_final_message` it repeats what was there."""
    of_thoughts = part == "reasoning_content"
    messages = [USER, assistant("hel", "hm")]
    text = "x</think>lo" if of_thoughts else "lo"
    body = forced(text, messages=messages, continue_final_message=part, add_generation_prompt=False)
    for url in get("thinks"):
        end = "<think>\nhm" if of_thoughts else "<think>\nhm\n</think>\n\nhel"
        assert rendered(url, {k: v for k, v in body.items() if k != "grammar"}) == PLAIN + end
        assert pieces(url, body) == (("x", "lo") if of_thoughts else ("", "lo"))
        assert whole(url, body) == (("hmx", "lo") if of_thoughts else ("hm\n", "hello"))


@pytest.mark.parametrize("field", ["reasoning_budget_tokens", "thinking_budget_tokens"])
def test_budgets_of_requests(get: Get, field: str) -> None:
    for url in get("thinks"):
        lengths: list[int] = []
        for budget in (3, 5, 8):
            thoughts, content = whole(url, {**BIASED, field: budget})
            assert content == '"aa"'
            assert set(thoughts) <= {" ", "a"}
            assert pieces(url, {**BIASED, field: budget}) == (thoughts, content)
            lengths.append(thoughts.count("a"))
        assert lengths[1] - lengths[0] == 2
        assert lengths[2] - lengths[1] == 3
        thoughts, content = whole(url, {**BIASED, field: -1, "max_tokens": 24})
        assert (thoughts.count("a"), content) == (24, "")
        message = {field: 3, "reasoning_budget_message": " so!"}
        assert whole(url, {**BIASED, **message})[0].endswith(" so!")


def test_no_budget_at_all(get: Get) -> None:
    """The template opens the thoughts with a line break. That uses up the budget, and llama-server never ends them."""
    url = get("thinks")[0]
    for budget in (0, 1):
        thoughts, content = whole(url, {**BIASED, "reasoning_budget_tokens": budget})
        assert (thoughts.strip(), content) == ("", '"aa"')
    begun = {"messages": [USER, assistant("", "a long thought")], "reasoning_budget_tokens": 2}
    assert whole(url, {**BIASED, **begun}) == ("a long thought", '"aa"')
    closed = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_budget_message": "so many words"}
    assert whole(url, {**BIASED, **closed, "reasoning_budget_tokens": 0}) == ("", '"aa"')


def test_the_budget_of_the_server(get: Get) -> None:
    for url in get("kwargs"):
        body = {**BIASED, "chat_template_kwargs": {"mood": ""}}
        thoughts, content = whole(url, body)
        assert thoughts.endswith("ok")
        assert thoughts.count("a") <= 4
        assert content == '"aa"'
        assert whole(url, {**body, "reasoning_budget_tokens": -1}) == (thoughts, content)
        longer, _ = whole(url, {**body, "reasoning_budget_tokens": 9, "reasoning_budget_message": "no"})
        assert longer.endswith("no")
        assert longer.count("a") == thoughts.count("a") + 5


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"reasoning_format": "deep"}, "reasoning_format"),
        ({"reasoning_format": 1}, "reasoning_format"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "enable_thinking"),
        ({"chat_template_kwargs": ["enable_thinking"]}, "chat_template_kwargs"),
        ({"reasoning_budget_tokens": -2}, "reasoning_budget_tokens"),
        ({"thinking_budget_tokens": "many"}, "thinking_budget_tokens"),
        ({"continue_final_message": True}, "add_generation_prompt"),
        ({"messages": [USER, assistant("a"), assistant("b")]}, "2 or more assistant messages"),
        ({"messages": [USER, {"role": "assistant", "reasoning_content": "x"}]}, "content"),
        ({"messages": [USER, assistant("no JSON")], "response_format": SCHEMA}, "no JSON"),
        (
            {
                "messages": [USER, assistant("no JSON")],
                "response_format": SCHEMA,
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
            "no JSON",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(get: Get, fields: dict[str, Any], word: str, stream: bool) -> None:
    body = {"messages": [USER], "max_tokens": 4, "stream": stream, **fields}
    response = post(get("thinks")[0], "/v1/chat/completions", body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert word in error["message"]
    assert error["type"] == "invalid_request_error"


def test_usage_in_streams(get: Get) -> None:
    """`include_usage`: one more event, without choices. Otherwise no event has `usage`."""
    for url in get("may think"):
        count = post(url, "/v1/chat/completions/input_tokens", {"messages": [USER]}).json()["input_tokens"]
        for options in (None, {}, {"include_usage": False}, {"include_usage": True}):
            body = forced(THOUGHT, stream=True, stream_options=options)
            *events, done = parse_events(post(url, "/v1/chat/completions", body).text)
            assert done == "[DONE]"
            if not (options or {}).get("include_usage"):
                assert not any(event.get("usage") for event in events)
                assert events[-1]["choices"][0]["finish_reason"] == "stop"
                continue
            *events, last = events
            assert last["choices"] == []
            assert not any(event.get("usage") for event in events)
            usage = last["usage"]
            whole_usage = post(url, "/v1/chat/completions", forced(THOUGHT)).json()["usage"]
            assert set(usage) == set(whole_usage)
            assert usage["prompt_tokens"] == count
            assert usage["completion_tokens"] == whole_usage["completion_tokens"]
            assert usage["total_tokens"] == count + usage["completion_tokens"]


def test_counting_tokens_of_responses(get: Get) -> None:
    for url in get("thinks"):
        count = post(url, "/v1/responses/input_tokens", {"input": "hi"}).json()
        assert count == {
            "input_tokens": post(url, "/v1/chat/completions/input_tokens", {"messages": [USER]}).json()["input_tokens"],
            "object": "response.input_tokens",
        }
        answer = post(url, "/v1/responses", {"input": "hi", "max_output_tokens": 1}).json()
        assert answer["usage"]["input_tokens"] == count["input_tokens"]


def test_thoughts_in_other_apis(get: Get) -> None:
    grammar = {"grammar": forced("abc\n</think>\n\nhello")["grammar"]}
    body = {"messages": [USER], "max_tokens": 40, **grammar}
    for url in get("thinks"):
        output = post(url, "/v1/responses", {"input": "hi", **grammar}).json()["output"]
        assert [(item["type"], item["content"][0]["text"]) for item in output] == [
            ("reasoning", "abc\n"),
            ("message", "hello"),
        ]
        count = post(url, "/v1/messages/count_tokens", body).json()["input_tokens"]
        assert count == post(url, "/v1/chat/completions/input_tokens", {"messages": [USER]}).json()["input_tokens"]
    # llama-server takes no grammar here.
    blocks = post(get("thinks")[0], "/v1/messages", body).json()["content"]
    assert [(b["type"], b.get("thinking") or b.get("text")) for b in blocks] == [
        ("thinking", "abc\n"),
        ("text", "hello"),
    ]


@pytest.mark.parametrize(
    "field",
    ["reasoning_format", "reasoning_effort", "chat_template_kwargs", "reasoning_budget_tokens", "stream_options"],
)
def test_null_is_not_set(get: Get, field: str) -> None:
    assert whole(get("may think")[0], forced(THOUGHT, **{field: None})) == ("abc\n", "hello")


def test_the_openai_client_reads_thoughts(get: Get) -> None:
    client = openai.OpenAI(base_url=get("thinks")[0] + "/v1", api_key="none")
    grammar = {"grammar": forced("abc\n</think>\n\nhello")["grammar"]}
    messages: Any = [USER]
    answer = client.chat.completions.create(model="any", messages=messages, extra_body=grammar)
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("hello", "abc\n")  # type: ignore[attr-defined]
    # An answer can be sent back as it is.
    messages += [message, USER]
    again = client.chat.completions.create(model="any", messages=messages, extra_body=grammar)
    assert again.choices[0].message.content == "hello"
