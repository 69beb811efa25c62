"""Slots saved to files: what is in them, who can read them, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from llamaserve import Engine, EngineClosedError, RequestError

from tests import models
from tests.peer import llama_server, needs_peer, post

EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
LAYOUTS = [pytest.param(True, id="unified"), pytest.param(False, id="streams")]


def words(seed: int, n: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(259, 512) for _ in range(n)]


@pytest.mark.parametrize("unified", LAYOUTS)
def test_what_was_saved_is_not_computed_again(tmp_path: Path, unified: bool) -> None:
    prompt, file = words(1, 100), tmp_path / "slot.bin"
    options: dict[str, Any] = {"ctx_size": 2048, "parallel": 2, "kv_unified": unified, "cache_ram": 0, **EXACT}
    with Engine(models.tiny(), **options) as engine:
        first = engine.complete(prompt, n_predict=8, temperature=0, id_slot=1)
        saved = engine.save_slot(1, file)
        assert (saved.id_slot, saved.n_tokens, saved.n_bytes) == (1, 107, file.stat().st_size)
        assert engine.erase_slot(1) == 107
        assert engine.slots()[1].n_prompt_tokens == 0
        again = engine.complete(prompt, n_predict=8, temperature=0)
        assert again.timings.cache_n == 0
    with Engine(models.tiny(), **options) as engine:
        restored = asyncio.run(engine.arestore_slot(0, file))
        assert (restored.n_tokens, restored.n_bytes) == (107, saved.n_bytes)
        again = engine.complete([*prompt, *first.tokens[:7]], n_predict=1, temperature=0)
        assert again.timings.cache_n == 106
        assert again.tokens == first.tokens[7:]
        # Another slot takes the prefix from it as from any.
        other = engine.complete(prompt + words(2, 5), n_predict=1, id_slot=1)
        assert other.timings.cache_n == 100


def test_plain_token_list(tmp_path: Path) -> None:
    """Files of older versions have no head before the tokens."""
    file = tmp_path / "slot.bin"
    with Engine(models.tiny(), ctx_size=1024, parallel=2) as engine:
        engine.complete(words(3, 50), n_predict=1, id_slot=0)
        engine.save_slot(0, file)
        data = file.read_bytes()
        n_words, n = struct.unpack_from("=I8xI", data, 8)
        assert (n_words, n) == (54, 50)
        tokens, cells = data[24 : 24 + 4 * n], data[12 + 4 * n_words :]
        file.write_bytes(data[:8] + struct.pack("=I", n) + tokens + cells)
        assert engine.restore_slot(1, file).n_tokens == 50


def test_bad_files(tmp_path: Path) -> None:
    file, good = tmp_path / "bad.bin", tmp_path / "good.bin"
    prompt = words(4, 300)
    with Engine(models.tiny(), ctx_size=1024, parallel=2, kv_unified=False, **EXACT) as engine:
        engine.complete(prompt, n_predict=1, id_slot=0)
        engine.save_slot(0, good)
        data = good.read_bytes()
        rng = random.Random(5)
        bad = [b"", b"GGUF" * 10, data[:11], data[:100], data[:-1], data[:12] + b"\xff" * 12 + data[24:]]
        bad.append(data[:8] + struct.pack("=I", 2**31) + data[12:])
        bad.append(data[:24] + struct.pack("=i", 10**6) + data[28:])
        for _ in range(40):  # in the part that describes the cells
            at = rng.randrange(len(data) // 50)
            bad.append(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
        for content in bad:
            file.write_bytes(content)
            # Some bits change nothing that matters.
            with contextlib.suppress(RequestError):
                engine.restore_slot(1, file)
            engine.complete(prompt, n_predict=2, id_slot=1)
        for path in (tmp_path, tmp_path / "missing"):
            with pytest.raises(RequestError, match="no such file"):
                engine.restore_slot(1, path)
        with pytest.raises(RequestError) as failed:
            engine.save_slot(0, tmp_path / "missing" / "file")
        assert failed.value.kind == "internal"
        with pytest.raises(RequestError, match="there are slots 0 to 1"):
            engine.erase_slot(2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.bin", "good.bin"]
    with Engine(models.tiny(), ctx_size=1024, parallel=2, kv_unified=False) as other:
        with pytest.raises(RequestError, match="other cache types") as failed:
            other.restore_slot(0, good)
        assert failed.value.kind == "invalid_request"
    with Engine(models.tiny(), ctx_size=512, parallel=2, kv_unified=False, **EXACT) as small:
        with pytest.raises(RequestError, match="do not fit in the slot"):
            small.restore_slot(0, good)
        small.close()
        with pytest.raises(EngineClosedError):
            small.erase_slot(0)


def test_busy_slot(tmp_path: Path) -> None:
    with Engine(models.tiny(), ctx_size=4096, parallel=1) as engine:
        with engine.stream("x", n_predict=2000, ignore_eos=True) as stream:
            next(stream)
            for call in (engine.erase_slot, lambda i: engine.save_slot(i, tmp_path / "x")):
                with pytest.raises(RequestError, match="busy") as failed:
                    call(0)
                assert failed.value.kind == "unavailable"
        assert engine.erase_slot(0) > 0


@needs_peer
def test_files_are_llama_servers(tmp_path: Path) -> None:
    prompt = words(6, 80)
    body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "id_slot": 0}
    flags = ("-c", "1024", "-np", "2", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--slot-save-path", str(tmp_path))
    with (
        llama_server(models.tiny(), *flags) as url,
        Engine(models.tiny(), ctx_size=1024, parallel=2, kv_unified=False, **EXACT) as engine,
    ):
        ours = engine.complete(prompt, n_predict=4, temperature=0, id_slot=0)
        engine.save_slot(0, tmp_path / "ours.bin")
        assert post(f"{url}/slots/1?action=restore", {"filename": "ours.bin"})["n_restored"] == 83
        answer = post(f"{url}/completion", {**body, "id_slot": 1, "return_tokens": True})
        assert answer["timings"]["cache_n"] == 79
        assert tuple(answer["tokens"]) == ours.tokens
        post(f"{url}/slots/1?action=save", {"filename": "theirs.bin"})
        assert engine.restore_slot(1, tmp_path / "theirs.bin").n_tokens == 83
        again = engine.complete(prompt, n_predict=4, temperature=0, id_slot=1)
        assert again.timings.cache_n == 79
        assert again.tokens == ours.tokens
