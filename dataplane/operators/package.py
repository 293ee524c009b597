"""package: a live or recorded HLS presentation, all renditions of a source in one folder."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import av
from pydantic import Field

from dataplane.errors import BadParameters, OutputFailed
from dataplane.operators.base import Context, Operator, OutputPort, Parameters
from dataplane.operators.boundaries import SharedBreaks, exact
from dataplane.operators.codec_strings import codec_string
from dataplane.operators.containers import can_describe
from dataplane.operators.packets import move_behind, packet_of
from dataplane.operators.places import check_folder, check_name, is_folder, output_failed, real_path
from dataplane.operators.playlists import Sound, Variant, master_playlist
from dataplane.operators.presentation import MASTER, PresentationFolder
from dataplane.operators.rendition import Rendition
from dataplane.operators.segments import NotInASegment, Segment, Segmenter
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.media import AudioFormat, CodecParameters, PacketFormat, PayloadKind, PortFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

_SUFFIX = {"cmaf": "m4s", "mpegts": "ts"}

# What RFC 8216 section 3 and Apple's authoring specification know in each, and libavformat writes.
_VIDEO = {"cmaf": frozenset({"h264", "hevc", "av1", "vp9"}), "mpegts": frozenset({"h264", "hevc"})}
_AUDIO = {
    "cmaf": frozenset({"aac", "mp3", "ac3", "eac3", "opus", "flac"}),
    "mpegts": frozenset({"aac", "mp3", "ac3", "eac3"}),
}
_WAITS_FOR_SOUND = 3  # segments; after those the presentation begins without a sound that does not come
_STARTS_COMPARED = 64  # boundaries that are remembered, to see whether all pictures begin a segment there


class PackageParameters(Parameters):
    """Parameters of package."""

    folder: str = Field(
        min_length=1,
        description="Where the playlists and segments go; made if absent, its parent exists. master.m3u8 is played",
    )
    container: Literal["cmaf", "mpegts"] = Field(
        default="cmaf", description="Of the segments: fragmented MP4 (H.264, HEVC, AV1, VP9), or MPEG-TS (H.264, HEVC)"
    )
    segment_seconds: float = Field(
        default=4.0,
        ge=0.5,
        le=60,
        json_schema_extra={"unit": "seconds"},
        description="Length of a segment; a whole multiple of keyframe_seconds of every encoder before it",
    )
    window_segments: int = Field(
        default=0,
        ge=0,
        le=100_000,
        json_schema_extra={"unit": "segments"},
        description="Segments that a playlist names; older ones are removed, after as many again. 0: all are kept",
    )
    audio: Literal["copy", "none"] = Field(
        default="copy",
        description="copy: the source's audio, as it is, is a rendition of its own; none: it is left out",
    )
    existing: Literal["continue", "replace"] = Field(
        default="continue",
        description="What becomes of a presentation in the folder that was never ended (its run was killed): it goes "
        "on behind a discontinuity, or is replaced. One that was ended is always replaced",
    )

    @property
    def master(self) -> str:
        """The playlist that names the others, as outputs are reported."""
        return os.path.join(self.folder, MASTER)  # noqa: PTH118 - as it was written, not normalised


@dataclass(slots=True)
class _Track:
    """One elementary stream: an input edge's picture, or one of its sounds."""

    edge: str
    media: Literal["video", "audio"]
    segmenter: Segmenter
    rendition: Rendition
    codec: str | None = None  # as RFC 6381 names it
    last_dts: int | None = None
    frames: int = 0
    ended: bool = False


class Package(Operator):
    """Cuts packets into segments and keeps the playlists that name them."""

    op = "package"
    Params = PackageParameters
    summary = "Writes encoded renditions of a source, and its audio, as HLS playlists with CMAF or MPEG-TS segments"
    sink = True
    max_inputs = None
    takes_audio = True
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._tracks: dict[tuple[str, int], _Track] = {}
        self._breaks = SharedBreaks()
        self._folder: PresentationFolder | None = None
        self._anchors: deque[tuple[Fraction, datetime]] = deque(maxlen=4)  # times in the job, and what the clock said
        self._starts: deque[tuple[int, Fraction]] = deque(maxlen=_STARTS_COMPARED)

    # -- before anything runs --------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Fragment. The coded packet is copied, so that its slot is free until its segment is complete."""
        return CommitContract(
            kind=CommitKind.FRAGMENT,
            copies_per_frame=1,
            copies_reason="of the coded packet, not the picture: it waits for its segment to be complete",
        )

    @classmethod
    def output(cls, params: Parameters, inputs: Sequence[PortFormat]) -> tuple[OutputPort, ...]:
        """No ports. Raises BadParameters when the folder, the streams or the length of a segment are not possible."""
        wanted = cast(PackageParameters, params)
        _check_place(real_path(wanted.folder))
        for form in inputs:
            if isinstance(form, PacketFormat):
                _check_video(wanted, form)
            elif isinstance(form, AudioFormat):
                for stream in form.streams:
                    _check_audio(wanted.container, stream.codec)
            else:
                mend = "put an encode operator before it"
                raise BadParameters("package takes encoded video, not raw frames", mend=mend)
        return ()

    # -- in the worker ---------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Make the folder, and see what an earlier run left in it. Raises OutputFailed."""
        params = cast(PackageParameters, self.params)
        path = real_path(params.folder)
        self._folder = PresentationFolder(path, params.folder)
        self._add_tracks(path, context)
        renditions = [track.rendition for track in self._tracks.values()]
        try:
            self._folder.take()
            for temporary in (self._folder.temporary, *(rendition.temporary for rendition in renditions)):
                context.scratch(str(temporary))
            self._folder.take_up(renditions, go_on=params.existing == "continue")
        except OSError as error:
            raise output_failed(error, params.folder) from None

    def process(self, frame: ReadLease, edge: str, context: Context) -> None:
        """Add one packet to its segment; publish the segment that ended before it."""
        descriptor = frame.descriptor
        frame.launch()
        track = self._tracks.get((edge, descriptor.stream_index))
        kind = descriptor.payload_kind
        if track is None or kind == PayloadKind.FRAME_LOST:
            frame.release()
            return
        if kind == PayloadKind.CODEC_PARAMETERS:
            said = CodecParameters.model_validate_json(frame.array.tobytes())
            frame.release()
            track.segmenter.describe(said)
            return
        packet = packet_of(frame, descriptor)
        frame.release()
        if track.media == "audio":
            if packet.pts is None or packet.dts is None:
                context.warn(f"{track.rendition.name}: sound without a time is left out")
                return
            if track.last_dts is not None and move_behind(packet, track.last_dts + 1):
                context.warn(f"{track.rendition.name}: times of the sound that do not rise were moved")
            track.last_dts = packet.dts
        try:
            ended = track.segmenter.take(packet, descriptor.epoch)
        except NotInASegment as why:
            if track.media == "video":
                context.lost(descriptor.source_index, descriptor.pts, str(why))
            return
        except (av.FFmpegError, ValueError) as error:
            raise self._not_made(track, error) from None
        track.frames += 1
        if track.media == "video":
            context.count_frame()
        if ended is not None:
            self._publish(track, ended, context)

    def ended(self, edge: str, context: Context) -> None:
        """One edge has ended: its last segments are complete."""
        for (name, _), track in self._tracks.items():
            if name == edge:
                self._end(track, context)

    def flush(self, context: Context) -> None:
        """End every playlist. Raises OutputFailed."""
        params = cast(PackageParameters, self.params)
        for track in self._tracks.values():
            self._end(track, context)
        by_edge = {track.edge: track.frames for track in self._tracks.values() if track.media == "video"}
        frames = sum(by_edge.values())
        if not frames:
            raise OutputFailed("no frame arrived: nothing is written", file=params.folder)
        try:
            for track in self._tracks.values():
                if not track.rendition.published:
                    context.warn(f"{track.rendition.name}: it ended before it began, and is left out")
                else:
                    track.rendition.end()
            self._write_master()
        except OSError as error:
            raise output_failed(error, params.folder) from None
        context.finished_output(params.master, frames, by_edge)

    def abort(self) -> None:
        """Remove what is not complete; what is stays, and its playlists stay open, to be continued."""
        if self._folder is not None:
            self._folder.discard([track.rendition for track in self._tracks.values()])

    def close(self) -> None:
        """Let another one have the folder."""
        if self._folder is not None:
            self._folder.close()

    # -- internals -------------------------------------------------------------------------------------------------

    def _not_made(self, track: _Track, error: Exception) -> OutputFailed:
        """A segment is made in memory: it is no disk that refuses it."""
        reason = getattr(error, "strerror", None) or str(error)
        folder = cast(PackageParameters, self.params).folder
        return OutputFailed(f"a segment of {track.rendition.name} cannot be made ({reason})", file=folder)

    def _add_tracks(self, folder: Path, context: Context) -> None:
        sounds = 0
        for edge, form in context.inputs.items():
            if isinstance(form, AudioFormat):
                for index in range(len(form.streams)):
                    sounds += 1
                    self._tracks[edge, index] = self._track(folder, edge, "audio", f"audio-{sounds}")
            else:
                self._tracks[edge, 0] = self._track(folder, edge, "video", f"video-{edge.partition('->')[0]}")

    def _track(self, folder: Path, edge: str, media: Literal["video", "audio"], name: str) -> _Track:
        params = cast(PackageParameters, self.params)
        rendition = Rendition(folder, name, _SUFFIX[params.container], params.segment_seconds, params.window_segments)
        return _Track(
            edge, media, Segmenter(name, media, params.container, params.segment_seconds, self._breaks), rendition
        )

    def _end(self, track: _Track, context: Context) -> None:
        if track.ended:
            return
        track.ended = True
        try:
            last = track.segmenter.end()
        except (av.FFmpegError, ValueError) as error:
            raise self._not_made(track, error) from None
        if last is not None:
            self._publish(track, last, context)

    def _publish(self, track: _Track, segment: Segment, context: Context) -> None:
        rendition, params = track.rendition, cast(PackageParameters, self.params)
        try:
            rendition.publish(segment, self._date(segment))
            if track.codec is None:
                track.codec = codec_string(segment.header)
            self._write_master()
        except OSError as error:
            raise output_failed(error, params.folder) from None
        if rendition.longer_than_promised:
            context.warn(
                f"{rendition.name}: a segment is longer than {params.segment_seconds:g} s: frames came too late"
            )
        if track.media == "video" and not segment.discontinuity:
            self._compare(segment, context)

    def _date(self, segment: Segment) -> datetime | None:
        """When its first picture was taken in, in live windows.

        The clock is read at the first segment and after discontinuities, once for all renditions: between them dates
        rise as the times in the job do.
        """
        if not cast(PackageParameters, self.params).window_segments:
            return None
        length = exact(cast(PackageParameters, self.params).segment_seconds)
        begun = any(abs(time - segment.start) < length for time, _ in self._anchors)
        if not self._anchors or (segment.discontinuity and not begun):
            # A segment is complete when its end has been taken in.
            self._anchors.append((segment.start, datetime.now(UTC) - timedelta(seconds=float(segment.seconds))))
        earlier = [anchor for anchor in self._anchors if anchor[0] <= segment.start]
        time, clock = earlier[-1] if earlier else self._anchors[0]
        return clock + timedelta(seconds=float(segment.start - time))

    def _compare(self, segment: Segment, context: Context) -> None:
        """Say once when renditions do not begin their segments at the same frames."""
        length = exact(cast(PackageParameters, self.params).segment_seconds)
        stretch = int(segment.start // length)
        others = [start for number, start in self._starts if number == stretch]
        if others and segment.start not in others:
            context.warn("the renditions' segments do not begin with the same frames: some of them were dropped before")
        self._starts.append((stretch, segment.start))

    def _write_master(self) -> None:
        """Name the renditions, as soon as each has something to play, and again when bit rates rise."""
        assert self._folder is not None
        there = [track for track in self._tracks.values() if not (track.ended and not track.frames)]
        pictures = [track for track in there if track.media == "video"]
        if not all(track.rendition.published for track in pictures):
            return
        silent = any(not track.rendition.published for track in there if track.media == "audio")
        if silent and max(track.rendition.published for track in pictures) < _WAITS_FOR_SOUND:
            return
        text = master_playlist(
            [_variant(track) for track in pictures],
            [_sound(track, n) for n, track in enumerate(self._sounds(), 1)],
        )
        self._folder.write_master(text)

    def _sounds(self) -> list[_Track]:
        return [t for t in self._tracks.values() if t.media == "audio" and t.rendition.published]


def _variant(track: _Track) -> Variant:
    said, rates = cast(CodecParameters, track.segmenter.said), track.rendition.rates
    return Variant(
        uri=track.rendition.playlist,
        peak_bits_per_second=max(rates.peak, said.bit_rate or 0),
        average_bits_per_second=rates.average,
        codec=track.codec,
        width=said.width,
        height=said.height,
        frames_per_second=said.frames_per_second,
        transfer=said.color_transfer,
    )


def _sound(track: _Track, number: int) -> Sound:
    said, rates = cast(CodecParameters, track.segmenter.said), track.rendition.rates
    language = said.language if said.language not in ("", "und") else None
    return Sound(
        uri=track.rendition.playlist,
        name=f"{language} {number}" if language else f"audio {number}",
        language=language,
        channels=said.channels,
        codec=track.codec,
        peak_bits_per_second=rates.peak,
        average_bits_per_second=rates.average,
    )


def _check_place(folder: Path) -> None:
    check_name("package", folder.name)
    if folder.exists() and not is_folder(folder):
        raise BadParameters(f"package: {folder} is no folder", mend="give the path of a folder")
    check_folder("package", folder if is_folder(folder) else folder.parent)


def _check_video(wanted: PackageParameters, form: PacketFormat) -> None:
    known = _VIDEO[wanted.container]
    if form.codec not in known:
        mend = f"choose an encoder of {', '.join(sorted(known))}" + ("" if wanted.container == "cmaf" else ", or cmaf")
        raise BadParameters(f"package: {wanted.container} segments cannot carry {form.codec}", mend=mend)
    mend = f"set keyframe_seconds: {wanted.segment_seconds:g} in the params of every encoder before it"
    if form.keyframe_seconds is None:
        raise BadParameters("package: nothing says that a segment can begin with a key frame", mend=mend)
    if exact(wanted.segment_seconds) % exact(form.keyframe_seconds):
        raise BadParameters(
            f"package: a segment of {wanted.segment_seconds:g} s is no whole multiple of the "
            f"{form.keyframe_seconds:g} s between key frames",
            mend=mend,
        )


def _check_audio(container: str, codec: str) -> None:
    if codec not in _AUDIO[container] or not can_describe(codec):
        raise BadParameters(f"package: {container} segments cannot carry {codec}", mend="set audio: none")
