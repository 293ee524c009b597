"""What `script/bench dataplane` asks of the machine, and puts back: 2 MB pages, SCHED_FIFO, two processors."""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HUGE_PAGE_BYTES = 2 << 20
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
PRIORITY = 5
LOCK_SECONDS = 10.0


@contextmanager
def huge_pages(count: int) -> Iterator[str | None]:
    """`count` more 2 MB pages than there were; yields why there are none, or None.

    The tests that change the setting take the same lock and leave the number to go back to in it, so one that was
    killed is put right by the next.
    """
    try:
        lock = os.open(Path(tempfile.gettempdir()) / "observatory-test-hugepages.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        yield f"the lock on vm.nr_hugepages: {error.strerror}"
        return
    try:
        if not _lock(lock):
            yield f"another test or benchmark has had vm.nr_hugepages for {LOCK_SECONDS:.0f} s"
            return
        if left := os.pread(lock, 32, 0):
            _set_huge_pages(int(left))
        before = int(HUGE_PAGES.read_text())
        try:
            os.pwrite(lock, str(before).encode(), 0)
            problem = _set_huge_pages(before + count)
            if problem is None and int(HUGE_PAGES.read_text()) < before + count:
                problem = f"the kernel found no {count} free pages of 2 MB"
            yield problem
        finally:
            _set_huge_pages(before)
            os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def _lock(file: int) -> bool:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def _set_huge_pages(count: int) -> str | None:
    try:
        HUGE_PAGES.write_text(str(count))
    except OSError as error:
        return f"vm.nr_hugepages cannot be set: {error.strerror}"
    return None


def realtime_problem() -> str | None:
    """Why SCHED_FIFO is not permitted here; None: it is."""
    before, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError as error:
        return f"SCHED_FIFO: {error.strerror}"
    os.sched_setscheduler(0, before, parameter)
    return None


def be_realtime() -> None:
    """SCHED_FIFO for this thread and all that it starts."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))


@contextmanager
def realtime_children() -> Iterator[None]:
    """What this thread starts meanwhile is under SCHED_FIFO, with all that it starts."""
    before, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    be_realtime()
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameter)


def processors() -> tuple[int, int] | None:
    """Where producer and consumer are pinned; None where there is one processor only."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else None


def die_after(seconds: int) -> None:
    """A measuring process never outlives its benchmark by long, whatever becomes of that."""
    ctypes.CDLL(None).alarm(seconds)
