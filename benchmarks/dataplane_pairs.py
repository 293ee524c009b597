"""One measurement of a transport: two processes, one hands frames over, the other takes them.

Latency: one frame in flight, a pause of 1 ms between; the producer writes CLOCK_MONOTONIC into the frame right before
it sends it, the consumer reads the clock when it has a view of it. Throughput: as fast as it goes, each frame written
whole (one value) and read whole (its maximum, which has to be that value).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, Protocol

import numpy as np

from benchmarks import dataplane_floor
from benchmarks.dataplane_ends import Receiver, Sender, Transport
from benchmarks.dataplane_machine import be_realtime, die_after, processors
from benchmarks.dataplane_transports import BY_NAME
from dataplane._ring import die_with_parent

STAMP = struct.Struct("<qq")  # index, nanoseconds
PAUSE_SECONDS = 0.001
LOOK_SECONDS = 0.0001
LIMIT_SECONDS = 60.0
FLOOR = "futex"
CONTEXT = multiprocessing.get_context("forkserver")
Call = tuple[Callable[..., None], tuple[Any, ...]]
CONTEXT.set_forkserver_preload(["benchmarks.dataplane_pairs", "benchmarks.dataplane_parts"])

now = time.monotonic_ns

Kind = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure. `warm` frames come before those that count."""

    transport: str
    kind: Kind
    frame_bytes: int
    frames: int
    realtime: bool
    warm: int = 20

    @property
    def total(self) -> int:
        return self.warm + self.frames


class Control(Protocol):
    """Words that both processes and this one see."""

    def __getitem__(self, index: int) -> int: ...
    def __setitem__(self, index: int, value: int) -> None: ...


PRODUCER_READY, CONSUMER_READY, DONE, FLOOR_WORDS = 0, 16, 32, 48  # each in cache lines of its own
WORDS = 64


Side = tuple[Callable[..., None], Any]


class Failed(Exception):
    """A measurement that did not come to its end; the message says why."""


def value_of(index: int) -> int:
    """What frame `index` is filled with."""
    return 1 + index % 250


# -- in the two processes ----------------------------------------------------------------------------------------------


def end_soon() -> None:
    """Never outlive the benchmark: end with the process that forked this one, which ends with the benchmark."""
    die_with_parent(os.getppid())
    die_after(int(LIMIT_SECONDS) + 5)


def _begin(job: Job, producing: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark ends them
    end_soon()
    if (pinned := processors()) is not None:
        os.sched_setaffinity(0, {pinned[0 if producing else 1]})
    if job.realtime:
        be_realtime()


def _meet(control: Control, ours: int, other: int) -> None:
    control[ours] = 1
    while not control[other]:
        time.sleep(0.001)


def _wait_done(control: Control, frames: int) -> None:
    while control[DONE] < frames:
        time.sleep(LOOK_SECONDS)


def produce(job: Job, end: Any, control: Control, results: Connection) -> None:
    """The producing process."""
    with _reporting(results):
        _begin(job, producing=True)
        if job.transport == FLOOR:
            _meet(control, PRODUCER_READY, CONSUMER_READY)
            for index in range(job.total):
                dataplane_floor.wake(end, control, FLOOR_WORDS)
                time.sleep(PAUSE_SECONDS)
                _wait_done(control, index + 1)
            return
        sender = BY_NAME[job.transport].sender(end, job.frame_bytes)
        _meet(control, PRODUCER_READY, CONSUMER_READY)
        if job.kind == "latency":
            _send_singly(job, sender, control)
        else:
            results.send(_send_all(job, sender, control))
        _wait_done(control, job.total)


def _send_singly(job: Job, sender: Sender, control: Control) -> None:
    pack = STAMP.pack_into
    for index in range(job.total):
        view = sender.frame()
        pack(view.data, 0, index, now())
        del view
        sender.send()
        time.sleep(PAUSE_SECONDS)
        _wait_done(control, index + 1)


def _send_all(job: Job, sender: Sender, control: Control) -> dict[str, Any]:
    began = 0
    for index in range(job.total):
        if index == job.warm:
            began = now()
        view = sender.frame()
        view.fill(value_of(index))
        STAMP.pack_into(view.data, 0, index, 0)
        del view
        sender.send()
        if index == 0:
            _wait_done(control, 1)  # iceoryx2 drops what does not fit before the subscriber first looked
    return {"began_ns": began, "ended_ns": now()}


def consume(job: Job, end: Any, control: Control, results: Connection) -> None:
    """The consuming process."""
    with _reporting(results):
        _begin(job, producing=False)
        if job.transport == FLOOR:
            _meet(control, CONSUMER_READY, PRODUCER_READY)
            results.send(_be_woken(job, end, control))
            return
        transport = BY_NAME[job.transport]
        receiver = transport.receiver(end, job.frame_bytes)
        _meet(control, CONSUMER_READY, PRODUCER_READY)
        if job.kind == "latency":
            results.send(_take_singly(job, receiver, control))
        else:
            found = _take_all(job, receiver, transport, control)
            control[DONE] = job.total
            results.send(found)


def _take_singly(job: Job, receiver: Receiver, control: Control) -> dict[str, Any]:
    spent = np.empty(job.total, dtype=np.int64)
    wrong = 0
    unpack = STAMP.unpack_from
    for index in range(job.total):
        view = receiver.take()
        at = now()
        said, sent = unpack(view.data, 0)
        del view
        receiver.done()
        spent[index] = at - sent
        wrong += said != index
        control[DONE] = index + 1
    return {"spent_ns": spent[job.warm :], "wrong": wrong}


def _be_woken(job: Job, library: str, control: Control) -> dict[str, Any]:
    spent = np.empty(job.total, dtype=np.int64)
    for index in range(job.total):
        spent[index] = dataplane_floor.wait(library, control, FLOOR_WORDS, index)
        control[DONE] = index + 1
    return {"spent_ns": spent[job.warm :], "wrong": 0}


def _take_all(job: Job, receiver: Receiver, transport: type[Transport], control: Control) -> dict[str, Any]:
    began = wrong = 0
    for index in range(job.total):
        if index == job.warm:
            began = now()
        view = receiver.take()
        (said,) = struct.unpack_from("<q", view.data, 0)
        most, last = int(view[STAMP.size :].max()), int(view[-1])
        del view
        receiver.done()
        if index == 0:
            control[DONE] = 1
        wrong += transport.synchronised and not (said == index and most == last == value_of(index))
    return {"began_ns": began, "ended_ns": now(), "wrong": wrong}


@contextmanager
def _reporting(results: Connection) -> Iterator[None]:
    """What goes wrong, said; then the end of the process at once: none of its libraries is to tidy up after itself."""
    try:
        yield
    except BaseException as error:
        results.send({"error": "".join(traceback.format_exception_only(error))})
    os._exit(0)


# -- in the benchmark's own process ------------------------------------------------------------------------------------


def measure(job: Job) -> dict[str, float]:
    """Run one job.

    Returns:
        latency: `p50_seconds`, `p99_seconds`, `frames`. Throughput: `frames_per_second`, `frames`.

    Raises:
        Failed: a process failed, or did not end in time, or frames came wrong.
    """
    control = CONTEXT.RawArray("q", WORDS)
    with _ends(job) as (left, right):
        produced, consumed = _run(job, (produce, left), (consume, right), control)
    if consumed["wrong"]:
        raise Failed(f"{job.transport}: {consumed['wrong']} of {job.total} frames came wrong")
    if job.kind == "latency":
        p50, p99 = np.percentile(consumed["spent_ns"], (50, 99)) / 1e9
        return {"p50_seconds": float(p50), "p99_seconds": float(p99), "frames": job.frames}
    began, ended = consumed["began_ns"], consumed["ended_ns"]
    if job.transport.startswith("ceiling"):  # nobody waited for the other: both have to be through
        began, ended = min(began, produced["began_ns"]), max(ended, produced["ended_ns"])
    return {"frames_per_second": job.frames / (ended - began) * 1e9, "frames": job.frames}


@contextmanager
def _ends(job: Job) -> Iterator[tuple[Any, Any]]:
    if job.transport == FLOOR:
        library = dataplane_floor.build()
        yield library, library
        return
    with BY_NAME[job.transport].prepare(CONTEXT, job.frame_bytes) as ends:
        yield ends


def _run(job: Job, producing: Side, consuming: Side, control: Control) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both processes from start to end; what they said."""
    processes, pipes = [], []
    try:
        for target, end in (consuming, producing):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(target=target, args=(job, end, control, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        said = _listen(job, pipes)
        return said.get(1, {}), said[0]
    finally:
        for process in processes:
            process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()


def _listen(job: Job, pipes: list[Connection]) -> dict[int, dict[str, Any]]:
    """Until both pipes are closed: {0: what the consumer said, 1: what the producer said, if anything}."""
    said: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    left = list(pipes)
    while left:
        ready = wait(left, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise Failed(f"{job.transport} did not come to an end within {LIMIT_SECONDS:.0f} s")
        for index, pipe in enumerate(pipes):
            if pipe not in ready:
                continue
            try:
                said[index] = pipe.recv()
            except EOFError:
                left.remove(pipe)
        for one in said.values():
            if "error" in one:
                raise Failed(f"{job.transport}: {one['error'].strip()}")
    if 0 not in said:
        raise Failed(f"{job.transport}: the consuming process died")
    return said


def hear(pipe: Connection, what: str) -> dict[str, Any]:
    """The one word of a process that says one.

    Raises:
        Failed: it died first, or took too long.
    """
    if not pipe.poll(LIMIT_SECONDS):
        raise Failed(f"{what} did not come to an end within {LIMIT_SECONDS:.0f} s")
    try:
        said: dict[str, Any] = pipe.recv()
    except EOFError:
        raise Failed(f"{what}: a process died") from None
    return said


def hear_all(calls: Sequence[Call], sockets: Iterable[socket.socket], what: str) -> list[dict[str, Any]]:
    """Start a process per call, which gets a pipe for its one word as well, and hear all of them.

    `sockets` are closed here once every process has its own.

    Raises:
        Failed: one died first, or took too long; none is left.
    """
    pipes = [CONTEXT.Pipe(duplex=False) for _ in calls]
    processes = []
    try:
        for (target, arguments), (_, pipe) in zip(calls, pipes, strict=True):
            processes.append(CONTEXT.Process(target=target, args=(*arguments, pipe), daemon=True))
            processes[-1].start()
            pipe.close()
        for end in sockets:
            end.close()
        return [hear(pipe, what) for pipe, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()
        for pipe, _ in pipes:
            pipe.close()
