"""Reads a live source in a thread of its own: nothing is lost while the operator waits, and a source that went away is
waited for.

libavformat is interrupted only when the source counts as gone: an interrupted read makes its MPEG-TS demuxer hand out
the picture that it has half of. So the operator never waits in libavformat; it waits for this thread, and hears a stop
at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from av.container import InputContainer
from av.packet import Packet
from av.stream import Stream

from dataplane.errors import BadMedia, Stopped
from dataplane.operators.addresses import DATAGRAMS, Input, Kind
from dataplane.operators.datagram_losses import DatagramLosses
from dataplane.operators.feed import Connection, Gone, Item, Said, Skipped
from dataplane.operators.live_connection import (
    BACK_OFF_SECONDS,
    LONGEST_BACK_OFF_SECONDS,
    Reading,
    Repetitions,
    open_live,
)
from dataplane.operators.reading import InputDescription
from dataplane.operators.tracks import Tracks

STOP_SLICE_SECONDS = 0.1  # longest sleep before looking at the stop flag
MOST_QUEUED_BYTES, MOST_QUEUED_PACKETS = 32 << 20, 2000


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a live source is waited for, seconds: in one attempt to open it (a short one may end while the source
    begins), for its data, and for its return (None: for ever).
    """

    open_seconds: float
    read_seconds: float
    reconnect_seconds: float | None


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


Choose = Callable[[InputContainer, InputDescription], Tracks]


class LiveFeed:
    """Iterates over what a live source sends: connections, packets of the wanted streams, and what happened to them.

    Ends when the source has ended for good (a playlist that is complete), or stays away for longer than is waited for.
    Iterating raises Stopped once `stopping` is set, and whatever the reading thread died of.
    """

    def __init__(self, source: Input, patience: Patience, choose: Choose, stopping: threading.Event) -> None:
        self._source = source
        self._patience = patience
        self._choose = choose
        self._stopping = stopping
        self._waits = source.kind not in DATAGRAMS  # the source, when it is not read
        self._queue: deque[Item | _Failed | None] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._skipped = 0  # pictures, not reported yet
        self._skipping = False  # up to the next key frame
        self._repetitions = Repetitions() if source.kind is Kind.HLS else None
        self._gone: Gone | None = None  # not said yet
        self._last_data: float | None = None
        # No daemon: the interpreter may not end while libavformat still asks it for the time. A worker does not wait.
        self._thread = threading.Thread(target=self._run, name="live source")
        self._thread.start()

    # -- the operator's side ----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Item]:
        """What comes, as it comes."""
        while (item := self._next()) is not None:
            if isinstance(item, _Failed):
                raise item.error
            yield item

    def _next(self) -> Item | _Failed | None:
        with self._changed:
            while not self._queue:
                if self._stopping.is_set():
                    raise Stopped("stopped while waiting for a live source")
                self._changed.wait(STOP_SLICE_SECONDS)
            item = self._queue.popleft()
            if isinstance(item, Packet):
                self._bytes -= item.size
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Let the thread end; it closes its container itself, at the latest when it notices that nothing comes."""
        self._closing.set()
        with self._changed:
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join(STOP_SLICE_SECONDS)

    # -- the thread's side: connections -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (opened := self._connect()) is not None and self._serve(*opened):
                pass
        except BaseException as error:
            self._put(_Failed(error))
        self._put(None)

    def _connect(self) -> tuple[InputContainer, InputDescription] | None:
        """Try until the source is there; None when it stays away for too long, or nobody wants it any more."""
        since = time.monotonic() if self._last_data is None else self._last_data
        limit = self._patience.reconnect_seconds
        back_off = BACK_OFF_SECONDS
        while not self._closing.is_set():
            left = self._patience.open_seconds if limit is None else since + limit - time.monotonic()
            if left <= 0:
                self._say_gone()
                return None
            try:
                opened = open_live(self._source, min(left, self._patience.open_seconds), self._patience.read_seconds)
            except BadMedia:
                self._say_gone()
                self._closing.wait(min(back_off, left))
                back_off = min(LONGEST_BACK_OFF_SECONDS, 2 * back_off)
            else:
                if opened[1].live:
                    self._say_gone()
                return opened
        return None

    def _serve(self, container: InputContainer, description: InputDescription) -> bool:
        """Hand on what one connection gives; False when the source has ended as it should."""
        outage = None if self._last_data is None else time.monotonic() - self._last_data
        tracks = self._choose(container, description)
        reading = Reading(container, description.live, tracks.wanted, self._patience.read_seconds)
        try:
            self._hand_on(reading, Connection(description, tracks, outage))
        finally:
            reading.close()
        self._last_data = reading.last_data
        if reading.ended is None:
            return False
        self._gone = Gone(reading.ended)
        if self._repetitions is None:  # a playlist may be complete by now: the next attempt tells
            self._say_gone()
        return not self._closing.is_set()

    def _hand_on(self, reading: Reading, connection: Connection) -> None:
        announced = False
        guessed = set(connection.tracks.guessed)
        losses = DatagramLosses()
        repetitions = self._repetitions
        if repetitions is not None and connection.outage_seconds is not None:
            repetitions.reopened(complete=not connection.description.live)
        while not self._closing.is_set() and (packet := reading.next()) is not None:
            if repetitions is not None and repetitions.has(packet):
                continue
            if packet.stream_index in guessed:
                guessed.discard(packet.stream_index)
                packet.pts = packet.dts = None
            if not announced:
                self._put(connection)
                announced = True
            if not self._waits and (message := losses.news()):
                self._put(Said(message))
            self._offer(packet)

    def _say_gone(self) -> None:
        if self._gone is not None:
            self._put(self._gone)
            self._gone = None

    # -- the thread's side: the queue -------------------------------------------------------------------------------

    def _offer(self, packet: Packet[Stream]) -> None:
        """Queue a packet. When the queue is full, a source that waits waits; of others all is skipped up to a key
        frame, and counted.
        """
        with self._changed:
            while self._waits and self._full() and not self._closing.is_set():
                self._changed.wait(STOP_SLICE_SECONDS)
            if not self._waits and self._skips(packet):
                return
            self._bytes += packet.size
            self._append(packet)

    def _skips(self, packet: Packet[Stream]) -> bool:
        video = packet.stream.type == "video"
        self._skipping |= self._full()
        if self._skipping and not (video and packet.is_keyframe and self._half_empty()):
            self._skipped += video
            return True
        self._skipping = False
        if self._skipped:
            self._append(Skipped(self._skipped))
            self._skipped = 0
        return False

    def _full(self) -> bool:
        return self._bytes >= MOST_QUEUED_BYTES or len(self._queue) >= MOST_QUEUED_PACKETS

    def _half_empty(self) -> bool:
        return self._bytes < MOST_QUEUED_BYTES // 2 and len(self._queue) < MOST_QUEUED_PACKETS // 2

    def _put(self, item: Item | _Failed | None) -> None:
        with self._changed:
            self._append(item)

    def _append(self, item: Item | _Failed | None) -> None:
        if not self._closing.is_set():
            self._queue.append(item)
            self._changed.notify_all()
