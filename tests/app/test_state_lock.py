"""One platform per state directory: whoever only asks for it keeps nobody from starting one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from observatory.app.errors import AlreadyRunning, NotRunning
from observatory.app.state_lock import StateLock, platform_socket

HOLD = """
import pathlib, sys
from observatory.app.state_lock import StateLock
lock = StateLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_who_asks_keeps_nobody_from_starting(tmp_path: Path) -> None:
    done = threading.Event()
    sockets: set[Path] = set()

    def ask() -> None:
        while not done.is_set():
            with contextlib.suppress(NotRunning):
                sockets.add(platform_socket(tmp_path))

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(300):
            with StateLock(tmp_path) as lock:
                lock.write("http://127.0.0.1:8050")
    finally:
        done.set()
        for asker in askers:
            asker.join()
    assert sockets <= {tmp_path / "run" / f"{os.getpid()}.sock"}


def test_it_is_held_against_others_until_its_owner_is_gone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning, match=f"pid {process.pid}$"):
            StateLock(tmp_path)
        assert platform_socket(tmp_path).name == f"{process.pid}.sock"
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(NotRunning):
        platform_socket(tmp_path)
    with StateLock(tmp_path), pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}$"):
        StateLock(tmp_path)


def test_a_new_owner_is_named_and_not_the_dead_one_before_it(tmp_path: Path) -> None:
    with StateLock(tmp_path):
        file = tmp_path / "run" / "platform.lock"
        own = file.read_bytes()
        gone = subprocess.Popen(["true"])
        gone.wait()
        file.write_text(f'{{"pid": {gone.pid}, "url": null}}')  # as it is for a moment after the lock was taken
        timer = threading.Timer(0.1, lambda: file.write_bytes(own))
        timer.start()
        assert platform_socket(tmp_path).name == f"{os.getpid()}.sock"
        timer.join()


def test_a_state_directory_that_was_removed_is_noticed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with StateLock(state) as lock:
        lost = [lock.lost]
        shutil.rmtree(state)
        assert [*lost, lock.lost] == [False, True]
        with StateLock(state) as other:  # another platform may begin there
            assert (lock.lost, other.lost) == (True, False)
