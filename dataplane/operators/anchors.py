"""Key frames of an input from which decoding gives the same frames again, and finding them again in another process.

A source that continues another's work opens the input anew. What was published is not decoded again from the very
beginning, but from the last key frame of which it is known which frame it is. In MP4 and Matroska it is sought; if
what is found is not what was there (no index, a server that cannot seek), and in all other formats, the input is read
from its beginning, and only decoded from there on: times may jump in them (MPEG-TS), or are others behind a seek (AVI).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import av
from av.packet import Packet
from av.stream import Stream
from pydantic import JsonValue

from dataplane.errors import Stopped

if TYPE_CHECKING:
    import threading

    from av.container import InputContainer

    from dataplane.operators.tracks import Tracks

SOUGHT = ("mov", "matroska")  # libavformat's names begin with that
FRAMES_BETWEEN = 25  # key frames closer than that are not all noted
SOUND_BETWEEN = 64  # packets; what the ring may have forgotten by then is noted
MOST_READ_PACKETS, MOST_READ_BYTES = 20_000, 256 << 20  # between where a search ends and the key frame
MARGIN_SECONDS = 1  # how far before the time that is sought


@dataclass(frozen=True, slots=True)
class Anchor:
    """A key frame, and what the reader knew when it came out of the decoder. Nothing before it was still to come.

    `own_pts` is the input's own time of it, `shown` that within the job, in ticks of its stream.
    """

    number: int  # of its packet among those of the picture, from 1
    own_pts: int
    size: int
    shown: int
    errors: int
    damaged: bool
    index: int = 0  # its source index

    def as_json(self) -> dict[str, JsonValue]:
        """For a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_json(state: Any) -> Anchor | None:
        """Inverse of `as_json`; None of None."""
        return None if state is None else Anchor(**state)

    def is_it(self, packet: Packet[Stream], number: int | None) -> bool:
        """Whether a packet of the picture that comes from the input is that key frame; `number` where it is known."""
        same = packet.is_keyframe and packet.pts == self.own_pts and packet.size == self.size
        return same and number in (None, self.number)


def seek(
    container: InputContainer,
    tracks: Tracks,
    anchor: Anchor,
    heard: Mapping[int, int],
    stopping: threading.Event,
) -> list[Packet[Stream]] | None:
    """Go to where the key frame and the sound still to come are; the first packets from there, up to the key frame.

    `heard` is the time of the last packet that is out already of each place of our sound port. None: it is not found,
    and where the input is read now is not known. Raises Stopped.
    """
    heard_all = all(said.stream_index in heard for said in tracks.audio.values())
    if tracks.jumps_possible or not heard_all or not container.format.name.startswith(SOUGHT):
        return None
    video = container.streams[tracks.video]
    assert video.time_base is not None
    seconds = [anchor.own_pts * video.time_base]
    for said in tracks.audio.values():
        seconds.append(heard[said.stream_index] * said.time_base.fraction)
    try:
        container.seek(int((min(seconds) - MARGIN_SECONDS) / video.time_base), stream=video)
        return _read_up_to(container, tracks, anchor, heard, stopping)
    except (av.FFmpegError, OverflowError):
        return None


def _read_up_to(
    container: InputContainer, tracks: Tracks, anchor: Anchor, heard: Mapping[int, int], stopping: threading.Event
) -> list[Packet[Stream]] | None:
    """Until the key frame was seen, and of each sound a packet that is out already: then none is missing."""
    packets: list[Packet[Stream]] = []
    unseen = {tracks.video, *tracks.audio}
    size = 0
    for packet in container.demux([container.streams[index] for index in tracks.wanted]):
        if stopping.is_set():
            raise Stopped("stopped while looking for the place to go on")
        if not packet.size:
            continue
        index = packet.stream_index
        packets.append(packet)
        size += packet.size
        if index != tracks.video:
            time = packet.dts if packet.dts is not None else packet.pts
            if index in unseen and (time is None or time > heard[tracks.audio[index].stream_index]):
                return None
            unseen.discard(index)
        elif index in unseen:
            if anchor.is_it(packet, None):
                unseen.discard(index)
            elif packet.is_keyframe and packet.pts is not None and packet.pts > anchor.own_pts:
                return None
        if not unseen:
            return packets
        if len(packets) > MOST_READ_PACKETS or size > MOST_READ_BYTES:
            return None
    return None
