"""`/infill`: what the prompt becomes, and that it is the one llama-server makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from llamaserve import Engine
from llamaserve.errors import RequestError
from llamaserve.infill import ExtraFile, infill_prompt

from tests import models
from tests.peer import llama_server, needs_peer, post
from tests.server.conftest import App, MakeServer

PRE, SUF, MID, REP, SEP = range(507, 512)
FIM = ("pre", "suf", "mid", "rep", "sep")
BODY = {"input_prefix": "ab", "input_suffix": "c"}


@pytest.fixture(scope="module")
def fim() -> Iterator[Engine]:
    """A random llama with all tokens for fill-in-the-middle, and batches of 128 tokens."""
    with Engine(models.tiny(fim=FIM), ctx_size=512, batch_size=128, parallel=1) as engine:
        yield engine


def test_the_prompt(app: App) -> None:
    assert app.post("/infill", {**BODY, "prompt": "x"}).status_code == 200
    assert app.engine.submitted[-1][0] == [1, 290, 97, 98, 120, 291, 99, 292]
    app.post("/infill", {**BODY, "input_prefix": ["a", 5], "input_suffix": ""})
    assert app.engine.submitted[-1][0] == [1, 290, 97, 5, 291, 292]
    app.post("/infill", {**BODY, "input_extra": [{"text": "zz"}]})
    assert app.engine.submitted[-1][0] == [*b"\n\n--- snippet ---\n\nzz", 1, 290, 97, 98, 291, 99, 292]


def test_the_suffix_first() -> None:
    app = App(spm_infill=True)
    app.post("/infill", {**BODY, "prompt": "x"})
    assert app.engine.submitted[-1][0] == [1, 291, 99, 290, 97, 98, 120, 292]


def test_the_answer_is_that_of_completion(app: App) -> None:
    whole = app.post("/infill", {**BODY, "response_fields": ["content", "stop"]}).json()
    assert whole == {"content": ' one two three\n fo\u00fcr "five"', "stop": True}
    assert len(app.post("/infill", {**BODY, "n": 2}).json()) == 2
    events = app.events("/infill", {**BODY, "n_predict": 2})
    assert "".join(event["content"] for event in events) == " one two"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 3}, "input_suffix"),
        ({"input_prefix": ["a", 300]}, "input_prefix[1]"),
        ({"input_suffix": [True]}, "input_suffix[0]"),
        ({"prompt": ["x"]}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": [{}]}, "text"),
        ({"input_extra": [{"text": 1}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "", "filename": 1}]}, "input_extra[0].filename"),
        ({"n_predict": -2}, "n_predict"),
    ],
)
def test_wrong_bodies(app: App, change: dict[str, Any], named: str) -> None:
    response = app.post("/infill", BODY | change)
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]
    for field in BODY:
        without = {name: value for name, value in BODY.items() if name != field}
        assert app.post("/infill", without).json()["error"]["message"] == f"'{field}' is required"


def test_a_model_without_the_tokens(app: App) -> None:
    app.engine.info = msgspec.structs.replace(app.engine.info, fim_suffix=-1, fim_middle=-1)
    response = app.post("/infill", BODY)
    assert response.status_code == 501
    error = response.json()["error"]
    assert error["type"] == "not_supported_error"
    assert "no suffix token, middle token" in error["message"]


def test_files(fim: Engine) -> None:
    """The repository's pattern, for models that have its tokens."""
    files = [ExtraFile(text="ta", filename="a.h"), ExtraFile(text="es")]
    tokens = infill_prompt(fim, "on", "in", prompt="<s>r", extra=files)

    def plain(text: str) -> list[int]:
        return fim.tokenize(text, parse_special=False)

    assert tokens == [
        *(REP, *plain("myproject\n")),
        *(SEP, *plain("a.h\n"), *plain("ta")),
        *(SEP, *plain("tmp\n"), *plain("es")),
        *(SEP, *plain("filename\n")),
        *(1, PRE, *plain("on"), 1, *fim.tokenize("r"), SUF, *plain("in"), MID),
    ]


@pytest.mark.parametrize("n_predict", [None, 0, 64, 400])
@pytest.mark.parametrize("suffix_first", [False, True])
def test_what_does_not_fit_is_left_out(fim: Engine, n_predict: int | None, suffix_first: bool) -> None:
    """Whatever the texts, there is room for the output."""
    long = "etaoin " * 400
    files = [ExtraFile(text=long)]
    for prefix, suffix, extra in ((long, long, files), (long, "in", files), ("on", long, []), ("on", "in", files)):
        tokens = infill_prompt(
            fim, prefix, suffix, extra=extra, suffix_first=suffix_first, n_predict=n_predict, prompt="r"
        )
        assert len(tokens) + min(max(n_predict or 1, 1), 256) <= fim.info.n_ctx_slot
        at, end = sorted((tokens.index(PRE), tokens.index(SUF)))
        assert tokens[-1] == MID
        assert end - at - 1 <= 96 + 1
        assert fim.complete(tokens, n_predict=1).finish.n_predicted == 1
    whole = infill_prompt(fim, long, long)
    before = whole[whole.index(PRE) + 1 : whole.index(SUF)]
    assert before == fim.tokenize(long, parse_special=False)[-96:]
    after = whole[whole.index(SUF) + 1 : -1]
    assert after == fim.tokenize(long, parse_special=False)[: 32 - 2]


def test_a_model_that_can_not() -> None:
    with Engine(models.tiny(), ctx_size=256, parallel=1) as engine, pytest.raises(RequestError) as caught:
        infill_prompt(engine, "a", "b")
    assert caught.value.kind == "not_supported"


@needs_peer
@pytest.mark.parametrize(("fim", "flags"), [(FIM, ()), (FIM[:3], ("--spm-infill",))])
def test_as_llama_server(make_server: MakeServer, fim: tuple[str, ...], flags: tuple[str, ...]) -> None:
    model = models.tiny(fim=fim)
    flags = ("-c", "512", "-b", "128", "-np", "1", "--temp", "0", "-n", "8", *flags)
    ours = make_server("-m", str(model), *flags)
    long = "a letter to the sea. " * 60
    bodies: list[dict[str, Any]] = [
        {"input_prefix": "the sea ", "input_suffix": " the tree"},
        {"input_prefix": "", "input_suffix": "", "prompt": ""},
        {"input_prefix": "<pre>x", "input_suffix": "<mid>", "prompt": "<s>"},
        {"input_prefix": ["a", 300, "b"], "input_suffix": [301], "prompt": "in"},
        {"input_prefix": long, "input_suffix": long, "prompt": "in the "},
        {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "see"}, {"text": "to", "filename": "f.c"}]},
        {"input_prefix": long, "input_suffix": "b", "input_extra": [{"text": long, "filename": "f.c"}]},
    ]
    with llama_server(model, *flags) as url:
        for body in bodies:
            theirs = post(f"{url}/infill", body | {"cache_prompt": False})
            mine = httpx.post(f"{ours.url}/infill", json=body | {"cache_prompt": False}, timeout=60).json()
            for field in ("prompt", "tokens_evaluated", "content", "tokens_predicted", "stop_type"):
                assert mine[field] == theirs[field], (body, field)
