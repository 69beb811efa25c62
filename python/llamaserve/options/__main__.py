"""`python -m llamaserve.options > docs/flags.md` writes the table of flags."""

import sys

from .help import render_flags_markdown

sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
sys.stdout.write(render_flags_markdown())
