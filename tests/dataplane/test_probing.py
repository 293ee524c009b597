"""Inputs opened in a process of their own: the same answer, the same errors, and a death that stays theirs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dataplane.errors import BadMedia, Stopped, WorkerDied
from dataplane.operators.base import SourceRequest
from dataplane.operators.decode import Decode, DecodeParameters
from dataplane.probing import probe_apart
from dataplane.process import NurseryProcess


@pytest.fixture(scope="module")
def nursery() -> Iterator[NurseryProcess]:
    with NurseryProcess() as process:
        yield process


class SilentServer:
    """Takes connections and never says a word."""

    def __init__(self, listening: socket.socket) -> None:
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/film.mp4"
        self._listening = listening
        self._heard: list[socket.socket] = []

    def wait_for_a_connection(self) -> None:
        """Somebody is opening the input. Raises TimeoutError when nobody comes."""
        self._heard.append(self._listening.accept()[0])

    def hang_up(self) -> None:
        for connection in self._heard:
            connection.close()


@pytest.fixture
def silent_server() -> Iterator[SilentServer]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60.0)
        server = SilentServer(listening)
        yield server
        server.hang_up()


def test_the_answer_is_that_of_the_operator(nursery: NurseryProcess) -> None:
    params = {"source": {"size": "320x180", "rate": "30000/1001"}}
    there = probe_apart(nursery, "decode", params, SourceRequest(frames=7))
    assert there == Decode.probe(DecodeParameters.model_validate(params), SourceRequest(frames=7))
    assert there.frames == 7


def test_errors_are_those_of_the_operator(nursery: NurseryProcess, tmp_path: Path) -> None:
    garbage = tmp_path / "film.mp4"
    garbage.write_bytes(os.urandom(5000))
    with pytest.raises(BadMedia, match="cannot be opened as media") as caught:
        probe_apart(nursery, "decode", {}, SourceRequest(input=str(garbage)))
    assert caught.value.file == str(garbage)
    assert caught.value.exit_code == 2


def probes_of(nursery: NurseryProcess) -> list[psutil.Process]:
    """Its children; other tests in this process have children of their own."""
    pid = nursery.pid
    return [] if pid is None else psutil.Process(pid).children()  # it may only be starting


def kill_the_probe(nursery: NurseryProcess, server: SilentServer, number: signal.Signals) -> threading.Thread:
    """As soon as it reads from the server, in a thread. Others may not be gone, or not reaped, yet."""
    others = probes_of(nursery)

    def kill() -> None:
        server.wait_for_a_connection()
        (probe,) = (child for child in probes_of(nursery) if child not in others)
        probe.send_signal(number)

    killer = threading.Thread(target=kill)
    killer.start()
    return killer


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_death_while_opening_is_an_error_of_the_input(
    nursery: NurseryProcess, silent_server: SilentServer, number: signal.Signals
) -> None:
    killer = kill_the_probe(nursery, silent_server, number)
    words = f"opening it killed the process that tried: it was killed by {number.name}"
    with pytest.raises(BadMedia, match=words) as caught:
        probe_apart(nursery, "decode", {}, SourceRequest(input=silent_server.url))
    killer.join()
    assert caught.value.file == silent_server.url
    assert caught.value.exit_code == 2
    assert probe_apart(nursery, "decode", {}, SourceRequest(frames=1)).frames == 1, "the nursery goes on"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_somebody_else_killed_says_nothing_about_the_input(
    nursery: NurseryProcess, silent_server: SilentServer, number: signal.Signals
) -> None:
    killer = kill_the_probe(nursery, silent_server, number)
    words = f"the process that opened it was killed by {number.name}"
    with pytest.raises(WorkerDied, match=words) as caught:
        probe_apart(nursery, "decode", {}, SourceRequest(input=silent_server.url))
    killer.join()
    assert caught.value.file == silent_server.url
    assert caught.value.exit_code == 1
    assert "out of memory" in str(caught.value.mend)


def test_passwords_of_an_address_are_not_shown(nursery: NurseryProcess, silent_server: SilentServer) -> None:
    killer = kill_the_probe(nursery, silent_server, signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        probe_apart(nursery, "decode", {}, SourceRequest(input=silent_server.url.replace("//", "//me:secret@")))
    killer.join()
    assert "secret" not in str(caught.value)


def test_a_killed_platform_leaves_no_log_of_a_probe(tmp_path: Path, silent_server: SilentServer) -> None:
    program = (
        "from dataplane.process import NurseryProcess\n"
        "from dataplane.probing import probe_apart\n"
        "from dataplane.operators.base import SourceRequest\n"
        f"probe_apart(NurseryProcess(), 'decode', {{}}, SourceRequest(input={silent_server.url!r}))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as platform:
        platform_process = psutil.Process(platform.pid)
        while not any(p.ppid() != platform.pid for p in platform_process.children(recursive=True)):
            assert platform.poll() is None
            time.sleep(0.02)
        platform.kill()
    assert not list(tmp_path.iterdir())


def test_waiting_ends_when_nobody_wants_the_answer(nursery: NurseryProcess, silent_server: SilentServer) -> None:
    wanted_until = time.monotonic() + 0.3
    with pytest.raises(Stopped):
        probe_apart(
            nursery,
            "decode",
            {},
            SourceRequest(input=silent_server.url),
            cancelled=lambda: time.monotonic() > wanted_until,
        )
    deadline = time.monotonic() + 10
    while probes_of(nursery):
        assert time.monotonic() < deadline, "it is not gone"
        time.sleep(0.02)
