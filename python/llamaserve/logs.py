"""Python's logging through the core's logger, so that all lines have one form and go to one place."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from llamaserve import _core

if TYPE_CHECKING:
    from llamaserve.options import LogSettings

TRACE = 15
"""Level between `DEBUG` and `INFO`; --verbosity 4 shows it."""

_COLORS = {"auto": -1, "off": 0, "on": 1}


class CoreHandler(logging.Handler):
    """Hands records to the core's logger."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _core.log_write(verbosity_of(record.levelno), self.format(record))
        except Exception:
            self.handleError(record)


def verbosity_of(level: int) -> int:
    """llama.cpp's verbosity for a level of Python's logging."""
    if level >= logging.ERROR:
        return 1
    if level >= logging.WARNING:
        return 2
    if level >= logging.INFO:
        return 3
    return 4 if level >= TRACE else 5


def configure(settings: LogSettings) -> None:
    """Sets up the core's logger, and sends Python's logging there."""
    _core.log_configure(
        verbosity=settings.verbosity,
        file=settings.file or "",
        colors=_COLORS[settings.colors],
        prefix=settings.prefix,
        timestamps=settings.timestamps,
        jsonl=settings.jsonl,
        disabled=settings.disable,
    )
    logging.addLevelName(TRACE, "TRACE")
    root = logging.getLogger()
    root.handlers = [CoreHandler()]
    # Libraries' information is noise to most; ours is what --verbosity asks for.
    root.setLevel(logging.WARNING if settings.verbosity < 5 else logging.INFO)
    logging.getLogger("llamaserve").setLevel({3: logging.INFO, 4: TRACE, 5: logging.DEBUG}.get(settings.verbosity, 30))


def flush() -> None:
    """Waits until everything is written."""
    _core.log_flush()
