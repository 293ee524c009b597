"""A consumer under `drop_oldest` that is stopped (SIGSTOP) while it holds a frame: what its sibling notices.

One producer, a frame a millisecond; one consumer under `block` whose hand-overs are timed, one under `drop_oldest` that
takes every frame and stops itself half-way, holding one. From then on it costs the producer a slot, and nobody a frame.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.dataplane_ends import PAGE_BYTES
from benchmarks.dataplane_machine import be_realtime, processors
from benchmarks.dataplane_pairs import LIMIT_SECONDS, PAUSE_SECONDS, STAMP, Call, end_soon, hear_all, now
from benchmarks.dataplane_ring import admit, get_ring, give_ring
from dataplane._ring import Descriptor, ReadLease, RingConsumer, RingEnded, RingProducer, SizeClass
from observatory.model.media import PayloadKind

SLOTS = 8
POLICIES = ("block", "drop_oldest")


def _begin(producing: bool, realtime: bool) -> None:
    end_soon()
    if (pinned := processors()) is not None:
        os.sched_setaffinity(0, {pinned[0 if producing else 1]})
    if realtime:
        be_realtime()


def _produce(ends: list[socket.socket], frames: int, realtime: bool, results: Connection) -> None:
    _begin(True, realtime)
    producer = RingProducer(capacity=SLOTS, size_classes=[SizeClass(PAGE_BYTES, SLOTS)])
    for end, policy in zip(ends, POLICIES, strict=True):
        admit(end, producer, policy)
        give_ring(end, producer)
        end.recv(1)
    said, waits = Descriptor(payload_kind=PayloadKind.VIDEO_FRAME), 0
    for index in range(frames):
        lease = producer.acquire(PAGE_BYTES, 0.0)
        if lease is None:
            waits += 1
            lease = producer.acquire(PAGE_BYTES, LIMIT_SECONDS)
        if lease is None:
            break
        view = lease.array
        STAMP.pack_into(view.data, 0, index, now())
        del view
        lease.publish(said, PAGE_BYTES)
        time.sleep(PAUSE_SECONDS)
    producer.finish()
    results.send({"waits": waits})
    signal.pause()


def _attached(end: socket.socket, policy: str) -> RingConsumer:
    consumer = RingConsumer(policy)
    socket.send_fds(end, [b"p"], [consumer.page_fd])
    get_ring(end, consumer, populate=True)
    end.send(b"!")
    return consumer


def _next(consumer: RingConsumer) -> ReadLease:
    while (lease := consumer.take(1.0)) is None:
        pass
    return lease


def _consume(end: socket.socket, realtime: bool, results: Connection) -> None:
    _begin(False, realtime)
    consumer = _attached(end, "block")
    seen: list[int] = []
    spent: list[int] = []
    try:
        while True:
            lease = _next(consumer)
            at = now()
            view = lease.array
            index, sent = STAMP.unpack_from(view.data, 0)
            del view
            lease.release()
            seen.append(index)
            spent.append(at - sent)
    except RingEnded:
        results.send({"seen": np.array(seen), "spent_ns": np.array(spent)})
    signal.pause()


def _stop(end: socket.socket, at_frame: int, realtime: bool, results: Connection) -> None:
    _begin(False, realtime)
    consumer = _attached(end, "drop_oldest")
    for index in range(at_frame + 1):
        lease = _next(consumer)
        if index < at_frame:
            lease.release()
    results.send({})
    os.kill(os.getpid(), signal.SIGSTOP)


def measure(frames: int, realtime: bool) -> dict[str, Any]:
    """Hand `frames` frames over; the other consumer stops at half of them.

    Returns:
        `frames`; `lost`: how many the sibling did not get, in order; `waits`: how often the producer had no free
        slot at once; `before` and `stopped`: the sibling's hand-overs, `p50_seconds`, `p99_seconds`, `max_seconds`.

    Raises:
        Failed: a process failed or did not come to its end.
    """
    pairs = [socket.socketpair() for _ in POLICIES]
    ours, theirs = [left for left, _ in pairs], [right for _, right in pairs]
    calls: list[Call] = [
        (_consume, (theirs[0], realtime)),
        (_stop, (theirs[1], frames // 2, realtime)),
        (_produce, (ours, frames, realtime)),
    ]
    taken, _, produced = hear_all(calls, [*ours, *theirs], "a stopped consumer")
    seen, spent = taken["seen"], taken["spent_ns"] / 1e9
    return {
        "frames": frames,
        "lost": frames - int((seen == np.arange(len(seen))).sum()),
        "waits": produced["waits"],
        "before": _spread(spent[: frames // 2]),
        "stopped": _spread(spent[frames // 2 + 1 :]),
    }


def _spread(spent: np.ndarray[Any, Any]) -> dict[str, float]:
    p50, p99, most = np.percentile(spent, (50, 99, 100))
    return {"p50_seconds": float(p50), "p99_seconds": float(p99), "max_seconds": float(most)}
