"""What `script/bench dataplane` measures of the ring alone: attaching, readers of one producer, system calls."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Sequence
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dataplane_ends import PAGE_BYTES
from benchmarks.dataplane_machine import be_realtime, processors
from benchmarks.dataplane_pairs import CONTEXT, PAUSE_SECONDS, Call, Failed, end_soon, hear_all, now
from benchmarks.dataplane_ring import admit, get_ring, give_ring
from benchmarks.report import spread
from dataplane._ring import Descriptor, RingConsumer, RingProducer, SizeClass
from observatory.model.media import PayloadKind

BURST = 256
GONE = 1 << 40  # a number of frames that means: enough


def _descriptor() -> Descriptor:
    return Descriptor(payload_kind=PayloadKind.VIDEO_FRAME)


# -- attaching ---------------------------------------------------------------------------------------------------------


def attach_seconds(frame_bytes: int, huge_pages: bool, times: int) -> dict[str, Any]:
    """How long `RingConsumer.attach(populate=True)` takes: ring and one slab of one frame mapped, no later fault.

    Raises:
        Failed: there are no 2 MB pages.
    """
    producer = RingProducer(capacity=2, size_classes=[SizeClass(frame_bytes, 1, huge_pages, reserve=True)])
    try:
        (made,) = producer.size_classes
        if huge_pages and made.pages != "hugetlb":
            raise Failed(f"no 2 MB pages: {made.note}")
        producer.prefault()
        fds, sizes = producer.slab_fds, producer.slab_slot_bytes
        spent = []
        for _ in range(times + 1):
            consumer = RingConsumer()
            began = now()
            consumer.attach(producer.ring_fd, fds, sizes, True)
            spent.append((now() - began) / 1e9)
            consumer.close()
        spent = spent[1:]
        p50, p99 = np.percentile(spent, (50, 99))
        return {
            "p50_seconds": float(p50),
            "p99_seconds": float(p99),
            "min_seconds": min(spent),
            "times": times,
            "bytes": frame_bytes,
        }
    finally:
        producer.close()


# -- one producer, many readers ----------------------------------------------------------------------------------------


def _read(end: socket.socket, go: Any, frames: int, realtime: bool, results: Connection) -> None:
    """A reader: asleep in `take` all the time (`go` is None), or awake and reading when `go[0]` says how far."""
    end_soon()
    if (pinned := processors()) is not None:
        os.sched_setaffinity(0, {pinned[1]})
    if realtime:
        be_realtime()
    consumer = RingConsumer()
    socket.send_fds(end, [b"p"], [consumer.page_fd])
    get_ring(end, consumer, populate=True)
    before, files, right = _anonymous_bytes(), set(), 0
    end.send(b"!")
    for index in range(frames):
        while go is not None and go[0] <= index:
            time.sleep(PAUSE_SECONDS)
        while (lease := consumer.take(1.0)) is None:
            pass
        view = lease.array
        right += int(view[0]) == int(view[-1]) == index % 256
        if index == 0:
            files.add(_file_at(view.ctypes.data))
        del view
        lease.release()
    results.send({"files": files, "right": right, "grown_bytes": _anonymous_bytes() - before})


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def _file_at(address: int) -> int:
    """The inode of the file that is mapped there; 0: none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= address < high:
            return int(line.split()[4])
    return 0


def _publish(ends: Sequence[socket.socket], go: Any, job: FanOut, results: Connection) -> None:
    end_soon()
    if (pinned := processors()) is not None:
        os.sched_setaffinity(0, {pinned[0]})
    if job.realtime:
        be_realtime()
    producer = RingProducer(capacity=job.slots, size_classes=[SizeClass(job.frame_bytes, job.slots)])
    for end in ends:
        admit(end, producer)
        give_ring(end, producer)
    for end in ends:
        end.recv(1)
    (slab,) = producer.slab_fds
    said, spent = _descriptor(), []
    for index in range(job.frames):
        lease = producer.acquire(job.frame_bytes, 10.0)
        if lease is None:
            raise TimeoutError
        view = lease.array[: job.frame_bytes]
        view[0] = view[-1] = index % 256
        del view
        began = now()
        lease.publish(said, job.frame_bytes)
        spent.append(now() - began)
        if go is None or (index + 1) % BURST == 0:
            if go is not None:
                go[0] = index + 1
            producer.wait_acknowledged(10.0)
            time.sleep(PAUSE_SECONDS)
    results.send({"file": os.fstat(slab).st_ino, "publish_seconds": statistics.median(spent) / 1e9})


class FanOut:
    """One measurement: `readers` read each of `frames` frames; they sleep between frames, or stay awake."""

    def __init__(self, readers: int, frame_bytes: int, frames: int, asleep: bool, realtime: bool) -> None:
        self.readers = readers
        self.frame_bytes = frame_bytes
        self.frames = frames
        self.asleep = asleep
        self.realtime = realtime
        self.slots = 4 if asleep else 2 * BURST

    def measure(self) -> dict[str, Any]:
        """Median time of `publish`, and in how many readers the frame was anywhere but in the producer's memory.

        Raises:
            Failed: a process failed, or a reader read something else than was written.
        """
        go = None if self.asleep else CONTEXT.RawArray("q", 8)
        pairs = [socket.socketpair() for _ in range(self.readers)]
        calls: list[Call] = [(_read, (theirs, go, self.frames, self.realtime)) for _, theirs in pairs]
        calls.append((_publish, ([ours for ours, _ in pairs], go, self)))
        *read, published = hear_all(calls, chain.from_iterable(pairs), "fan-out")
        if any(reader["right"] != self.frames for reader in read):
            raise Failed("a reader read something else than was written")
        copied = [r for r in read if r["files"] != {published["file"]} or r["grown_bytes"] >= self.frame_bytes > 2**20]
        return {"publish_seconds": published["publish_seconds"], "copies": len(copied), "readers": self.readers}


def fan_out(readers: int, frame_bytes: int, frames: int, rounds: int, realtime: bool) -> dict[str, Any]:
    """`publish` with one reader and with `readers`, in turn: readers asleep (large frames), and awake (small ones)."""
    found: dict[str, Any] = {}
    for kind, size, count in (("asleep", frame_bytes, frames), ("awake", PAGE_BYTES, 4 * BURST)):
        one, many, ratios, copies = [], [], [], 0
        for _ in range(rounds):
            few = FanOut(1, size, count, kind == "asleep", realtime).measure()
            all_ = FanOut(readers, size, count, kind == "asleep", realtime).measure()
            one.append(few["publish_seconds"])
            many.append(all_["publish_seconds"])
            ratios.append(many[-1] / one[-1])
            copies += few["copies"] + all_["copies"]
        found[kind] = {
            "one_seconds": spread(one),
            "many_seconds": spread(many),
            "ratio": spread(ratios),
            "copies": copies,
            "readers": readers,
        }
    return found
