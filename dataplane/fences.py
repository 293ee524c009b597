"""Fences: say that work has reached a point, and wait until somebody else's has, across processes.

A fence is a number that only goes up. Work is submitted under a value, and is done when the fence has reached it.

    with Timeline() as mine:                    # in the process that does the work
        socket.send_fds(peer, [b"fence"], mine.handle())
        ...
        mine.signal(17)

    with Fence.attach(fds) as theirs:           # in a process that needs it done; fds as received
        if not theirs.wait(17, timeout_seconds=0.5):
            ...                                 # not yet: wait again, or do something else

**A time-out is an outcome, not an error**: `wait` returns False, and the fence is as good as before. There is no
exception for it, because a caller that has a deadline has a plan for it. What raises is the certainty that the value
will never come: `FenceBroken` as soon as the signalling process is dead (killed, crashed, ended; a stopped one is not
dead) or has closed its timeline, without any supervisor. A value that was reached before that counts as reached.

Time-outs are in seconds; `math.inf` waits for ever, 0 or less only looks. Signals of Python interrupt every wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from dataplane import _ring
from dataplane._ring import FenceBroken

__all__ = ["Fence", "FenceBroken", "FenceHandle", "SyncFileStatus", "Timeline", "Waitable", "wait_all", "wait_any"]


class FenceHandle(NamedTuple):
    """What another process needs to wait for a timeline; send all three with SCM_RIGHTS, in this order.

    They belong to the timeline and are closed with it. A waiter that shall not even write the hint that wakes it gets
    -1 for `waiters`: it then looks every millisecond.
    """

    timeline: int
    waiters: int
    process: int


@dataclass(frozen=True)
class SyncFileStatus:
    """What the kernel says of an imported fence."""

    name: str
    fences: tuple[str, ...]
    """`driver object` of each fence in it."""
    signalled: bool
    signalled_ns: int | None
    """CLOCK_MONOTONIC of the last of them; None before, and where the driver does not say."""
    error: int | None
    """The errno it failed with."""


class Waitable:
    """What own and foreign fences have in common."""

    def __init__(self, native: _ring.Fence) -> None:
        self._native = native

    @property
    def value(self) -> int:
        """The last value reached. RingError when closed."""
        return self._native.value

    def wait(self, value: int, timeout_seconds: float) -> bool:
        """Whether `value` was reached within the time; sleeps until then.

        Raises FenceBroken as soon as it never will be, RingError when closed here.
        """
        return self._native.wait(value, timeout_seconds)

    def close(self) -> None:
        """Look no more; a wait that goes on in another thread ends with RingError. May be called twice."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Timeline(Waitable):
    """A fence that this process signals, from one thread at a time. Other threads may wait for it as well."""

    _native: _ring.TimelineFence

    def __init__(self, value: int = 0) -> None:
        """Start at `value`. RingError when memory or descriptors run out."""
        super().__init__(_ring.TimelineFence.create(value))

    def signal(self, value: int) -> None:
        """Say that `value` is reached. All that this thread wrote before is seen by who waited for it.

        Raises RingError when the fence is beyond it already (a fence never goes back), and in a fork of the process
        that made it.
        """
        self._native.signal(value)

    def handle(self) -> FenceHandle:
        """Descriptors for a waiter in another process."""
        return FenceHandle(*self._native.fds)

    def close(self) -> None:
        """Signal no more: FenceBroken for everybody who waits for more than the last value. May be called twice."""
        self._native.close()


class Fence(Waitable):
    """A fence that somebody else signals."""

    @classmethod
    def attach(cls, handle: Sequence[int]) -> Self:
        """Wait for a timeline of another process, whose `handle()` came by SCM_RIGHTS.

        The descriptors stay the caller's to close. Raises RingError when they are not those of one fence.
        """
        timeline, waiters, process = handle
        return cls(_ring.TimelineFence.attach(timeline, waiters, process))

    @classmethod
    def import_sync_file(cls, fd: int) -> Self:
        """Wait for a fence of the kernel's, as graphics and video drivers give them out: it goes from 0 to 1, once.

        The descriptor stays the caller's to close. Raises RingError, naming what it is, when it is no sync_file. When
        the driver reports that the work has failed, waiting raises FenceBroken with its `errno`.
        """
        return cls(_ring.SyncFileFence(fd))

    @property
    def pid(self) -> int | None:
        """The signalling process, by the number it gives itself; None for a fence of the kernel's."""
        return self._native.signaller_pid if isinstance(self._native, _ring.TimelineFence) else None

    def sync_file_status(self) -> SyncFileStatus | None:
        """What the kernel says of an imported fence; None for a timeline."""
        if not isinstance(self._native, _ring.SyncFileFence):
            return None
        info = self._native.info()
        status: int = info["status"]
        return SyncFileStatus(
            name=info["name"],
            fences=tuple(info["fences"]),
            signalled=status == 1,
            signalled_ns=info["signalled_ns"],
            error=-status if status < 0 else None,
        )


def wait_any(points: Sequence[tuple[Waitable, int]], timeout_seconds: float) -> list[int]:
    """Indices of the (fence, value) points that are reached, as soon as one is; empty when the time is over.

    Raises FenceBroken when none is reached and one of them never will be.
    """
    return _ring.wait_any_fence([(fence._native, value) for fence, value in points], timeout_seconds)


def wait_all(points: Sequence[tuple[Waitable, int]], timeout_seconds: float) -> bool:
    """Whether all (fence, value) points were reached within the time.

    Raises FenceBroken as soon as one of them never will be, even while others are still to come.
    """
    return _ring.wait_all_fences([(fence._native, value) for fence, value in points], timeout_seconds)
