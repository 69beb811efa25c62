"""`/metrics` for Prometheus, under llama-server's names."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from litestar import Response, get
from litestar.datastructures import State

from llamaserve.errors import EngineClosedError
from llamaserve.results import Metrics
from llamaserve.server.errors import ApiError
from llamaserve.server.state import ServerState

MEDIA_TYPE = "text/plain; version=0.0.4"


@get("/metrics", media_type=MEDIA_TYPE, summary="Metrics for Prometheus", tags=["llama-server"])
async def get_metrics(state: State) -> Response[str]:
    """Needs `--metrics`. The rates are averages since the previous call."""
    server: ServerState = state.server
    if not server.settings.metrics:
        raise ApiError(501, "/metrics is switched off; start the server with --metrics")
    metrics = await _metrics(server)
    headers = {"Process-Start-Time-Unix": str(int(server.started_at))}
    return Response(render(metrics), media_type=MEDIA_TYPE, headers=headers)


async def _metrics(server: ServerState) -> Metrics:
    if server.asleep is None:
        try:
            now = await asyncio.to_thread(server.ready_engine().metrics, reset_window=True)
        except EngineClosedError:
            if server.asleep is None:
                raise
        else:
            metrics, server.metrics_before = join(server.metrics_before, now), _no_window(server.metrics_before)
            return metrics
    metrics = server.asleep.metrics
    server.asleep.metrics = _no_window(metrics)
    return metrics


_WINDOW = tuple(name for name in Metrics.__struct_fields__ if name.endswith("_window"))
_SUMS = tuple(name for name in Metrics.__struct_fields__ if name.endswith("_total"))

M = TypeVar("M", Metrics, "Metrics | None")


def join(before: Metrics | None, now: Metrics) -> Metrics:
    """Counts of an engine together with those of the ones before it; gauges are its own."""
    if before is None:
        return now
    sums = {name: getattr(before, name) + getattr(now, name) for name in _SUMS + _WINDOW}
    return msgspec.structs.replace(now, n_tokens_max=max(before.n_tokens_max, now.n_tokens_max), **sums)


def _no_window(m: M) -> M:
    """Rates are told once."""
    return m if m is None else msgspec.structs.replace(m, **dict.fromkeys(_WINDOW, 0))


def render(m: Metrics) -> str:
    """Prometheus' text format."""
    counters: list[tuple[str, str, float]] = [
        ("prompt_tokens_total", "Prompt tokens computed; cached ones are not counted", m.prompt_tokens_total),
        ("prompt_tokens_cached_total", "Prompt tokens that came from the cache", m.prompt_tokens_cached_total),
        ("prompt_seconds_total", "Time spent on prompts", m.prompt_seconds_total),
        ("tokens_predicted_total", "Tokens generated", m.tokens_predicted_total),
        ("tokens_predicted_seconds_total", "Time spent generating", m.tokens_predicted_seconds_total),
        ("n_decode_total", "Calls of llama_decode", m.n_decode_total),
        ("n_tokens_max", "Longest sequence so far, prompt and output", m.n_tokens_max),
        ("requests_preempted_total", "Times a request had to wait because the KV cache was full", m.n_preempted_total),
        ("spec_decode_num_draft_tokens_total", "Tokens drafted by speculative decoding", m.n_draft_tokens_total),
        ("spec_decode_num_accepted_tokens_total", "Drafted tokens that the model accepted", m.n_draft_accepted_total),
        ("spec_decode_num_drafts_total", "Drafts that the model verified", m.n_drafts_total),
    ]
    gauges: list[tuple[str, str, float]] = [
        ("prompt_tokens_seconds", "Prompt tokens a second", _rate(m.prompt_tokens_window, m.prompt_seconds_window)),
        (
            "predicted_tokens_seconds",
            "Generated tokens a second",
            _rate(m.tokens_predicted_window, m.tokens_predicted_seconds_window),
        ),
        ("requests_processing", "Requests being processed", m.requests_processing),
        ("requests_deferred", "Requests waiting for a slot", m.requests_deferred),
        ("n_busy_slots_per_decode", "Busy slots for each call of llama_decode", _busy(m)),
        ("kv_cells_used", "KV cells in use", m.kv_cells_used),
        ("cache_ram_bytes", "Host memory taken by saved prompts", m.cache_ram_bytes),
        ("cache_ram_entries", "Saved prompts in host memory", m.cache_ram_entries),
    ]
    groups = (("counter", counters), ("gauge", gauges))
    return "".join(_lines(kind, item) for kind, items in groups for item in items) + _accepted_by_place(m)


def _accepted_by_place(m: Metrics) -> str:
    if not m.n_draft_accepted_by_place:
        return ""
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    rows = "".join(f'{name}{{position="{i}"}} {n}\n' for i, n in enumerate(m.n_draft_accepted_by_place))
    return f"# HELP {name} Accepted tokens by their place in the draft\n# TYPE {name} counter\n{rows}"


def _lines(kind: str, item: tuple[str, str, float]) -> str:
    name, text, value = item
    return f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"


def _rate(n: int, seconds: float) -> float:
    return n / seconds if seconds > 0 else 0.0


def _busy(m: Metrics) -> float:
    return m.n_busy_slots_total / max(m.n_decode_total, 1)
