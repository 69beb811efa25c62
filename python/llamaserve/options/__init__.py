"""Flags, environment variables, help and docs, all made from one table of options."""

from __future__ import annotations

from .help import render_completion_bash, render_flags_markdown, render_help
from .parser import parse
from .settings import Command, LogSettings, ModelSettings, ServerSettings, Settings
from .spec import EXIT_USAGE, Option, OptionError
from .table import OPTIONS
from .vertex import VertexSettings

__all__ = [
    "EXIT_USAGE",
    "OPTIONS",
    "Command",
    "LogSettings",
    "ModelSettings",
    "Option",
    "OptionError",
    "ServerSettings",
    "Settings",
    "VertexSettings",
    "parse",
    "render_completion_bash",
    "render_flags_markdown",
    "render_help",
]
