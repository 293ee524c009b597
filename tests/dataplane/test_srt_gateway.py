"""SRT through a real `srt-live-transmit` on both sides."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from dataplane.errors import BadMedia, WrongAddress
from dataplane.srt_gateway import SrtGateway
from tests.operators.senders import DATAGRAM, STEP, Sender, free_port, watched
from tests.peers import ROOT, peer


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def srt_sender(target: str) -> Iterator[None]:
    """A test picture, by UDP to a transmitter, by SRT to `target`."""
    port = free_port()
    command = [peer("srt-live-transmit"), "-q", f"udp://127.0.0.1:{port}", target]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as transmitter:  # type: ignore[call-overload]
        try:
            with Sender(f"udp://127.0.0.1:{port}?pkt_size={DATAGRAM}"):
                yield
        finally:
            transmitter.kill()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("mode=listener", "mode=caller"), pytest.param("mode=caller", "mode=listener", marks=pytest.mark.slow)],
)
def test_a_stream_comes_over_srt(ours: str, theirs: str) -> None:
    peer("srt-live-transmit")
    port = free_port()
    secret = "passphrase=thirteen-letters"
    url = f"srt://127.0.0.1:{port}?{ours}&{secret}"
    with SrtGateway(url) as gateway, srt_sender(f"srt://127.0.0.1:{port}?{theirs}&{secret}"):
        with watched(url, address=gateway.address) as seen:
            seen.more(20)
            assert seen.bench.probe is not None
            assert seen.bench.probe.live
            assert seen.bench.probe.input == f"srt://127.0.0.1:{port}?{ours}&passphrase=***"
            assert {b.pts - a.pts for a, b in pairwise(seen.frames)} == {STEP}
            assert seen.epochs == [0]
        pid = gateway.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)


def test_why_nothing_comes_can_be_asked_for() -> None:
    port = free_port()
    theirs = f"srt://127.0.0.1:{port}?mode=listener&passphrase=thirteen-letters"
    ours = f"srt://127.0.0.1:{port}?mode=caller&passphrase=another-secret"
    with srt_sender(theirs), SrtGateway(ours) as gateway:
        until(lambda: gateway.last_words)
        assert "Incorrect passphrase" in (gateway.last_words or "")
        assert "another-secret" not in (gateway.last_words or "")


def test_a_program_that_is_killed_is_started_again() -> None:
    peer("srt-live-transmit")
    with SrtGateway(f"srt://127.0.0.1:{free_port()}?mode=listener") as gateway:
        until(lambda: gateway.pid is not None)
        first = gateway.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: gateway.pid not in (None, first))
        assert gateway.restarts == 1


@pytest.mark.slow
def test_a_stream_goes_on_after_the_program_was_killed() -> None:
    peer("srt-live-transmit")
    port = free_port()
    url = f"srt://127.0.0.1:{port}?mode=listener"
    with (
        SrtGateway(url) as gateway,
        srt_sender(f"srt://127.0.0.1:{port}?mode=caller"),
        watched(url, address=gateway.address) as seen,
    ):
        seen.more(10)
        assert gateway.pid is not None
        os.kill(gateway.pid, signal.SIGKILL)
        seen.wait(lambda it: 2 in it.epochs, 40)
        assert all(b.pts > a.pts for a, b in pairwise(seen.frames))


def test_the_program_dies_with_an_owner_that_is_killed() -> None:
    peer("srt-live-transmit")
    words = (
        "import sys, time\nfrom dataplane.srt_gateway import SrtGateway\n"
        f"with SrtGateway('srt://127.0.0.1:{free_port()}?mode=listener') as gateway:\n"
        "    while gateway.pid is None: time.sleep(0.01)\n"
        "    print(gateway.pid, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, cwd=ROOT, text=True) as owner:
        try:
            assert owner.stdout is not None
            program = psutil.Process(int(owner.stdout.readline()))
            until(lambda: program.name() == "srt-live-transmit")  # it was a Python first
        finally:
            owner.kill()
    until(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE)


def test_without_the_program_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadMedia, match="srt-live-transmit") as caught:
        SrtGateway("srt://127.0.0.1:9000?passphrase=secret-words").start()
    assert caught.value.mend == "apt-get install srt-tools"
    assert "secret" not in str(caught.value)


def test_a_port_that_is_taken_is_named() -> None:
    peer("srt-live-transmit")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(WrongAddress, match="cannot listen there"):
            SrtGateway(f"srt://127.0.0.1:{other.getsockname()[1]}?mode=listener").start()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("udp://127.0.0.1:9000", "no SRT address"),
        ("srt://127.0.0.1", "no SRT address"),
        ("srt://127.0.0.1:seven", "no SRT address"),
        ("srt://127.0.0.1:9000?mode=server", "no mode server"),
        ("srt://:9000?mode=caller", "whom"),
    ],
)
def test_wrong_addresses_are_named(url: str, words: str) -> None:
    with pytest.raises(WrongAddress, match=words) as caught:
        SrtGateway(url)
    assert caught.value.file == url
    assert caught.value.mend


def test_closing_one_that_never_started_is_nothing() -> None:
    SrtGateway("srt://127.0.0.1:9000").close()
