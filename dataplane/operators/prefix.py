"""What an encoder was given and has not given back: when its packets are a whole prefix, and whether they have room."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from av.packet import Packet
from av.stream import Stream

from dataplane.operators.base import SlotClass

if TYPE_CHECKING:
    from dataplane._ring import ReadLease


@dataclass(slots=True)
class HeldFrame:
    """An input frame whose packet is not published yet, or is published before an earlier one's."""

    lease: ReadLease | None
    source_index: int
    epoch: int  # 0: that of the worker's trace
    pts: int
    duration: int
    coded: bool = False  # its packet came out of the encoder
    published: bool = False


@dataclass(frozen=True, slots=True)
class CodedFrame:
    """A packet that came out of the encoder, and the frame it was made of."""

    packet: Packet[Stream]
    frame: HeldFrame


class HeldFrames:
    """The frames in an encoder in presentation order, and its packets, in decoding order, that wait to be published.

    A P-frame and the B-frames that are shown before it are published together or not at all: a restart of the encoder
    can only begin behind whole groups, as B-frames that came later would refer to a frame that nobody has any more.
    """

    def __init__(self, group_frames: int) -> None:
        """`group_frames`: the most packets that an encoder makes before they are a prefix."""
        self._most = group_frames
        self._frames: deque[HeldFrame] = deque()
        self._by_pts: dict[int, HeldFrame] = {}
        self._waiting: list[CodedFrame] = []

    def __iter__(self) -> Iterator[HeldFrame]:
        return iter(self._frames)

    def add(self, frame: HeldFrame) -> None:
        """It goes into the encoder."""
        self._frames.append(frame)
        self._by_pts[frame.pts] = frame

    def coded(self, packet: Packet[Stream]) -> bool:
        """It came out of the encoder. False: it is of no frame that went in."""
        frame = None if packet.pts is None else self._by_pts.pop(packet.pts, None)
        if frame is None:
            return False
        frame.coded = True
        self._waiting.append(CodedFrame(packet, frame))
        return True

    def group(self, whatever: bool = False) -> list[CodedFrame]:
        """The packets to publish now, in decoding order: with them all that is published is a prefix.

        If an encoder passed over a frame, nothing after it ever is: as many as a group has are given out then, and at
        the end (`whatever`) all there are.
        """
        waiting = self._waiting
        if not waiting:
            return []
        covered = sum(not frame.published for frame in takewhile(lambda frame: frame.coded, self._frames))
        if covered < len(waiting) < self._most and not whatever:
            return []
        self._waiting = []
        return waiting

    def take_finished(self) -> Iterator[HeldFrame]:
        """Let go of the longest prefix that is published."""
        frames = self._frames
        while frames and frames[0].published:
            yield frames.popleft()

    def forget(self) -> None:
        """Nothing more comes."""
        self._frames.clear()
        self._by_pts.clear()
        self._waiting = []


def most_together(sizes: Sequence[int], slots: Sequence[SlotClass]) -> int:
    """How many of the first payloads have room at the same time, when nobody else has a slot; at least 1.

    A payload may take a slot of any class that is big enough, so for each class: those that need it or a bigger one
    are no more than the slots there are of it and of bigger ones.
    """
    by_size = sorted(slots, key=lambda slot: slot.slot_bytes)
    for count in range(len(sizes), 1, -1):
        smaller, fits = 0, True
        for position, slot in enumerate(by_size):
            needing = sum(size > smaller for size in sizes[:count])
            fits &= needing <= sum(bigger.slot_count for bigger in by_size[position:])
            smaller = slot.slot_bytes
        if fits:
            return count
    return 1


def decoding_time(said: int, pts: int, last: int | None, early: int, far: int) -> int:
    """The decoding time of a packet, ticks: what the encoder said if it can be, behind that of the packet before.

    A new encoder counts back from its first frame, by another distance than the one before it if frames are not evenly
    spaced. x265 says anything at all (memory that nobody wrote) when it ends after fewer frames than it reorders.

    Args:
        said: by the encoder.
        pts: of the same packet; it is decoded before that, by less than `far`.
        last: of the packet published before; None: there was none.
        early: how long before its presentation a packet is decoded at most, where there is nothing else to go by.
        far: a distance that no encoder delays by.
    """
    if pts - far <= said <= pts:
        return said if last is None else max(said, last + 1)
    return pts - early if last is None else last + 1
