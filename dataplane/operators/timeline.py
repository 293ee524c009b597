"""One rising time for an input whose own times wrap, jump, or begin anew.

A time within the job is the input's own time, unwrapped, plus a shift that is the same for all streams of the input, so
that picture and sound stay together. The shift changes where the input's times jump: recordings joined end to end, an
encoder that was started anew, a source that was away. What follows is then put behind what came before.

MPEG-TS counts 33 bits of 1/90000 s and begins again after 26.5 hours. libavformat can mend that itself
(`correct_ts_overflow`), but only once: a day later its times go back. So it is told not to, and each stamp is taken for
the one nearest to its predecessor among those that look the same in 33 bits. RTP's 32 bits are unwrapped by libavformat
in step with the packets, without an end; its times begin at 0 with each connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from av.packet import Packet
from av.rational import AVRational
from av.stream import Stream

JUMP_BACK = Fraction(1, 10)  # seconds; less is disorder, for those who come later to mend
JUMP_BACK_OF_PTS = Fraction(1)  # where packets have no DTS, reordered pictures go back that far
JUMP_FORWARD = Fraction(10)  # seconds; less is a gap
FAR_FROM_START = Fraction(60)  # seconds; less may have passed since the input was looked at
TOGETHER = Fraction(1)  # streams whose ends differ by less than that jumped at the same place

TS_WRAP = 1 << 33  # ticks of TS_BASE
TS_BASE = Fraction(1, 90_000)

BACK, FORWARD, WRAPPED, RETURNED, RESTARTED = (
    "the times of the input jump back",
    "the times of the input jump forward",
    "the 33 bits of the time stamps began again",
    "the source is back",
    "it is read by another process than before",
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one stream under one shift. `shift` and `wrap` are ticks of the stream's time base."""

    number: int  # rises with every jump and every return
    reason: str
    shift: int
    wrap: int  # 0: its stamps do not wrap

    def offset(self, pts: int) -> int:
        """What was added to the input's own stamp to make `pts`."""
        own = pts - self.shift
        return pts - (own % self.wrap if self.wrap else own)


@dataclass(slots=True)
class _Clock:
    """One stream. `last` and `end` are times within the job, `own` the input's own unwrapped, in ticks."""

    base: Fraction
    wrap: int
    leads: bool
    segment: Segment
    taken_until: int | None = None  # by sound from before a jump
    own: int | None = None
    last: int | None = None
    step: int = 0
    end: int | None = None

    def seconds(self, ticks: int) -> Fraction:
        return ticks * self.base

    def ticks(self, seconds: Fraction) -> int:
        return round(seconds / self.base)


class Timeline:
    """Gives the packets of an input their times within the job."""

    def __init__(
        self,
        jumps_possible: bool,
        start: Fraction | None = None,
        *,
        live: bool = False,
        bases: Mapping[object, Fraction] | None = None,
    ) -> None:
        """`start`: where in its own time the input is known to begin, seconds. What begins more than
        FAR_FROM_START away is moved there if it is `live`: it was started anew since it was looked at. `bases`: the
        time bases that streams are to have, otherwise those of their first packets.
        """
        self._bases = bases or {}
        self._possible = jumps_possible
        self._start = start
        self._live = live
        self._clocks: dict[object, _Clock] = {}
        self._number = 0
        self._reason = ""
        self._shift = Fraction(0)  # seconds, of the newest segment
        self._anchor = Fraction(0)  # the input's own time at which it began
        self._returned = False  # the first packet of a connection is still to come
        self.jumped_back = 0

    def connect(self) -> None:
        """A new connection to the input begins: its next packet is a new segment."""
        self._number += 1
        self._reason = RETURNED
        self._returned = True

    def continue_behind(self, end: Fraction) -> None:
        """Another timeline ended there, seconds of the job: the first packet begins a new segment behind it."""
        self.connect()
        self._reason = RESTARTED
        self._start = end

    def place(
        self, packet: Packet[Stream], stream: object, *, wraps: bool = False, leads: bool = True
    ) -> Segment | None:
        """Give the packet its times within the job; the segment it belongs to, None for sound whose time is taken.

        `stream` is the same thing for the same stream over all connections; `wraps` says whether it counts 33 bits;
        what `leads` (the picture) is never put before what it had before; of the rest what would overlap is to be left
        out, so that it stays in step.
        """
        clock = self._clocks.get(stream)
        if clock is None:
            base = self._bases.get(stream, packet.time_base)
            wrap = TS_WRAP if wraps and base == TS_BASE else 0
            clock = self._clocks[stream] = _Clock(base, wrap, leads, self._segment(base, wrap))
        if packet.time_base != clock.base:
            packet.rescale_ts(AVRational(clock.base))
        stamp = packet.dts if packet.dts is not None else packet.pts
        if stamp is None:
            return clock.segment
        own = self._judge(clock, self._unwrap(clock, stamp), packet)
        moved = own + clock.segment.shift
        if packet.pts is not None:
            packet.pts = moved + _near(packet.pts - stamp, clock.wrap)
        if packet.dts is not None:
            packet.dts = moved
        if clock.taken_until is not None:
            if moved + (packet.duration or 0) // 2 < clock.taken_until:
                clock.own = own
                return None
            clock.taken_until = None
        self._note(clock, own, moved, packet)
        return clock.segment

    # -- the input's own time ----------------------------------------------------------------------------------------

    def _unwrap(self, clock: _Clock, stamp: int) -> int:
        """The stamp nearest to the last one among those that look the same."""
        if not clock.wrap:
            return stamp
        if clock.own is not None:
            return clock.own + _near(stamp - clock.own, clock.wrap)
        wire = stamp % clock.wrap
        # A stream that begins late: where the newest segment began is nearer than where the input did.
        known = self._anchor if self._number and not self._returned else self._start
        start = clock.ticks(known) if known is not None else wire
        return start + _near(wire - start, clock.wrap)

    def _from_anchor(self, clock: _Clock, own: int) -> int:
        """The same for the first packet of a stream in the newest segment: nearest to where that began."""
        anchor = clock.ticks(self._anchor)
        return anchor + _near(own - anchor, clock.wrap) if clock.wrap else own

    # -- jumps -------------------------------------------------------------------------------------------------------

    def _judge(self, clock: _Clock, own: int, packet: Packet[Stream]) -> int:
        """Change the segment of the stream where its times jump, or where those of another one did; its own time."""
        if self._returned:
            return self._resume(clock, own, packet)
        if clock.segment.number == self._number or clock.last is None:
            if clock.segment.shift != clock.ticks(self._shift):
                self._enter(clock)  # the picture has moved on, and takes the sound along
            reason = self._jump(clock, own, packet)
            return self._begin(clock, own, packet, reason) if reason else own
        return self._join(clock, own, packet)

    def _jump(self, clock: _Clock, own: int, packet: Packet[Stream]) -> str | None:
        """Whether the times of a stream jump with this packet, and where to."""
        moved = own + clock.segment.shift
        if clock.last is None or clock.end is None or clock.own is None:
            away = Fraction(0) if self._start is None else clock.seconds(moved) - self._start
            if not self._live or abs(away) <= FAR_FROM_START:
                return None
            return FORWARD if away > 0 else BACK
        back = JUMP_BACK if packet.dts is not None else JUMP_BACK_OF_PTS
        if self._live and clock.leads and packet.dts is not None:
            back = Fraction(0)  # nobody mends it later: RTP's first sender report may set the clock back by a little
        jumps = clock.seconds(clock.last - moved) > back or clock.seconds(moved - clock.end) > JUMP_FORWARD
        if not (self._possible and jumps):
            return None
        before = clock.own
        return FORWARD if (own % clock.wrap > before % clock.wrap if clock.wrap else own > before) else BACK

    def _begin(self, clock: _Clock, own: int, packet: Packet[Stream], reason: str) -> int:
        """A new segment behind the end of this stream."""
        end = clock.end if clock.end is not None else clock.ticks(self._start or Fraction(0))
        own = own % clock.wrap if clock.wrap else own
        self._number += 1
        self._reason = reason
        self.jumped_back += reason == BACK
        self._anchor = clock.seconds(own)
        self._shift = clock.seconds(end - _first(own, packet))
        self._enter(clock)
        return own

    def _join(self, clock: _Clock, own: int, packet: Packet[Stream]) -> int:
        """Another stream was the first to jump, or to return: is this one there too?"""
        reason = self._jump(clock, own, packet)
        if self._reason != RETURNED and reason is None:
            return own  # still before it
        there = self._from_anchor(clock, own)
        late = clock.seconds((clock.end or 0) - _first(there, packet)) - self._shift  # how far it would overlap
        if self._reason != RETURNED and abs(late) >= TOGETHER:
            return self._begin(clock, own, packet, reason or BACK)
        if late > 0 and clock.leads:
            self._shift += late  # the others follow with their next packets
        elif late > 0:
            clock.taken_until = clock.end
        self._enter(clock)
        return there

    def _resume(self, clock: _Clock, own: int, packet: Packet[Stream]) -> int:
        """The first packet after a return: its times go on, or are put behind everything there was."""
        self._returned = False
        gap = clock.seconds(own + clock.segment.shift - (clock.end or 0))
        if clock.end is None or not 0 <= gap <= JUMP_FORWARD:
            own = own % clock.wrap if clock.wrap else own
            ends = [other.seconds(other.end) for other in self._clocks.values() if other.end is not None]
            self._shift = max(ends, default=self._start or Fraction(0)) - clock.seconds(_first(own, packet))
        else:
            self._shift = clock.seconds(clock.segment.shift)
        self._anchor = clock.seconds(own)
        self._enter(clock)
        return own

    # -- accounts ----------------------------------------------------------------------------------------------------

    def _segment(self, base: Fraction, wrap: int) -> Segment:
        return Segment(self._number, self._reason, round(self._shift / base), wrap)

    def _enter(self, clock: _Clock) -> None:
        """The stream belongs to the newest segment from here on."""
        clock.segment = self._segment(clock.base, clock.wrap)

    def _note(self, clock: _Clock, own: int, moved: int, packet: Packet[Stream]) -> None:
        if clock.last is not None and moved > clock.last:
            clock.step = min(moved - clock.last, clock.ticks(JUMP_FORWARD))
        clock.own, clock.last = own, moved
        shown = packet.pts if packet.pts is not None else moved
        end = shown + (packet.duration or clock.step)
        ended_before = clock.end is None or clock.end - end > clock.ticks(TOGETHER)
        clock.end = end if ended_before else max(clock.end or end, end)


def _near(difference: int, wrap: int) -> int:
    """A difference of two stamps that wrap: the smaller way round."""
    return difference if not wrap else (difference + wrap // 2) % wrap - wrap // 2


def _first(own: int, packet: Packet[Stream]) -> int:
    """The input's own time at which what begins with this packet is shown."""
    if packet.pts is None or packet.dts is None:
        return own
    return own + max(0, packet.pts - packet.dts)
