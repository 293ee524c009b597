"""The process that forks workers: refusals, its own end, and its silence hurt only who asks."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dataplane import process as process_module
from dataplane.assignment import Assignment
from dataplane.errors import DataplaneError, NoProcess, Stopped, WorkerDied
from dataplane.operators.base import SourceRequest
from dataplane.probing import probe_apart
from dataplane.process import Forked, NurseryProcess, WorkerProcess
from dataplane.supervisor import Supervisor

LONG_SECONDS = 20.0  # what must not be waited for takes longer than this


@pytest.fixture
def nursery() -> Iterator[NurseryProcess]:
    with NurseryProcess() as made:
        yield made


@contextmanager
def worker(nursery: NurseryProcess, folder: Path, name: str = "decode") -> Iterator[WorkerProcess]:
    made = WorkerProcess(name, nursery, folder / f"{name}.log")
    try:
        yield made
    finally:
        made.signal(signal.SIGKILL)
        made.wait(5.0)
        made.close()


def pid_of(nursery: NurseryProcess) -> int:
    assert nursery.pid is not None
    return nursery.pid


def kill(nursery: NurseryProcess) -> int:
    """SIGKILL, as the kernel does when memory is short; the pid that it had."""
    pid = pid_of(nursery)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + LONG_SECONDS
    while nursery.pid is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert nursery.pid is None
    return pid


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def alive_after(seconds: float, pid: int) -> bool:
    time.sleep(seconds)
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# -- refusals ----------------------------------------------------------------------------------------------------------

REFUSED_FORK = """
import os, resource, sys, tempfile
from pathlib import Path
from dataplane.errors import NoProcess
from dataplane.process import Forked, NurseryProcess, WorkerProcess

folder = Path(tempfile.mkdtemp())
with NurseryProcess() as nursery:
    first = WorkerProcess("first", nursery, folder / "first.log")
    before = resource.prlimit(nursery.pid, resource.RLIMIT_NPROC)
    resource.prlimit(nursery.pid, resource.RLIMIT_NPROC, (1, before[1]))
    try:
        WorkerProcess("second", nursery, folder / "second.log")
    except NoProcess as error:
        print(error, "|", error.mend, "|", int(error.exit_code))
    assert first.alive
    resource.prlimit(nursery.pid, resource.RLIMIT_NPROC, before)
    third = WorkerProcess("third", nursery, folder / "third.log")
    assert third.channel.expect("hello", 20)[0]["pid"] == third.pid
    assert first.alive and nursery.restarts == 0
"""


def test_a_fork_that_the_system_refuses_is_the_error_of_who_asked() -> None:
    """Limits of processes are not for root: the whole test runs as somebody else."""
    other = 54_321 if os.geteuid() == 0 else None
    done = subprocess.run(
        [sys.executable, "-c", REFUSED_FORK], user=other, capture_output=True, text=True, timeout=60, cwd="/tmp"
    )
    if other is not None and "No module named" in done.stderr:
        pytest.skip("only root may read this checkout")
    assert done.returncode == 0, done.stderr
    words, mend, code = done.stdout.strip().split(" | ")
    assert words == "no further process may be started: Resource temporarily unavailable"
    assert "ulimit -u" in mend
    assert code == "1"
    assert "Traceback" not in done.stderr


def settled_descriptors(pid: int) -> set[int]:
    """Open ones, once it has closed what it handed to a worker."""
    before: set[int] = set()
    while (now := {int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()}) != before:
        before = now
        time.sleep(0.3)
    return now


def test_descriptors_that_do_not_fit_into_the_nursery_are_the_error_of_who_asked(
    nursery: NurseryProcess, tmp_path: Path
) -> None:
    with worker(nursery, tmp_path, "first") as first:
        pid = pid_of(nursery)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        free = sorted(set(range(1000)) - settled_descriptors(pid))
        for room in range(3):  # none, one of two, both but not the pidfd
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[room], before[1]))
            with pytest.raises(DataplaneError, match=r"lost its file descriptors|Too many open files") as caught:
                WorkerProcess("second", nursery, tmp_path / "second.log")
            assert "ulimit -n" in str(caught.value.mend)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        with worker(nursery, tmp_path, "third") as third:
            assert third.channel.expect("hello", 20)[0]["pid"] == third.pid
        assert first.alive
    assert (nursery.pid, nursery.restarts) == (pid, 0)
    assert not psutil.Process(pid).children()


# -- its end -----------------------------------------------------------------------------------------------------------


def test_another_nursery_takes_the_place_of_one_that_was_killed(nursery: NurseryProcess, tmp_path: Path) -> None:
    with worker(nursery, tmp_path, "first") as first:
        pid = kill(nursery)
        assert first.wait(5.0), "its workers end with it"
        end = f"with the process that starts workers, which (pid {pid}) was killed by SIGKILL"
        assert first.reap() == f"was killed by SIGKILL, {end}"
    with worker(nursery, tmp_path, "second") as second:
        assert second.channel.expect("hello", 20)[0]["pid"] == second.pid
        assert nursery.restarts == 1
        assert pid_of(nursery) != pid
    assert probe_apart(nursery, "decode", {}, SourceRequest(frames=3)).frames == 3


def test_it_stays_when_the_thread_that_asked_for_it_ends(nursery: NurseryProcess, tmp_path: Path) -> None:
    with worker(nursery, tmp_path, "first"):
        kill(nursery)
    found: list[WorkerProcess] = []
    asking = threading.Thread(target=lambda: found.append(WorkerProcess("second", nursery, tmp_path / "second.log")))
    asking.start()
    asking.join()
    pid = pid_of(nursery)
    assert alive_after(0.3, pid)
    assert found[0].alive
    found[0].signal(signal.SIGKILL)
    assert found[0].wait(5.0)
    assert found[0].reap() == "was killed by SIGKILL"
    found[0].close()
    assert (nursery.pid, nursery.restarts) == (pid, 1)


def test_many_ask_at_once_and_one_takes_its_place(nursery: NurseryProcess, tmp_path: Path) -> None:
    with worker(nursery, tmp_path, "first"):
        kill(nursery)
    found: list[WorkerProcess] = []
    asking = [
        threading.Thread(target=lambda n=n: found.append(WorkerProcess(n, nursery, tmp_path / f"{n}.log")))
        for n in map(str, range(6))
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert nursery.restarts == 1
    assert len({made.pid for made in found}) == 6
    for made in found:
        assert made.channel.expect("hello", 20)[0]["pid"] == made.pid  # nobody got the worker of another
        made.signal(signal.SIGKILL)
        made.wait(5.0)
        made.close()


def test_one_that_cannot_live_is_named(
    nursery: NurseryProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(nursery, tmp_path, "first"):
        kill(nursery)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerDied, match=r"starts workers \(pid \d+\) ended by itself with exit code 1"):
        WorkerProcess("second", nursery, tmp_path / "second.log")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(WorkerDied, match="starts workers cannot be started: No such file or directory"):
        WorkerProcess("third", nursery, tmp_path / "third.log")
    monkeypatch.undo()
    with worker(nursery, tmp_path, "fourth") as fourth:
        assert fourth.alive


# -- its silence -------------------------------------------------------------------------------------------------------


def test_a_nursery_that_is_stopped_blocks_nobody(
    nursery: NurseryProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "ANSWER_SECONDS", 1.0)
    with worker(nursery, tmp_path, "first") as first:
        pid = pid_of(nursery)
        stop(pid)
        with pytest.raises(NoProcess, match=rf"starts workers \(pid {pid}\) does not answer") as caught:
            WorkerProcess("second", nursery, tmp_path / "second.log")
        assert "kill -CONT" in str(caught.value.mend)
        first.signal(signal.SIGKILL)
        assert first.wait(5.0)
        assert first.reap() == "ended, how is not known"
        with pytest.raises(Stopped):
            WorkerProcess("third", nursery, tmp_path / "third.log", cancelled=lambda: True)
        os.kill(pid, signal.SIGCONT)
        with worker(nursery, tmp_path, "fourth") as fourth:
            assert fourth.channel.expect("hello", 20)[0]["pid"] == fourth.pid
            children = psutil.Process(pid).children()
            psutil.wait_procs([child for child in children if child.pid != fourth.pid], timeout=5)
            assert [child.pid for child in psutil.Process(pid).children()] == [fourth.pid], "what came late is ended"
        assert first.reap() == "was killed by SIGKILL"
    assert nursery.restarts == 0


def test_a_stopped_nursery_ends_with_its_owner(tmp_path: Path) -> None:
    with NurseryProcess() as nursery, worker(nursery, tmp_path):
        pid = pid_of(nursery)
        stop(pid)
    assert not psutil.pid_exists(pid)


def test_nobody_waits_for_the_end_of_a_probe(nursery: NurseryProcess) -> None:
    """It is killed, but the nursery, which would collect it, is stopped."""

    def no_longer_wanted() -> bool:
        pid = nursery.pid
        if pid is None or not psutil.Process(pid).children():
            return False
        stop(pid)
        return True

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = SourceRequest(input=f"http://127.0.0.1:{silent.getsockname()[1]}/film.mp4")
        with pytest.raises(Stopped):
            probe_apart(nursery, "decode", {}, asked, cancelled=no_longer_wanted)


# -- a start that is cancelled -----------------------------------------------------------------------------------------


def test_a_start_is_left_at_once_when_it_is_cancelled(
    nursery: NurseryProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"operator": "decode", "op": "decode", "params": {}, "inputs": (), "outputs": ()}
    assignment = Assignment.model_validate({**source, "device": "cpu", "real_device": 0, "stream": 1, "epoch": 1})
    cancelled = threading.Event()

    spawn = nursery.spawn

    def spawn_frozen(*arguments: Any, **role: Any) -> Forked:
        forked = spawn(*arguments, **role)  # it waits for its assignment, if it comes to that
        os.kill(forked.pid, signal.SIGSTOP)
        cancelled.set()
        return forked

    monkeypatch.setattr(nursery, "spawn", spawn_frozen)
    began = time.monotonic()
    with Supervisor([assignment], tmp_path, nursery) as supervisor, pytest.raises(Stopped):
        supervisor.start(cancelled=cancelled.is_set)
    assert time.monotonic() - began < LONG_SECONDS
    deadline = time.monotonic() + 5
    while (left := psutil.Process(pid_of(nursery)).children()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, "a stopped worker is gone as well"


def test_a_log_that_cannot_be_written_is_said_by_its_name(nursery: NurseryProcess, tmp_path: Path) -> None:
    log = tmp_path / "gone" / "decode.log"
    with pytest.raises(NoProcess, match="its log cannot be written: No such file") as caught:
        WorkerProcess("decode", nursery, log)
    assert caught.value.file == str(log)
    assert "process" not in str(caught.value.mend), "more processes would not help"
