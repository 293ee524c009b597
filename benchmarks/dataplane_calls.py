"""System calls per frame: two Python processes hand frames over, spinning; this one traces both and counts.

The marks that say where the counting begins and ends are system calls that nothing makes otherwise. A call on purpose
in each frame of a second run shows that the counting sees what there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.dataplane_ends import PAGE_BYTES
from benchmarks.dataplane_machine import die_after
from benchmarks.dataplane_pairs import Failed
from benchmarks.dataplane_ring import admit, get_ring, give_ring
from dataplane._ring import Descriptor, RingConsumer, RingProducer, SizeClass
from observatory.model.media import PayloadKind

SLOTS = 8
WARM = 500
LIMIT_SECONDS = 120

_TRACE_ME, _SYSCALL, _SET_OPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_SYSGOOD, _EXIT_KILL = 1, 0x100000
_STOPPED_IN_CALL = signal.SIGTRAP | 0x80
_ENTRY = 1
_MARKS = {"x86_64": (121, 124), "aarch64": (155, 156)}  # getpgid, getsid

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class _CallInfo(ctypes.Structure):
    """The head of struct ptrace_syscall_info."""

    _fields_ = [
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 8),
    ]


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        raise Failed(f"ptrace: {os.strerror(ctypes.get_errno())}")


def _traced(work: Callable[[], None]) -> int:
    """A child that lets itself be traced and waits to be told to go on."""
    pid = os.fork()
    if pid:
        return pid
    try:
        die_after(LIMIT_SECONDS)
        _libc.ptrace(_TRACE_ME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
        os._exit(0)
    finally:
        os._exit(1)


def _steps(step: Callable[[], None], frames: int, extra: bool) -> None:
    gc.collect()
    gc.disable()
    for _ in range(WARM):
        step()
    os.getpgid(0)
    for _ in range(frames):
        if extra:
            os.getppid()
        step()
    os.getsid(0)


def _produce(end: socket.socket, frames: int, extra: bool) -> None:
    producer = RingProducer(capacity=SLOTS, size_classes=[SizeClass(PAGE_BYTES, SLOTS)])
    producer.prefault()
    admit(end, producer)
    give_ring(end, producer)
    said = Descriptor(payload_kind=PayloadKind.VIDEO_FRAME)

    def step() -> None:
        while (lease := producer.acquire(PAGE_BYTES, 0.0)) is None:
            pass
        lease.array[0] = 1
        lease.publish(said, PAGE_BYTES)

    _steps(step, frames, extra)
    end.recv(1)


def _consume(end: socket.socket, frames: int) -> None:
    consumer = RingConsumer()
    consumer.spin_seconds = 1.0
    socket.send_fds(end, [b"p"], [consumer.page_fd])
    get_ring(end, consumer, populate=True)

    def step() -> None:
        while (lease := consumer.take(1.0)) is None:
            pass
        if lease.array[0] != 1:
            raise ValueError("not what was written")
        lease.release()

    _steps(step, frames, False)
    end.send(b"!")


@dataclass(slots=True)
class _Counts:
    counting: bool = False
    whole: bool = False
    calls: int = 0


def _follow(pids: list[int], begin: int, end: int) -> dict[int, _Counts]:
    """Both children to their ends; what each called between its marks."""
    found = {pid: _Counts() for pid in pids}
    for pid in pids:
        os.waitpid(pid, 0)
        _ptrace(_SET_OPTIONS, pid, 0, _SYSGOOD | _EXIT_KILL)
    for pid in pids:
        _ptrace(_SYSCALL, pid)
    running = set(pids)
    info = _CallInfo()
    while running:
        quiet = True
        for pid in tuple(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            quiet = False
            if not os.WIFSTOPPED(status):
                if status:
                    raise Failed("system calls: a process failed")
                running.discard(pid)
                continue
            deliver = os.WSTOPSIG(status)
            if deliver == _STOPPED_IN_CALL:
                deliver = 0
                _ptrace(_GET_SYSCALL_INFO, pid, ctypes.sizeof(info), ctypes.addressof(info))
                if info.op == _ENTRY:
                    _count(found[pid], info.number, begin, end)
            _ptrace(_SYSCALL, pid, 0, deliver)
        if quiet:
            time.sleep(0.0002)
    return found


def _count(counts: _Counts, number: int, begin: int, end: int) -> None:
    if number == end:
        counts.counting, counts.whole = False, True
    counts.calls += counts.counting
    if number == begin:
        counts.counting = True


def _run(frames: int, extra: bool) -> tuple[int, int]:
    """What producer and consumer called while `frames` frames crossed."""
    marks = _MARKS.get(platform.machine())
    if marks is None:
        raise Failed(f"the numbers of system calls on {platform.machine()} are not known here")
    left, right = socket.socketpair()
    pids = []
    try:
        pids.append(_traced(lambda: _produce(left, frames, extra)))
        pids.append(_traced(lambda: _consume(right, frames)))
        counts = _follow(pids, *marks)
    except BaseException:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        raise
    finally:
        left.close()
        right.close()
    if not all(one.whole for one in counts.values()):
        raise Failed("system calls: a process did not get to its end")
    return counts[pids[0]].calls, counts[pids[1]].calls


def count(frames: int) -> dict[str, float]:
    """System calls per frame of the producer and of the consumer.

    Raises:
        Failed: tracing is not permitted, or the counting does not see a call that is made on purpose.
    """
    seen, _ = _run(min(frames, 200), True)
    if seen < min(frames, 200):
        raise Failed("system calls: the counting does not work")
    producer, consumer = _run(frames, False)
    return {"producer": producer / frames, "consumer": consumer / frames, "frames": frames}
