"""The smaller routes, the gate in front of all routes, and the OpenAPI document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from litestar.routes import HTTPRoute
from llamaserve.server.gate import Gate
from llamaserve.server.unsupported import DISABLED, ROUTES

from tests.server.conftest import App

ORIGIN = "https://page.example"


def test_loading() -> None:
    app = App(api_keys=["k"])
    app.state.engine = None
    for path in ("/health", "/v1/models", "/nope"):
        response = app.get(path)
        assert response.status_code == 503
        assert response.json() == {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
        assert "retry-after" in response.headers
    assert app.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health(app: App, path: str) -> None:
    response = app.get(path)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_models(app: App, path: str) -> None:
    body = app.get(path).json()
    (model,) = body["data"]
    assert model["id"] == "fake-model"
    assert model["aliases"] == ["fake-model", "other"]
    assert model["tags"] == ["tag"]
    assert model["meta"]["n_ctx"] == 256
    assert model["meta"]["n_ctx_train"] == 512
    assert body["models"][0]["capabilities"] == ["completion"]


def test_props(app: App) -> None:
    body = app.get("/props").json()
    assert body["total_slots"] == 2
    assert body["default_generation_settings"]["n_ctx"] == 256
    assert "logit_bias" not in body["default_generation_settings"]["params"]
    assert body["modalities"] == {"vision": False, "video": False, "audio": False}
    assert body["build_info"] == "b7-abc"
    assert app.post("/props", {}).status_code == 501
    assert App(props=True).post("/props", {}).json() == {"success": True}


def test_slots(app: App) -> None:
    idle, busy = app.get("/slots").json()
    assert idle == {"id": 0, "n_ctx": 256, "speculative": False, "is_processing": False}
    assert busy["is_processing"] is True
    assert busy["params"]["seed"] == 1
    assert "prompt" not in busy
    assert app.get("/slots?fail_on_no_slot=1").status_code == 200
    app.engine.all_busy = True
    assert app.get("/slots?fail_on_no_slot=1").status_code == 503
    assert App(slots=False).get("/slots").status_code == 501


def test_metrics() -> None:
    assert App().get("/metrics").status_code == 501
    response = App(metrics=True).get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert response.headers["process-start-time-unix"].isdecimal()
    lines = response.text.splitlines()
    values = dict(line.split(" ") for line in lines if not line.startswith("#"))
    assert values["llamacpp:prompt_tokens_total"] == "100"
    assert float(values["llamacpp:prompt_tokens_seconds"]) == 20
    assert float(values["llamacpp:predicted_tokens_seconds"]) == 20
    assert float(values["llamacpp:n_busy_slots_per_decode"]) == 1.5
    for name in values:
        assert any(line.startswith(f"# HELP {name} ") for line in lines)
        assert f"# TYPE {name} counter" in lines or f"# TYPE {name} gauge" in lines


def test_tokens(app: App) -> None:
    assert app.post("/tokenize", {"content": "hi"}).json() == {"tokens": [104, 105]}
    assert app.post("/tokenize", {"content": "hi", "add_special": True}).json() == {"tokens": [1, 104, 105]}
    assert app.post("/tokenize", {"content": ["h", 5, "i"]}).json() == {"tokens": [104, 5, 105]}
    assert app.post("/tokenize", {}).json() == {"tokens": []}
    assert app.post("/tokenize", {"content": "ü", "with_pieces": True}).json() == {
        "tokens": [{"id": 195, "piece": [195]}, {"id": 188, "piece": [188]}]
    }
    assert len(app.post("/tokenize", {"content": "x" * 10_000}).json()["tokens"]) == 10_000
    assert app.post("/tokenize", {"content": [1, None]}).status_code == 400
    assert app.post("/detokenize", {"tokens": [104, 105]}).json() == {"content": "hi"}
    assert app.post("/detokenize", {"tokens": [299]}).status_code == 400
    assert app.post("/detokenize", {"tokens": [2**40]}).status_code == 400


def test_unknown_routes_and_methods(app: App) -> None:
    response = app.get("/nope")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
    assert app.get("/completion").status_code == 405
    assert app.get("/completion").json()["error"]["code"] == 405


@pytest.mark.parametrize("line", [line for lines in ROUTES.values() for line in lines])
def test_what_is_not_there_yet_says_so(app: App, line: str) -> None:
    method, path = line.split(" ")
    response = app.request(method, path.replace("{id_slot:str}", "0"))
    assert response.status_code == 501
    assert response.json()["error"]["type"] == "not_supported_error"


@pytest.mark.parametrize("line", [line for lines in DISABLED.values() for line in lines])
def test_what_llama_server_switches_on_by_a_flag_is_off(app: App, line: str) -> None:
    response = app.request(*line.split(" "))
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "feature_disabled"
    assert "not support" in response.json()["error"]["message"]


def test_api_keys() -> None:
    app = App(api_keys=["one", "two"])
    for headers in ({}, {"authorization": "Bearer no"}, {"x-api-key": "no"}, {"authorization": "Bearer "}):
        response = app.get("/props", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert app.get("/nope", headers=headers).status_code == 401
    for headers in ({"authorization": "Bearer two"}, {"authorization": "one"}, {"x-api-key": "one"}):
        assert app.get("/props", headers=headers).status_code == 200
    for public in ("/health", "/v1/health", "/"):
        assert app.get(public).status_code == 200


def test_prefix() -> None:
    app = App(api_prefix="/llm", api_keys=["k"])
    assert app.get("/llm/health").status_code == 200
    assert app.get("/llm/props").status_code == 401
    assert app.get("/llm/props", headers={"x-api-key": "k"}).status_code == 200
    assert app.get("/props", headers={"x-api-key": "k"}).status_code == 404
    assert "/llm/v1" in app.get("/llm/").text


@pytest.mark.parametrize(
    ("origins", "credentials", "allowed"),
    [
        (["*"], True, ORIGIN),
        (["*"], False, "*"),
        ([ORIGIN, "https://b.example"], True, ORIGIN),
        (["https://b.example"], True, None),
        (["localhost"], True, None),
        ([], True, None),
    ],
)
def test_cors(origins: list[str], credentials: bool, allowed: str | None) -> None:
    app = App(cors_origins=origins, cors_credentials=credentials)
    for response in (
        app.request("OPTIONS", "/completion", headers={"origin": ORIGIN}),
        app.get("/health", headers={"origin": ORIGIN}),
        app.get("/nope", headers={"origin": ORIGIN}),
    ):
        assert response.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize(
    ("origin", "ok"),
    [
        ("http://localhost", True),
        ("https://localhost:8080", True),
        ("http://127.0.0.1:3000", True),
        ("http://[::1]:3000", True),
        ("http://localhost.evil.com", False),
        ("http://notlocalhost", False),
        ("http://localhost:80@evil.com", False),
    ],
)
def test_cors_of_this_machine(origin: str, ok: bool) -> None:
    response = App(cors_origins=["localhost"]).get("/health", headers={"origin": origin})
    assert ("access-control-allow-origin" in response.headers) == ok


def test_preflight_needs_no_key() -> None:
    response = App(api_keys=["k"]).request("OPTIONS", "/v1/completions", headers={"origin": ORIGIN})
    assert response.status_code == 200
    assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert response.headers["access-control-allow-headers"] == "*"
    assert response.headers["access-control-allow-credentials"] == "true"


def test_page_and_files(tmp_path: Path) -> None:
    assert "<!doctype html>" in App().get("/").text
    assert App(ui=False).get("/").status_code == 404
    (tmp_path / "index.html").write_text("mine")
    (tmp_path / "a.txt").write_text("a file")
    app = App(path=str(tmp_path))
    assert app.get("/").text == "mine"
    assert app.get("/a.txt").text == "a file"
    assert app.get("/b.txt").status_code == 404
    assert app.get("/../conftest.py").status_code == 404
    assert app.get("/health").status_code == 200
    assert app.post("/completion", {"prompt": "x"}).status_code == 200


def test_openapi_document(app: App) -> None:
    document = json.loads(app.get("/schema/openapi.json").text)
    assert app.get("/schema").status_code == 200
    operations = {
        (method, path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in ("get", "post")
    }
    assert ("post", "/v1/chat/completions") in operations
    for (_, path), operation in operations.items():
        assert operation["summary"], path
        assert "200" in operation["responses"], path
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert {"$ref", "properties"} & schema.get("items", schema).keys(), path
            assert "ErrorBody" in json.dumps(operation["responses"]["400"]), path
    for operation in operations.values():
        assert operation["tags"]


def test_the_openapi_document_is_complete(app: App) -> None:
    """Every route is in it that isn't refused, and every field of every body has a description."""
    document = json.loads(app.get("/schema/openapi.json").text)
    refused = {line for lines in (ROUTES | DISABLED).values() for line in lines}
    asgi = app.asgi
    assert isinstance(asgi, Gate)
    routes = {
        f"{method} {route.path_format}"
        for route in asgi.app.routes  # type: ignore[attr-defined]
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method not in ("OPTIONS", "HEAD")
    }
    pages = {"GET /", "GET /index.html", "GET /schema", "GET /schema/openapi.json", "GET /schema/{path}"}
    shown = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    assert routes - {line.replace(":str", "").replace(":int", "") for line in refused} - pages == shown
    schemas = document["components"]["schemas"]
    given = [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for item in document["paths"].values()
        for operation in item.values()
        if "requestBody" in operation
    ]
    named = [body.get("items", body) for body in given]
    bodies = {body["$ref"].rpartition("/")[2] for body in named if "$ref" in body}
    assert [body["properties"].keys() for body in named if "$ref" not in body] == [{"filename"}]  # of a slot's file
    assert {"ChatRequest", "CompletionRequest", "InfillRequest", "TokenizeRequest"} <= bodies
    undocumented = [
        f"{body}.{field}"
        for body in sorted(bodies)
        for field, schema in schemas[body]["properties"].items()
        if "description" not in schema
    ]
    assert undocumented == []
    assert all(schemas[body]["description"] for body in bodies)
    operation = document["paths"]["/completion"]["post"]
    assert operation["description"].startswith("Completes a prompt")
