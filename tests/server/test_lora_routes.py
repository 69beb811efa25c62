"""`/lora-adapters` over HTTP, and `lora` in requests."""

from __future__ import annotations

import httpx

from tests import models
from tests.server.conftest import MakeServer


def test_adapters(make_server: MakeServer) -> None:
    first, second = models.lora(seed=1), models.lora(seed=3, invocation=(300, 301, 302))
    flags = ("--lora", str(first), "--lora-scaled", f"{second}:0.5", "--lora-init-without-apply")
    server = make_server("-m", str(models.tiny()), "-c", "1024", "-np", "2", "--temp", "0", *flags)
    url = f"{server.url}/lora-adapters"
    plain, activated = httpx.get(url).json()
    assert plain == {"id": 0, "path": str(first), "scale": 0.0, "task_name": "", "prompt_prefix": ""}
    assert activated["alora_invocation_tokens"] == [300, 301, 302]
    assert activated["alora_invocation_string"]

    def tokens(**body: object) -> list[int]:
        body = {"prompt": "the quick brown fox", "n_predict": 6, "ignore_eos": True, "return_tokens": True, **body}
        answer = httpx.post(f"{server.url}/completion", json=body, timeout=60).json()
        assert answer["generation_settings"]["lora"] == body.get("lora", [])
        return list(answer["tokens"])

    off = tokens()
    on = tokens(lora=[{"id": 0, "scale": 1.0}])
    assert on != off
    assert httpx.post(url, json=[{"id": 0, "scale": 1.0}]).json() == {"success": True}
    assert [a["scale"] for a in httpx.get(url).json()] == [1.0, 0.0]
    assert tokens() == on
    assert tokens(lora=[{"id": 0, "scale": 0.0}]) == off
    for wrong in ([{"id": 2, "scale": 1.0}], [{"scale": 1.0}], {"id": 0}, [{"id": 0, "scale": "x"}], [1]):
        refused = httpx.post(url, json=wrong)
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    for body in ({"lora": [{"id": 2, "scale": 1.0}]}, {"lora": [{"id": -1}]}):
        assert httpx.post(f"{server.url}/completion", json={"prompt": "x", **body}).status_code == 400
    assert [a["scale"] for a in httpx.get(url).json()] == [1.0, 0.0]
    chat = {"messages": [{"role": "user", "content": "x"}], "lora": [{"id": 0, "scale": 1.0}], "max_tokens": 2}
    assert httpx.post(f"{server.url}/v1/completions", json={**chat, "prompt": "x"}, timeout=60).status_code == 200
