"""What the four slot calls cost from Python: acquire, publish, take, release, in one process with one consumer.

The usual form keeps the leases in variables and asks whether there is one, as operators do; the chained form leaves
that out, and is the least that the calls themselves can cost.

    .venv/bin/python -m benchmarks.slot_calls

CPU nanoseconds of the calling thread, the loop around the calls included (it is measured too); the descriptor is
reused, the frames are small and no view of them is made. All parts are measured in turn, round after round, so that
what else the machine does falls on each of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.report import machine, spread
from dataplane._ring import Descriptor, EventRing, ReadLease, RingConsumer, RingProducer, SizeClass, Trace, WriteLease
from observatory.model.media import PayloadKind

FRAME_BYTES = 64
SLOTS = 256
BATCH = 256  # slots lent at a time where a call is measured alone
EVENTS = 1 << 18

Part = Callable[[int], dict[str, float]]


@contextmanager
def ring(traced: bool = False) -> Iterator[tuple[RingProducer, RingConsumer, EventRing]]:
    """A producer with one attached consumer under `block`, and the event ring of both."""
    events = EventRing.create(EVENTS)
    producer = RingProducer(capacity=SLOTS, size_classes=[SizeClass(4096, SLOTS)])
    consumer = RingConsumer()
    producer.admit(consumer.page_fd, "block")
    consumer.attach(producer.ring_fd, producer.slab_fds, [made.slot_bytes for made in producer.size_classes])
    if traced:
        producer.trace(Trace(events, 1, 1, 0, 0))
        consumer.trace(Trace(events, 1, 1, 0, 0))
    yield producer, consumer, events
    consumer.close()
    producer.close()
    events.close()


def descriptor() -> Descriptor:
    """A video frame without planes."""
    return Descriptor(payload_kind=PayloadKind.VIDEO_FRAME, source_index=1, pts=1, time_base=(1, 25))


def loop(calls: int) -> dict[str, float]:
    """The loop without any call."""
    began = time.thread_time_ns()
    for _ in range(calls):
        pass
    return {"loop": (time.thread_time_ns() - began) / calls}


def bare_call(calls: int) -> dict[str, float]:
    """One call of a built-in method that does next to nothing: the least that a call can cost."""
    nothing = bytearray()
    began = time.thread_time_ns()
    for _ in range(calls):
        nothing.isspace()
    return {"bare_call": (time.thread_time_ns() - began) / calls}


def chained(producer: RingProducer, consumer: RingConsumer, calls: int) -> float:
    """Nanoseconds per frame through the ring: all four calls, on nothing but each other's results."""
    said = descriptor()
    began = time.thread_time_ns()
    for _ in range(calls):
        producer.acquire(FRAME_BYTES, 1.0).publish(said, FRAME_BYTES)  # type: ignore[union-attr]
        consumer.take(1.0).release()  # type: ignore[union-attr]
    return (time.thread_time_ns() - began) / calls


def usual(producer: RingProducer, consumer: RingConsumer, calls: int) -> float:
    """The same as operators write it: leases in variables, checked for None."""
    said = descriptor()
    began = time.thread_time_ns()
    for _ in range(calls):
        writing = producer.acquire(FRAME_BYTES, 1.0)
        if writing is None:
            raise TimeoutError
        writing.publish(said, FRAME_BYTES)
        reading = consumer.take(1.0)
        if reading is None:
            raise TimeoutError
        reading.release()
    return (time.thread_time_ns() - began) / calls


def in_blocks(producer: RingProducer, consumer: RingConsumer, calls: int) -> float:
    """The same with `with` around each lease, which ends it where an error has not let it come to its call."""
    said = descriptor()
    began = time.thread_time_ns()
    for _ in range(calls):
        writing = producer.acquire(FRAME_BYTES, 1.0)
        if writing is None:
            raise TimeoutError
        with writing:
            writing.publish(said, FRAME_BYTES)
        reading = consumer.take(1.0)
        if reading is None:
            raise TimeoutError
        with reading:
            reading.release()
    return (time.thread_time_ns() - began) / calls


def lent(producer: RingProducer, calls: int) -> float:
    """Acquire and give back unpublished."""
    began = time.thread_time_ns()
    for _ in range(calls):
        producer.acquire(FRAME_BYTES, 1.0).abandon()  # type: ignore[union-attr]
    return (time.thread_time_ns() - began) / calls


def alone(producer: RingProducer, consumer: RingConsumer, calls: int) -> dict[str, float]:
    """Each call alone, a batch of slots at a time; a lease's construction counts with what returns it, its
    deletion with what ends it.
    """
    said = descriptor()
    spent = dict.fromkeys(("acquire", "publish", "take", "release"), 0)
    batches = max(1, calls // BATCH)
    clock = time.thread_time_ns
    writing: list[WriteLease | None] = [None] * BATCH
    reading: list[ReadLease | None] = [None] * BATCH
    for _ in range(batches):
        began = clock()
        for i in range(BATCH):
            writing[i] = producer.acquire(FRAME_BYTES, 1.0)
        acquired = clock()
        for i in range(BATCH):
            writing[i].publish(said, FRAME_BYTES)  # type: ignore[union-attr]
            writing[i] = None
        published = clock()
        for i in range(BATCH):
            reading[i] = consumer.take(1.0)
        taken = clock()
        for i in range(BATCH):
            reading[i].release()  # type: ignore[union-attr]
            reading[i] = None
        released = clock()
        spent["acquire"] += acquired - began
        spent["publish"] += published - acquired
        spent["take"] += taken - published
        spent["release"] += released - taken
    return {f"{name}_alone": total / (batches * BATCH) for name, total in spent.items()}


def measure(rounds: int = 15, calls: int = 20_000) -> dict[str, dict[str, float]]:
    """Median, least and most CPU nanoseconds per frame (or call), by part, over interleaved rounds.

    Args:
        rounds: How often every part is measured; the first round of all is thrown away.
        calls: Frames per round and part.
    """
    with ring() as (producer, consumer, _), ring(traced=True) as (traced_producer, traced_consumer, events):

        def traced(calls: int) -> dict[str, float]:
            spent = usual(traced_producer, traced_consumer, calls)
            while len(events.drain(EVENTS)):
                pass
            return {"four_calls_traced": spent}

        parts: list[Part] = [
            loop,
            bare_call,
            lambda calls: {"four_calls": usual(producer, consumer, calls)},
            lambda calls: {"four_calls_chained": chained(producer, consumer, calls)},
            lambda calls: {"four_calls_in_blocks": in_blocks(producer, consumer, calls)},
            traced,
            lambda calls: {"acquire_and_abandon": lent(producer, calls)},
            lambda calls: alone(producer, consumer, calls),
        ]
        found: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            for part in parts:
                for name, value in part(calls).items():
                    if number:
                        found.setdefault(name, []).append(value)
    return {name: spread(values) for name, values in found.items()}


def main() -> int:
    """Print the table, or with --json the whole."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = measure(arguments.rounds, arguments.calls)
    if arguments.json:
        print(json.dumps({"machine": machine(), "results": results}, indent=2))
        return 0
    print(f"{'':28}{'median':>9}{'least':>9}{'most':>9}   CPU ns")
    for name, value in results.items():
        print(f"{name:28}{value['median']:9.1f}{value['min']:9.1f}{value['max']:9.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
