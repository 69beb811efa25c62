"""Stop strings and UTF-8, for any text: a grammar makes the model say exactly what is wanted."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from llamaserve import Engine

TEXT = st.text(st.sampled_from("abet \n日é😀"), min_size=1, max_size=24)


def say(text: str) -> str:
    """A grammar that allows this text alone."""
    return f"root ::= {json.dumps(text, ensure_ascii=False)}"


@settings(max_examples=150, deadline=None)
@given(text=TEXT, stops=st.lists(st.text(st.sampled_from("abet \n日é"), min_size=1, max_size=4), max_size=3))
def test_output_ends_at_a_stop_string(tiny: Engine, text: str, stops: list[str]) -> None:
    chunks = list(tiny.stream("a", n_predict=200, grammar=say(text), stop=stops))
    finish = chunks[-1].finish
    assert finish is not None
    out = "".join(c.text for c in chunks)
    assert out == finish.text
    assert text.startswith(out)
    assert not any(stop in out for stop in stops)
    if any(stop in text for stop in stops):
        assert finish.stop_type == "word"
        assert finish.stopping_word in stops
        assert text[len(out) :].startswith(finish.stopping_word)
    else:
        assert finish.stop_type == "eos"
        assert out == text


@settings(max_examples=50, deadline=None)
@given(text=TEXT, n_predict=st.integers(1, 12))
def test_what_is_held_back_comes_at_the_limit(tiny: Engine, text: str, n_predict: int) -> None:
    """Text that might have become a stop string, and characters cut off by the limit, are not lost."""
    stop = text + "!"  # every prefix of the output may be its start
    chunks = list(tiny.stream("a", n_predict=n_predict, grammar=say(text), stop=[stop]))
    finish = chunks[-1].finish
    assert finish is not None
    out = "".join(c.text for c in chunks)
    assert out == finish.text
    assert text.startswith(out.rstrip("\ufffd"))
    if finish.stop_type == "eos":
        assert out == text
    else:
        tokens = [t for c in chunks for t in c.tokens]
        assert b"".join(map(tiny.token_bytes, tokens)).decode(errors="replace").rstrip("\ufffd") == out.rstrip("\ufffd")


@settings(max_examples=200, deadline=None)
@given(raw=st.lists(st.sampled_from(b"a\x80\x9f\xa0\xbf\xc2\xc3\xe0\xe2\xed\xf0\xf4\xff"), max_size=12))
def test_what_is_no_text_is_replaced_as_everybody_does(tiny: Engine, raw: list[int]) -> None:
    """One replacement character for each piece that could have been the start of a character."""
    assert tiny.detokenize([3 + byte for byte in raw]) == bytes(raw).decode(errors="replace")
