"""What the command line and the environment ask for, sorted by who needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .vertex import VertexSettings

Command = Literal["help", "help-all", "version", "list-devices", "cache-list", "completion-bash"]


@dataclass
class ModelSettings:
    """Where the model is. At most one of `model`, `model_url` and `hf_repo` usually says it."""

    model: str | None = None
    model_url: str | None = None
    hf_repo: str | None = None
    hf_file: str | None = None
    hf_token: str | None = None
    spec_draft_hf: str | None = None
    """Repository of the draft model."""
    offline: bool = False
    alias: list[str] = field(default_factory=list)
    """Names of the model, sorted; responses carry the first."""
    tags: list[str] = field(default_factory=list)

    @property
    def given(self) -> bool:
        """Whether any model was named."""
        return any((self.model, self.model_url, self.hf_repo))


@dataclass
class ServerSettings:
    """How the HTTP server listens and whom it lets in. `docs/flags.md` says what each field does."""

    hosts: list[str] = field(default_factory=lambda: ["127.0.0.1"])
    port: int = 8080
    reuse_port: bool = False
    api_prefix: str = ""
    """Empty, or a path with a leading and no trailing slash."""
    path: str | None = None
    timeout: int = 3600
    sse_ping_interval: int = 30
    threads_http: int = -1
    shutdown_timeout: float = 30.0
    metrics: bool = False
    props: bool = False
    slots: bool = True
    slot_save_path: str | None = None
    sleep_idle_seconds: int = -1
    ui: bool = True
    ui_config: dict[str, Any] | None = None
    spm_infill: bool = False
    vertex: VertexSettings | None = None
    """What Vertex AI's environment asks for."""
    api_keys: list[str] = field(default_factory=list, repr=False)
    """Keys of --api-key and of --api-key-file."""
    ssl_key_file: str | None = None
    ssl_cert_file: str | None = None
    cors_origins: list[str] = field(default_factory=lambda: ["*"])
    cors_methods: list[str] = field(default_factory=lambda: ["GET", "POST", "DELETE", "OPTIONS"])
    cors_headers: list[str] = field(default_factory=lambda: ["*"])
    cors_credentials: bool = True


@dataclass
class LogSettings:
    disable: bool = False
    file: str | None = None
    jsonl: bool = False
    colors: Literal["on", "off", "auto"] = "auto"
    verbosity: int = 3
    """0 plain output, 1 errors, 2 warnings, 3 information, 4 trace, 5 debug."""
    prefix: bool = True
    timestamps: bool = True


@dataclass
class Settings:
    engine: dict[str, Any] = field(default_factory=dict)
    """Keywords for `Engine(...)`: only what was given."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Defaults for requests, by the HTTP API's field names: only what was given."""
    server: ServerSettings = field(default_factory=ServerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    command: Command | None = None
    """Print something and exit, instead of serving."""
