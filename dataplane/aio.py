"""Rings in an event loop: tasks wait for payloads and for room, and neither block a thread of Python nor poll.

    async with aio.Reader(consumer) as reader:
        async for lease in reader:
            with lease:
                show(lease.planes)

    with await aio.acquire(producer, size) as lease:
        ...
        lease.publish(descriptor, size)

One native thread per event loop sleeps on the rings' futexes, only while a task waits, and wakes the loop through an
eventfd. Producers and consumers are used from the loop's thread, like everything of a loop. Time-outs are asyncio's
(`asyncio.timeout`); a wait that is cancelled has taken nothing.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Self, TypeVar

from dataplane._ring import ReadLease, RingConsumer, RingEnded, RingProducer, Wakeups, WriteLease

T = TypeVar("T")

__all__ = ["Reader", "acknowledged", "acquire", "take"]

TAKEN_IN_A_ROW = 32
"""Payloads that a reader hands out before it lets the loop's other tasks run, although the next one is there."""

EXPECTED_ENDS = ("end_of_stream", "stopped")


class _Loop:
    """The watches of one event loop and the futures that wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wakeups = Wakeups()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self._wakeups.fd, self._look)

    async def change_of(self, end: RingConsumer | RingProducer) -> None:
        """Until it is worth trying again. No `await` may lie between the attempt that failed and this call."""
        wakeups = self._wakeups
        token = wakeups.watch_consumer(end) if isinstance(end, RingConsumer) else wakeups.watch_producer(end)
        if token is None:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        try:
            await future
        finally:
            del self._waiting[token]
            wakeups.forget(token)

    def _look(self) -> None:
        for token in self._wakeups.fired():
            future = self._waiting.get(token)
            if future is not None and not future.done():
                future.set_result(None)


# Without a reference to the loop in the value: a loop that is dropped takes its thread with it.
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()


async def _until(attempt: Callable[[], T | None], end: RingConsumer | RingProducer) -> T:
    while (result := attempt()) is None:
        loop = asyncio.get_running_loop()
        waiting = _loops.get(loop)
        if waiting is None:
            waiting = _loops[loop] = _Loop(loop)
        await waiting.change_of(end)
    return result


async def take(consumer: RingConsumer) -> ReadLease:
    """The next payload of a consumer.

    Raises:
        RingEnded: After the last payload.
        RingError: The consumer was closed (also while this waits), is not attached, or its producer is broken.
    """
    return await _until(lambda: consumer.take(0.0), consumer)


async def acquire(producer: RingProducer, payload_bytes: int) -> WriteLease:
    """A slot that holds so many bytes, as soon as there is one.

    Raises:
        RingError: No size class is big enough, or the ring has ended or was closed (also while this waits).
    """
    return await _until(lambda: producer.acquire(payload_bytes, 0.0), producer)


async def acknowledged(producer: RingProducer) -> None:
    """Until every admitted consumer has acknowledged everything published.

    Raises:
        RingError: The producer was closed (also while this waits).
    """
    await _until(lambda: producer.wait_acknowledged(0.0) or None, producer)


class Reader:
    """The payloads of one consumer, for `async for`; as `async with` it closes the consumer at the end.

    Each lease is to be released by whoever gets it (`with lease:`), in any order. The iteration ends where the stream
    does; any other end (a producer that failed, or was migrated and goes on in another ring) is raised as RingEnded.
    """

    def __init__(self, consumer: RingConsumer) -> None:
        self.consumer = consumer
        self.ended: RingEnded | None = None
        """How the ring ended, once it has."""
        self._in_a_row = 0

    async def take(self) -> ReadLease:
        """The next payload; raises what `dataplane.aio.take` raises."""
        self._in_a_row += 1
        if self._in_a_row > TAKEN_IN_A_ROW:
            self._in_a_row = 0
            await asyncio.sleep(0)
        try:
            return await take(self.consumer)
        except RingEnded as end:
            self.ended = end
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReadLease:
        try:
            return await self.take()
        except RingEnded as end:
            if end.reason in EXPECTED_ENDS:
                raise StopAsyncIteration from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.consumer.close()
