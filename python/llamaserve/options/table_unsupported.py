"""llama-server's options that are not supported yet. To support one, make `supported` true (or move its row)."""

from __future__ import annotations

from .spec import Option, Scope
from .values import Flag, Int, Str, Switch, ValueType, path


def later(
    dest: str,
    *flags: str,
    type: ValueType,
    section: str,
    note: str,
    help: str,
    env: str | None = None,
    scope: Scope = "engine",
    negative: tuple[str, ...] = (),
    default: object = None,
    default_text: str = "",
    accepts: tuple[object, ...] = (),
    nargs: int = 1,
    supported: bool = False,
) -> Option:
    """The row of an option that is not supported."""
    return Option(
        dest=dest,
        flags=flags,
        negative_flags=negative,
        type=type,
        section=section,
        note=note,
        help=help,
        env=f"LLAMA_ARG_{env}" if env else None,
        scope=scope,
        default=default,
        default_text=default_text,
        accepts=accepts,
        nargs=nargs,
        supported=supported,
    )


_HARDWARE = (
    later(
        "rpc",
        "--rpc",
        env="RPC",
        type=Str("HOST:PORT,..."),
        section="hardware",
        note="devices of other machines",
        help="Use the devices of these RPC servers.",
    ),
)


def _server(dest: str, *flags: str, type: ValueType, section: str, note: str, help: str, env: str = "") -> Option:
    return later(dest, *flags, type=type, section=section, note=note, help=help, env=env or None, scope="server")


_ROUTER_NOTE = "several models in one server"
_TOOLS_NOTE = "built-in tools"
_MCP_NOTE = "MCP servers"

_ROUTER = (
    _server(
        "models_dir",
        "--models-dir",
        env="MODELS_DIR",
        type=path("DIR"),
        section="router",
        note=_ROUTER_NOTE,
        help="Folder of models.",
    ),
    _server(
        "models_preset",
        "--models-preset",
        env="MODELS_PRESET",
        type=path(),
        section="router",
        note=_ROUTER_NOTE,
        help="INI file of models and their options.",
    ),
    _server(
        "models_max",
        "--models-max",
        env="MODELS_MAX",
        type=Int(),
        section="router",
        note=_ROUTER_NOTE,
        help="Most models loaded at a time; 0 is no limit.",
    ),
    later(
        "models_autoload",
        "--models-autoload",
        negative=("--no-models-autoload",),
        env="MODELS_AUTOLOAD",
        type=Switch(),
        section="router",
        scope="server",
        note=_ROUTER_NOTE,
        help="Load a model when a request names it.",
        accepts=(False,),
    ),
    _server(
        "docker_repo",
        "-dr",
        "--docker-repo",
        env="DOCKER_REPO",
        type=Str("REPO"),
        section="model",
        note="models from Docker Hub",
        help="Fetch the model from this Docker Hub repository.",
    ),
)

_TOOLS = (
    _server(
        "tools",
        "--tools",
        env="TOOLS",
        type=Str("NAME,..."),
        section="tools",
        note=_TOOLS_NOTE,
        help="Tools that run on the server.",
    ),
    _server(
        "tools_runtime",
        "--tools-runtime",
        env="TOOLS_RUNTIME",
        type=Str("RUNTIME"),
        section="tools",
        note=_TOOLS_NOTE,
        help="Where the tools run.",
    ),
    _server(
        "mcp_servers_config",
        "--mcp-servers-config",
        env="MCP_SERVERS_CONFIG",
        type=path(),
        section="tools",
        note=_MCP_NOTE,
        help="JSON file of MCP servers.",
    ),
    _server(
        "mcp_servers_json",
        "--mcp-servers-json",
        env="MCP_SERVERS_JSON",
        type=Str("JSON"),
        section="tools",
        note=_MCP_NOTE,
        help="MCP servers, as JSON.",
    ),
    later(
        "agent",
        "-ag",
        "--agent",
        negative=("-no-ag", "--no-agent"),
        env="AGENT",
        type=Switch(),
        section="tools",
        scope="server",
        note=_TOOLS_NOTE,
        help="All built-in tools and the MCP proxy.",
        default=False,
        accepts=(False,),
    ),
    later(
        "ui_mcp_proxy",
        "--ui-mcp-proxy",
        "--webui-mcp-proxy",
        negative=("--no-ui-mcp-proxy", "--no-webui-mcp-proxy"),
        env="UI_MCP_PROXY",
        type=Switch(),
        section="tools",
        scope="server",
        note=_MCP_NOTE,
        help="Proxy for MCP servers that the web page calls.",
        default=False,
        accepts=(False,),
    ),
)

_OTHER = (
    _server(
        "log_prompts_dir",
        "--log-prompts-dir",
        type=path("DIR"),
        section="logging",
        note="logging prompts",
        help="Write every prompt to this folder.",
    ),
)


def _preset(name: str, model: str) -> Option:
    dest = name.replace("-", "_").replace(".", "_")
    flag = f"--{name}"
    return later(dest, flag, type=Flag(), section="preset", scope="model", note="model presets", help=f"Serve {model}.")


_PRESETS = (
    _preset("embd-gemma-default", "EmbeddingGemma"),
    _preset("fim-qwen-1.5b-default", "Qwen 2.5 Coder 1.5B"),
    _preset("fim-qwen-3b-default", "Qwen 2.5 Coder 3B"),
    _preset("fim-qwen-7b-default", "Qwen 2.5 Coder 7B"),
    _preset("fim-qwen-7b-spec", "Qwen 2.5 Coder 7B with a 0.5B draft model"),
    _preset("fim-qwen-14b-spec", "Qwen 2.5 Coder 14B with a 0.5B draft model"),
    _preset("fim-qwen-30b-default", "Qwen 3 Coder 30B A3B"),
    _preset("gpt-oss-20b-default", "gpt-oss 20B"),
    _preset("gpt-oss-120b-default", "gpt-oss 120B"),
    _preset("vision-gemma-4b-default", "Gemma 3 4B with vision"),
    _preset("vision-gemma-12b-default", "Gemma 3 12B with vision"),
)

UNSUPPORTED = _HARDWARE + _ROUTER + _TOOLS + _OTHER + _PRESETS
