"""The web process and the platform's side of it: the port, the start, the restart, the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from observatory.app.web.process import BadAddress, PortInUse, WebProcess, bind, url_of
from observatory.model.errors import ExitCode
from tests.frames.support import ROOT
from tests.web.platforms import FakePlatform


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def answers(url: str) -> int | None:
    """The process id of what answers there; waits while it loads."""
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(f"{url}/api/v1/health", timeout=60)
        return int(answer.json()["pid"])
    return None


@pytest.fixture
def web(platform: FakePlatform) -> Iterator[WebProcess]:
    process = WebProcess(bind("127.0.0.1", 0), platform.state, platform.path)
    yield process
    process.close()


# The port


def test_a_port_in_use_is_known_at_once_and_by_whom() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            PortInUse, match=rf"port {port} on 127.0.0.1 is in use by .*\(pid {os.getpid()}\)"
        ) as refused:
            bind("127.0.0.1", port)
        assert refused.value.mend == f"--port {port + 1}, or --port 0 for a free one"
    bind("127.0.0.1", port).close()


def test_a_port_that_was_just_closed_is_free_again() -> None:
    """Connections of the earlier run linger in TIME_WAIT."""
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            served, _ = first.accept()
            served.close()  # the server's end closes first: it is the one that lingers
            assert client.recv(1) == b""
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("no such host", 0, "there is no address 'no such host'"),
        ("192.0.2.7", 0, "192.0.2.7 is no address of this machine"),
        ("127.0.0.1", 70000, "70000"),
    ],
)
def test_addresses_that_are_none(host: str, port: int, words: str) -> None:
    with pytest.raises(BadAddress) as refused:
        bind(host, port)
    assert words in str(refused.value)
    assert refused.value.mend
    assert refused.value.exit_code == ExitCode.BAD_INPUT


def test_urls() -> None:
    for host, expected in (("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")):
        try:
            listening = bind(host, 0)
        except BadAddress:
            assert host == "::1"  # a machine without IPv6
            continue
        with listening:
            assert url_of(listening) == f"http://{expected}:{listening.getsockname()[1]}"


# The process


def test_the_platforms_side_loads_no_web_framework() -> None:
    script = (
        "import sys, observatory.app.web.process\n"
        "print(*{m.partition('.')[0] for m in sys.modules} & {'dash', 'fastapi', 'uvicorn', 'plotly', 'starlette'})"
    )
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == ""


def test_it_serves_is_started_again_and_ends_with_clients_connected(web: WebProcess, platform: FakePlatform) -> None:
    url, port = web.url, web.url.rpartition(":")[2]
    assert httpx.get(f"{web.url}/api/v1/snapshot", timeout=60).status_code == 200  # waits while it loads
    first = answers(web.url)
    assert first is not None
    assert first == web.pid
    assert httpx.get(f"{web.url}/", timeout=60).status_code == 200
    assert httpx.get(web.url, headers={"host": "evil.example"}, timeout=60).status_code == 421
    pages_leave_the_api_alone(web.url)

    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not alive(first))
    assert (web.restarts, web.reason) == (0, None)
    polled(web, lambda: web.restarts == 1)
    assert web.reason == "it ended with signal SIGKILL"
    second = answers(web.url)  # the port was never closed: the question waited
    assert second not in (None, first)

    with connect(f"ws://127.0.0.1:{port}/api/v1/live") as client:
        client.recv(60)
        os.kill(web.pid or 0, signal.SIGINT)
        client.recv(60)  # it is still there
        process = web._process
        assert process is not None
        web.close()
        assert process.returncode == 0  # by itself, in good order
        with contextlib.suppress(ConnectionClosed):
            while client.recv(60):
                pass  # what was on its way
    assert answers(url) is None
    bind("127.0.0.1", int(port)).close()


def pages_leave_the_api_alone(url: str) -> None:
    """Whatever path the pages' catch-all would take."""
    assert httpx.get(f"{url}/api/v1/health", timeout=60).json()["pages"] == "ok"
    page = httpx.get(f"{url}/frames", timeout=60)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "'sha256-" in page.headers["content-security-policy"]
    assert "unsafe-inline" not in page.headers["content-security-policy"].partition("style-src")[0]
    for path in ("/api/v1/nothing", "/api/v1", "/api"):
        answer = httpx.get(f"{url}{path}", timeout=60)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "NotFound")
    callback = httpx.post(
        f"{url}/_dash-update-component", json={}, headers={"origin": "http://evil.example"}, timeout=60
    )
    assert (callback.status_code, callback.json()["error"]["kind"]) == (403, "ForeignOrigin")


def polled(web: WebProcess, what: Callable[[], bool]) -> None:
    def there() -> bool:
        web.poll()
        return what()

    wait_for(there)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_that_cannot_start_is_tried_at_longer_and_longer_intervals(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    web = WebProcess(bind("127.0.0.1", 0), platform.state, platform.path)
    began = time.monotonic()
    starts: list[float] = []
    while len(starts) < 3:
        web.poll()
        if web.restarts > len(starts):
            starts.append(time.monotonic() - began)
        time.sleep(0.01)
    assert starts[0] >= 0.25
    assert starts[1] - starts[0] >= 0.5
    assert starts[2] - starts[1] >= 1.0
    assert web.reason == "it ended with exit code 1"
    web.close()


def test_what_it_said_last_is_the_reason(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    liar = tmp_path / "python"
    liar.write_text("#!/bin/sh\necho first >&2\necho the last word >&2\nexit 3\n")
    liar.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(liar))
    web = WebProcess(bind("127.0.0.1", 0), platform.state, platform.path)
    polled(web, lambda: web.reason is not None)
    assert web.reason == "it ended with exit code 3: the last word"
    assert web.log_tail().splitlines()[-1] == "the last word"
    web.close()
    web.close()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    other = WebProcess(bind("127.0.0.1", 0), platform.state, platform.path)
    assert other.reason == "it could not be started: No such file or directory"
    other.poll()
    other.close()


def test_it_ends_when_the_platform_is_killed(platform: FakePlatform) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from observatory.app.web.process import WebProcess, bind\n"
        "web = WebProcess(bind('127.0.0.1', 0), pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "print(web.pid, web.url, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(platform.state), str(platform.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        wait_for(lambda: answers(url) == int(pid))
        parent.kill()
    wait_for(lambda: not alive(int(pid)))
