"""The engine through its public API: completions, chats, cancelling, limits, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time

import pytest
from llamaserve import CompletionParams, Engine, EngineClosedError, ModelLoadError, RequestError
from llamaserve.engine_options import EngineOptions
from llamaserve.options import OPTIONS

from tests import models


def wait_until_idle(engine: Engine, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while any(s.is_processing for s in engine.slots()):
        assert time.monotonic() < deadline, "a slot is still busy"
        time.sleep(0.02)


def test_completion_is_greedy_and_counted(smol: Engine) -> None:
    first = smol.complete("The capital of France is", n_predict=8, temperature=0)
    again = smol.complete("The capital of France is", n_predict=8, temperature=0)
    assert "Paris" in first.text
    assert first.text == again.text
    assert len(first.tokens) == first.finish.n_predicted == 8
    assert first.finish.stop_type == "limit"
    assert smol.detokenize(first.tokens) == first.text
    assert first.timings.prompt_n + first.timings.cache_n == first.finish.n_prompt_tokens
    assert again.timings.cache_n == first.finish.n_prompt_tokens - 1
    assert first.timings.predicted_per_second > 0


def test_streamed_chunks_make_the_whole_text(smol: Engine) -> None:
    chunks = list(smol.stream("Once upon a time", n_predict=16, temperature=0))
    assert chunks[0].started
    assert [c.finish is not None for c in chunks[:-1]] == [False] * (len(chunks) - 1)
    assert "".join(c.text for c in chunks) == chunks[-1].finish.text
    assert sum((c.tokens for c in chunks), ()) == smol.complete("Once upon a time", n_predict=16, temperature=0).tokens


def test_chat_answers(smol: Engine) -> None:
    answer = smol.chat([{"role": "user", "content": "What is 2 + 2?"}], temperature=0, n_predict=24)
    assert answer.message.content
    assert "<|im" not in answer.message.content
    parts = list(smol.stream_chat([{"role": "user", "content": "What is 2 + 2?"}], temperature=0, n_predict=24))
    assert "".join(d.content for p in parts for d in p.deltas) == answer.message.content
    assert parts[-1].message == answer.message


def test_async_requests_run_side_by_side(smol: Engine) -> None:
    async def main() -> None:
        prompts = ["One, two,", "The sky is", "Water is made of", "My name is"]
        alone = [(await smol.acomplete(p, n_predict=12, temperature=0)).text for p in prompts]
        decodes = smol.metrics().n_decode_total
        together = await asyncio.gather(*(smol.acomplete(p, n_predict=12, temperature=0) for p in prompts))
        assert [c.text for c in together] == alone
        # Four requests of 12 tokens in one batch a step take fewer than four times 12 steps.
        assert smol.metrics().n_decode_total - decodes < 30
        answer = await smol.achat([{"role": "user", "content": "Hi"}], n_predict=4, temperature=0)
        assert answer.message.content

    asyncio.run(main())


def test_stop_string_is_held_back_and_cut(smol: Engine) -> None:
    whole = smol.complete("Count: 1, 2, 3, 4,", n_predict=24, temperature=0).text
    stop = whole[6:9]
    chunks = list(smol.stream("Count: 1, 2, 3, 4,", n_predict=24, temperature=0, stop=[stop]))
    assert chunks[-1].finish.stop_type == "word"
    assert chunks[-1].finish.stopping_word == stop
    assert "".join(c.text for c in chunks) == whole[: whole.index(stop)]


def test_end_of_generation_and_ignore_eos(smol: Engine) -> None:
    chat = smol.apply_template([{"role": "user", "content": "Say yes."}])
    ended = smol.complete(chat.prompt, n_predict=200, temperature=0)
    assert ended.finish.stop_type == "eos"
    forced = smol.complete(chat.prompt, n_predict=ended.finish.n_predicted + 5, temperature=0, ignore_eos=True)
    assert forced.finish.stop_type == "limit"


def test_n_predict_zero_computes_the_prompt_only(smol: Engine) -> None:
    prompt = "A prompt that only goes into the cache, for later use."
    done = smol.complete(prompt, n_predict=0)
    assert (done.text, done.tokens, done.finish.stop_type) == ("", (), "limit")
    assert smol.complete(prompt, n_predict=1).timings.cache_n > 5


def test_cache_is_reused_on_the_same_slot(tiny: Engine) -> None:
    prompt = tiny.tokenize("the rain in spain stays mainly in the plain ", add_special=True)
    tiny.complete(prompt, n_predict=4, temperature=0, id_slot=1)
    grown = tiny.complete([*prompt, *tiny.tokenize("and so on")], n_predict=4, temperature=0, id_slot=1)
    assert grown.timings.cache_n == len(prompt)
    fresh = tiny.complete([*prompt, *tiny.tokenize("and so on")], n_predict=4, temperature=0, cache_prompt=False)
    assert fresh.timings.cache_n == 0
    assert fresh.tokens == grown.tokens


def test_prompt_too_long_is_refused(tiny: Engine) -> None:
    assert tiny.info.n_ctx_slot == 512
    with pytest.raises(RequestError, match="exceeds the available context size of 512") as e:
        tiny.complete([5] * 512)
    assert (e.value.kind, e.value.n_prompt_tokens, e.value.n_ctx) == ("context_size", 512, 512)
    assert tiny.complete([5] * 511, n_predict=5, ignore_eos=True).finish.truncated


def test_generation_stops_when_the_context_is_full(tiny: Engine) -> None:
    done = tiny.complete([5] * 500, n_predict=-1, ignore_eos=True, temperature=0)
    assert done.finish.stop_type == "limit"
    assert done.finish.truncated
    assert done.finish.n_prompt_tokens + done.finish.n_predicted == 512


def test_empty_prompt_of_tokens(tiny: Engine) -> None:
    done = tiny.complete([], n_predict=4)
    assert (done.text, done.finish.stop_type, done.finish.n_predicted) == ("", "none", 0)


@pytest.mark.parametrize(
    "bad",
    [
        {"grammar": "root ::= nonsense("},
        {"json_schema": {"type": "no such type"}},
        {"json_schema": {"$ref": "#/nowhere"}},
        {"repeat_penalty": 0},
        {"temperature": float("nan")},
        {"top_p": float("inf")},
        {"logit_bias": [[1, float("nan")]]},
        {"dry_sequence_breakers": [""]},
        {"id_slot": 99},
        {"adaptive_decay": 2.0},
    ],
)
def test_bad_parameters_are_refused_and_change_nothing(tiny: Engine, bad: dict[str, object]) -> None:
    with pytest.raises(RequestError) as e:
        tiny.complete("a", n_predict=1, **bad)
    assert e.value.kind == "invalid_request"
    assert str(e.value)
    assert tiny.complete("a", n_predict=1).finish.n_predicted == 1


@pytest.mark.parametrize("prompt", [[-1], [512], [2**31 - 1], [2**40], [1.5], [None], ["\ud800"], "\ud800"])
def test_bad_prompts_are_refused(tiny: Engine, prompt: object) -> None:
    with pytest.raises(RequestError) as e:
        tiny.complete(prompt, n_predict=1)  # type: ignore[arg-type]
    assert e.value.kind == "invalid_request"


@pytest.mark.parametrize(
    "extreme",
    [
        {"top_k": -5},
        {"top_k": 2**31 - 1},
        {"top_p": -3.0},
        {"min_p": 7.0},
        {"temperature": -1.0},
        {"temperature": 1e30},
        {"repeat_last_n": 2**31 - 1, "repeat_penalty": 1.5},
        {"dry_multiplier": 1.0, "dry_penalty_last_n": 2**31 - 1},
        {"mirostat": 99},
        {"mirostat": 1},
        {"mirostat": 2, "mirostat_tau": 0.0},
        {"n_probs": 2**31 - 1},
        {"min_keep": 2**31 - 1},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"typical_p": 0.0},
        {"top_n_sigma": 0.0},
        {"adaptive_target": 0.5},
        {"logit_bias": [[5, float("inf")]]},
        {"logit_bias": {"e": False}},
        {"samplers": []},
        {"samplers": ["adaptive_p"]},
        {"samplers": ["infill", "nonsense"]},
        {"samplers": ""},
        {"seed": 2**32 - 1},
        {"dynatemp_range": 1e9},
        {"frequency_penalty": 1e38, "presence_penalty": -1e38, "repeat_last_n": 64},
    ],
)
def test_extreme_parameters_are_survived(tiny: Engine, extreme: dict[str, object]) -> None:
    done = tiny.complete("to be or not to be", n_predict=4, ignore_eos=True, **extreme)
    assert done.finish.n_predicted == (1 if "infill" in extreme.get("samplers", ()) else 4)


def test_banning_everything_ends_with_an_error(tiny: Engine) -> None:
    ban = [[i, False] for i in range(tiny.info.n_vocab)]
    with pytest.raises(RequestError, match="no token is allowed"):
        tiny.complete("a", n_predict=4, logit_bias=ban)
    with pytest.raises(RequestError):
        tiny.complete("a", n_predict=9, grammar='root ::= "e"', ignore_eos=True)
    assert tiny.complete("a", n_predict=2).finish.n_predicted > 0


def test_grammar_and_schema_are_followed(tiny: Engine) -> None:
    assert tiny.complete("a", n_predict=8, grammar='root ::= "e"{3,3}').text == "eee"
    assert tiny.complete("a", n_predict=16, json_schema={"const": 42}).text == "42"


def test_text_stays_valid_when_the_model_emits_broken_bytes(tiny: Engine) -> None:
    byte = 3 + 0xE2  # the first byte of a three-byte character, over and over
    only = [[i, False] for i in range(512) if i != byte]
    chunks = list(tiny.stream("a", n_predict=5, logit_bias=only))
    text = "".join(c.text for c in chunks)
    assert text == chunks[-1].finish.text
    assert set(text) == {"\ufffd"}


def test_leaving_a_stream_frees_its_slot(tiny: Engine) -> None:
    for _ in range(12):
        with tiny.stream("a", n_predict=400, ignore_eos=True) as stream:
            next(stream)
            next(stream)
    wait_until_idle(tiny)
    stream = tiny.stream("a", n_predict=400, ignore_eos=True)
    next(stream)
    del stream
    gc.collect()
    wait_until_idle(tiny)


def test_cancelling_a_task_frees_its_slot(tiny: Engine) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(tiny.acomplete("a", n_predict=450, ignore_eos=True)) for _ in range(20)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(r, asyncio.CancelledError) for r in results)

    asyncio.run(main())
    wait_until_idle(tiny)
    assert tiny.metrics().requests_deferred == 0


def test_more_requests_than_slots_all_end(tiny: Engine) -> None:
    async def main() -> None:
        done = await asyncio.gather(*(tiny.acomplete("ab" * (i % 7 + 1), n_predict=i % 9 + 1) for i in range(40)))
        assert all(c.finish.n_predicted >= 1 for c in done)

    asyncio.run(main())


def test_priority_goes_first() -> None:
    with Engine(models.tiny(), ctx_size=512, parallel=1) as engine:
        order: list[int] = []

        async def run(name: int, priority: int) -> None:
            await engine.acomplete("a", n_predict=400 if name == 0 else 5, ignore_eos=True, priority=priority)
            order.append(name)

        async def main() -> None:
            first = asyncio.create_task(run(0, 0))
            await asyncio.sleep(0.02)
            await asyncio.gather(first, run(1, 0), run(2, 5), run(3, 1))

        asyncio.run(main())
        assert order.index(2) < order.index(3) < order.index(1)


def test_queue_is_bounded() -> None:
    with Engine(models.tiny(), ctx_size=512, parallel=1, queue_size=3) as engine:
        streams = [engine.stream("a", n_predict=400, ignore_eos=True) for _ in range(8)]
        refused = 0
        for stream in streams:
            try:
                list(stream)
            except RequestError as e:
                refused += e.kind == "unavailable"
        assert 3 <= refused <= 5


def test_several_engines_in_one_process(smol: Engine) -> None:
    with (
        Engine(models.tiny(), ctx_size=512, parallel=1) as a,
        Engine(models.tiny(seed=2), ctx_size=512, parallel=2) as b,
    ):
        texts: dict[str, str] = {}

        def run(name: str, engine: Engine) -> None:
            texts[name] = engine.complete("a", n_predict=16, temperature=0).text

        threads = [threading.Thread(target=run, args=x) for x in (("a", a), ("b", b), ("smol", smol))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert texts["a"] != texts["b"]
        assert len(texts) == 3


def test_close_ends_what_is_in_flight() -> None:
    engine = Engine(models.tiny(), ctx_size=2048, parallel=2)
    streams = [engine.stream("a", n_predict=-1, ignore_eos=True) for _ in range(6)]
    next(streams[0])
    closer = threading.Thread(target=engine.close)
    closer.start()
    ended = 0
    for stream in streams:
        try:
            list(stream)
        except EngineClosedError:
            ended += 1
    closer.join()
    assert ended == 6
    engine.close()
    assert engine.closed
    for call in (lambda: engine.complete("a"), engine.slots, engine.metrics, lambda: engine.tokenize("a")):
        with pytest.raises(EngineClosedError):
            call()

    async def main() -> None:
        async with Engine(models.tiny(), ctx_size=512, parallel=1) as other:
            task = asyncio.create_task(other.acomplete("a", n_predict=-1, ignore_eos=True))
            await asyncio.sleep(0.05)
        with pytest.raises(EngineClosedError):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("left", ["nothing", "a stream", "an asynchronous stream"])
def test_a_program_may_end_without_closing(left: str) -> None:
    """The engine's thread must not need the interpreter, which is going away."""
    uses = {
        "nothing": "e.complete('a', n_predict=2)",
        "a stream": "s = e.stream('a', n_predict=-1, ignore_eos=True); next(s); next(s)",
        "an asynchronous stream": (
            "import asyncio\n"
            "async def main():\n"
            "    s = e.astream('a', n_predict=-1, ignore_eos=True)\n"
            "    await s.chunks()\n"
            "    return s\n"
            "s = asyncio.run(main())"
        ),
    }
    program = (
        f"from llamaserve import Engine\ne = Engine({str(models.tiny())!r}, ctx_size=4096, parallel=2)\n{uses[left]}"
    )
    for _ in range(4):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_is_told_and_ends_well() -> None:
    program = (
        "import os, sys\nfrom llamaserve import Engine, EngineClosedError\n"
        f"def load(): return Engine({str(models.tiny())!r}, ctx_size=512, parallel=1, threads=1)\n"
        "e = load()\n"
        "if os.fork() == 0:\n"
        "    try:\n        e.complete('a')\n"
        "    except EngineClosedError as error:\n        assert 'parent' in str(error)\n"
        "    e.close()\n    load().complete('a', n_predict=2)\n    sys.exit(7)\n"
        "_, status = os.wait()\n"
        "e.complete('a', n_predict=2)\n"
        "sys.exit(os.waitstatus_to_exitcode(status))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (7, "")


def test_daemon_thread_in_the_engine_at_exit() -> None:
    program = (
        "import threading, time\nfrom llamaserve import Engine\n"
        f"e = Engine({str(models.tiny())!r}, ctx_size=2048, parallel=1, threads=1)\n"
        "def work():\n    e.complete('a', n_predict=-1, ignore_eos=True)\n"
        "threading.Thread(target=work, daemon=True).start()\ntime.sleep(0.2)"
    )
    for _ in range(4):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr


def test_dropping_an_engine_while_it_works_ends_it() -> None:
    for _ in range(5):
        engine = Engine(models.tiny(), ctx_size=2048, parallel=2)
        streams = [engine.stream("a", n_predict=-1, ignore_eos=True) for _ in range(4)]
        next(streams[0])
        del engine, streams
        gc.collect()


def test_tokens_round_trip(smol: Engine) -> None:
    text = "Grüße, 世界! <|im_start|>"
    tokens = smol.tokenize(text)
    assert smol.detokenize(tokens) == text
    assert b"".join(map(smol.token_bytes, tokens)).decode() == text
    assert len(smol.tokenize("<|im_start|>")) == 1
    assert len(smol.tokenize("<|im_start|>", parse_special=False)) > 1
    for bad in (-1, smol.info.n_vocab):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            smol.detokenize([bad])


def test_probabilities(smol: Engine) -> None:
    done = smol.complete("The capital of France is", n_predict=3, temperature=0, n_probs=4)
    assert len(done.probs) == 3
    for entry in done.probs:
        assert len(entry.top) == 4
        assert entry.prob == entry.top[0].prob
        assert 0 < sum(t.prob for t in entry.top) <= 1.0001
        assert [t.prob for t in entry.top] == sorted((t.prob for t in entry.top), reverse=True)
    after = smol.complete(
        "The capital of France is", n_predict=1, n_probs=50, post_sampling_probs=True, top_k=3, top_p=1, min_p=0
    )
    assert len(after.probs[0].top) <= 3
    assert sum(t.prob for t in after.probs[0].top) == pytest.approx(1, abs=1e-3)


def test_progress_is_reported() -> None:
    with Engine(models.tiny(), ctx_size=1024, parallel=1, batch_size=64) as engine:
        chunks = list(engine.stream([5] * 300, n_predict=1, return_progress=True))
        seen = [c.progress.processed for c in chunks if c.progress]
        assert seen == [0, 64, 128, 192, 256, 300]
        assert all(c.progress.total == 300 for c in chunks if c.progress)


def test_defaults_and_overrides() -> None:
    defaults = CompletionParams(temperature=0.0, n_predict=3, stop=["zz"])
    with Engine(models.tiny(), ctx_size=512, parallel=1, defaults=defaults) as engine:
        assert engine.complete("a", ignore_eos=True).finish.n_predicted == 3
        assert engine.complete("a", CompletionParams(n_predict=5), ignore_eos=True).finish.n_predicted == 5
        effective = engine.effective_params(top_k=7)
        assert (effective["temperature"], effective["n_predict"], effective["top_k"]) == (0.0, 3, 7)
        with pytest.raises(TypeError, match="unknown completion parameter"):
            engine.complete("a", tempreature=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "too short"),
        (b"GGU", "too short"),
        (b"not a model at all", "not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00", "can't be loaded"),
        (b"GGUF" + b"\xff" * 64, "can't be loaded"),
    ],
)
def test_loading_what_is_no_model(tmp_path: object, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.gguf"  # type: ignore[operator]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message) as e:
        Engine(path)
    assert str(path) in str(e.value)


@pytest.mark.parametrize("part", [0.001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_loading_a_truncated_model(tmp_path: object, part: float) -> None:
    whole = models.tiny().read_bytes()
    path = tmp_path / "cut.gguf"  # type: ignore[operator]
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ModelLoadError, match="can't be loaded"):
        Engine(path)


def test_options_of_the_command_and_of_the_engine_are_the_same() -> None:
    flags = {option.dest for option in OPTIONS if option.scope == "engine" and option.supported}
    other_spellings = {"lora_scaled", "control_vector_scaled"}  # of lora and control_vector
    assert flags - {"model"} - other_spellings == set(EngineOptions.__annotations__)


def test_bad_options_name_the_option() -> None:
    with pytest.raises(ModelLoadError, match="cache_type_k"):
        Engine(models.tiny(), cache_type_k="q3_7")  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match="parallel"):
        Engine(models.tiny(), parallel=0)
    with pytest.raises(TypeError, match="unknown engine option"):
        Engine(models.tiny(), ctx_siez=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="ctx_size"):
        Engine(models.tiny(), ctx_size="many")  # type: ignore[arg-type]
