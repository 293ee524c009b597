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


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/film.mp4"


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
    assert nursery.pid is not None
    return psutil.Process(nursery.pid).children()


def kill_the_probe(nursery: NurseryProcess, number: signal.Signals) -> threading.Thread:
    """As soon as there is one, in a thread."""

    def kill() -> None:
        while not (probes := probes_of(nursery)):
            time.sleep(0.02)
        time.sleep(0.2)
        probes[0].send_signal(number)

    killer = threading.Thread(target=kill)
    killer.start()
    return killer


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_death_while_opening_is_an_error_of_the_input(
    nursery: NurseryProcess, silent_server: str, number: signal.Signals
) -> None:
    killer = kill_the_probe(nursery, number)
    words = f"opening it killed the process that tried: it was killed by {number.name}"
    with pytest.raises(BadMedia, match=words) as caught:
        probe_apart(nursery, "decode", {}, SourceRequest(input=silent_server))
    killer.join()
    assert caught.value.file == silent_server
    assert caught.value.exit_code == 2
    assert probe_apart(nursery, "decode", {}, SourceRequest(frames=1)).frames == 1, "the nursery goes on"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_somebody_else_killed_says_nothing_about_the_input(
    nursery: NurseryProcess, silent_server: str, number: signal.Signals
) -> None:
    killer = kill_the_probe(nursery, number)
    words = f"the process that opened it was killed by {number.name}"
    with pytest.raises(WorkerDied, match=words) as caught:
        probe_apart(nursery, "decode", {}, SourceRequest(input=silent_server))
    killer.join()
    assert caught.value.file == silent_server
    assert caught.value.exit_code == 1
    assert "out of memory" in str(caught.value.mend)


def test_passwords_of_an_address_are_not_shown(nursery: NurseryProcess, silent_server: str) -> None:
    killer = kill_the_probe(nursery, signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        probe_apart(nursery, "decode", {}, SourceRequest(input=silent_server.replace("//", "//me:secret@")))
    killer.join()
    assert "secret" not in str(caught.value)


def test_a_killed_platform_leaves_no_log_of_a_probe(tmp_path: Path, silent_server: str) -> None:
    program = (
        "from dataplane.process import NurseryProcess\n"
        "from dataplane.probing import probe_apart\n"
        "from dataplane.operators.base import SourceRequest\n"
        f"probe_apart(NurseryProcess(), 'decode', {{}}, SourceRequest(input={silent_server!r}))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as platform:
        platform_process = psutil.Process(platform.pid)
        while not any(p.ppid() != platform.pid for p in platform_process.children(recursive=True)):
            assert platform.poll() is None
            time.sleep(0.02)
        platform.kill()
    assert not list(tmp_path.iterdir())


def test_waiting_ends_when_nobody_wants_the_answer(nursery: NurseryProcess, silent_server: str) -> None:
    wanted_until = time.monotonic() + 0.3
    with pytest.raises(Stopped):
        probe_apart(
            nursery,
            "decode",
            {},
            SourceRequest(input=silent_server),
            cancelled=lambda: time.monotonic() > wanted_until,
        )
    deadline = time.monotonic() + 10
    while probes_of(nursery):
        assert time.monotonic() < deadline, "it is not gone"
        time.sleep(0.02)
