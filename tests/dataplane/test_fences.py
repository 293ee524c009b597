"""Fences between processes: reached, timed out, broken."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane._ring import DeathWatch, RingError
from dataplane.fences import Fence, FenceBroken, Timeline, wait_all, wait_any

PEER = Path(__file__).with_name("fence_peer.py")
LONG = 60.0


class Signaller:
    """A process with a fence, and that fence as it is seen from here."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(LONG)
        self.process = subprocess.Popen([sys.executable, str(PEER), str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        _, self.handle, _, _ = socket.recv_fds(self.channel, 1, 3)
        self.fence = Fence.attach(self.handle)

    def tell(self, order: str) -> None:
        self.channel.sendall(f"{order}\n".encode())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LONG)

    def close(self) -> None:
        self.kill()
        self.fence.close()
        self.channel.close()
        for fd in self.handle:
            os.close(fd)


@contextmanager
def signallers(count: int) -> Iterator[list[Signaller]]:
    made: list[Signaller] = []
    try:
        for _ in range(count):
            made.append(Signaller())
        yield made
    finally:
        for one in made:
            one.close()


@pytest.fixture
def other() -> Iterator[Signaller]:
    with signallers(1) as (made,):
        yield made


def test_a_value_of_another_process_is_waited_for(other: Signaller) -> None:
    assert other.fence.value == 0
    assert other.fence.pid == other.process.pid
    other.tell("signal 7")
    assert other.fence.wait(7, LONG)
    assert other.fence.wait(3, 0.0)
    assert other.fence.value == 7


def test_a_time_out_is_an_outcome_and_changes_nothing(other: Signaller) -> None:
    started = time.monotonic()
    assert other.fence.wait(1, 0.05) is False
    assert time.monotonic() - started >= 0.05
    assert other.fence.wait(1, -1.0) is False
    other.tell("signal 1")
    assert other.fence.wait(1, LONG) is True


def test_a_killed_signaller_breaks_the_fence_for_every_waiter(other: Signaller) -> None:
    caught: list[FenceBroken] = []
    awaited: list[int] = []

    def follow(value: int) -> None:
        try:
            while other.fence.wait(value, math.inf):
                value += 1
        except FenceBroken as error:
            caught.append(error)
            awaited.append(value)

    threads = [threading.Thread(target=follow, args=(first,)) for first in (1, 1, 10**12)]
    for thread in threads:
        thread.start()
    other.tell("run")
    assert other.fence.wait(1000, LONG)
    time.sleep(random.Random(5).random() / 50)
    other.process.kill()
    for thread in threads:
        thread.join(LONG)
    assert {(error.pid, error.value, error.errno) for error in caught} == {(other.process.pid, other.fence.value, None)}
    assert len(caught) == 3
    assert all(value > other.fence.value for value in awaited)  # what was reached is not broken
    with pytest.raises(RingError, match=f"process {other.process.pid} died with the fence at {other.fence.value}"):
        other.fence.wait(10**12, 0.0)
    assert other.fence.wait(1000, 0.0)


def test_a_stopped_signaller_is_not_dead(other: Signaller) -> None:
    other.process.send_signal(signal.SIGSTOP)
    other.tell("signal 1")
    assert other.fence.wait(1, 0.2) is False
    other.process.send_signal(signal.SIGCONT)
    assert other.fence.wait(1, LONG)


def test_a_closed_timeline_breaks_the_fence(other: Signaller) -> None:
    other.tell("signal 2")
    other.tell("close")
    with pytest.raises(FenceBroken, match="closed the fence at 2") as broken:
        other.fence.wait(3, LONG)
    assert (broken.value.pid, broken.value.value) == (other.process.pid, 2)
    assert other.fence.wait(2, 0.0)


def test_who_leaves_the_block_closes() -> None:
    with Timeline(4) as mine, Fence.attach(mine.handle()) as same:
        mine.signal(5)
        assert same.wait(5, 0.0)
    with pytest.raises(RingError, match="the fence is closed"):
        mine.signal(6)
    with pytest.raises(RingError, match="the fence is closed"):
        same.wait(5, 0.0)
    mine.close()


def test_any_and_all_of_several() -> None:
    with signallers(2) as (left, right), Timeline() as mine:
        points = [(left.fence, 1), (right.fence, 1), (mine, 1)]
        assert wait_any(points, 0.01) == []
        right.tell("signal 1")
        assert wait_any(points, LONG) == [1]
        assert wait_all(points, 0.01) is False
        mine.signal(1)
        left.tell("signal 1")
        assert wait_all(points, LONG) is True
        left.kill()
        assert wait_all(points, 0.0) is True
        assert wait_any([(left.fence, 2), (right.fence, 1)], LONG) == [1]
        with pytest.raises(FenceBroken, match="died with the fence at 1"):
            wait_any([(left.fence, 2), (right.fence, 2)], LONG)
        with pytest.raises(FenceBroken, match="died with the fence at 1"):
            wait_all([(right.fence, 2), (left.fence, 2)], LONG)


def test_other_threads_run_while_one_waits() -> None:
    mine = Timeline()
    threading.Timer(0.05, mine.signal, [1]).start()
    assert mine.wait(1, LONG)


def test_closing_ends_the_wait_of_another_thread(other: Signaller) -> None:
    threading.Timer(0.05, other.fence.close).start()
    with pytest.raises(RingError, match="the fence is closed"):
        other.fence.wait(1, LONG)


def test_a_signal_ends_a_wait(other: Signaller) -> None:
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        other.fence.wait(1, math.inf)


def in_fork(check: Callable[[], None]) -> int:
    """The exit status of `check` in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_forks_wait_and_do_not_signal(other: Signaller) -> None:
    mine = Timeline(1)
    with pytest.raises(RingError, match="never goes back"):
        mine.signal(0)
    assert other.fence.wait(1, 0.01) is False  # so the thread that watches processes runs here, and not in the child

    def child() -> None:
        with pytest.raises(RingError, match="only the process that made a fence signals it"):
            mine.signal(2)
        mine.close()
        threading.Timer(0.05, os.kill, [other.process.pid, signal.SIGKILL]).start()
        with pytest.raises(FenceBroken, match="died with the fence at 0"):
            other.fence.wait(1, LONG)

    assert in_fork(child) == 0
    with pytest.raises(FenceBroken, match="died with the fence at 0"):
        other.fence.wait(1, LONG)
    mine.signal(2)


@given(st.integers(0, 2**64 - 2), st.lists(st.integers(0, 2**64 - 2), max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_timeline_is_the_largest_value_signalled(start: int, values: list[int]) -> None:
    with Timeline(start) as mine, Fence.attach(mine.handle()) as theirs:
        highest = start
        for value in values:
            if value < highest:
                with pytest.raises(RingError, match=f"never goes back: it has reached {highest}, not {value}"):
                    mine.signal(value)
            else:
                mine.signal(value)
                highest = value
            assert mine.value == theirs.value == highest
            assert theirs.wait(highest, 0.0)
            assert not theirs.wait(highest + 1, 0.0)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_values_are_unsigned_and_have_64_bits(value: int) -> None:
    with Timeline() as mine, pytest.raises(TypeError):
        mine.signal(value)


def test_a_deadline_has_to_be_a_number() -> None:
    with Timeline() as mine, pytest.raises(ValueError, match="not a number"):
        mine.wait(1, math.nan)


def test_a_handle_of_two_fences_is_refused() -> None:
    with Timeline() as one, Timeline() as two:
        mixed = one.handle()._replace(waiters=two.handle().waiters)
        with pytest.raises(RingError, match="belongs to another fence"):
            Fence.attach(mixed)
        with pytest.raises(RingError, match="no process descriptor"):
            Fence.attach(one.handle()._replace(process=two.handle().waiters))


def test_a_waiter_without_the_hint_still_waits(other: Signaller) -> None:
    timeline, _, process = other.handle
    with Fence.attach((timeline, -1, process)) as reader:
        other.tell("signal 1")
        assert reader.wait(1, LONG)
        other.process.kill()
        with pytest.raises(FenceBroken, match="died with the fence at 1"):
            reader.wait(2, LONG)


def test_what_is_no_sync_file_is_refused_with_what_it_is() -> None:
    ends = os.pipe()
    files = {
        ends[0]: r"pipe:\[",
        os.memfd_create("frames"): "/memfd:frames",
        os.eventfd(0): r"anon_inode:\[eventfd\]",
        os.pidfd_open(os.getpid()): "pidfd",
    }
    for fd, kind in files.items():
        with pytest.raises(RingError, match=f"descriptor {fd} is no sync_file but .*{kind}"):
            Fence.import_sync_file(fd)
    for fd in (*files, ends[1]):
        os.close(fd)
    with pytest.raises(RingError, match=os.strerror(errno.EBADF)):
        Fence.import_sync_file(ends[1])


def test_a_death_is_watched_by_its_pidfd() -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    pidfd = os.pidfd_open(sleeper.pid)
    death = DeathWatch(pidfd)
    os.close(pidfd)
    assert death.pid == sleeper.pid
    assert death.dead is False
    assert death.wait(0.01) is False
    sleeper.send_signal(signal.SIGSTOP)
    assert death.wait(0.05) is False
    threading.Timer(0.05, sleeper.kill).start()
    assert death.wait(LONG) is True
    assert (death.dead, death.wait(0.0)) == (True, True)  # nobody has collected it yet
    sleeper.wait(LONG)
    assert (death.dead, death.wait(0.0)) == (True, True)


def test_only_a_pidfd_tells_of_a_death() -> None:
    with pytest.raises(RingError, match=r"no process descriptor \(pidfd\) but"):
        DeathWatch(sys.stderr.fileno())
