"""Speculative decoding and context shift over HTTP: the flags, the fields, and what the answers say of them."""

from __future__ import annotations

import httpx

from tests import models
from tests.server.conftest import MakeServer, parse_events


def test_drafts_and_shifts(make_server: MakeServer) -> None:
    model = str(models.tiny())
    server = make_server(
        *("-m", model, "-md", model, "--spec-draft-n-max", "5", "-c", "512", "-np", "2"),
        *("--context-shift", "--keep", "8", "--metrics", "--temp", "0"),
    )
    url = f"{server.url}/completion"
    body = {"prompt": "hello", "n_predict": 31, "ignore_eos": True}
    plain = httpx.post(url, json={**body, "speculative.n_max": 0}).json()
    assert "draft_n" not in plain["timings"]
    assert plain["generation_settings"]["speculative.types"] == "draft-simple"
    drafted = httpx.post(url, json=body).json()
    assert drafted["content"] == plain["content"]
    assert 0 < drafted["timings"]["draft_n_accepted"] <= drafted["timings"]["draft_n"] <= 25

    streamed = parse_events(httpx.post(url, json={**body, "stream": True, "return_tokens": True}).text)
    assert "".join(e["content"] for e in streamed) == plain["content"]
    assert streamed[-1]["timings"]["draft_n"] > 0
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 20, "ignore_eos": True}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=chat).json()["timings"]["draft_n"] > 0

    long = httpx.post(url, json={**body, "n_predict": 400}).json()
    assert (long["tokens_predicted"], long["truncated"], long["stop_type"]) == (400, True, "limit")

    refused = httpx.post(url, json={**body, "speculative.n_max": -1})
    assert refused.status_code == 400
    assert "speculative.n_max" in refused.json()["error"]["message"]

    assert all(slot["speculative"] for slot in httpx.get(f"{server.url}/slots").json())
    metrics = httpx.get(f"{server.url}/metrics").text
    rows = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    drafts, accepted = (
        float(rows[f"llamacpp:spec_decode_num_{name}_total"]) for name in ("draft_tokens", "accepted_tokens")
    )
    assert drafts >= accepted > 0
    by_place = [float(n) for name, n in rows.items() if "accepted_tokens_per_pos_total{" in name]
    assert len(by_place) == 5
    assert sum(by_place) == accepted
