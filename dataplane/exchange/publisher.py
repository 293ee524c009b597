"""The producing side: frames for any number of processes that nobody of ours started."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from dataplane import _ring
from dataplane.errors import ExchangeError, NoRoom
from dataplane.exchange.address import Address
from dataplane.exchange.credentials import Allowed
from dataplane.exchange.handshake import MOST_DESCRIPTION_BYTES, MOST_SLABS, POLICIES, Policy, Welcome
from dataplane.exchange.roster import SPARE_SLOTS, ConsumerState, Dismissal, Roster
from dataplane.exchange.server import Server

DEFAULT_GRANTS: tuple[Policy, ...] = ("drop_oldest",)
SLICE_SECONDS = 0.05  # longest sleep before looking who is to blame again


class Publisher:
    """Publishes frames at a path, for every process that may connect there.

        from dataplane.exchange import Descriptor, PayloadKind, Publisher

        with Publisher("/run/user/1000/cam.sock", frame_bytes=1920 * 1080 * 3) as out:
            for n, picture in enumerate(camera):
                with out.acquire() as slot:
                    slot.array[: picture.nbytes] = picture.reshape(-1)
                    slot.publish(Descriptor(payload_kind=PayloadKind.VIDEO_FRAME, source_index=n), picture.nbytes)

    A slot is memory that consumers see as it is: nothing is copied. Without consumers publishing goes on, and what is
    published is gone. `acquire` and `publish` belong to one thread; the rest may be called from any.

    Args:
        path: of the Unix socket at which it is found. Its folder must be yours (or sticky, as /tmp).
        frame_bytes: the largest frame.
        slots: frames in memory at the same time: those that consumers hold or have not taken yet, and two. Memory is
            taken as slots are first used.
        grants: which policies consumers may ask for. With "block" a consumer can make this publisher wait; grant it to
            those you trust.
        stall_seconds: after how long without any progress a consumer that this publisher waits for is dismissed.
        allow_uids: users whose processes may connect, besides your own.
        allow_gids: groups whose members may.
        description: told to every subscriber (`Subscriber.description`): anything that JSON can say, 16 KiB at most.
        huge_pages: reserve all memory now, on 2 MB pages where there are enough.

    Raises:
        AddressTaken: another living process serves there.
        BadAddress: the path cannot be used, or not safely.
        ExchangeError: what was asked for cannot be.
        RingError: there is not enough memory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        frame_bytes: int,
        slots: int = 16,
        grants: Collection[Policy] = DEFAULT_GRANTS,
        stall_seconds: float = 5.0,
        allow_uids: Iterable[int] = (),
        allow_gids: Iterable[int] = (),
        description: Mapping[str, Any] | None = None,
        huge_pages: bool = False,
    ) -> None:
        _check(slots, grants, description)
        self.frame_bytes = frame_bytes
        allowed = Allowed.of(allow_uids, allow_gids)
        self._closed = False
        # Who may connect is decided by credentials; the mode is the first of two doors where nobody else may.
        self._address = Address(path, mode=0o666 if allowed.others else 0o600)
        try:
            self._producer = _make_producer(frame_bytes, slots, huge_pages)
            welcome = Welcome(
                publisher=secrets.token_hex(8),
                slot_bytes=self._producer.slab_slot_bytes,
                hold=0,
                stall_seconds=stall_seconds,
                description=description or {},
            )
            handles = [self._producer.ring_fd, *self._producer.slab_fds]
            self._server = Server(self._address.socket, allowed, welcome, handles)
        except BaseException:
            self._address.close()
            raise
        self._roster = Roster(self._producer, slots, grants, stall_seconds, self._server.turned_out)
        self._server.start(self._roster)

    @property
    def path(self) -> str:
        """Where subscribers find it."""
        return str(self._address.path)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def acquire(self, frame_bytes: int | None = None, timeout_seconds: float | None = None) -> _ring.WriteLease:
        """A free slot to write into; use it in a `with` block, and `publish` it there. Not published: given back.

        Consumers under `drop_oldest` never make this wait; those under `block` may, for `stall_seconds` at most.

        Raises:
            NoRoom: nothing became free within `timeout_seconds` (None: wait).
            RingError: no slot is that big, or the publisher is closed.
        """
        wanted = self.frame_bytes if frame_bytes is None else frame_bytes
        lease = self._producer.acquire(wanted, 0.0)
        return lease if lease is not None else self._wait_for_room(wanted, timeout_seconds)

    def _wait_for_room(self, wanted: int, timeout_seconds: float | None) -> _ring.WriteLease:
        began = time.monotonic()
        while True:
            while self._roster.relieve(began):
                if (lease := self._producer.acquire(wanted, 0.0)) is not None:
                    return lease
            left = SLICE_SECONDS if timeout_seconds is None else began + timeout_seconds - time.monotonic()
            if left <= 0:
                raise NoRoom(
                    f"no slot became free within {timeout_seconds:g} s",
                    mend="give the publisher more slots, publish what you acquired, or do not grant 'block'",
                )
            if (lease := self._producer.acquire(wanted, min(left, SLICE_SECONDS))) is not None:
                return lease

    @property
    def published(self) -> int:
        """Frames published so far."""
        return self._producer.tail

    # -- consumers -----------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> tuple[ConsumerState, ...]:
        """Who reads, and how far each is behind."""
        return self._roster.states()

    @property
    def dismissals(self) -> tuple[Dismissal, ...]:
        """Who went or was turned out, and why: the latest 256, oldest first."""
        return tuple(self._roster.dismissals)

    def wait_for_consumers(self, count: int = 1, timeout_seconds: float | None = None) -> bool:
        """Sleep until that many consumers are there; False after the timeout."""
        return self._roster.wait_for(count, timeout_seconds)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, reason: str = "end_of_stream") -> None:
        """End the stream. Subscribers still get everything published, then the end with this reason.

        Args:
            reason: end_of_stream, stopped (by somebody's wish) or failed.
        """
        if self._closed:
            return
        self._closed = True
        self._producer.finish(reason)
        self._roster.close()
        self._server.close()
        self._address.close()
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.close("stopped" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed")


def _make_producer(frame_bytes: int, slots: int, huge_pages: bool) -> _ring.RingProducer:
    """A ring that nobody but this process can write, from before anybody sees it."""
    size = _ring.SizeClass(frame_bytes, slots, huge_pages)
    producer = _ring.RingProducer(capacity=2 * slots, size_classes=[size])
    if len(producer.slab_fds) > MOST_SLABS:
        raise ExchangeError(f"{len(producer.slab_fds)} slabs are more than {MOST_SLABS}", mend="use fewer slots")
    monitor = _ring.RingMonitor(producer.ring_fd)
    monitor.seal_ring()
    monitor.close()
    return producer


def _check(slots: int, grants: Collection[Policy], description: Mapping[str, Any] | None) -> None:
    if slots <= SPARE_SLOTS:
        raise ExchangeError(
            f"a publisher needs {SPARE_SLOTS} slots and one for each frame that is held, not {slots} in all",
            mend=f"slots={SPARE_SLOTS + 2} or more",
        )
    unknown = set(grants) - set(POLICIES)
    if unknown or isinstance(grants, str):
        raise ExchangeError(f"grants are some of {', '.join(POLICIES)}, not {grants!r}")
    try:
        said = len(json.dumps(dict(description or {})))
    except (TypeError, ValueError) as error:
        raise ExchangeError(f"the description cannot be said in JSON: {error}") from error
    if said > MOST_DESCRIPTION_BYTES:
        raise ExchangeError(f"the description takes {said} bytes, more than {MOST_DESCRIPTION_BYTES}")
