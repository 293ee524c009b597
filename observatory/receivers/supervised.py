"""One receiver in a thread of its own: time limits, back-off, opening again, counting, and leaving out repetitions.

The thread has an event loop of its own, so a receiver may simply read files: what hangs in the kernel hangs this thread
and no other. A call that cannot be cancelled is waited for, as a second thread would hang in the same place; meanwhile
the receiver counts as hanging and stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from observatory.model.errors import MediaObservatoryError
from observatory.model.observation import HardwareEvent, Seen
from observatory.receivers.checking import sensible
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.protocol import EventReceiver, Receiver, ReceiverContext
from observatory.receivers.repeats import Repeats
from observatory.receivers.status import ReceiverState, ReceiverStatus, Tally

P = ParamSpec("P")
T = TypeVar("T")
Factory = Callable[[], Receiver | EventReceiver]
Put = Callable[[str, list[Seen]], int]

_SHORTEST_PERIOD_SECONDS = 0.01
_HEARTBEAT_SECONDS = 1.0  # how often a source that tells by itself counts as still open


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver may take. Times in seconds."""

    open_seconds: float = 10.0
    poll_seconds: float = 2.0
    close_seconds: float = 2.0
    first_back_off_seconds: float = 0.25
    longest_back_off_seconds: float = 30.0
    unavailable_seconds: float = 60.0  # until a source that was never there is looked for again
    most_per_poll: int = 200_000
    most_per_second: int = 20_000  # of a source that tells by itself


@dataclass(frozen=True, slots=True)
class Settings:
    """How one receiver is run: `period_seconds` None takes its own."""

    period_seconds: float | None = None
    options: dict[str, str] = field(default_factory=dict)
    limits: Limits = Limits()


class Supervised:
    """Runs one receiver until `stop`. `put` takes what it saw and returns how much was dropped for it."""

    def __init__(self, name: str, make: Factory, context: ReceiverContext, settings: Settings, put: Put) -> None:
        self.name = name
        self.tally = Tally()
        self._make = make
        self._context = context
        self._settings = settings
        self._limits = settings.limits
        self._put = put
        self._random = random.Random(name)
        self._repeats = Repeats()
        self._in_row = 0  # failures since the last good poll
        self._has_worked = False
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"receiver-{name}", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask it to close and end; `join` waits for it."""
        self._stopping.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # it ended just now
                loop.call_soon_threadsafe(task.cancel)

    def join(self, timeout_seconds: float) -> bool:
        """Whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def status(self) -> ReceiverStatus:
        """How it fares now."""
        period = self.tally.period_seconds or _HEARTBEAT_SECONDS
        stale_after = 3 * period + self._limits.poll_seconds
        longest = max(self._limits.poll_seconds, self._limits.open_seconds if not self._has_worked else 0)
        return self.tally.snapshot(self.name, time.monotonic_ns(), longest, stale_after)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            loop = asyncio.new_event_loop()
            loop.set_default_executor(_DaemonThreads())
            try:
                self._task = loop.create_task(self._live())
                self._loop = loop
                if not self._stopping.is_set():
                    loop.run_until_complete(self._task)
            except BaseException as error:  # a plug-in may raise even SystemExit, or cancel the task it runs in
                if not self._stopping.is_set():
                    self._failed(error)
                    self._stopping.wait(self._back_off())
            finally:
                self._end(loop)
        self.tally.state = ReceiverState.STOPPED
        self.tally.called_ns = None

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(BaseException):
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=self._limits.close_seconds))
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _live(self) -> None:
        while not self._stopping.is_set():
            try:
                receiver = self._make()
                await self._once(receiver)
            except Exception as error:
                self._failed(error)
            await asyncio.sleep(self._back_off())

    async def _once(self, receiver: Receiver | EventReceiver) -> None:
        """Open, poll until it fails, close."""
        try:
            await self._limited(receiver.open(self._context), self._limits.open_seconds)
            if isinstance(receiver, Receiver):
                await self._poll_again_and_again(receiver)
            elif isinstance(receiver, EventReceiver):
                await self._listen(receiver)
            else:
                raise ReceiverFailed(f"{type(receiver).__name__} has neither poll nor events")
        finally:
            with contextlib.suppress(Exception):
                await self._limited(receiver.close(), self._limits.close_seconds)

    async def _poll_again_and_again(self, receiver: Receiver) -> None:
        period = max(_SHORTEST_PERIOD_SECONDS, self._settings.period_seconds or float(receiver.period_seconds))
        self.tally.period_seconds = period
        due = time.monotonic()
        while True:
            began, began_cpu = time.monotonic(), time.thread_time()
            try:
                self._take(await self._limited(receiver.poll(), self._limits.poll_seconds), self._limits.most_per_poll)
                self._good(receiver)
            finally:
                self.tally.polls += 1
                self.tally.seconds += time.monotonic() - began
                self.tally.cpu_seconds += time.thread_time() - began_cpu
            due += period
            late = time.monotonic() - due
            if late > period:  # what was missed is not made up for
                due += late
            await asyncio.sleep(max(0.0, -late))

    async def _listen(self, receiver: EventReceiver) -> None:
        self._good(receiver)
        allowance = _Allowance(self._limits.most_per_second)
        beating = asyncio.create_task(self._beat(receiver))
        began_cpu = time.thread_time()
        try:
            async for batch in receiver.events():
                left = allowance.left()
                self._take(batch, left)
                self._good(receiver)
                self.tally.polls += 1
                self.tally.cpu_seconds += time.thread_time() - began_cpu
                began_cpu = time.thread_time()
                allowance.spend(len(batch))
                if allowance.left() <= 0:
                    await asyncio.sleep(allowance.seconds_until_more())
            raise ReceiverFailed("its source ended")
        finally:
            beating.cancel()

    async def _beat(self, receiver: EventReceiver) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            self._good(receiver)

    # -- what happened ---------------------------------------------------------------------------------------------

    def _take(self, batch: object, most: int) -> None:
        if isinstance(batch, list):
            said = len(batch)
            batch = self._repeats.news(batch, time.monotonic_ns())
            self.tally.observations += said - len(batch)
        kept, over = sensible(batch, self.name, self.tally.refused, max(0, most))
        self.tally.dropped += over
        if not kept:
            return
        events = sum(1 for seen in kept if type(seen) is HardwareEvent)
        self.tally.events += events
        self.tally.observations += len(kept) - events
        self.tally.dropped += self._put(self.name, kept)

    def _good(self, receiver: object) -> None:
        lost = getattr(receiver, "lost", 0)
        self.tally.lost = lost if type(lost) is int else 0
        self.tally.last_good_ns = time.monotonic_ns()
        self.tally.state = ReceiverState.WORKING
        self.tally.reason = self.tally.mend = None
        self._in_row = 0
        self._has_worked = True

    def _failed(self, error: BaseException) -> None:
        self._in_row += 1
        unavailable = isinstance(error, ReceiverUnavailable)
        self.tally.failures += not unavailable
        self.tally.state = ReceiverState.UNAVAILABLE if unavailable else ReceiverState.FAILING
        ours = isinstance(error, MediaObservatoryError)
        self.tally.reason = str(error) if ours else f"{type(error).__name__}: {error}"
        self.tally.mend = error.mend if isinstance(error, MediaObservatoryError) else None

    def _back_off(self) -> float:
        """Seconds until the next try: doubled with each failure, and never the same for all."""
        if self.tally.state is ReceiverState.UNAVAILABLE and not self._has_worked:
            longest = self._limits.unavailable_seconds
        else:
            growing = self._limits.first_back_off_seconds * 2.0 ** min(20, max(0, self._in_row - 1))
            longest = min(self._limits.longest_back_off_seconds, growing)
        return longest * self._random.uniform(0.5, 1.0)

    async def _limited(self, call: Awaitable[T] | Coroutine[Any, Any, T], seconds: float) -> T:
        began_ns = self.tally.called_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError as error:
            raise ReceiverFailed(f"did not answer within {seconds:g} s") from error
        finally:
            self.tally.called_ns = None
            # A call that blocks comes back with its answer, however late.
            self.tally.timeouts += time.monotonic_ns() - began_ns >= seconds * 1e9


class _Allowance:
    """How much may come each second."""

    def __init__(self, most_per_second: int) -> None:
        self._most = most_per_second
        self._spent = 0
        self._since = time.monotonic()

    def left(self) -> int:
        if time.monotonic() - self._since >= 1.0:
            self._since, self._spent = time.monotonic(), 0
        return self._most - self._spent

    def spend(self, count: int) -> None:
        self._spent += count

    def seconds_until_more(self) -> float:
        return max(0.0, 1.0 - (time.monotonic() - self._since))


class _DaemonThreads(ThreadPoolExecutor):
    """A thread for each call that nobody waits for at the end: the ordinary executor's keep a process alive."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="receiver-call", daemon=True).start()
        return future
