"""Flags, environment variables, help and docs of the command line."""

from __future__ import annotations

import dataclasses
import math
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llamaserve.options import (
    EXIT_USAGE,
    OPTIONS,
    LogSettings,
    ModelSettings,
    Option,
    OptionError,
    ServerSettings,
    Settings,
    parse,
    render_completion_bash,
    render_flags_markdown,
    render_help,
)
from llamaserve.options.spec import SECTIONS
from llamaserve.options.table import BY_FLAG

DOCS = Path(__file__).parent.parent / "docs" / "flags.md"

# Every option of llama-server at the pinned commit: its flags, then its environment variable.
LLAMA_SERVER = """
-h,--help,--usage --version -cl,--cache-list --completion-bash -t,--threads:LLAMA_ARG_THREADS -tb,--threads-batch
-C,--cpu-mask -Cr,--cpu-range --cpu-strict --prio --poll -Cb,--cpu-mask-batch -Crb,--cpu-range-batch
--cpu-strict-batch --prio-batch --poll-batch -c,--ctx-size:LLAMA_ARG_CTX_SIZE
-n,--predict,--n-predict:LLAMA_ARG_N_PREDICT -b,--batch-size:LLAMA_ARG_BATCH -ub,--ubatch-size:LLAMA_ARG_UBATCH --keep
--swa-full:LLAMA_ARG_SWA_FULL -fa,--flash-attn:LLAMA_ARG_FLASH_ATTN --perf,--no-perf:LLAMA_ARG_PERF
-e,--escape,--no-escape --rope-scaling:LLAMA_ARG_ROPE_SCALING_TYPE --rope-scale:LLAMA_ARG_ROPE_SCALE
--rope-freq-base:LLAMA_ARG_ROPE_FREQ_BASE --rope-freq-scale:LLAMA_ARG_ROPE_FREQ_SCALE
--yarn-orig-ctx:LLAMA_ARG_YARN_ORIG_CTX --yarn-ext-factor:LLAMA_ARG_YARN_EXT_FACTOR
--yarn-attn-factor:LLAMA_ARG_YARN_ATTN_FACTOR --yarn-beta-slow:LLAMA_ARG_YARN_BETA_SLOW
--yarn-beta-fast:LLAMA_ARG_YARN_BETA_FAST -kvo,--kv-offload,-nkvo,--no-kv-offload:LLAMA_ARG_KV_OFFLOAD
--repack,-nr,--no-repack:LLAMA_ARG_REPACK --no-host:LLAMA_ARG_NO_HOST -ctk,--cache-type-k:LLAMA_ARG_CACHE_TYPE_K
-ctv,--cache-type-v:LLAMA_ARG_CACHE_TYPE_V -dt,--defrag-thold:LLAMA_ARG_DEFRAG_THOLD --rpc:LLAMA_ARG_RPC
-lm,--load-mode:LLAMA_ARG_LOAD_MODE -lzm,--lazy-mode:LLAMA_ARG_LAZY_MODE --numa:LLAMA_ARG_NUMA
-dev,--device:LLAMA_ARG_DEVICE --list-devices -ot,--override-tensor:LLAMA_ARG_OVERRIDE_TENSOR
-cmoe,--cpu-moe:LLAMA_ARG_CPU_MOE -ncmoe,--n-cpu-moe:LLAMA_ARG_N_CPU_MOE -ncffn,--n-cpu-ffn:LLAMA_ARG_N_CPU_FFN
-ngl,--gpu-layers,--n-gpu-layers:LLAMA_ARG_N_GPU_LAYERS -sm,--split-mode:LLAMA_ARG_SPLIT_MODE
-ts,--tensor-split:LLAMA_ARG_TENSOR_SPLIT -mg,--main-gpu:LLAMA_ARG_MAIN_GPU -fit,--fit:LLAMA_ARG_FIT
-fitt,--fit-target:LLAMA_ARG_FIT_TARGET -fitc,--fit-ctx:LLAMA_ARG_FIT_CTX --check-tensors --override-kv
--op-offload,--no-op-offload --lora --lora-scaled --control-vector --control-vector-scaled
--control-vector-layer-range -m,--model:LLAMA_ARG_MODEL -mu,--model-url:LLAMA_ARG_MODEL_URL
-dr,--docker-repo:LLAMA_ARG_DOCKER_REPO -hf,-hfr,--hf-repo:LLAMA_ARG_HF_REPO -hff,--hf-file:LLAMA_ARG_HF_FILE
-hft,--hf-token:HF_TOKEN --log-disable --log-file:LLAMA_ARG_LOG_FILE --log-jsonl,--no-log-jsonl:LLAMA_ARG_LOG_JSONL
--log-colors:LLAMA_ARG_LOG_COLORS -v,--verbose,--log-verbose --offline:LLAMA_ARG_OFFLINE
-lv,--verbosity,--log-verbosity:LLAMA_ARG_LOG_VERBOSITY --log-prefix,--no-log-prefix:LLAMA_ARG_LOG_PREFIX
--log-timestamps,--no-log-timestamps:LLAMA_ARG_LOG_TIMESTAMPS
--spec-draft-type-k,-ctkd,--cache-type-k-draft:LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K
--spec-draft-type-v,-ctvd,--cache-type-v-draft:LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V --samplers -s,--seed
--sampler-seq,--sampling-seq --ignore-eos --temp,--temperature:LLAMA_ARG_TEMPERATURE --top-k:LLAMA_ARG_TOP_K
--top-p:LLAMA_ARG_TOP_P --min-p:LLAMA_ARG_MIN_P --top-nsigma,--top-n-sigma --xtc-probability --xtc-threshold
--typical,--typical-p --repeat-last-n --repeat-penalty:LLAMA_ARG_REPEAT_PENALTY
--presence-penalty:LLAMA_ARG_PRESENCE_PENALTY --frequency-penalty:LLAMA_ARG_FREQUENCY_PENALTY --dry-multiplier
--dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay
--dynatemp-range --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent -l,--logit-bias --grammar --grammar-file
-j,--json-schema -jf,--json-schema-file -bs,--backend-sampling:LLAMA_ARG_BACKEND_SAMPLING -lcs,--lookup-cache-static
-lcd,--lookup-cache-dynamic --kv-unified-per-slot:LLAMA_ARG_KV_UNIFIED_PER_SLOT
-ctxcp,--ctx-checkpoints,--swa-checkpoints:LLAMA_ARG_CTX_CHECKPOINTS
-cms,--checkpoint-min-step:LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT -cram,--cache-ram:LLAMA_ARG_CACHE_RAM
-kvu,--kv-unified,-no-kvu,--no-kv-unified:LLAMA_ARG_KV_UNIFIED
--cache-idle-slots,--no-cache-idle-slots:LLAMA_ARG_CACHE_IDLE_SLOTS
--context-shift,--no-context-shift:LLAMA_ARG_CONTEXT_SHIFT -r,--reverse-prompt -sp,--special --warmup,--no-warmup
--spm-infill --pooling:LLAMA_ARG_POOLING -np,--parallel:LLAMA_ARG_N_PARALLEL
-cb,--cont-batching,-nocb,--no-cont-batching:LLAMA_ARG_CONT_BATCHING -mm,--mmproj:LLAMA_ARG_MMPROJ
-mmu,--mmproj-url:LLAMA_ARG_MMPROJ_URL --mmproj-auto,--no-mmproj,--no-mmproj-auto:LLAMA_ARG_MMPROJ_AUTO
--mmproj-offload,--no-mmproj-offload:LLAMA_ARG_MMPROJ_OFFLOAD -mmdev,--mmproj-device:MTMD_BACKEND_DEVICE
--image-min-tokens:LLAMA_ARG_IMAGE_MIN_TOKENS --image-max-tokens:LLAMA_ARG_IMAGE_MAX_TOKENS
--mtmd-batch-max-tokens:LLAMA_ARG_MTMD_BATCH_MAX_TOKENS --video-fps:LLAMA_ARG_VIDEO_FPS
--video-timestamp-interval:LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL --video-ffmpeg-dir:LLAMA_ARG_VIDEO_FFMPEG_DIR
-a,--alias:LLAMA_ARG_ALIAS --tags:LLAMA_ARG_TAGS --embd-normalize --host:LLAMA_ARG_HOST --port:LLAMA_ARG_PORT
--reuse-port:LLAMA_ARG_REUSE_PORT --path:LLAMA_ARG_STATIC_PATH --cors-origins:LLAMA_ARG_CORS_ORIGINS
--cors-methods:LLAMA_ARG_CORS_METHODS --cors-headers:LLAMA_ARG_CORS_HEADERS
--cors-credentials,--no-cors-credentials:LLAMA_ARG_CORS_CREDENTIALS --api-prefix:LLAMA_ARG_API_PREFIX
--ui-config,--webui-config:LLAMA_ARG_UI_CONFIG --ui-config-file,--webui-config-file:LLAMA_ARG_UI_CONFIG_FILE
--ui-mcp-proxy,--webui-mcp-proxy,--no-ui-mcp-proxy,--no-webui-mcp-proxy:LLAMA_ARG_UI_MCP_PROXY --tools:LLAMA_ARG_TOOLS
--tools-runtime:LLAMA_ARG_TOOLS_RUNTIME --mcp-servers-config:LLAMA_ARG_MCP_SERVERS_CONFIG
--mcp-servers-json:LLAMA_ARG_MCP_SERVERS_JSON -ag,--agent,-no-ag,--no-agent:LLAMA_ARG_AGENT
--ui,--webui,--no-ui,--no-webui:LLAMA_ARG_UI --embedding,--embeddings:LLAMA_ARG_EMBEDDINGS
--rerank,--reranking:LLAMA_ARG_RERANKING --api-key:LLAMA_API_KEY --api-key-file:LLAMA_ARG_API_KEY_FILE
--ssl-key-file:LLAMA_ARG_SSL_KEY_FILE --ssl-cert-file:LLAMA_ARG_SSL_CERT_FILE
--chat-template-kwargs:LLAMA_ARG_CHAT_TEMPLATE_KWARGS -to,--timeout:LLAMA_ARG_TIMEOUT
--sse-ping-interval:LLAMA_ARG_SSE_PING_INTERVAL --threads-http:LLAMA_ARG_THREADS_HTTP
--cache-prompt,--no-cache-prompt:LLAMA_ARG_CACHE_PROMPT --cache-reuse:LLAMA_ARG_CACHE_REUSE
--metrics:LLAMA_ARG_ENDPOINT_METRICS --props:LLAMA_ARG_ENDPOINT_PROPS --slots,--no-slots:LLAMA_ARG_ENDPOINT_SLOTS
--slot-save-path --media-path --models-dir:LLAMA_ARG_MODELS_DIR --models-preset:LLAMA_ARG_MODELS_PRESET
--models-max:LLAMA_ARG_MODELS_MAX --models-autoload,--no-models-autoload:LLAMA_ARG_MODELS_AUTOLOAD
--jinja,--no-jinja:LLAMA_ARG_JINJA --reasoning-format:LLAMA_ARG_THINK -rea,--reasoning:LLAMA_ARG_REASONING
--reasoning-effort:LLAMA_ARG_REASONING_EFFORT --reasoning-budget:LLAMA_ARG_THINK_BUDGET
--reasoning-budget-message:LLAMA_ARG_THINK_BUDGET_MESSAGE
--reasoning-preserve,--no-reasoning-preserve:LLAMA_ARG_REASONING_PRESERVE --chat-template:LLAMA_ARG_CHAT_TEMPLATE
--chat-template-file:LLAMA_ARG_CHAT_TEMPLATE_FILE
--skip-chat-parsing,--no-skip-chat-parsing:LLAMA_ARG_SKIP_CHAT_PARSING
--prefill-assistant,--no-prefill-assistant:LLAMA_ARG_PREFILL_ASSISTANT -sps,--slot-prompt-similarity
--lora-init-without-apply --sleep-idle-seconds --log-prompts-dir
--spec-draft-hf,-hfd,-hfrd,--hf-repo-draft:LLAMA_ARG_SPEC_DRAFT_HF_REPO --spec-draft-threads,-td,--threads-draft
--spec-draft-threads-batch,-tbd,--threads-batch-draft --spec-draft-cpu-mask,-Cd,--cpu-mask-draft
--spec-draft-cpu-range,-Crd,--cpu-range-draft --spec-draft-cpu-strict,--cpu-strict-draft
--spec-draft-prio,--prio-draft --spec-draft-poll,--poll-draft --spec-draft-cpu-mask-batch,-Cbd,--cpu-mask-batch-draft
--spec-draft-cpu-strict-batch,--cpu-strict-batch-draft --spec-draft-prio-batch,--prio-batch-draft
--spec-draft-poll-batch,--poll-batch-draft --spec-draft-override-tensor,-otd,--override-tensor-draft
--spec-draft-cpu-moe,-cmoed,--cpu-moe-draft:LLAMA_ARG_SPEC_DRAFT_CPU_MOE
--spec-draft-n-cpu-moe,--spec-draft-ncmoe,-ncmoed,--n-cpu-moe-draft:LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE
--spec-draft-n-max:LLAMA_ARG_SPEC_DRAFT_N_MAX --spec-draft-n-min:LLAMA_ARG_SPEC_DRAFT_N_MIN
--spec-synth-len:LLAMA_ARG_SPEC_SYNTH_LEN --spec-synth-rates:LLAMA_ARG_SPEC_SYNTH_RATES
--spec-draft-p-split,--draft-p-split:LLAMA_ARG_SPEC_DRAFT_P_SPLIT
--spec-draft-p-min,--draft-p-min:LLAMA_ARG_SPEC_DRAFT_P_MIN
--spec-draft-backend-sampling,--no-spec-draft-backend-sampling:LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING
--spec-draft-device,-devd,--device-draft
--spec-draft-ngl,-ngld,--gpu-layers-draft,--n-gpu-layers-draft:LLAMA_ARG_N_GPU_LAYERS_DRAFT
--spec-draft-model,-md,--model-draft:LLAMA_ARG_SPEC_DRAFT_MODEL --spec-type:LLAMA_ARG_SPEC_TYPE --spec-ngram-mod-n-min
--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m
--spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits
--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits
--draft,--draft-n,--draft-max:LLAMA_ARG_DRAFT_MAX --draft-min,--draft-n-min:LLAMA_ARG_DRAFT_MIN --spec-ngram-size-n
--spec-ngram-size-m --spec-ngram-min-hits --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default
--fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default
--gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default --spec-default
"""
OURS = {"--cpu-attention", "--step-target-ms", "--queue-size", "--shutdown-timeout", "--help-all"}
OLDER = {"--mlock", "--mmap", "--no-mmap", "-dio", "--direct-io"}


def ask(*argv: str, **environ: str) -> Settings:
    return parse(list(argv), environ)


def complaint(*argv: str, **environ: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse(list(argv), environ)
    message = str(caught.value)
    assert message.startswith("llamaserve: ")
    assert "\n" not in message
    return message.removeprefix("llamaserve: ")


def by_dest(dest: str) -> Option:
    return next(option for option in OPTIONS if option.dest == dest)


class TestTable:
    def test_every_flag_and_variable_of_llama_server_is_there(self) -> None:
        for row in LLAMA_SERVER.split():
            flags, _, env = row.partition(":")
            options = {BY_FLAG[flag][0].dest for flag in flags.split(",")}
            assert len(options) == 1, flags
            assert by_dest(options.pop()).env == (env or None), flags

    def test_flags_are_llama_servers_or_known_to_be_ours(self) -> None:
        theirs = {flag for row in LLAMA_SERVER.split() for flag in row.partition(":")[0].split(",")}
        assert set(BY_FLAG) - theirs == OURS | OLDER

    def test_order_of_flags(self) -> None:
        rows = {row.partition(":")[0] for row in LLAMA_SERVER.split()}
        for option in OPTIONS:
            if not set(option.all_flags) & (OURS | OLDER):
                assert ",".join(option.all_flags) in rows

    def test_nothing_twice(self) -> None:
        for names in (
            [flag for option in OPTIONS for flag in option.all_flags],
            [option.dest for option in OPTIONS],
            [name for option in OPTIONS for name in (option.env, option.negative_env) if name],
        ):
            assert sorted(names) == sorted(set(names))

    @pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.dest)
    def test_row(self, option: Option) -> None:
        assert option.dest.isidentifier()
        assert option.section in SECTIONS
        assert option.help.endswith(".")
        assert option.supported or bool(option.note) != bool(option.removed)
        assert not option.takes_value or option.value_name

    @pytest.mark.parametrize(
        ("scope", "settings"), [("server", ServerSettings()), ("log", LogSettings()), ("model", ModelSettings())]
    )
    def test_defaults_of_settings_are_those_of_the_table(self, scope: str, settings: object) -> None:
        assert dataclasses.is_dataclass(settings)
        options = [o for o in OPTIONS if o.scope == scope and o.usable]
        only_environment = {"vertex"}
        fields = {field.name for field in dataclasses.fields(settings)} - only_environment
        assert fields == {o.key for o in options}
        for option in options:
            if option.dest == option.key or option.default not in (None, False):
                assert getattr(settings, option.key) == option.default, option.dest

    def test_an_unsupported_option_needs_one_field_to_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        option = by_dest("rpc")
        monkeypatch.setitem(BY_FLAG, "--rpc", (dataclasses.replace(option, supported=True), True))
        assert ask("--rpc", "h:1").engine == {"rpc": "h:1"}


class TestValues:
    def test_nothing_given(self) -> None:
        assert ask() == Settings()

    def test_engine_gets_only_what_was_given(self) -> None:
        settings = ask("-m", "x.gguf", "-c", "4096", "-ngl", "all", "-t", "4", "--step-target-ms", "50")
        assert settings.model.model == "x.gguf"
        assert settings.engine == {"ctx_size": 4096, "n_gpu_layers": "all", "threads": 4, "step_target_ms": 50.0}

    @pytest.mark.parametrize("argv", [["--ctx-size=8"], ["--ctx_size", "8"], ["--ctx_size=8"], ["-c=8"], ["-c", "8"]])
    def test_spellings(self, argv: list[str]) -> None:
        assert ask(*argv).engine == {"ctx_size": 8}

    def test_underscores_in_the_value_stay(self) -> None:
        assert ask("--model=my_model.gguf").model.model == "my_model.gguf"

    def test_last_one_wins(self) -> None:
        assert ask("-c", "1", "--ctx-size", "2").engine == {"ctx_size": 2}
        assert ask("--jinja", "--no-jinja").engine == {"jinja": False}
        assert ask("-v", "-lv", "2").log.verbosity == 2
        assert ask("--rope-scale", "2", "--rope-freq-scale", "0.5").engine == {"rope_freq_scale": 0.5}

    def test_a_value_may_look_like_a_flag(self) -> None:
        assert ask("-np", "-1").engine == {"parallel": -1}
        assert ask("-r", "-c").engine == {"reverse_prompt": ["-c"]}
        assert ask("-r=--jinja").engine == {"reverse_prompt": ["--jinja"]}

    def test_switches(self) -> None:
        assert ask("-nkvo", "-nr", "--no-host", "-kvu").engine == {
            "kv_offload": False,
            "repack": False,
            "no_host": True,
            "kv_unified": True,
        }
        assert ask("--jinja=off").engine == {"jinja": False}
        assert complaint("--no-jinja=on") == "--no-jinja takes no value"

    @pytest.mark.parametrize(("text", "value"), [("1", "on"), ("off", "off"), ("auto", "auto"), ("-1", "auto")])
    def test_flash_attn(self, text: str, value: str) -> None:
        assert ask("-fa", text).engine == {"flash_attn": value}

    @pytest.mark.parametrize(("text", "value"), [("-1", "auto"), ("-2", "all"), ("auto", "auto"), ("7", "7")])
    def test_gpu_layers(self, text: str, value: str) -> None:
        assert ask("-ngl", text).engine == {"n_gpu_layers": value}

    def test_sampling_has_the_names_of_the_api(self) -> None:
        settings = ask(
            *("--temp", "0.5", "--top-nsigma", "1", "--typical", "0.9", "--dynatemp-exp", "2", "--seed", "-1"),
            *("--mirostat-lr", "0.2", "--mirostat-ent", "4", "-l", "15043+1", "-l", "7-inf", "--ignore-eos"),
        )
        assert settings.sampling == {
            "temperature": 0.5,
            "top_n_sigma": 1.0,
            "typical_p": 0.9,
            "dynatemp_exponent": 2.0,
            "seed": -1,
            "mirostat_eta": 0.2,
            "mirostat_tau": 4.0,
            "logit_bias": [(15043, 1.0), (7, -math.inf)],
            "ignore_eos": True,
        }

    def test_samplers(self) -> None:
        names = ["penalties", "top_k", "temperature"]
        assert ask("--samplers", "penalties;top-k;temp").sampling == {"samplers": names}
        assert ask("--sampler-seq", "ekt").sampling == {"samplers": names}
        assert "no sampler 'heat'" in complaint("--samplers", "heat")
        assert by_dest("samplers").default == ask("--sampler-seq", "edskypmxt").sampling["samplers"]

    def test_lists_add_up(self) -> None:
        settings = ask(
            *("--api-key", "a,b", "--api-key", '"c,d"', "--alias", "z,b", "-a", "a", "-r", "x", "-r", "y"),
            *("--override-kv", "a=int:1,b=bool:true", "--override-kv", "c=str:x", "-ot", "a=CPU", "-ot", "b=CPU"),
            *("--chat-template-kwargs", '{"a": 1}', "--chat-template-kwargs", '{"b": 2}'),
        )
        assert settings.server.api_keys == ["a", "b", "c,d"]
        assert settings.model.alias == ["a", "b", "z"]
        assert settings.engine == {
            "reverse_prompt": ["x", "y"],
            "override_kv": ["a=int:1", "b=bool:true", "c=str:x"],
            "override_tensor": "a=CPU,b=CPU",
            "chat_template_kwargs": {"a": 1, "b": 2},
        }

    def test_numbers_in_metadata(self) -> None:
        values = ["a=int:-1", "b=float:-1.5e-3", "c=float:.5", "d=float:2"]
        assert ask("--override-kv", ",".join(values)).engine == {"override_kv": values}

    def test_escapes(self) -> None:
        argv = ["-r", r"a\n\x41\q", "--dry-sequence-breaker", r"\t"]
        settings = ask(*argv)
        assert settings.engine == {"reverse_prompt": ["a\nA\\q"]}
        assert settings.sampling == {"dry_sequence_breakers": ["\t"]}
        assert ask(*argv, "--no-escape").engine == {"reverse_prompt": [r"a\n\x41\q"]}

    def test_dry_sequence_breaker_none(self) -> None:
        flag = "--dry-sequence-breaker"
        assert ask(flag, "a", flag, "none").sampling == {"dry_sequence_breakers": []}
        assert ask(flag, "none", flag, "a").sampling == {"dry_sequence_breakers": ["a"]}

    def test_files_are_read(self, tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("one\n# two\n\nthree\n")
        (tmp_path / "template").write_text("{{ messages }}")
        (tmp_path / "schema").write_text('{"type": "object"}')
        settings = ask(
            *("--api-key", "zero", "--api-key-file", str(tmp_path / "keys")),
            *("--chat-template-file", str(tmp_path / "template"), "-jf", str(tmp_path / "schema")),
        )
        assert settings.server.api_keys == ["zero", "one", "three"]
        assert settings.engine == {"chat_template": "{{ messages }}"}
        assert settings.sampling == {"json_schema": {"type": "object"}}
        (tmp_path / "latin").write_bytes(b"\xff")
        assert "not a UTF-8 text file" in complaint("--grammar-file", str(tmp_path / "latin"))
        assert complaint("--grammar-file", "/no/file").endswith("cannot read '/no/file': No such file or directory")

    def test_grammar_and_schema_replace_each_other(self) -> None:
        assert ask("-j", "{}", "--grammar", "g").sampling == {"grammar": "g"}
        assert ask("--grammar", "g", "-j", "{}").sampling == {"json_schema": {}}

    def test_server(self) -> None:
        settings = ask("--host", "::1, /run/llama.sock", "--api-prefix", "/llm/", "--no-slots", "--cors-origins", "a,b")
        assert settings.server == ServerSettings(
            hosts=["::1", "/run/llama.sock"], api_prefix="/llm", slots=False, cors_origins=["a", "b"]
        )

    def test_keys_are_not_in_the_repr(self) -> None:
        assert "secret" not in repr(ask("--api-key", "secret"))

    def test_https_needs_both_files(self) -> None:
        assert complaint("--ssl-key-file", "k") == "--ssl-key-file needs --ssl-cert-file too"
        assert complaint("--ssl-cert-file", "c") == "--ssl-cert-file needs --ssl-key-file too"
        assert ask("--ssl-key-file", "k", "--ssl-cert-file", "c").server.ssl_cert_file == "c"

    @pytest.mark.parametrize(
        ("flag", "command"),
        [
            ("-h", "help"),
            ("--usage", "help"),
            ("--help_all", "help-all"),
            ("--version", "version"),
            ("--list-devices", "list-devices"),
            ("-cl", "cache-list"),
            ("--completion-bash", "completion-bash"),
        ],
    )
    def test_commands(self, flag: str, command: str) -> None:
        assert ask("-c", "1", flag, "--not-a-flag", LLAMA_ARG_PORT="x").command == command

    @pytest.mark.parametrize("flag", ["--no-perf", "--no-ui", "-dt=1", "-cms=0", "-sps=0.5"])
    def test_accepted_without_effect(self, flag: str) -> None:
        settings = ask(flag)
        assert dataclasses.replace(settings, server=ServerSettings()) == Settings()


class TestEnvironment:
    def test_flag_wins(self) -> None:
        environ = {"LLAMA_ARG_CTX_SIZE": "1", "LLAMA_API_KEY": "env", "LLAMA_ARG_N_PARALLEL": "2"}
        settings = ask("-c", "3", "--api-key", "flag", **environ)
        assert settings.engine == {"ctx_size": 3, "parallel": 2}
        assert settings.server.api_keys == ["flag"]

    def test_flag_wins_over_another_flags_variable(self, tmp_path: Path) -> None:
        (tmp_path / "t").write_text("env")
        environ = {"LLAMA_ARG_CHAT_TEMPLATE_FILE": str(tmp_path / "t")}
        assert ask("--chat-template", "flag", **environ).engine == {"chat_template": "flag"}

    def test_our_own(self) -> None:
        settings = ask(LLAMASERVE_QUEUE_SIZE="7", LLAMASERVE_SHUTDOWN_TIMEOUT="1.5")
        assert settings.engine == {"queue_size": 7}
        assert settings.server.shutdown_timeout == 1.5

    @pytest.mark.parametrize("word", ["true", "1", "on", "enabled"])
    def test_true(self, word: str) -> None:
        settings = ask(LLAMA_ARG_JINJA=word, LLAMA_ARG_ENDPOINT_METRICS=word)
        assert settings.engine == {"jinja": True}
        assert settings.server.metrics

    @pytest.mark.parametrize("word", ["false", "0", "off", "disabled"])
    def test_false(self, word: str) -> None:
        settings = ask(LLAMA_ARG_JINJA=word, LLAMA_ARG_ENDPOINT_METRICS=word, LLAMA_ARG_EMBEDDINGS=word)
        assert settings.engine == {"jinja": False}
        assert not settings.server.metrics

    def test_negative_variable_counts_by_being_set(self) -> None:
        assert ask(LLAMA_ARG_NO_KV_OFFLOAD="0", LLAMA_ARG_KV_OFFLOAD="1").engine == {"kv_offload": False}
        assert ask(LLAMA_ARG_NO_MMPROJ_AUTO="1") == Settings()

    def test_empty_counts_as_not_set(self) -> None:
        assert ask(LLAMA_ARG_PORT="", LLAMA_ARG_JINJA="", LLAMA_ARG_RPC="") == Settings()

    def test_mistakes_name_the_variable(self) -> None:
        assert complaint(LLAMA_ARG_JINJA="yes") == "LLAMA_ARG_JINJA expects true or false, not 'yes'"
        assert complaint(LLAMA_ARG_ENDPOINT_PROPS="y") == "LLAMA_ARG_ENDPOINT_PROPS expects true or false, not 'y'"
        assert complaint(LLAMA_ARG_PORT="x").startswith("LLAMA_ARG_PORT expects a whole number from 0 to 65535")
        assert complaint(LLAMA_ARG_RPC="h:1") == "LLAMA_ARG_RPC is not supported yet (devices of other machines)"
        assert ask(LLAMA_ARG_EMBEDDINGS="1", LLAMA_ARG_POOLING="cls").engine == {"embedding": True, "pooling": "cls"}
        assert complaint(LLAMA_ARG_DRAFT_MAX="8").startswith("LLAMA_ARG_DRAFT_MAX was removed; use --spec-draft-n-max")


class TestMistakes:
    @pytest.mark.parametrize(
        ("typed", "meant"),
        [
            ("--ctx-szie", "--ctx-size"),
            ("--ctx_szie=5", "--ctx-size"),
            ("-port", "--port"),
            ("-modle", "--model"),
            ("--ngl", "-ngl"),
            ("-t8", "-t 8"),
        ],
    )
    def test_typo(self, typed: str, meant: str) -> None:
        assert complaint(typed, "1") == f"unknown flag '{typed.partition('=')[0]}'; did you mean {meant}?"

    def test_unknown(self) -> None:
        assert complaint("--qqqqqqqq") == "unknown flag '--qqqqqqqq'; see --help"

    @pytest.mark.parametrize("token", ["model.gguf", "-", "-1", ""])
    def test_positional(self, token: str) -> None:
        assert complaint(token) == f"unexpected argument '{token}'; to load a model file, use -m FILE"

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["--override-kv", "a=int:x"], "--override-kv: 'x' is no whole number"),
            (["--override-kv", "a=int:1,b=float:1.x"], "--override-kv: '1.x' is no number"),
            (["--port"], "--port needs a value: a whole number from 0 to 65535"),
            (["-m", "--port", "80"], "-m needs a value: the path of a file or folder"),
            (["--port", "70000"], "--port expects a whole number from 0 to 65535, not '70000'"),
            (["-c", "4k"], "-c expects a whole number, 0 or more, not '4k'"),
            (["-np", "0"], "-np expects a whole number, -1 or more and not 0, not '0'"),
            (["--top-p", "nan"], "--top-p expects a number, not 'nan'"),
            (["--repeat-penalty", "0"], "--repeat-penalty expects a number above 0, not '0'"),
            (["-sps", "2"], "-sps expects a number from 0 to 1, not '2'"),
            (["-sm", "rows"], "-sm expects one of none, layer, row, tensor, not 'rows'"),
            (["-fa"], "-fa needs a value: on, off or auto"),
            (["-l", "a+1"], "-l expects a token id and a bias, such as 15043+1 or 15043-1.5, not 'a+1'"),
            (["--chat-template-kwargs", "[]"], "--chat-template-kwargs expects a JSON object, not '[]'"),
            (["--host", ","], "--host expects at least one address, not ','"),
        ],
    )
    def test_value(self, argv: list[str], message: str) -> None:
        assert complaint(*argv) == message

    @pytest.mark.parametrize("option", [o for o in OPTIONS if not o.supported], ids=lambda option: option.dest)
    def test_unsupported_and_removed(self, option: Option) -> None:
        for flag in option.flags:
            message = complaint(flag, "7", "7")
            if option.removed:
                assert message == f"{flag} was removed; use {option.removed}"
            else:
                assert message.startswith(flag)
                assert message.endswith(f" is not supported yet ({option.note})")

    @pytest.mark.parametrize(
        "argv",
        [
            ["--no-mmproj"],
            ["--no-mmproj-auto"],
            ["--no-models-autoload"],
            ["--no-agent"],
            ["--no-ui-mcp-proxy"],
        ],
    )
    def test_asking_for_what_is_off_anyway(self, argv: list[str]) -> None:
        assert ask(*argv) == Settings()

    def test_exit_status(self) -> None:
        assert EXIT_USAGE == 2


TEXT = st.text(max_size=12)
SOME_FLAG = st.sampled_from(sorted(BY_FLAG))
SOME_VALUE = st.sampled_from(
    ["0", "1", "-1", "1.5", "1e999", "on", "auto", "a=b", "{}", "[" * 3, "a,b", '"', "\0", "٣"]
)
TOKEN = st.one_of(
    SOME_FLAG, SOME_VALUE, TEXT, TEXT.map(lambda s: f"--{s}"), st.builds("{}={}".format, SOME_FLAG, SOME_VALUE | TEXT)
)


@given(st.lists(TOKEN, max_size=8))
@example(["--json-schema", "[" * 100_000])
@example(["--chat-template-kwargs", "9" * 5_000])
@example(["--port", "9" * 5_000])
@example(["--logit-bias", "9" * 5_000 + "+1"])
@example(["--grammar-file", "\ud800"])
@example(["--\ud800"])
def test_any_argv_parses_or_complains(argv: list[str]) -> None:
    try:
        parse(argv, {})
    except OptionError as error:
        str(error).encode()


@given(
    st.dictionaries(st.sampled_from([option.env for option in OPTIONS if option.env]), SOME_VALUE | TEXT, max_size=4)
)
def test_any_environment_parses_or_complains(environ: dict[str, str]) -> None:
    try:
        parse([], environ)
    except OptionError as error:
        str(error).encode()


@pytest.mark.parametrize("width", [60, 80, 110])
def test_help_fits_the_terminal(width: int) -> None:
    for line in render_help(width).splitlines():
        assert len(line) <= width or line.startswith("  -") or " " not in line.strip(), line


def test_help_shows_what_works_and_help_all_everything() -> None:
    short, full = render_help(100), render_help(100, everything=True)
    for option in OPTIONS:
        heading = f"\n  {', '.join(option.flags)}"
        assert (heading in short) == option.usable
        assert (heading in full) == (not option.removed)
        if option.usable and option.env:
            assert f"env {option.env}" in short
    assert "not supported yet)" in full
    assert short.rstrip().splitlines()[-1].startswith("--help-all")


def test_bash_completion_is_bash(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(render_completion_bash())
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_docs_are_current() -> None:
    assert DOCS.read_text(encoding="utf-8") == render_flags_markdown(), (
        "run: python -m llamaserve.options > docs/flags.md"
    )
