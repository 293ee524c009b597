"""Segments: some seconds of one coded stream each, as the bytes of a CMAF or MPEG-TS file of its own.

Each segment is made by a libavformat muxer of its own, so nothing grows from segment to segment, a stream may change
its codec parameters between two of them, and what is written does not depend on what was written before a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from av.packet import Packet
from av.stream import Stream

from dataplane.operators.boundaries import Boundaries, SharedBreaks, exact
from dataplane.operators.packets import move_behind
from dataplane.operators.piece_writer import (
    FRAGMENT_OPTIONS,
    ContinuityCounters,
    PieceStream,
    split_header,
    write_piece,
)
from observatory.model.media import CodecParameters, TimeBase

SegmentContainer = Literal["cmaf", "mpegts"]

LEAD_SECONDS = 10
"""Times in segments are later by it than in the job: sound may begin before 0, which no segment can say."""

_TS_DELAY_SECONDS = Fraction(7, 5)  # libavformat writes MPEG-TS later by twice the 0.7 s that a decoder may buffer
_OPTIONS = {
    "cmaf": {**FRAGMENT_OPTIONS, "brand": "cmfc"},
    "mpegts": {"max_delay": "700000", "avoid_negative_ts": "disabled"},
}


@dataclass(frozen=True, slots=True)
class Segment:
    """One finished segment. Times are the job's own, in seconds.

    `header` is what a CMAF player reads before `data`; MPEG-TS needs none, but it names the codec there too.
    """

    start: Fraction
    seconds: Fraction
    data: bytes
    header: bytes
    discontinuity: bool


class Segmenter:
    """Cuts one coded stream into segments at the multiples of a time, at key frames (sound: anywhere)."""

    def __init__(
        self,
        name: str,
        media: Literal["video", "audio"],
        container: SegmentContainer,
        segment_seconds: float,
        breaks: SharedBreaks,
    ) -> None:
        self.said: CodecParameters | None = None
        self._name = name
        self._breaks = breaks
        self._container: SegmentContainer = container
        self._media = media
        self._seconds = segment_seconds
        self._new: CodecParameters | None = None  # said, but nothing of it has begun
        self._header: bytes | None = None
        self._counters = ContinuityCounters()
        self._packets: list[Packet[Stream]] = []  # of the segment that is open
        self._first = 0  # number of the first of them in the journal
        self._dts_before: int | None = None  # of the last packet before them
        self._dts: int | None = None  # of the last packet
        self._end: int | None = None  # of all frames so far, in ticks
        self._stretch = 0  # between which boundaries that lies
        self._epoch: int | None = None
        self._broken = False  # the next segment does not continue this one
        self._discontinuity = False  # the open one does not continue its predecessor

    def describe(self, said: CodecParameters) -> None:
        """The codec parameters of what follows."""
        if self.said is None:
            self._take_over(said)
        elif said != self.said:
            self._new = said

    def take(self, packet: Packet[Stream], epoch: int, number: int = 0) -> Segment | None:
        """Add a packet with PTS and DTS; the segment that ended before it, if one did.

        `number` is the packet's in a journal, for `state`.

        Raises:
            NotInASegment: nothing can be made of it; the words say why.
        """
        assert packet.pts is not None
        if self.said is None:
            raise NotInASegment("nothing had described its codec")
        if self._is_too_early(packet, self.said):
            raise NotInASegment(f"its time is more than {LEAD_SECONDS} s before 0")
        other_epoch = self._epoch is not None and epoch != self._epoch
        self._epoch = epoch
        cause = other_epoch or self._new is not None or self._is_behind_gap(packet)
        if self._breaks.due(self._name, packet.pts * self.said.time_base.fraction, cause):
            self._broken = True
        may_begin = packet.is_keyframe or self._media == "audio"
        if self._packets and not (may_begin and self._ends_before(packet)):
            self._add(packet)
            return None
        if not may_begin:
            raise NotInASegment("it came before the first key frame")
        ended = self._finish(packet) if self._packets else None
        self._begin(packet, number)
        return ended

    def make_rise(self, packet: Packet[Stream]) -> bool:
        """Move a packet whose decoding time does not rise behind its predecessor; whether that was necessary."""
        return self._dts is not None and move_behind(packet, self._dts + 1)

    def end(self) -> Segment | None:
        """The last segment."""
        return self._finish(None) if self._packets else None

    # -- going on elsewhere ----------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The number of the first packet of the open segment."""
        return self._first

    def state(self, following: int) -> dict[str, Any]:
        """All but the packets of the open segment; data. `following`: the number of the packet that comes next.

        "first" is the number of the first packet of the open segment, or of the one that comes next.
        """
        return {
            "said": None if self.said is None else self.said.model_dump(mode="json", exclude_none=True),
            "new": None if self._new is None else self._new.model_dump(mode="json", exclude_none=True),
            "header": None if self._header is None else self._header.hex(),
            "counters": self._counters.state(),
            "first": self._first if self._packets else following,
            "dts_before": self._dts_before if self._packets else self._dts,
            "end": self._end,
            "stretch": self._stretch,
            "epoch": self._epoch,
            "broken": self._broken,
            "discontinuity": self._discontinuity,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """As `state` said it; then come the packets of the open segment, by `carry`."""
        if state["said"] is not None:
            self._take_over(CodecParameters.model_validate(state["said"]))
        self._new = None if state["new"] is None else CodecParameters.model_validate(state["new"])
        self._header = None if state["header"] is None else bytes.fromhex(state["header"])
        self._counters = ContinuityCounters(seen=state["counters"])
        self._first = state["first"]
        self._dts = self._dts_before = state["dts_before"]
        self._end = state["end"]
        self._stretch = state["stretch"]
        self._epoch = state["epoch"]
        self._broken = state["broken"]
        self._discontinuity = state["discontinuity"]

    def carry(self, packet: Packet[Stream]) -> None:
        """One more packet of the segment that was open when `state` was said."""
        if self.said is not None and packet.pts is not None and not self._is_too_early(packet, self.said):
            self.make_rise(packet)
            self._add(packet)

    # -- internals -------------------------------------------------------------------------------------------------

    def _is_too_early(self, packet: Packet[Stream], said: CodecParameters) -> bool:
        pts = packet.pts or 0
        return min(pts, pts if packet.dts is None else packet.dts) * said.time_base.fraction < -LEAD_SECONDS

    def _is_behind_gap(self, packet: Packet[Stream]) -> bool:
        """Whether more is missing before it than a segment has: no playlist could say so but by a discontinuity."""
        assert self.said is not None
        if self._end is None or packet.pts is None:
            return False
        return (packet.pts - self._end) * self.said.time_base.fraction > exact(self._seconds)

    def _ends_before(self, packet: Packet[Stream]) -> bool:
        return self._broken or self._boundaries.before(packet.pts or 0) > self._stretch

    def _begin(self, packet: Packet[Stream], number: int) -> None:
        if self._new is not None:
            self._take_over(self._new)
            self._new = None
        self._discontinuity, self._broken = self._broken, False
        # Sound may begin some milliseconds before 0: no segment of its own for that.
        self._stretch = max(0, self._boundaries.before(packet.pts or 0))
        self._packets, self._first, self._dts_before = [], number, self._dts
        self._add(packet)

    def _add(self, packet: Packet[Stream]) -> None:
        self._packets.append(packet)
        self._dts = packet.dts
        end = (packet.pts or 0) + (packet.duration or 0)
        self._end = end if self._end is None else max(self._end, end)

    def _take_over(self, said: CodecParameters) -> None:
        self.said, self._header = said, None
        self._boundaries = Boundaries(self._seconds, said.time_base.fraction)

    def _finish(self, following: Packet[Stream] | None) -> Segment:
        """The open segment, up to `following` or, before a gap, to the end of its own last frame."""
        assert self.said is not None
        packets, self._packets = self._packets, []
        unit = self.said.time_base.fraction
        start = min(packet.pts for packet in packets if packet.pts is not None)
        end = max((packet.pts or 0) + (packet.duration or 0) for packet in packets)
        if following is not None and following.pts is not None and not self._is_behind_gap(following):
            end = following.pts
            _stretch_last(packets[-1], following)
        return self._written(packets, start * unit, (end - start) * unit)

    def _written(self, packets: Sequence[Packet[Stream]], start: Fraction, seconds: Fraction) -> Segment:
        assert self.said is not None
        if self._container == "mpegts":
            if self._header is None:
                self._header, _ = split_header(write_segment("cmaf", self.said, [_copy(packets[0])]))
            data = self._counters.continued(write_segment("mpegts", self.said, packets))
        else:
            header, data = split_header(write_segment("cmaf", self.said, packets))
            self._header = self._header or header  # the first one of these parameters: bit rates in it may differ
        return Segment(start, seconds, data, self._header, self._discontinuity)


class NotInASegment(Exception):
    """A packet of which nothing can be made."""


def _stretch_last(last: Packet[Stream], following: Packet[Stream]) -> None:
    """Let the last packet of a segment last until the next segment begins: libavformat can only guess it."""
    if last.dts is not None and following.dts is not None and following.dts > last.dts:
        last.duration = following.dts - last.dts


def _copy(packet: Packet[Stream]) -> Packet[Stream]:
    copy: Packet[Stream] = Packet(bytes(packet))
    copy.pts, copy.dts, copy.duration = packet.pts, packet.dts, packet.duration
    copy.is_keyframe = packet.is_keyframe
    return copy


def write_segment(container: SegmentContainer, said: CodecParameters, packets: Sequence[Packet[Stream]]) -> bytes:
    """A whole file of those packets, which it uses up.

    CMAF: header and one fragment, times from its first packet on. Raises what libavformat does.
    """
    unit = said.time_base
    lead = LEAD_SECONDS * unit.den
    if container == "mpegts":
        lead -= round(_TS_DELAY_SECONDS * unit.den)
    for packet in packets:
        packet.time_base = Fraction(1, unit.den)
        packet.pts = None if packet.pts is None else packet.pts * unit.num + lead
        packet.dts = None if packet.dts is None else packet.dts * unit.num + lead
        packet.duration = (packet.duration or 0) * unit.num
    # Whole ticks to the second, so that LEAD_SECONDS is exact.
    stream = PieceStream(0, said.model_copy(update={"time_base": TimeBase(num=1, den=unit.den)}), packets)
    return write_piece("mp4" if container == "cmaf" else "mpegts", _OPTIONS[container], [stream])
