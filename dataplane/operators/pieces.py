"""The order in which packets of several streams go into a file: piece by piece, all of one stretch of time together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from av.packet import Packet
from av.stream import Stream

from observatory.model.media import CodecParameters

MIB = 1024 * 1024
PATIENCE_SECONDS = 10.0
"""How much later a stream may come than the others before they go on without it; the same as in libavformat."""
MOST_WAITING_BYTES = 64 * MIB
"""Of packets that are kept for a stream that does not come."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Where pieces end: after `least_seconds`, at a key frame or, after `most_seconds` or `most_bytes`, anywhere."""

    least_seconds: float
    most_seconds: float
    most_bytes: int = 16 * MIB

    def ends(self, length_seconds: float, size_bytes: int, key_frame: bool) -> bool:
        """Whether a piece of that length ends before a packet."""
        if length_seconds >= self.most_seconds or size_bytes >= self.most_bytes:
            return True
        return key_frame and length_seconds >= self.least_seconds


class Waiting(NamedTuple):
    """A packet that is in no piece yet: its number in the journal, what described it, and its decoding time."""

    number: int
    packet: Packet[Stream]
    said: CodecParameters
    seconds: float


@dataclass(slots=True)
class Queue:
    """One stream: what waits, and how far it has come."""

    media: Literal["video", "audio"]
    waiting: deque[Waiting] = field(default_factory=deque)
    latest_seconds: float | None = None
    there: bool = False  # a packet has come
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The packets of one stream in a piece; `following` comes next in that stream, when that is known."""

    track: int
    packets: Sequence[Waiting]
    following: Packet[Stream] | None


class Pieces:
    """Collects packets and says what the next piece is."""

    def __init__(self, media: Sequence[Literal["video", "audio"]], rule: Rule) -> None:
        self.queues = [Queue(kind) for kind in media]
        self._rule = rule
        self._bytes = 0
        self._start: float | None = None  # of the piece that is being collected
        self._cut: float | None = None  # where it ends, once that is known

    @property
    def start_seconds(self) -> float | None:
        """Where the piece that is being collected begins."""
        return self._start

    def begin_at(self, seconds: float | None) -> None:
        """Where the piece that is being collected begins, when others ended the one before."""
        self._start = seconds

    def add(self, track: int, waiting: Waiting) -> None:
        """One more packet, whose decoding time is known and rises in its stream."""
        queue, seconds = self.queues[track], waiting.seconds
        if self._start is None:
            self._start = seconds
        if self._cut is None and self._leads(queue):
            key = waiting.packet.is_keyframe
            if self._bytes and self._rule.ends(seconds - self._start, self._bytes, key):
                self._cut = seconds
        queue.waiting.append(waiting)
        queue.latest_seconds, queue.there = seconds, True
        self._bytes += waiting.packet.size

    def ready(self) -> Iterator[list[Part]]:
        """The pieces that are complete."""
        while (cut := self._complete_until()) is not None:
            yield self._taken(cut)

    def rest(self) -> Iterator[list[Part]]:
        """All that is left."""
        while any(queue.waiting for queue in self.queues):
            yield self._taken(None)

    # -- internals -------------------------------------------------------------------------------------------------

    def _leads(self, queue: Queue) -> bool:
        """Whether pieces end at packets of that stream: the first picture's that has not ended, else any's."""
        going = [other for other in self.queues if not other.ended]
        pictures = [other for other in going if other.media == "video"]
        return queue is (pictures or going or [queue])[0]

    def _complete_until(self) -> float | None:
        """Where the piece ends, if all streams have come that far, or need not be waited for."""
        latest = max((q.latest_seconds for q in self.queues if q.latest_seconds is not None), default=None)
        if latest is None or self._start is None:
            return None
        too_much = self._bytes >= MOST_WAITING_BYTES
        if self._cut is None:  # the stream that leads does not come
            late = latest - self._start >= self._rule.most_seconds + PATIENCE_SECONDS
            return latest if late or (too_much and latest > self._start) else None
        if too_much or latest - self._cut >= PATIENCE_SECONDS:
            return self._cut
        behind = any(
            not queue.ended and (queue.latest_seconds is None or queue.latest_seconds < self._cut)
            for queue in self.queues
        )
        return None if behind else self._cut

    def _taken(self, cut: float | None) -> list[Part]:
        parts = []
        for track, queue in enumerate(self.queues):
            packets: list[Waiting] = []
            while queue.waiting and (cut is None or queue.waiting[0].seconds < cut):
                if packets and queue.waiting[0].said is not packets[0].said:
                    break  # described anew: the next piece
                packets.append(queue.waiting.popleft())
                self._bytes -= packets[-1].packet.size
            if packets:
                parts.append(Part(track, packets, queue.waiting[0].packet if queue.waiting else None))
        self._find_next(cut)
        return parts

    def _find_next(self, cut: float | None) -> None:
        """The next piece begins; it may already have its end among what waits."""
        left = [queue for queue in self.queues if queue.waiting]
        earliest = min((queue.waiting[0].seconds for queue in left), default=None)
        self._start = cut if cut is not None else earliest
        if cut is not None and earliest is not None and earliest < cut:
            return  # what was described anew: up to the same end
        self._cut = None
        lead = next((queue for queue in self.queues if self._leads(queue)), None)
        size = 0
        for waiting in lead.waiting if lead is not None and self._start is not None else ():
            length = waiting.seconds - (self._start or 0.0)
            if size and self._rule.ends(length, size, waiting.packet.is_keyframe):
                self._cut = waiting.seconds
                return
            size += waiting.packet.size
