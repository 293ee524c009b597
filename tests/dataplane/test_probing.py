"""Inputs opened in a process of their own: the same answer, the same errors, and a death that stays theirs."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dataplane.errors import BadMedia, Stopped
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


def test_a_death_while_opening_is_an_error_of_the_input(nursery: NurseryProcess, silent_server: str) -> None:
    def kill() -> None:
        own = psutil.Process().children(recursive=True)
        while not (probes := [p for p in own if p.ppid() not in (os.getpid(), 1) and p.is_running()]):
            time.sleep(0.02)
            own = psutil.Process().children(recursive=True)
        time.sleep(0.2)
        probes[0].send_signal(signal.SIGSEGV)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(BadMedia, match="killed the process that tried") as caught:
        probe_apart(nursery, "decode", {}, SourceRequest(input=silent_server))
    killer.join()
    assert caught.value.file == silent_server
    assert probe_apart(nursery, "decode", {}, SourceRequest(frames=1)).frames == 1, "the nursery goes on"


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
    assert not any(p.ppid() != os.getpid() for p in psutil.Process().children(recursive=True)), "it is gone"
