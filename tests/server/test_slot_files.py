"""`POST /slots/{id}` over HTTP."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from llamaserve.server.slot_files import is_file_name

from tests import models
from tests.server.conftest import App, MakeServer


@pytest.mark.parametrize("name", ["slot1.bin", "a b", ".hidden", "\u00e4\u00f6.bin", "x" * 255])
def test_good_names(name: str) -> None:
    assert is_file_name(name)


BAD_NAMES = [
    *("", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "C:x", "a\0b", "a\nb", "x.", "x ", " x", "a..b", "x" * 256),
    *("*", "?", '"', "<", ">", "|", "\x7f", "\x85", "\ufffd", "\uff0e\uff0e", "a\u2215b", "\ud800"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names(name: str) -> None:
    assert not is_file_name(name)


def test_refusals(app: App, tmp_path: Path) -> None:
    response = app.post("/slots/0?action=erase", {})
    assert response.status_code == 501
    assert "--slot-save-path" in response.json()["error"]["message"]
    app = App(slot_save_path=str(tmp_path))
    (tmp_path / "folder").mkdir()
    for path, body, message in (
        ("/slots/0?action=save", {"filename": "folder"}, "there is a folder of that name"),
        ("/slots/x?action=erase", {}, "Invalid slot ID"),
        ("/slots/-1?action=erase", {}, "Invalid slot ID"),
        ("/slots/0?action=copy", {}, "Invalid action"),
        ("/slots/0", {}, "Invalid action"),
        ("/slots/0?action=save", {}, "'filename' is required"),
        ("/slots/0?action=save", {"filename": 3}, "Field 'filename'"),
        ("/slots/0?action=restore", {"filename": "../x"}, "Invalid filename"),
    ):
        response = app.post(path, body)
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
        assert message in response.json()["error"]["message"]
    assert app.request("POST", "/slots/0?action=save").status_code == 400


def test_slot_actions(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("-m", str(models.tiny()), "-c", "1024", "-np", "2", "--slot-save-path", str(tmp_path))
    body = {"prompt": "the quick brown fox", "n_predict": 3, "temperature": 0, "id_slot": 0}
    done = httpx.post(f"{server.url}/completion", json=body, timeout=60).json()
    n = done["timings"]["prompt_n"] + 2
    saved = httpx.post(f"{server.url}/slots/0?action=save", json={"filename": "a.bin"}).json()
    assert saved.pop("timings")["save_ms"] > 0
    assert saved == {
        "id_slot": 0,
        "filename": "a.bin",
        "n_saved": n,
        "n_written": (tmp_path / "a.bin").stat().st_size,
    }
    assert httpx.post(f"{server.url}/slots/0?action=erase").json() == {"id_slot": 0, "n_erased": n}
    restored = httpx.post(f"{server.url}/slots/1?action=restore", json={"filename": "a.bin"}).json()
    assert restored.pop("timings")["restore_ms"] > 0
    assert restored == {"id_slot": 1, "filename": "a.bin", "n_restored": n, "n_read": saved["n_written"]}
    again = httpx.post(f"{server.url}/completion", json={**body, "id_slot": 1}, timeout=60).json()
    assert again["timings"]["prompt_n"] == 1
    assert again["content"] == done["content"]
    gone = httpx.post(f"{server.url}/slots/1?action=restore", json={"filename": "b.bin"})
    assert gone.status_code == 400
    assert "no such file" in gone.json()["error"]["message"]
    assert httpx.post(f"{server.url}/slots/7?action=erase").status_code == 400
