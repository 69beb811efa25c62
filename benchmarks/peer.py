"""Build llama.cpp's own programs from the source that llamaserve pins, to be measured and compared against.

    python -m benchmarks.peer --target llama-server --target llama-bench

prints the path of each program. They are built like llamaserve's core: the same tree, the same options for ggml, and
the same CMAKE_ARGS from the environment. The build is kept in the cache folder, under a name made of what went into it,
so a program that is there is up to date.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_TARGETS = ("llama-server",)

OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}


def _fetch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("llamaserve_fetch", ROOT / "third_party" / "fetch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _tool(name: str) -> str:
    """A build tool: the one that pip put beside this Python, else the machine's."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        raise SystemExit(f"{name} is not installed; pip install {name}")
    return path


def _host() -> str:
    """What GGML_NATIVE depends on: the processor's kind and its instructions."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line}"
    return f"{platform.machine()} {platform.processor()}"


def _compiler() -> str:
    compiler = os.environ.get("CXX", "c++")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return compiler


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lets one process build at a time, where the platform has file locks."""
    with (directory / "lock").open("w") as file:
        with contextlib.suppress(ImportError):
            import fcntl  # noqa: PLC0415

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def peer_binaries(targets: Sequence[str] = DEFAULT_TARGETS) -> list[Path]:
    """Build programs of llama.cpp's if they are not there yet, and return their paths."""
    fetch = _fetch()
    source = fetch.source_tree(whole=True)
    defines = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    if not (source / ".git").exists():
        lock = fetch.read_lock()
        defines += [f"-DLLAMA_BUILD_COMMIT={lock.commit}", f"-DLLAMA_BUILD_NUMBER={lock.build_number}", "-DGIT_EXE="]
    defines += shlex.split(os.environ.get("CMAKE_ARGS", ""))

    key = hashlib.sha256("\0".join([str(source), *defines, _host(), _compiler()]).encode()).hexdigest()
    build = fetch.cache_dir() / f"peer-{key[:12]}"
    suffix = ".exe" if sys.platform == "win32" else ""
    programs = [build / "bin" / (target + suffix) for target in targets]
    build.mkdir(parents=True, exist_ok=True)
    with _locked(build):
        if not all(program.is_file() for program in programs):
            configure = [_tool("cmake"), "-S", str(source), "-B", str(build), "-G", "Ninja", *defines]
            configure.append(f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}")
            subprocess.run(configure, stdout=sys.stderr, check=True)
            subprocess.run([_tool("cmake"), "--build", str(build), "--target", *targets], stdout=sys.stderr, check=True)
    return programs


def peer_binary(name: str) -> Path:
    """The path of one program of llama.cpp's, such as llama-server, built if it is not there yet."""
    return peer_binaries([name])[0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Build llama.cpp's own programs from the pinned source.")
    parser.add_argument("--target", action="append", dest="targets", help="a program to build (default: llama-server)")
    arguments = parser.parse_args()
    try:
        programs = peer_binaries(arguments.targets or DEFAULT_TARGETS)
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} failed", file=sys.stderr)
        return 1
    print(*programs, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
