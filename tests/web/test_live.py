"""The live feed over real sockets: many clients, clients that do not read, a platform that goes and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from observatory.model.status import Snapshot
from tests.frames.support import ROOT
from tests.web.platforms import FakePlatform


@dataclass
class Served:
    """A server process."""

    port: int
    process: psutil.Process

    @property
    def live(self) -> str:
        return f"ws://127.0.0.1:{self.port}/api/v1/live"

    def clients(self) -> int:
        answer = httpx.get(f"http://127.0.0.1:{self.port}/api/v1/health", timeout=30)
        return int(answer.json()["live_clients"])


@contextlib.contextmanager
def serving(platform: FakePlatform, stalled_seconds: float = 10.0, ping_seconds: float = 10.0) -> Iterator[Served]:
    arguments = [platform.state, platform.path, stalled_seconds, ping_seconds]
    command = [sys.executable, "-m", "tests.web.server_peer", *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Served(int(process.stdout.readline()), psutil.Process(process.pid))
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakePlatform, Served]]:
    platform = FakePlatform(tmp_path_factory.mktemp("state"))
    with serving(platform) as served:
        yield platform, served
    platform.stop()


def wait_for(what: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def silent_client(served: Served) -> socket.socket:
    """Shakes hands and never reads again."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", served.port))
    client.sendall(
        b"GET /api/v1/live?interval=0.2 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert client.recv(12) == b"HTTP/1.1 101"
    return client


def test_a_snapshot_at_once_and_then_one_per_interval(shared: tuple[FakePlatform, Served]) -> None:
    with connect(f"{shared[1].live}?interval=0.2") as client:
        snapshots = [Snapshot.model_validate_json(client.recv(30)) for _ in range(4)]
    times = [snapshot.unix_seconds for snapshot in snapshots]
    assert times == sorted(times)
    assert len(set(times)) >= 3


def test_what_a_client_says_changes_nothing(shared: tuple[FakePlatform, Served]) -> None:
    with connect(f"{shared[1].live}?interval=0.2") as client:
        for said in ("hello", b"\x00\xff", "{}"):
            client.send(said)
            Snapshot.model_validate_json(client.recv(30))
    wait_for(lambda: shared[1].clients() == 0)


@pytest.mark.parametrize(
    "query", ["interval=0.1", "interval=11", "interval=nan", "interval=", "interval=x", "intervall=1"]
)
def test_malformed_questions_are_told_so(shared: tuple[FakePlatform, Served], query: str) -> None:
    with connect(f"{shared[1].live}?{query}") as client:
        error = json.loads(client.recv(30))["error"]
        assert "interval" in error["message"]
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [("127.0.0.1", "http://evil.example", 403), ("127.0.0.1", "null", 403), ("evil.example", None, 421)],
)
def test_foreign_pages_do_not_listen(
    shared: tuple[FakePlatform, Served], host: str, origin: str | None, status: int
) -> None:
    port = shared[1].port
    with socket.create_connection(("127.0.0.1", port)) as connection:
        headers = {} if origin is None else {"Origin": origin}
        uri = f"ws://{host}:{port}/api/v1/live"
        with pytest.raises(InvalidStatus) as refused:
            connect(uri, sock=connection, additional_headers=headers)
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body or b"")["error"]["kind"].startswith("Foreign")


def test_our_own_page_listens(shared: tuple[FakePlatform, Served]) -> None:
    with connect(shared[1].live, additional_headers={"Origin": f"http://127.0.0.1:{shared[1].port}"}) as client:
        Snapshot.model_validate_json(client.recv(30))


def test_two_hundred_clients_cost_the_platform_as_much_as_one(shared: tuple[FakePlatform, Served]) -> None:
    platform, served = shared

    async def one() -> list[float]:
        async with connect_async(served.live, open_timeout=60) as client:
            return [json.loads(await asyncio.wait_for(client.recv(), 60))["unix_seconds"] for _ in range(3)]

    async def all_of_them() -> list[list[float]]:
        return await asyncio.gather(*(one() for _ in range(200)))

    before, began = platform.asked.get("snapshot", 0), time.monotonic()
    seen = asyncio.run(all_of_them())
    assert all(len(times) == 3 and times == sorted(times) for times in seen)
    asked = platform.asked["snapshot"] - before
    assert asked <= (time.monotonic() - began) / 0.5 + 2
    wait_for(lambda: served.clients() == 0)


def test_a_platform_that_goes_and_comes_back(shared: tuple[FakePlatform, Served]) -> None:
    platform, served = shared
    with connect(f"{served.live}?interval=0.2") as client:
        Snapshot.model_validate_json(client.recv(30))
        platform.stop()
        messages = [json.loads(client.recv(30))]
        while "error" not in messages[-1]:
            messages.append(json.loads(client.recv(30)))
        assert messages[-1]["error"]["kind"] == "Gone"
        platform.start()
        while "error" in messages[-1]:
            messages.append(json.loads(client.recv(30)))
        Snapshot.model_validate(messages[-1])


def test_browsers_that_never_read_cost_nothing_and_are_hung_up_on(platform: FakePlatform) -> None:
    """Were it not bounded, what waits for them would grow by 30 MB a second: 20 clients, 5 times 300 kB each."""
    platform.document["platform"]["warnings"] = ["w" * 300_000]
    with serving(platform, stalled_seconds=3.0) as served, reading(served) as times, contextlib.ExitStack() as stack:
        wait_for(lambda: len(times) >= 5)
        before = served.process.memory_info().rss
        silent = [stack.enter_context(silent_client(served)) for _ in range(20)]
        wait_for(lambda: served.clients() == 21)
        read, largest = len(times), 0
        deadline = time.monotonic() + 60
        while served.clients() > 1:
            assert time.monotonic() < deadline, "they are still connected"
            largest = max(largest, served.process.memory_info().rss)
            time.sleep(0.1)
        assert largest - before < 50e6
        assert len(times) - read >= 10  # the other one went on meanwhile
        assert times == sorted(times)
        for client in silent:
            with contextlib.suppress(ConnectionResetError):
                while client.recv(1 << 20):
                    pass  # what was on its way, and then the end


def test_a_client_that_answers_no_ping_is_hung_up_on(platform: FakePlatform) -> None:
    """Its messages are so small that the kernel takes them for a long time: no buffer is ever full."""
    with serving(platform, ping_seconds=0.5) as served:
        silent = silent_client(served)
        wait_for(lambda: served.clients() == 1)
        wait_for(lambda: served.clients() == 0)
        silent.close()


def test_who_asks_and_never_reads_the_answer_is_hung_up_on(platform: FakePlatform) -> None:
    platform.document["platform"]["warnings"] = ["w" * 3_000_000]
    with serving(platform, stalled_seconds=0.5) as served, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.sendall(b"GET /api/v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"

        def connected() -> bool:
            return any(getattr(c.raddr, "port", None) == own for c in served.process.net_connections("tcp"))

        own = client.getsockname()[1]
        assert connected()
        wait_for(lambda: not connected())


def test_no_more_clients_than_there_may_be(platform: FakePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    from observatory.app.web.app import build_app
    from observatory.app.web.backend import Backend

    monkeypatch.setattr("observatory.app.web.live.MOST_CLIENTS", 0)

    async def run() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        received = iter([{"type": "websocket.connect"}])

        async def receive() -> dict[str, Any]:
            return next(received, {"type": "websocket.disconnect", "code": 1000})

        async def send(message: Any) -> None:
            sent.append(dict(message))

        backend = Backend(platform.path, platform.state)
        app = build_app(backend, with_pages=False)
        scope = {"type": "websocket", "path": "/api/v1/live", "headers": [], "query_string": b"", "subprotocols": []}
        await app(scope, receive, send)
        backend.close()
        return sent

    accepted, said, closed = asyncio.run(run())
    assert accepted["type"] == "websocket.accept"
    assert "try again later" in json.loads(said["text"])["error"]["message"]
    assert closed["code"] == 1013


@contextlib.contextmanager
def reading(served: Served) -> Iterator[list[float]]:
    """A client that reads all it gets, in a thread; the times of its snapshots."""
    times: list[float] = []

    def read() -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                times.append(json.loads(client.recv())["unix_seconds"])

    with connect(f"{served.live}?interval=0.2", open_timeout=60) as client:
        thread = threading.Thread(target=read)
        thread.start()
        yield times
    thread.join()
