"""Who reads: the consumers a publisher has let in, what it promised them, and whom it turns out when room is short.

A slot is kept until every consumer is done with it, so a consumer can cost the publisher slots. How many is bounded by
promises, of which there are never more than slots:

- `drop_oldest`: unread frames are taken away when room is short, so only held ones cost anything. Each consumer may
  hold as many as it asked for (`hold`). Who holds more is turned out at the moment when room is short, and only then.
  As the promises leave two slots, the publisher never waits for such a consumer, whatever it does.
- `block`, where granted: the publisher waits for it; `stall_seconds` without any progress turn it out.

The publishing thread and the server's thread both call in. The lock is never held while anything waits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from dataplane import _ring
from dataplane.control import Channel, ControlClosed
from dataplane.errors import Refused
from dataplane.exchange.credentials import Peer
from dataplane.exchange.handshake import Hello, Policy, granted

MOST_CONSUMERS = 64  # MO_MAX_CONSUMERS
SPARE_SLOTS = 2  # one that is written, one that the quickest consumer reads meanwhile
STALL_VISIBLE_SECONDS = 1.0  # who has something to do and did nothing for that long is shown as stalled


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """One consumer as the publisher sees it now.

    `backlog` are frames it could take, `held` those it has taken and not given back, `dropped` those it lost because it
    was too slow. `stalled_seconds`: how long it has had something to do and done nothing; None while it is at work.
    """

    pid: int | None
    uid: int
    policy: Policy
    hold: int
    backlog: int
    held: int
    dropped: int
    stalled_seconds: float | None


@dataclass(frozen=True, slots=True)
class Dismissal:
    """One consumer that went or was turned out.

    `code` is left (it said goodbye), gone (it did not: most likely its process died), held, stalled, malformed, silent.
    """

    pid: int | None
    uid: int
    code: str
    message: str
    dropped: int


class Member:
    """A consumer that was let in. `channel` is the server's; here only the last word goes over it."""

    __slots__ = ("channel", "handle", "hello", "peer", "progress", "progress_at")

    def __init__(self, handle: int, peer: Peer, hello: Hello, channel: Channel) -> None:
        self.handle = handle
        self.peer = peer
        self.hello = hello
        self.channel = channel
        self.progress: tuple[int, ...] = ()
        self.progress_at = time.monotonic()


class Roster:
    """The consumers of one producer.

    Args:
        producer: whose consumers these are.
        slots: how many it has.
        grants: policies that may be asked for.
        stall_seconds: how long a `block` consumer may keep the publisher waiting without any progress.
        turned_out: called when one was turned out, for the server to end its connection; must not wait.
    """

    def __init__(
        self,
        producer: _ring.RingProducer,
        slots: int,
        grants: Collection[Policy],
        stall_seconds: float,
        turned_out: Callable[[Member, Dismissal], None],
    ) -> None:
        self._producer = producer
        self._slots = slots
        self._grants = grants
        self._stall_seconds = stall_seconds
        self._turned_out = turned_out
        self._members: dict[int, Member] = {}
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self.dismissals: deque[Dismissal] = deque(maxlen=256)

    def admit(self, peer: Peer, hello: Hello, page_fd: int, channel: Channel) -> Member:
        """Let a consumer in; everything published from now on is kept for it. Raises Refused."""
        granted(hello.policy, self._grants)
        with self._changed:
            self._check_room(hello)
            try:
                handle = self._producer.admit(page_fd, hello.policy)
            except _ring.RingError as error:
                raise Refused("version" if "layout version" in str(error) else "page", str(error)) from error
            member = self._members[handle] = Member(handle, peer, hello, channel)
            self._changed.notify_all()
        return member

    def _check_room(self, hello: Hello) -> None:
        if self._closed:
            raise Refused("ended", "the publisher has ended")
        if len(self._members) >= MOST_CONSUMERS:
            raise Refused("full", f"the publisher has {MOST_CONSUMERS} consumers, as many as a ring can have")
        promised = sum(member.hello.hold for member in self._members.values())
        left = self._slots - SPARE_SLOTS - promised
        if hello.hold > left:
            needed = promised + hello.hold + SPARE_SLOTS
            raise Refused(
                "full",
                f"holding {hello.hold} frame(s) was asked for, but of the publisher's {self._slots} slots {promised} "
                f"are promised to {len(self._members)} consumer(s) and {SPARE_SLOTS} are its own",
                mend=f"hold fewer, or give the publisher more slots ({needed} or more)",
            )

    def remove(self, member: Member, code: str, message: str, mend: str | None = None) -> Dismissal | None:
        """Forget a consumer, free its frames, and tell it why unless it went by itself. None: done before."""
        with self._changed:
            if self._members.pop(member.handle, None) is None:
                return None
            dismissal = self._forget(member, code, message, mend)
            self._changed.notify_all()
        return dismissal

    def _forget(self, member: Member, code: str, message: str, mend: str | None) -> Dismissal:
        if code not in ("left", "gone"):
            # Said before its frames can be overwritten.
            with contextlib.suppress(ControlClosed, OSError):
                member.channel.try_send("dismissed", code=code, message=message, mend=mend)
        dropped = self._producer.dropped(member.handle)
        self._producer.dismiss(member.handle)
        dismissal = Dismissal(member.peer.pid, member.peer.uid, code, message, dropped)
        self.dismissals.append(dismissal)
        return dismissal

    # -- room ------------------------------------------------------------------------------------------------------

    def relieve(self, since: float) -> bool:
        """The publisher has had no room since then: turn out whoever is to blame. True when somebody was."""
        with self._changed:
            self._look()
            blamed = self._hoarder() or self._staller(since)
            if blamed is None:
                return False
            member, code, message, mend = blamed
            del self._members[member.handle]
            dismissal = self._forget(member, code, message, mend)
            self._changed.notify_all()
        self._turned_out(member, dismissal)
        return True

    def _hoarder(self) -> tuple[Member, str, str, str] | None:
        """Who holds the most above its promise, under drop_oldest."""
        over = {
            member: held - member.hello.hold
            for member in self._members.values()
            if member.hello.policy == "drop_oldest" and (held := self._producer.held(member.handle)) > member.hello.hold
        }
        if not over:
            return None
        worst = max(over, key=lambda member: over[member])
        asked = worst.hello.hold
        return (
            worst,
            "held",
            f"{asked + over[worst]} frames were held when the publisher had no slot left; {asked} had been asked for",
            "give frames back sooner, copy what you keep, or ask for more: Subscriber(..., hold=N)",
        )

    def _staller(self, since: float) -> tuple[Member, str, str, str] | None:
        """Who lets the publisher wait under `block` and does nothing."""
        now = time.monotonic()
        idle = {
            member: now - max(member.progress_at, since)
            for member in self._members.values()
            if member.hello.policy == "block" and self._busy(member)
        }
        if not idle:
            return None
        worst = max(idle, key=lambda member: idle[member])
        if idle[worst] < self._stall_seconds:
            return None
        return (
            worst,
            "stalled",
            f"the publisher had to wait for {self._stall_seconds:g} s, and nothing was given back",
            "read in a thread of its own, or subscribe with policy='drop_oldest'",
        )

    def _busy(self, member: Member) -> bool:
        return self._producer.backlog(member.handle) + self._producer.held(member.handle) > 0

    # -- looking ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Note who has made progress, and forget what needs not be remembered. To be called now and then."""
        with self._changed:
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for member in self._members.values():
            self._producer.take_dropped(member.handle)  # a list that would grow for ever
            progress = self._progress(member.handle)
            if progress != member.progress or not self._busy(member):
                member.progress, member.progress_at = progress, now

    def _progress(self, handle: int) -> tuple[int, int]:
        """What changes only when the consumer itself takes or gives back."""
        dropped = self._producer.dropped(handle)
        taken = self._producer.tail - self._producer.backlog(handle) - dropped
        return taken, self._producer.held(handle)

    def states(self) -> tuple[ConsumerState, ...]:
        """All consumers as they are now."""
        with self._changed:
            self._look()
            return tuple(self._state(member) for member in self._members.values())

    def _state(self, member: Member) -> ConsumerState:
        handle, producer = member.handle, self._producer
        idle = time.monotonic() - member.progress_at
        return ConsumerState(
            pid=member.peer.pid,
            uid=member.peer.uid,
            policy=member.hello.policy,
            hold=member.hello.hold,
            backlog=producer.backlog(handle),
            held=producer.held(handle),
            dropped=producer.dropped(handle),
            stalled_seconds=idle if idle >= STALL_VISIBLE_SECONDS else None,
        )

    def wait_for(self, count: int, timeout_seconds: float | None) -> bool:
        """Sleep until that many consumers are there."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._members) >= count, timeout_seconds)

    def close(self) -> None:
        """Let nobody in any more."""
        with self._changed:
            self._closed = True
            self._members.clear()
            self._changed.notify_all()
