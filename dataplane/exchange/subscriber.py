"""The consuming side: frames of a publisher that nobody of ours started."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from dataplane import _ring, aio
from dataplane.errors import BrokenPublisher, ExchangeError, TooManyHeld
from dataplane.exchange.connection import Connection, connect, may_change
from dataplane.exchange.credentials import Allowed
from dataplane.exchange.frame import Frame
from dataplane.exchange.handshake import Hello, Policy

FOREVER = float("inf")
RECONNECT_SLICE_SECONDS = 0.1  # longest time that a cancelled `async for` keeps a thread busy


class Subscriber:
    """Frames published at a path, from the one published next on.

        from dataplane.exchange import Subscriber

        with Subscriber("/run/user/1000/cam.sock") as frames:
            for frame in frames:
                with frame:
                    print(frame.sequence, frame.descriptor.pts, frame.array.mean())

    The loop ends with the stream (`async for` does the same). When the publisher dies, everything that it had published
    is still delivered, then RingEnded is raised, whose `reason` is "failed". One thread may read, any may `close`.

    Args:
        path: of the publisher's socket.
        policy: "drop_oldest": who is too slow loses the oldest frames (`Frame.lost_before`); "block": the publisher
            waits for us, if it grants that.
        hold: how many frames to have at the same time; 2 allow the view of one frame to live on in a variable while
            the next one is read.
        wait_seconds: how long to wait for a publisher to be there (None: for ever).
        reconnect: when the publisher dies or is stopped, wait for another one at that path, and go on with its frames:
            `Frame.incarnation` counts up, sequences begin anew.
        allow_uids: users whose publishers are believed, besides your own.
        allow_gids: groups whose members' are.

    Raises:
        NobodyServes: there is no publisher.
        BadAddress: there cannot be one, or it may not be connected to.
        Refused: by the publisher, or because it is not one of ours; OtherVersion: it is of another version.
        BrokenPublisher: what it sent cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        policy: Policy = "drop_oldest",
        hold: int = 2,
        wait_seconds: float | None = 0.0,
        reconnect: bool = False,
        allow_uids: Iterable[int] = (),
        allow_gids: Iterable[int] = (),
    ) -> None:
        self._path = path
        self._hello = Hello(policy, hold)
        self._allowed = Allowed.of(allow_uids, allow_gids)
        self._reconnect = reconnect
        self._stop = threading.Event()
        self._kept: list[_ring.ReadLease] = []  # released, but views of them are left
        self._held = 0  # frames that were not released
        self._incarnation = 0
        self._expected: int | None = None
        self._over = False  # the connection's ring was read to its end, another one is to follow
        self._connection = self._connect(wait_seconds)

    def _connect(self, wait_seconds: float | None) -> Connection:
        connection = connect(self._path, self._hello, self._allowed, wait_seconds, self._stop)
        self._incarnation += 1
        self._expected = None
        self._reader = aio.Reader(connection.consumer)
        return connection

    @property
    def description(self) -> Mapping[str, Any]:
        """What the publisher says about its stream."""
        return self._connection.welcome.description

    @property
    def publisher_pid(self) -> int | None:
        """Of the publisher, when it connected; None when it is not in this PID namespace."""
        return self._connection.peer.pid

    # -- reading -------------------------------------------------------------------------------------------------------

    def take(self, timeout_seconds: float | None = None) -> Frame | None:
        """The next frame; None after the timeout (None: wait).

        Raises:
            RingEnded: the stream is over; `reason` is end_of_stream, stopped or failed (the publisher died).
            Dismissed: the publisher turned us out.
            BrokenPublisher: what it wrote cannot be.
            TooManyHeld: as many frames as asked for are held already.
        """
        deadline = FOREVER if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            if self._over and not self._go_on(deadline):
                return None
            self._check_room()
            try:
                lease = self._connection.consumer.take(max(0.0, deadline - time.monotonic()))
            except _ring.RingEnded as end:
                self._check_end(end)
                continue
            except _ring.RingError as error:
                raise self._reason(error) from error
            return None if lease is None else self._frame(lease)

    def _frame(self, lease: _ring.ReadLease) -> Frame:
        lost = None if self._expected is None else lease.sequence - self._expected
        self._expected = lease.sequence + 1
        self._held += 1
        connection = self._connection
        return Frame(lease, self._incarnation, lost, lambda lease: self._give_back(lease, connection))

    def _check_end(self, end: _ring.RingEnded) -> None:
        """The ring has ended: raise what that means, unless another publisher is to be waited for."""
        if (dismissal := self._connection.dismissal()) is not None:
            raise dismissal from end
        if self._stop.is_set() or not self._reconnect or end.reason not in ("failed", "stopped"):
            raise end
        self._connection.close()
        self._over = True

    def _go_on(self, deadline: float) -> bool:
        """Wait for another publisher; False when none came in time. Raises ExchangeError when none can."""
        wait_seconds = None if deadline == FOREVER else max(0.0, deadline - time.monotonic())
        try:
            self._connection = self._connect(wait_seconds)
        except ExchangeError as error:
            if may_change(error):
                return False
            raise
        self._over = False
        return True

    def _reason(self, error: _ring.RingError) -> ExchangeError:
        if self._stop.is_set():
            return ExchangeError("the subscriber is closed")
        return self._connection.dismissal() or BrokenPublisher(f"the publisher writes what cannot be: {error}")

    # -- giving back ---------------------------------------------------------------------------------------------------

    def _give_back(self, lease: _ring.ReadLease, connection: Connection) -> None:
        self._held -= 1
        if not _released(lease):
            self._kept.append(lease)
        if connection is self._connection and not self._stop.is_set() and (gone := connection.dismissal()) is not None:
            raise gone

    def _check_room(self) -> None:
        self._kept = [lease for lease in self._kept if not _released(lease)]
        held = self._held + len(self._kept)
        if held >= self._hello.hold:
            raise TooManyHeld(
                f"{held} frame(s) are held, of {self._hello.hold} asked for"
                + (f" ({len(self._kept)} because of arrays that look at them)" if self._kept else ""),
                mend="release them, copy the arrays that you keep (np.array(frame.array)), or ask for more: hold=N",
            )

    # -- iterating -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame:
        try:
            frame = self.take()
        except _ring.RingEnded as end:
            if end.reason == "failed":
                raise
            raise StopIteration from None
        assert frame is not None
        return frame

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        try:
            while True:
                if self._over:
                    await asyncio.to_thread(self._go_on, time.monotonic() + RECONNECT_SLICE_SECONDS)
                elif (frame := await self._take_in_loop()) is not None:
                    return frame
        except _ring.RingEnded as end:
            if end.reason == "failed":
                raise
            raise StopAsyncIteration from None

    async def _take_in_loop(self) -> Frame | None:
        """The next frame, waited for by the event loop; None when another publisher is to be waited for."""
        self._check_room()
        try:
            return self._frame(await self._reader.take())
        except _ring.RingEnded as end:
            self._check_end(end)
            return None
        except _ring.RingError as error:
            raise self._reason(error) from error

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave. Arrays that are still alive stay readable; what they show may be overwritten."""
        if not self._stop.is_set():
            self._stop.set()
            if not self._over:
                self._connection.close()
            self._connection.consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _released(lease: _ring.ReadLease) -> bool:
    """Acknowledge a frame; False while views of it are alive."""
    try:
        lease.release()
    except _ring.LeaseError:
        return False
    except _ring.RingError:
        return True  # the consumer is closed: nobody waits for it
    return True
