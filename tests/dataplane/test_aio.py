"""Rings in an event loop. Every wait is bounded from outside: what hangs, fails."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dataplane import aio
from dataplane._ring import RingConsumer, RingEnded, RingError, RingProducer, Wakeups

from .rings import attach, frame, put, ring

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
SOON_SECONDS = 0.02
"""Long enough for a task to have gone to sleep; nothing is wrong if it has not."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; TimeoutError rather than a hang."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await main

    return asyncio.run(bounded())


def helper_threads() -> int:
    """Threads of this process that Python knows nothing of."""
    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()


async def asleep(wait: Awaitable[T]) -> asyncio.Task[T]:
    """A task that waits, and has had time to fall asleep."""

    async def wrapped() -> T:
        return await wait

    task = asyncio.create_task(wrapped())
    await asyncio.sleep(SOON_SECONDS)
    assert not task.done()
    return task


def test_a_task_waits_for_a_frame_while_others_run() -> None:
    async def main(producer: RingProducer, consumer: RingConsumer) -> None:
        task = await asleep(aio.take(consumer))
        published = time.monotonic_ns()
        put(producer, 5)
        lease = await task
        assert lease.descriptor.source_index == 5
        assert lease.wait_ns is not None
        assert lease.wait_ns < published
        lease.release()

    with ring() as (producer, (consumer,)):
        run(main(producer, consumer))


def test_frames_come_in_order_and_the_end_ends_the_loop() -> None:
    async def main(producer: RingProducer, consumer: RingConsumer) -> list[int]:
        async def produce() -> None:
            for index in range(100):
                with await aio.acquire(producer, 8) as lease:
                    lease.publish(frame(index), 8)
            await aio.acknowledged(producer)
            assert producer.outstanding == 0
            producer.finish()

        task = asyncio.create_task(produce())
        seen = []
        async with aio.Reader(consumer) as reader:
            async for lease in reader:
                with lease:
                    seen.append(lease.descriptor.source_index)
        await task
        assert reader.ended is not None
        assert (reader.ended.reason, reader.ended.final_seq) == ("end_of_stream", 100)
        return seen

    with ring(slots=2) as (producer, (consumer,)):
        assert run(main(producer, consumer)) == list(range(100))
        with pytest.raises(RingError, match="closed"):
            consumer.take(0.0)


@pytest.mark.parametrize("reason", ["failed", "migrated"])
def test_an_end_that_is_none_of_the_stream_is_raised(reason: str) -> None:
    async def main(producer: RingProducer, consumer: RingConsumer) -> None:
        reader = aio.Reader(consumer)
        task = await asleep(reader.__anext__())
        producer.finish(reason)
        with pytest.raises(RingEnded) as ended:
            await task
        assert ended.value.reason == reason

    with ring() as (producer, (consumer,)):
        run(main(producer, consumer))


def test_several_consumers_share_one_loop_and_one_thread() -> None:
    async def main(producer: RingProducer, consumers: list[RingConsumer]) -> None:
        before = helper_threads()
        seen: list[list[int]] = [[] for _ in consumers]

        async def read(consumer: RingConsumer, into: list[int]) -> None:
            async for lease in aio.Reader(consumer):
                with lease:
                    into.append(lease.descriptor.source_index)

        tasks = [asyncio.create_task(read(*pair)) for pair in zip(consumers, seen, strict=True)]
        for index in range(50):
            with await aio.acquire(producer, 8) as lease:
                lease.publish(frame(index), 8)
            assert helper_threads() <= before + 1
        producer.finish()
        await asyncio.gather(*tasks)
        assert seen == [list(range(50))] * len(consumers)

    with ring(["block"] * 5) as (producer, consumers):
        run(main(producer, consumers))


def test_waiting_costs_no_processor_time() -> None:
    async def main(consumer: RingConsumer) -> float:
        task = await asleep(aio.take(consumer))
        before = time.process_time()
        await asyncio.sleep(1.0)
        spent = time.process_time() - before
        task.cancel()
        return spent

    with ring() as (_, (consumer,)):
        assert run(main(consumer)) < 0.2


def test_a_cancelled_wait_takes_nothing() -> None:
    async def main(producer: RingProducer, consumer: RingConsumer) -> None:
        for index in range(20):
            task = await asleep(aio.take(consumer))
            if index % 2:
                put(producer, index)  # and the loop may already know
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await (aio.take(consumer) if not index % 2 else asyncio.sleep(1))
            if index % 2:
                lease = await aio.take(consumer)
                assert lease.descriptor.source_index == index
                lease.release()

    with ring() as (producer, (consumer,)):
        run(main(producer, consumer))


@pytest.mark.parametrize(
    "end",
    [lambda _, consumer: consumer.close(), lambda _, consumer: consumer.end_at(0, "stopped")],
    ids=["closed", "told the end"],
)
def test_what_ends_the_consumer_ends_its_wait(end: Callable[[RingProducer, RingConsumer], None]) -> None:
    async def main(producer: RingProducer, consumer: RingConsumer) -> None:
        task = await asleep(aio.take(consumer))
        end(producer, consumer)
        with pytest.raises((RingError, RingEnded)):
            await task

    with ring() as (producer, (consumer,)):
        run(main(producer, consumer))


@pytest.mark.parametrize(
    "freed",
    ["released", "abandoned", "dismissed", "finished", "closed"],
)
def test_what_changes_a_full_ring_wakes_its_producer(freed: str) -> None:
    async def main(producer: RingProducer, consumer: RingConsumer) -> None:
        put(producer, 0)
        own = producer.acquire(8, 0.0)
        assert own is not None
        held = await aio.take(consumer)
        tasks = [await asleep(aio.acquire(producer, 8)) for _ in range(2)]
        if freed == "released":
            held.release()
        elif freed == "abandoned":
            own.abandon()
        elif freed == "dismissed":
            producer.dismiss(0)
        elif freed == "finished":
            producer.finish()
        else:
            producer.close()
        if freed in ("finished", "closed"):
            for task in tasks:
                with pytest.raises(RingError, match=r"ended|closed"):
                    await task
            return
        first = await next(asyncio.as_completed(tasks))
        first.abandon()  # and that wakes the second
        for task in tasks:
            await task

    with ring(slots=2) as (producer, (consumer,)):
        run(main(producer, consumer))


def test_a_consumer_that_is_let_in_late_is_woken() -> None:
    async def main(producer: RingProducer, consumer: RingConsumer) -> None:
        task = await asleep(aio.take(consumer))
        producer.admit(consumer.page_fd, "block")
        put(producer, 3)
        (await task).release()

    with ring([]) as (producer, _):
        consumer = RingConsumer()
        attach(consumer, producer)
        run(main(producer, consumer))
        consumer.close()


def test_errors_come_at_once() -> None:
    async def main(producer: RingProducer) -> None:
        with pytest.raises(RingError, match="no slot holds"):
            await aio.acquire(producer, 10**9)
        unattached = RingConsumer()
        with pytest.raises(RingError, match="not attached"):
            await aio.take(unattached)
        unattached.close()
        with pytest.raises(RingError, match="closed"):
            await aio.take(unattached)

    with ring() as (producer, _):
        run(main(producer))


def test_a_reader_with_much_to_do_lets_others_run() -> None:
    async def main(producer: RingProducer, consumer: RingConsumer) -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        reader = aio.Reader(consumer)
        for index in range(20 * aio.TAKEN_IN_A_ROW):
            put(producer, index)
            (await reader.take()).release()  # is always there
        task.cancel()
        return turns

    with ring() as (producer, (consumer,)):
        assert 5 <= run(main(producer, consumer)) <= 100


def test_threads_end_with_their_loops() -> None:
    def once() -> None:
        with ring() as (producer, (consumer,)):

            async def main() -> None:
                task = await asleep(aio.take(consumer))
                put(producer, 0)
                (await task).release()

            run(main())

    once()
    gc.collect()
    before = helper_threads()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        once()
        gc.collect()
    assert helper_threads() <= before
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


PRODUCER = """
import os, socket, sys, time
from array import array
from dataplane._ring import RingProducer, SizeClass
from tests.dataplane.rings import frame
channel = socket.socket(fileno=int(sys.argv[1]))
producer = RingProducer(capacity=8, size_classes=[SizeClass(4096, 3)])
_, (page,), _, _ = socket.recv_fds(channel, 1, 1)
producer.admit(page, "block")
socket.send_fds(channel, [b"r"], [producer.ring_fd, *producer.slab_fds])
for index in range(int(sys.argv[2])):
    lease = producer.acquire(8, 30.0)
    assert lease is not None
    lease.publish(frame(index), 8)
    if index % 97 == 0:
        time.sleep(0.002)
producer.finish()
producer.wait_acknowledged(30.0)
"""


@contextlib.contextmanager
def other_process(frames: int) -> Iterator[RingConsumer]:
    """A consumer of a producer in a process of its own."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", PRODUCER, str(theirs.fileno()), str(frames)], pass_fds=[theirs.fileno()]
        )
        consumer = RingConsumer()
        try:
            socket.send_fds(ours, [b"p"], [consumer.page_fd])
            _, fds, _, _ = socket.recv_fds(ours, 1, 8)
            consumer.attach(fds[0], fds[1:], [4096])
            for fd in fds:
                os.close(fd)
            yield consumer
            assert child.wait(PATIENCE_SECONDS) == 0
        finally:
            consumer.close()
            child.kill()
            child.wait()


def test_no_wake_up_is_lost_between_processes() -> None:
    frames = 20_000

    async def main(consumer: RingConsumer) -> list[int]:
        seen = []
        async for lease in aio.Reader(consumer):
            with lease:
                seen.append(lease.descriptor.source_index)
        return seen

    with other_process(frames) as consumer:
        assert run(main(consumer)) == list(range(frames))


def test_a_forked_child_cannot_use_the_parents_and_does_not_disturb_it() -> None:
    with ring() as (producer, (consumer,)):
        wakeups = Wakeups()
        token = wakeups.watch_consumer(consumer)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    wakeups.watch_consumer(consumer)
                except RingError as error:
                    code = 0 if "forked" in str(error) else 2
                wakeups.forget(token or 0)
                del wakeups
                gc.collect()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        put(producer, 0)  # rings only if our flag is still up
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (fired := wakeups.fired()) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert fired == [token]
        wakeups.close()
        for use in (lambda: wakeups.fd, wakeups.fired, lambda: wakeups.watch_consumer(consumer)):
            with pytest.raises(RingError, match="closed"):
                use()
        wakeups.close()


def test_a_process_that_ends_while_a_task_waits_ends_cleanly() -> None:
    script = """
import asyncio, sys
from dataplane import aio
from tests.dataplane.rings import ring
async def main():
    with ring() as (producer, (consumer,)):
        kept.append(asyncio.create_task(aio.take(consumer)))
        await asyncio.sleep(0.02)
        sys.exit(3)
kept = []
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3, done.stderr


def test_another_event_loop_works_as_well() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def main(producer: RingProducer, consumer: RingConsumer) -> None:
        for index in range(20):
            task = await asleep(aio.take(consumer)) if index % 5 == 0 else asyncio.create_task(aio.take(consumer))
            put(producer, index)
            (await task).release()

    with ring() as (producer, (consumer,)), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(producer, consumer))
