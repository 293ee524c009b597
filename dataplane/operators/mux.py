"""mux: a file from coded packets."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import av
from av.bitstream import BitStreamFilterContext
from av.container import OutputContainer
from av.packet import Packet
from av.stream import Stream
from pydantic import Field

from dataplane.errors import BadParameters, OutputFailed
from dataplane.operators.base import Context, Operator, OutputPort, Parameters
from dataplane.operators.containers import (
    MOV_FAMILY,
    add_coded_stream,
    can_carry,
    can_describe,
    container_format,
    loses_aspect,
)
from dataplane.operators.packets import adts_remover, move_behind, packet_of
from dataplane.operators.places import LONGEST_NAME, check_folder, check_name, is_folder, output_failed, real_path
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.media import AudioFormat, CodecParameters, PacketFormat, PayloadKind, PortFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease


KEEPS_TIMES = frozenset({"mpegts"})
"""Containers that keep the source's own times; in the others a file starts at 0."""
MAY_REPEAT_TIMES = frozenset({"matroska", "webm"})


class MuxParameters(Parameters):
    """Parameters of mux."""

    path: str = Field(min_length=1, description="The file to write; its folder exists")
    format: Literal["mp4", "mov", "matroska", "webm", "mpegts"] | None = Field(
        default=None, description="Container; by the path's suffix if absent"
    )
    audio: Literal["copy", "none"] = Field(
        default="copy",
        description="copy: the source's audio is written as it is (DTS and TrueHD cannot be); none: it is left out",
    )
    faststart: bool = Field(
        default=False, description="mp4, mov: move the index to the front at the end, for playing while downloading"
    )
    fragmented: bool = Field(
        default=False, description="mp4, mov: write fragments from key frame to key frame; a cut file stays playable"
    )


@dataclass(slots=True)
class _Track:
    """One elementary stream of the output."""

    name: str
    media: Literal["video", "audio"]
    parameters: CodecParameters | None = None
    stream: Stream | None = None
    bare: BitStreamFilterContext | None = None  # takes headers off that the container must not have
    shift: int = 0  # ticks of its time base that the source starts late
    waiting: deque[Packet[Stream]] = field(default_factory=deque)  # packets from before the header
    last_dts: int | None = None
    packets: int = 0
    ended: bool = False


class Mux(Operator):
    """Writes packets into a file, under a temporary name until it is complete."""

    op = "mux"
    Params = MuxParameters
    summary = "Writes encoded video, and the source's audio, into a file"
    sink = True
    max_inputs = None
    takes_audio = True
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._output: OutputContainer | None = None
        self._temporary: Path | None = None
        self._lock: int | None = None  # held on the temporary file while this process lives
        self._tracks: dict[tuple[str, int], _Track] = {}
        self._started = False

    # -- before anything runs --------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Fragment. The coded packet is copied, so that its slot is free while libavformat interleaves."""
        return CommitContract(
            kind=CommitKind.FRAGMENT,
            copies_per_frame=1,
            copies_reason="of the coded packet, not the picture: libavformat keeps it while it interleaves",
        )

    @classmethod
    def output(cls, params: Parameters, inputs: Sequence[PortFormat]) -> tuple[OutputPort, ...]:
        """No ports. Raises BadParameters when the file or its streams are not possible."""
        wanted = cast(MuxParameters, params)
        container = container_format(wanted.path, wanted.format)
        if (wanted.faststart or wanted.fragmented) and container not in MOV_FAMILY:
            raise BadParameters(f"mux: {container} has neither faststart nor fragments", mend="use .mp4 or .mov")
        if wanted.faststart and wanted.fragmented:
            raise BadParameters("mux: faststart and fragmented exclude each other")
        _check_place(real_path(wanted.path))
        videos = [form for form in inputs if isinstance(form, PacketFormat)]
        if len(videos) + sum(isinstance(form, AudioFormat) for form in inputs) != len(inputs):
            raise BadParameters("mux takes encoded video, not raw frames", mend="put an encode operator before it")
        for form in inputs:
            if isinstance(form, PacketFormat):
                _check_codec(container, form.codec, "choose another container or encoder")
            elif isinstance(form, AudioFormat):
                for stream in form.streams:
                    _check_codec(container, stream.codec, "set audio: none, or choose another container")
        return ()

    # -- in the worker ---------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Make the temporary file. Raises OutputFailed."""
        params = cast(MuxParameters, self.params)
        self._warn = context.warn
        self._final = path = real_path(params.path)
        container = container_format(params.path, params.format)
        for edge, form in context.inputs.items():
            streams = len(form.streams) if isinstance(form, AudioFormat) else 1
            media: Literal["video", "audio"] = "audio" if isinstance(form, AudioFormat) else "video"
            for index in range(streams):
                self._tracks[edge, index] = _Track(f"{edge}#{index}", media)
        temporary = _temporary_name(path)
        try:
            _remove_abandoned(path)
            self._lock = os.open(temporary, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
            self._temporary = temporary
            with contextlib.suppress(OSError):  # a file system without locks: nobody will clean up there
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            context.scratch(str(temporary))
            self._output = av.open(str(temporary), "w", format=container, container_options=_options(params, container))
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self._failed(error) from None

    def process(self, frame: ReadLease, edge: str, context: Context) -> None:
        """Hand one packet to the muxer, or keep it until the header is written."""
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
            self._learn(track, said, context)
            return
        packet = packet_of(frame, descriptor)
        if self._started:
            self._write(track, packet)
        else:
            track.waiting.append(packet)
        frame.release()
        track.packets += 1
        if track.media == "video":
            context.count_frame()

    def ended(self, edge: str, context: Context) -> None:
        """One edge has ended: a stream that was not described by now never will be."""
        for (name, _), track in self._tracks.items():
            if name == edge:
                track.ended = True
        self._start_when_known(context)

    def flush(self, context: Context) -> None:
        """Complete the file and give it its name. Raises OutputFailed."""
        params = cast(MuxParameters, self.params)
        for track in self._tracks.values():
            track.ended = True
        self._start_when_known(context)
        by_edge = {edge: track.packets for (edge, _), track in self._tracks.items() if track.media == "video"}
        frames = sum(by_edge.values())
        if not self._started or not frames:
            raise OutputFailed("no frame arrived: nothing is written", file=params.path)
        assert self._output is not None
        assert self._temporary is not None
        try:
            self._output.close()
            self._output = None
            self._temporary.replace(self._final)
            self._temporary = None
        except (av.FFmpegError, OSError) as error:
            raise self._failed(error) from None
        context.finished_output(params.path, frames, by_edge)

    def abort(self) -> None:
        """Remove the unfinished file."""
        if self._output is not None:
            with contextlib.suppress(av.FFmpegError, OSError, ValueError):
                self._output.close()  # it is thrown away
            self._output = None
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def close(self) -> None:
        """Nothing is left after flush; after a failure, what abort does."""
        self.abort()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- internals -------------------------------------------------------------------------------------------------

    def _learn(self, track: _Track, said: CodecParameters, context: Context) -> None:
        """A stream's codec parameters: before its first packet, and again when its producer was restarted."""
        if track.parameters is not None and self._started:
            if said.extradata_hex != track.parameters.extradata_hex:
                context.warn(f"{track.name}: the codec parameters changed in mid-stream; the first ones stay")
            return
        track.parameters = said
        self._start_when_known(context)

    def _start_when_known(self, context: Context) -> None:
        """Write the header as soon as every stream is described, or has ended without being so."""
        if self._started or any(t.parameters is None and not t.ended for t in self._tracks.values()):
            return
        known = [track for track in self._tracks.values() if track.parameters is not None]
        if not any(track.media == "video" for track in known):
            return
        assert self._output is not None
        fragmented = cast(MuxParameters, self.params).fragmented
        for track in known:
            said = cast(CodecParameters, track.parameters)
            track.stream = add_coded_stream(self._output, said)
            track.bare = adts_remover(said, track.stream) if fragmented else None
            if loses_aspect(self._output.format.name, said):
                context.warn(f"{track.name}: the sample aspect ratio is lost, {said.codec} in this container has none")
            if self._output.format.name not in KEEPS_TIMES:
                track.shift = round(context.start_seconds / said.time_base.fraction)
        for track in self._tracks.values():
            if track.parameters is None:
                context.warn(f"{track.name}: it ended before it began, and is left out")
        try:
            self._output.start_encoding()
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self._failed(error) from None
        self._started = True
        for track in known:
            while track.waiting:
                self._write(track, track.waiting.popleft())

    def _write(self, track: _Track, packet: Packet[Stream]) -> None:
        if track.stream is not None:
            for bare in [packet] if track.bare is None else track.bare.filter(packet):
                self._write_bare(track, bare)

    def _write_bare(self, track: _Track, packet: Packet[Stream]) -> None:
        assert self._output is not None
        assert track.stream is not None
        packet.stream = track.stream
        if track.media == "audio":
            self._make_rise(track, packet)
        if track.shift:
            packet.pts = None if packet.pts is None else packet.pts - track.shift
            packet.dts = None if packet.dts is None else packet.dts - track.shift
        try:
            self._output.mux_one(packet)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self._failed(error) from None

    def _make_rise(self, track: _Track, packet: Packet[Stream]) -> None:
        """Sound whose times do not rise is moved behind its predecessor: libavformat would refuse it."""
        assert self._output is not None
        if packet.dts is None:
            return
        may_repeat = self._output.format.name in MAY_REPEAT_TIMES
        if track.last_dts is not None and move_behind(packet, track.last_dts + (not may_repeat)):
            self._warn(f"{track.name}: times of the sound that do not rise were moved behind their predecessors")
        track.last_dts = packet.dts

    def _failed(self, error: Exception) -> OutputFailed:
        return output_failed(error, cast(MuxParameters, self.params).path)


def _options(params: MuxParameters, container: str) -> dict[str, str]:
    """Options of the muxer."""
    if container not in MOV_FAMILY:
        return {}
    flags = ["+frag_keyframe+empty_moov+delay_moov+default_base_moof"] if params.fragmented else []
    flags += ["+faststart"] if params.faststart else []
    return {"movflags": "".join(flags)} if flags else {}


def _temporary_name(path: Path) -> Path:
    """Beside `path`, hidden, with the same suffix, and of this process."""
    return path.with_name(f".{_short(path)}.part-{os.getpid()}{path.suffix}")


def _short(path: Path) -> str:
    """The stem, cut where a temporary name made from it would be too long."""
    room = LONGEST_NAME - len(os.fsencode(path.suffix)) - 24
    return os.fsencode(path.stem)[:room].decode(errors="ignore")


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of the same output whose processes were killed: nobody holds a lock on them."""
    for other in path.parent.glob(f".{glob.escape(_short(path))}.part-*{glob.escape(path.suffix)}"):
        with contextlib.suppress(OSError), other.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            other.unlink()


def _check_place(path: Path) -> None:
    """Find out before anything runs whether the file can be made. Raises BadParameters."""
    check_name("mux", path.name)
    check_folder("mux", path.parent)
    if is_folder(path):
        raise BadParameters(f"mux: {path} is a folder", mend="give the path of a file")


def _check_codec(container: str, codec: str, mend: str) -> None:
    if not can_carry(container, codec):
        raise BadParameters(f"mux: {container} cannot carry {codec}", mend=mend)
    if not can_describe(codec):
        raise BadParameters(f"mux: {codec} cannot be written with this build of libavcodec", mend=mend)
