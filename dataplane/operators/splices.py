"""Times that jump back in mid-stream: recordings that were joined end to end, an encoder that was started anew."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from av.container import InputContainer
from av.packet import Packet
from av.stream import Stream

JUMP = Fraction(1, 10)  # seconds back that are a splice; less is disorder, for those who come later to mend
TOGETHER = Fraction(1)  # streams whose ends differ by less than that were spliced at the same place
TIMES_MAY_JUMP = 0x0200  # libavformat's AVFMT_TS_DISCONT


@dataclass(slots=True)
class _Clock:
    """What one stream has seen: seconds that are added to its times, and where its last packet ended with them."""

    offset: Fraction = Fraction(0)
    last: Fraction | None = None
    step: Fraction = Fraction(0)  # from packet to packet, for those that do not say their duration
    end: Fraction = Fraction(0)


class Splices:
    """Moves what follows a jump behind what was before it, all streams by the same time, so that they stay together."""

    def __init__(self, container: InputContainer) -> None:
        self._possible = bool(container.format.flags & TIMES_MAY_JUMP)
        self._clocks: dict[int, _Clock] = {}
        self._newest = Fraction(0)  # the offset of the stream that reached the latest splice first
        self.found = 0

    def mend(self, packet: Packet[Stream]) -> None:
        """Put the packet's times where they belong."""
        if not self._possible:
            return
        clock = self._clocks.setdefault(packet.stream_index, _Clock())
        base = packet.time_base
        if packet.dts is not None:
            here = packet.dts * base
            if clock.last is not None and here + clock.offset < clock.last - JUMP:
                self._splice(clock, here)
            moved = here + clock.offset
            if clock.last is not None and moved > clock.last:
                clock.step = moved - clock.last
            clock.last = moved
            clock.end = moved + (packet.duration * base if packet.duration else clock.step)
        if clock.offset:
            ticks = round(clock.offset / base)
            packet.pts = None if packet.pts is None else packet.pts + ticks
            packet.dts = None if packet.dts is None else packet.dts + ticks

    def _splice(self, clock: _Clock, here: Fraction) -> None:
        if clock.offset != self._newest and abs(here + self._newest - clock.end) < TOGETHER:
            clock.offset = self._newest  # another stream was here before
            if clock.last is not None and here + clock.offset > clock.last:
                return
        clock.offset = self._newest = clock.end - here
        self.found += 1
