"""From a demuxer to decoded pictures in presentation order, with an account of what could not be decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Discard, Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from dataplane.operators.reading import InputDescription
from dataplane.operators.splices import Splices

READ_ERRORS_IN_A_ROW = 100  # then the rest of the input counts as unreadable
PACKETS_IN_A_DECODER = 64  # no decoder reorders or delays further than that
MOST_LOST_ENTRIES = 1000

# Codecs whose packets make one shown frame each: a packet without a frame is a frame that was lost.
_FRAME_PER_PACKET = frozenset({"h264", "hevc", "vvc", "mpeg2video", "prores", "mjpeg", "dnxhd", "ffv1", "huffyuv"})


@dataclass(frozen=True, slots=True)
class Lost:
    """A frame that will not come; `pts` where it is known."""

    pts: int | None
    reason: str
    in_order: bool = False  # its place among the frames is known: here


class FrameReader:
    """Iterates over one input: decoded frames, coded audio packets, and what was lost.

    Damage is not an error: what decodes is delivered, the rest is said. Only the calling thread touches libav.
    """

    def __init__(
        self, container: InputContainer, description: InputDescription, threads: int, with_audio: bool
    ) -> None:
        self._container = container
        self._description = description
        video = container.streams[description.video_stream]
        assert isinstance(video, VideoStream)
        self._video = video
        video.codec_context.thread_type = "AUTO"  # frames and slices
        video.codec_context.thread_count = threads
        audio = [s for s in container.streams.audio if with_audio and s.index in description.audio_streams]
        self.audio_streams: tuple[AudioStream, ...] = tuple(audio)
        self._wanted: list[Stream] = [video, *audio]
        for stream in container.streams:
            if stream not in self._wanted:
                stream.discard = Discard.all
        self._pending: dict[int, int] = {}  # pts of packets in the decoder -> their number
        self._packets = 0
        self._errors = 0
        self._damaged = False
        self._last_pts: int | None = None
        self.splices = Splices(container)
        self.delivered = 0

    def __iter__(self) -> Iterator[VideoFrame | Packet[AudioStream] | Lost]:
        """Frames (video), packets (audio) and losses, as they come."""
        for packet in self._demux():
            if packet.stream is not self._video:
                if packet.size:
                    yield packet  # type: ignore[misc]  # a packet of one of the audio streams
                continue
            if packet.size:
                self._note(packet)
                yield from self._decode(packet)
                yield from self._overdue(PACKETS_IN_A_DECODER)
        yield from self._decode(None)
        yield from self._overdue(0)
        yield from self._missing()

    # -- reading -------------------------------------------------------------------------------------------------

    def _demux(self) -> Iterator[Packet[Stream]]:
        """All packets; read errors are stepped over as long as something still comes."""
        failures = 0
        while True:
            try:
                for packet in self._container.demux(self._wanted):
                    if packet.size:
                        failures = 0
                        self._damaged |= packet.is_corrupt
                        self.splices.mend(packet)
                        yield packet
                return
            except av.FFmpegError:
                self._damaged = True
                failures += 1
                if failures > READ_ERRORS_IN_A_ROW:
                    return

    def _note(self, packet: Packet[Stream]) -> None:
        self._packets += 1
        if packet.pts is not None and not packet.is_discard:
            self._pending[packet.pts] = self._packets

    # -- decoding ------------------------------------------------------------------------------------------------

    def _decode(self, packet: Packet[Stream] | None) -> Iterator[VideoFrame | Lost]:
        """Frames that come out when `packet` goes in; None drains the decoder."""
        context = self._video.codec_context
        while True:
            try:
                frames = context.decode(packet)
            except av.error.MemoryError:
                raise
            except av.error.EOFError:
                return
            except av.FFmpegError:
                self._errors += 1
                if packet is None and self._errors < self._packets + PACKETS_IN_A_DECODER:
                    continue  # frame threads may still hold good frames behind a bad one
                return
            for frame in frames:
                yield self._judge(frame)
            return

    def _judge(self, frame: VideoFrame) -> VideoFrame | Lost:
        pts = frame.pts
        if pts is not None:
            self._pending.pop(pts, None)
            self._last_pts = pts
        if frame.is_corrupt:
            self._errors += 1
            return Lost(pts, "decoded with errors", in_order=True)
        self.delivered += 1
        return frame

    # -- the account ---------------------------------------------------------------------------------------------

    def _overdue(self, patience: int) -> Iterator[Lost]:
        """Packets that made no frame though later ones did."""
        pending = self._pending
        while pending:
            pts, number = next(iter(pending.items()))
            if patience and self._packets - number <= patience:
                return
            del pending[pts]
            if self._errors or self._damaged:
                yield Lost(pts, "could not be decoded")
            elif self._description.codec in _FRAME_PER_PACKET:
                yield Lost(pts, "refers to frames that the input does not have")

    def _missing(self) -> Iterator[Lost]:
        """What the container promised and the input does not have."""
        promised = self._description.frames
        if not self._damaged or promised is None:
            return
        missing = promised - self._packets
        reason = f"input ends early: {missing} packets missing"
        for _ in range(min(missing, MOST_LOST_ENTRIES)):
            yield Lost(None, reason)
