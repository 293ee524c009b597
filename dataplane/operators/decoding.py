"""From packets to decoded pictures in presentation order, with an account of what could not be decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import av
from av.audio.stream import AudioStream
from av.packet import Packet
from av.stream import Stream
from av.video.frame import PictureType, VideoFrame

from dataplane.errors import BadMedia
from dataplane.operators.anchors import Anchor
from dataplane.operators.feed import Connection, Damaged, Gone, Item, Said, Skipped
from dataplane.operators.timeline import RETURNED, WRAPPED, Segment, Timeline

VIDEO = "video"  # what the timeline calls the picture; sound is called by its place
PACKETS_IN_A_DECODER = 64  # no decoder reorders or delays further than that
MOST_LOST_ENTRIES = 1000
TOO_SLOW = "the pipeline was slower than its live source"

# Codecs whose packets make one shown frame each: a packet without a frame is a frame that was lost.
_FRAME_PER_PACKET = frozenset({"h264", "hevc", "vvc", "mpeg2video", "prores", "mjpeg", "dnxhd", "ffv1", "huffyuv"})


@dataclass(frozen=True, slots=True)
class Lost:
    """Frames that will not come; `pts` where it is known."""

    pts: int | None
    reason: str
    in_order: bool = False  # its place among the frames is known: here
    count: int = 1


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """The frame that comes with this is the first after a discontinuity of its source.

    `pts_offset` ticks were added to the source's own times from here on.
    """

    reason: str
    pts_offset: int


@dataclass(frozen=True, slots=True)
class Picture:
    """One decoded frame, its times those within the job."""

    frame: VideoFrame
    epoch: NewEpoch | None
    anchor: Anchor | None = None  # decoding can begin here; its index is not filled in


@dataclass(frozen=True, slots=True)
class Sound:
    """One coded packet of the stream at that place of our port."""

    packet: Packet[AudioStream]
    place: int


@dataclass(slots=True, eq=False)
class _Note:
    """Travels with a packet through the decoder; one for each packet, as PyAV knows them by their identity."""

    segment: Segment


Event = Picture | Sound | Lost | Connection | Gone | Said


class FrameReader:
    """Iterates over one input: decoded frames, coded audio packets, what was lost, and what became of the connection.

    Damage is not an error: what decodes is delivered, the rest is said. `begin_work` is called with the time (seconds
    within the job, where it is known) of each packet before it goes into the decoder, and with None for those that are
    passed over.
    """

    def __init__(
        self, feed: Iterable[Item], timeline: Timeline, begin_work: Callable[[float | None], None], live: bool
    ) -> None:
        self._feed = feed
        self._timeline = timeline
        self._begin_work = begin_work
        self._live = live
        self._pending: dict[int, int] = {}  # pts of packets in the decoder -> their number
        self._packets = 0
        self._errors = 0
        self._damaged = False
        self._good_packets = 0  # since the last damage
        self._joining = False  # what came before a first key frame is not lost: it is from before our time
        self._waits_for_picture = False  # neither is sound from before it, which nobody could place either
        self._segment: Segment | None = None
        self._epoch_segment = 0
        self._offset = 0
        self._outage = ""
        self._drained = True
        self._keys: dict[int, tuple[int, int, int]] = {}  # pts of key frames in the decoder -> number, own pts, size
        self._awaited: Anchor | None = None  # what comes before it is not decoded
        self._by_number = True
        self._first: Anchor | None = None  # what is shown before it is none of ours
        self.delivered = 0

    def begin_at(self, anchor: Anchor, by_number: bool) -> None:
        """Decode from that key frame on; called before anything is read.

        `by_number`: the input is read from its beginning, and packets can be counted; else its times never jump.
        """
        self._awaited = self._first = anchor
        self._by_number = by_number

    def __iter__(self) -> Iterator[Event]:
        """Frames (video), packets (audio) and what happened, as they come."""
        for item in self._feed:
            match item:
                case Packet():
                    yield from self._take(item)
                case Connection():
                    yield from self._connect(item)
                case Damaged():
                    self._damage()
                case Skipped():
                    self._damage()
                    yield Lost(None, TOO_SLOW, count=item.count)
                case Gone():
                    yield from self._drain()
                    yield item
                case Said():
                    yield item
        if self._awaited is not None:
            words = "it is not what it was when this job began: a key frame is not there any more"
            raise BadMedia(words, mend="leave inputs alone while they are read")
        yield from self._drain()
        yield from self._missing()

    # -- packets -------------------------------------------------------------------------------------------------

    def _connect(self, connection: Connection) -> Iterator[Event]:
        yield from self._drain()
        self._description, self._tracks = connection.description, connection.tracks
        self._context = connection.tracks.decoder
        self._drained = False
        if connection.outage_seconds is not None:
            self._timeline.connect()
            self._outage = f" after {connection.outage_seconds:.1f} s"
        again = connection.outage_seconds is not None
        self._joining = self._waits_for_picture = again or connection.description.live
        yield connection

    def _take(self, packet: Packet[Stream]) -> Iterator[Event]:
        index = packet.stream_index
        wraps = index in self._tracks.wrapping
        if index == self._tracks.video:
            self._waits_for_picture &= not packet.is_keyframe
            own_pts = packet.pts
            if self._awaited is not None and not self._arrive(self._awaited, packet):
                self._timeline.place(packet, VIDEO, wraps=wraps)
                self._begin_work(None)
                return
            self._judge_packet(packet)
            self._segment = self._timeline.place(packet, VIDEO, wraps=wraps)
            self._note(packet, own_pts)
            yield from self._decode(packet)
            yield from self._overdue(PACKETS_IN_A_DECODER)
        elif not self._waits_for_picture:
            place = self._tracks.audio[index].stream_index
            if self._timeline.place(packet, place, wraps=wraps, leads=False) is not None:
                yield Sound(packet, place)  # type: ignore[arg-type]  # of one of the audio streams

    def _arrive(self, anchor: Anchor, packet: Packet[Stream]) -> bool:
        """Whether the key frame to begin with is there: then all is as it was when it came the first time."""
        number = self._packets + 1
        if not anchor.is_it(packet, number if self._by_number else None):
            self._packets = number
            return False
        self._packets = anchor.number - 1
        self._errors, self._damaged = anchor.errors, anchor.damaged
        self._awaited = None
        return True

    def _note(self, packet: Packet[Stream], own_pts: int | None) -> None:
        assert self._segment is not None
        packet.opaque = _Note(self._segment)
        self._packets += 1
        if packet.pts is None or packet.is_discard or self._is_foreign(packet.pts):
            return
        self._pending[packet.pts] = self._packets
        if packet.is_keyframe and own_pts is not None:
            self._keys[packet.pts] = self._packets, own_pts, packet.size
            if len(self._keys) > 2 * PACKETS_IN_A_DECODER:
                del self._keys[next(iter(self._keys))]

    def _is_foreign(self, pts: int | None) -> bool:
        """Whether a picture belongs before the one that decoding began with: B-frames that follow it are shown first.

        They may refer to what was not decoded here; they came out before.
        """
        return self._first is not None and pts is not None and pts < self._first.shown

    # -- decoding ------------------------------------------------------------------------------------------------

    def _drain(self) -> Iterator[Picture | Lost]:
        """What the decoder still holds, at the end of a connection."""
        if not self._drained:
            self._drained = True
            yield from self._decode(None)
            yield from self._overdue(0)

    def _decode(self, packet: Packet[Stream] | None) -> Iterator[Picture | Lost]:
        """Frames that come out when `packet` goes in; None drains the decoder."""
        self._begin_work(_seconds(packet))
        while True:
            try:
                frames = self._context.decode(packet)
            except av.error.MemoryError:
                raise
            except av.error.EOFError:
                return
            except av.FFmpegError:
                self._errors += 1
                self._good_packets = 0
                if packet is None and self._errors < self._packets + PACKETS_IN_A_DECODER:
                    continue  # frame threads may still hold good frames behind a bad one
                return
            for frame in frames:
                yield from self._judge(frame)
            return

    def _judge(self, frame: VideoFrame) -> Iterator[Picture | Lost]:
        pts = frame.pts
        if self._is_foreign(pts):
            return
        if self._first is not None and pts == self._first.shown:
            self._errors = self._first.errors  # without those of frames before it
        if pts is not None:
            self._pending.pop(pts, None)
        if frame.is_corrupt:
            self._errors += 1
            self._good_packets = 0
            if not self._joining:
                yield Lost(pts, "decoded with errors", in_order=True)
            return
        if self._joining:
            self._joining = self._waits_for_picture = False
            self._pending = {shown: number for shown, number in self._pending.items() if pts is None or shown > pts}
        self.delivered += 1
        yield Picture(frame, self._epoch(frame), self._anchor(frame))

    def _anchor(self, frame: VideoFrame) -> Anchor | None:
        """Whether decoding can begin with this frame: a whole picture, and nothing before it is still awaited.

        Key frames of another type refresh a picture bit by bit.
        """
        key = None if frame.pts is None else self._keys.pop(frame.pts, None)
        if key is None or frame.pts is None or frame.pict_type != PictureType.I:
            return None
        if any(pts < frame.pts for pts in self._pending):
            return None
        number, own_pts, size = key
        return Anchor(number, own_pts, size, frame.pts, self._errors, self._damaged)

    def _epoch(self, frame: VideoFrame) -> NewEpoch | None:
        """Whether an epoch begins with this frame."""
        note = frame.opaque
        segment = note.segment if isinstance(note, _Note) else self._segment
        if segment is None or frame.pts is None or segment.number < self._epoch_segment:
            return None
        offset = segment.offset(frame.pts)
        moved = offset - self._offset
        if segment.number == self._epoch_segment and not moved:
            return None
        wrapped = segment.number == self._epoch_segment and segment.wrap and moved % segment.wrap == 0
        self._epoch_segment, self._offset = segment.number, offset
        reason = WRAPPED if wrapped else segment.reason
        return NewEpoch(reason + self._outage if reason == RETURNED else reason, offset)

    # -- the account ---------------------------------------------------------------------------------------------

    def _damage(self) -> None:
        self._damaged = True
        self._good_packets = 0

    def _judge_packet(self, packet: Packet[Stream]) -> None:
        """Of a live source what was long ago explains nothing."""
        if packet.is_corrupt:
            self._damage()
        self._good_packets += 1
        if self._live and self._good_packets > 2 * PACKETS_IN_A_DECODER:
            self._damaged, self._errors = False, 0

    def _overdue(self, patience: int) -> Iterator[Lost]:
        """Packets that made no frame though later ones did."""
        pending = self._pending
        while pending:
            pts, number = next(iter(pending.items()))
            if patience and self._packets - number <= patience:
                return
            del pending[pts]
            if self._joining:
                continue
            if self._errors or self._damaged:
                yield Lost(pts, "could not be decoded")
            elif self._description.codec in _FRAME_PER_PACKET:
                yield Lost(pts, "refers to frames that the input does not have")

    def _missing(self) -> Iterator[Lost]:
        """What the container promised and the input does not have."""
        promised = self._description.frames if self._packets else None
        if not self._damaged or promised is None:
            return
        missing = promised - self._packets
        reason = f"input ends early: {missing} packets missing"
        for _ in range(min(missing, MOST_LOST_ENTRIES)):
            yield Lost(None, reason)


def _seconds(packet: Packet[Stream] | None) -> float | None:
    stamp = None if packet is None else packet.dts if packet.dts is not None else packet.pts
    return None if packet is None or stamp is None else float(stamp * packet.time_base)
