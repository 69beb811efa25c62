"""The vendoring of llama.cpp (third_party/fetch.py), and what the wheel must carry. Nothing here needs a network."""

import importlib.metadata
import importlib.util
import io
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
FETCH = ROOT / "third_party" / "fetch.py"
LICENSES = ROOT / "third_party" / "licenses"


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """fetch.py, with a cache folder of its own and nothing else configured."""
    monkeypatch.setenv("LLAMASERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("LLAMASERVE_LLAMA_CPP_DIR", raising=False)
    spec = importlib.util.spec_from_file_location("fetch_under_test", FETCH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def make_archive(path: Path) -> Path:
    """A small source archive laid out like the real one."""
    top = "pkg-1.0"
    files = {
        f"{top}/pyproject.toml": "not llama.cpp's",
        f"{top}/vendor/llama.cpp/CMakeLists.txt": "project(llama.cpp)",
        f"{top}/vendor/llama.cpp/.git": "gitdir: ../../.git/modules/vendor/llama.cpp",
        f"{top}/vendor/llama.cpp/include/llama.h": "#pragma once",
        f"{top}/vendor/llama.cpp/models/big.gguf": "GGUF",
        f"{top}/vendor/llama.cpp/src/models/small.cpp": "int x;",
        f"{top}/vendor/llama.cpp/../escaped": "outside",
    }
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            member.mtime = 2**33
            tar.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo(f"{top}/vendor/llama.cpp/link")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc"
        tar.addfile(link)
    return path


@pytest.fixture
def downloads(fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Makes fetch.py pin and "download" the small archive; the list has an entry for each download."""
    archive = make_archive(tmp_path / "pkg-1.0.tar.gz")
    digest = fetch.hashlib.sha256(archive.read_bytes()).hexdigest()
    lock = fetch.Lock("pkg", "1.0", digest, "abcdef", "7", "pkg-1.0/vendor/llama.cpp")
    made: list[Path] = []

    def download(lock: object, directory: Path) -> Path:
        copy = directory / archive.name
        copy.write_bytes(archive.read_bytes())
        made.append(copy)
        return copy

    monkeypatch.setattr(fetch, "read_lock", lambda: lock)
    monkeypatch.setattr(fetch, "download", download)
    return made


def test_lock_is_complete(fetch: ModuleType) -> None:
    lock = fetch.read_lock()
    assert len(lock.sha256) == 64
    assert lock.version in lock.subdir


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("package pkg", r":1: expected 'key = value'"),
        ("package =", r":1: expected 'key = value'"),
        ("package = pkg", "version"),
        ("colour = red", "colour"),
    ],
)
def test_a_wrong_lock_is_explained(fetch: ModuleType, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.lock"
    path.write_text(text)
    with pytest.raises(fetch.FetchError, match=message):
        fetch.read_lock(path)


def test_unpacks_only_llama_cpp(fetch: ModuleType, downloads: list[Path]) -> None:
    tree = fetch.source_tree()
    found = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert found == {
        fetch.STAMP,
        "CMakeLists.txt",
        "include/llama.h",
        "models/big.gguf",
        "src/models/small.cpp",
    }
    assert not (tree.parent / "escaped").exists()


def test_unpacked_files_are_not_from_the_future(fetch: ModuleType, downloads: list[Path]) -> None:
    assert (fetch.source_tree() / "CMakeLists.txt").stat().st_mtime == fetch.FILE_TIME


def test_downloads_once(fetch: ModuleType, downloads: list[Path]) -> None:
    assert fetch.source_tree() == fetch.source_tree()
    assert len(downloads) == 1


def test_leaves_nothing_but_the_tree_in_the_cache(fetch: ModuleType, downloads: list[Path]) -> None:
    tree = fetch.source_tree()
    assert list(fetch.cache_dir().iterdir()) == [tree]


def test_an_unfinished_tree_is_replaced(fetch: ModuleType, downloads: list[Path]) -> None:
    tree = fetch.source_tree()
    (tree / fetch.STAMP).unlink()
    (tree / "include" / "llama.h").unlink()
    assert (fetch.source_tree() / "include" / "llama.h").is_file()
    assert len(downloads) == 2


def test_concurrent_builds_get_the_same_tree(fetch: ModuleType, downloads: list[Path]) -> None:
    with ThreadPoolExecutor(8) as pool:
        trees = set(pool.map(lambda _: fetch.source_tree(), range(8)))
    assert trees == {fetch.cache_dir() / fetch.read_lock().tree_name}
    assert list(fetch.cache_dir().iterdir()) == list(trees)


def test_a_wrong_hash_is_refused(
    fetch: ModuleType, downloads: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = fetch.read_lock().sha256
    wrong = "0" * 64
    lock = replace(fetch.read_lock(), sha256=wrong)
    monkeypatch.setattr(fetch, "read_lock", lambda: lock)
    with pytest.raises(fetch.FetchError, match=rf"(?s)pkg-1.0.tar.gz.*expected {wrong}.*got +{right}"):
        fetch.source_tree()
    assert list(fetch.cache_dir().iterdir()) == []


def test_an_archive_without_llama_cpp_is_refused(
    fetch: ModuleType, downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = replace(fetch.read_lock(), subdir="pkg-1.0/elsewhere")
    monkeypatch.setattr(fetch, "read_lock", lambda: lock)
    with pytest.raises(fetch.FetchError, match=r"no pkg-1\.0/elsewhere/CMakeLists\.txt"):
        fetch.source_tree()


def test_a_cache_folder_that_cannot_be_used_is_explained(
    fetch: ModuleType, downloads: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LLAMASERVE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(fetch.FetchError, match="Set LLAMASERVE_CACHE_DIR"):
        fetch.source_tree()


def run_fetch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, FETCH, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_without_a_network_it_says_what_to_do(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    result = run_fetch()
    assert result.returncode == 1
    assert result.stdout == ""
    assert "LLAMASERVE_LLAMA_CPP_DIR" in result.stderr
    assert "No matching distribution" in result.stderr


def test_a_checkout_is_used_as_it_is(fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkout = tmp_path / "mine"
    (checkout / "include").mkdir(parents=True)
    (checkout / "include" / "llama.h").touch()
    assert run_fetch("--local-dir", str(checkout)).stdout.strip() == checkout.as_posix()
    monkeypatch.setenv("LLAMASERVE_LLAMA_CPP_DIR", str(checkout))
    assert run_fetch("--print-dir").stdout.strip() == checkout.as_posix()


def test_a_checkout_that_is_none_is_refused(fetch: ModuleType, tmp_path: Path) -> None:
    result = run_fetch("--local-dir", str(tmp_path))
    assert result.returncode == 1
    assert "holds no llama.cpp" in result.stderr


def test_a_source_archive_brings_its_tree(
    fetch: ModuleType, downloads: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    third_party = tmp_path / "sdist" / "third_party"
    fetch.bundle(fetch.source_tree(), third_party / "llama.cpp")
    monkeypatch.setattr(fetch, "THIRD_PARTY", third_party)
    assert fetch.source_tree() != third_party / "llama.cpp", "a checkout uses the cache, even after making an archive"

    (tmp_path / "sdist" / "PKG-INFO").touch()
    assert fetch.source_tree() == third_party / "llama.cpp"
    assert fetch.source_tree(whole=True) != third_party / "llama.cpp"

    (third_party / "llama.cpp" / fetch.STAMP).write_text("another version's")
    assert fetch.source_tree() != third_party / "llama.cpp"


def test_a_source_archive_leaves_out_what_no_build_needs(
    fetch: ModuleType, downloads: list[Path], tmp_path: Path
) -> None:
    bundled = tmp_path / "bundled"
    fetch.bundle(fetch.source_tree(), bundled)
    assert sorted(path.name for path in bundled.iterdir()) == [fetch.STAMP, "CMakeLists.txt", "include", "src"]
    assert (bundled / "src" / "models" / "small.cpp").is_file()
    assert fetch.is_tree_of(fetch.read_lock(), bundled)


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/llamaserve"),
        ("linux", {}, "~/.cache/llamaserve"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "~/Library/Caches/llamaserve"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/llamaserve"),
    ],
)
def test_cache_folder(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], expected: str
) -> None:
    for name in ("LLAMASERVE_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(fetch.sys, "platform", platform)
    assert fetch.cache_dir() == Path(expected).expanduser()


@pytest.fixture
def dist_info() -> Callable[[str], Path]:
    try:
        files = importlib.metadata.files("llamaserve") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llamaserve is not installed")
    info = {str(file): Path(str(file.locate())) for file in files if ".dist-info/" in str(file)}
    return lambda end: next((path for name, path in info.items() if name.endswith(end)), Path("missing"))


@pytest.mark.parametrize(
    "name", ["LICENSE", *sorted(f"third_party/licenses/{path.name}" for path in LICENSES.iterdir())]
)
def test_the_wheel_carries_the_licences(dist_info: Callable[[str], Path], name: str) -> None:
    assert dist_info(f"/licenses/{name}").read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8")


def test_the_notice_names_every_licence() -> None:
    notice = (LICENSES / "NOTICE").read_text()
    assert [path.name for path in LICENSES.iterdir() if path.name not in notice and path.name != "NOTICE"] == []


def test_llama_cpp_s_licences_are_those_of_the_pinned_tree(fetch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade of the pin must bring the new tree's licence texts along."""
    monkeypatch.delenv("LLAMASERVE_CACHE_DIR")
    lock = fetch.read_lock()
    tree = fetch.cache_dir() / lock.tree_name
    if not fetch.is_tree_of(lock, tree):
        pytest.skip("the pinned tree is not in the cache folder")
    for name, origin in {
        "llama.cpp.txt": "LICENSE",
        "nlohmann-json.txt": "licenses/LICENSE-jsonhpp",
        "cpp-httplib.txt": "vendor/cpp-httplib/LICENSE",
        "xxhash.txt": "vendor/hash/xxhash/LICENSE",
        "rotate-bits.txt": "vendor/hash/rotate-bits/LICENSE.md",
    }.items():
        assert (LICENSES / name).read_text() == (tree / origin).read_text(), name
