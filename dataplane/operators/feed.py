"""What comes out of an input, file or live, before it is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Stream

from dataplane.operators.reading import InputDescription
from dataplane.operators.tracks import Tracks

READ_ERRORS_IN_A_ROW = 100  # then the rest of the input counts as unreadable


@dataclass(frozen=True, slots=True)
class Connection:
    """What follows was read from this input; opened `outage_seconds` after the last data before (None: the first)."""

    description: InputDescription
    tracks: Tracks
    outage_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """A live source gives no more data."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Pictures that were thrown away because nobody took them in time."""

    count: int


@dataclass(frozen=True, slots=True)
class Damaged:
    """Something could not be read."""


@dataclass(frozen=True, slots=True)
class Said:
    """Something that people should read."""

    message: str


Item: TypeAlias = "Connection | Gone | Skipped | Damaged | Said | Packet[Stream]"


def read_to_the_end(
    container: InputContainer,
    description: InputDescription,
    tracks: Tracks,
    before: Iterable[Packet[Stream]] = (),
) -> Iterator[Item]:
    """All packets of an input that ends, after those that were read `before`.

    Read errors are stepped over as long as something still comes.
    """
    yield Connection(description, tracks)
    yield from before
    streams = [container.streams[index] for index in tracks.wanted]
    failures = 0
    while True:
        try:
            for packet in container.demux(streams):
                if packet.size:
                    failures = 0
                    yield packet
            return
        except av.FFmpegError:
            yield Damaged()
            failures += 1
            if failures > READ_ERRORS_IN_A_ROW:
                return


def moved(items: Iterable[Item], ticks: int) -> Iterator[Item]:
    """The same, with packets later by that many ticks of their time base."""
    for item in items:
        if ticks and isinstance(item, Packet):
            item.pts = None if item.pts is None else item.pts + ticks
            item.dts = None if item.dts is None else item.dts + ticks
        yield item
