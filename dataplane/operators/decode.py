"""decode: frames, and coded audio, from a file, a URL or a generated picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from av.audio.stream import AudioStream
from av.packet import Packet
from av.video.frame import VideoFrame
from pydantic import Field, field_validator

from dataplane._ring import Descriptor
from dataplane.errors import BadMedia
from dataplane.operators.base import Context, Operator, OutputPort, Parameters, Probe, SlotClass, SourceRequest
from dataplane.operators.decoding import FrameReader, Lost
from dataplane.operators.formats import copy_to_slot, layout_of
from dataplane.operators.frames import DISCONTINUITY, KEY_FRAME, UNSPECIFIED, format_colors
from dataplane.operators.normalising import Normaliser
from dataplane.operators.reading import Input, audio_parameters, describe, open_input
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.event import UNKNOWN_I64
from observatory.model.media import PayloadKind

if TYPE_CHECKING:
    from av.container import InputContainer

    from dataplane._ring import WriteLease

GENERATED_FRAMES = 300
KIB = 1024
AUDIO_SLOTS = (SlotClass(4 * KIB, 128), SlotClass(64 * KIB, 16), SlotClass(1024 * KIB, 4))


class GeneratedPicture(Parameters):
    """The generated input, libavfilter's testsrc2."""

    size: str = Field(
        default="1280x720", pattern=r"^[1-9]\d{1,4}x[1-9]\d{1,4}$", description="WIDTHxHEIGHT, luma samples"
    )
    rate: str | int = Field(default=30, description="Frames per second, as 30 or 30000/1001")

    @field_validator("rate")
    @classmethod
    def _rate(cls, value: str | int) -> str | int:
        if not re.fullmatch(r"[1-9]\d*(/[1-9]\d*)?", str(value)):
            raise ValueError(f"rate {value!r} is no number of frames per second, as 30 or 30000/1001")
        return value

    @property
    def graph(self) -> str:
        """As libavfilter writes it."""
        return f"testsrc2=size={self.size}:rate={self.rate},format=yuv420p"


class DecodeParameters(Parameters):
    """Parameters of decode."""

    path: str | None = Field(
        default=None,
        description="File or URL to read, unless the run is given another input; without both, a generated "
        "picture. Pipes and image sequences are not taken",
    )
    source: GeneratedPicture = Field(
        default=GeneratedPicture(),
        description="The generated picture (testsrc2): `size` as 1280x720, `rate` in frames per second",
    )
    frames: int | None = Field(
        default=None,
        ge=0,
        json_schema_extra={"unit": "frames"},
        description="Where to stop; 0: nowhere; generated pictures end after 300",
    )
    threads: int = Field(default=0, ge=0, le=64, description="Threads of the decoder; 0: as libavcodec thinks best")


class Decode(Operator):
    """Decodes video; audio is handed on coded.

    The slot is acquired before decoding starts, so that the hop's launch-to-signal time is that of the decoder. With
    frame threads a frame may be ready at once because its work was done while earlier ones were waited for.
    """

    op = "decode"
    Params = DecodeParameters
    summary = "Decodes a file, a URL or a generated picture; audio is handed on as it is"
    source = True
    max_inputs = 0
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "decode", "vpu": "decode"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._container: InputContainer | None = None
        self._slot: WriteLease | None = None
        self._index = 0
        self._clock: int | None = None  # where the next frame is expected

    # -- before anything runs --------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Keyframe: a restart decodes from the last key frame and drops what was published."""
        return CommitContract(
            kind=CommitKind.KEYFRAME,
            copies_per_frame=1,
            copies_reason="PyAV lets libavcodec decode into memory of its own only; the frame is copied to the slot",
        )

    @classmethod
    def probe(cls, params: Parameters, request: SourceRequest) -> Probe:
        """Open the input and say what comes out. Raises BadMedia."""
        wanted = cast(DecodeParameters, params)
        source = _input(wanted, request)
        with open_input(source) as container:
            found = describe(source, container)
        limit = _frame_limit(wanted, request, source)
        frames = min(limit, found.frames or limit) if limit else found.frames
        rate = found.video.frames_per_second
        duration = found.duration_seconds
        if duration is None and frames and rate:
            duration = frames / rate
        video = OutputPort(
            name="video",
            format=found.video,
            slots=(SlotClass(found.video.bytes_per_frame, 2, shared_by_consumers=True),),
            why="1 being decoded + 1 ready; the decoder keeps its own pictures",
        )
        outputs = [video]
        if found.audio is not None:
            outputs.append(OutputPort(name="audio", format=found.audio, slots=AUDIO_SLOTS, why="coded packets"))
        return Probe(
            input=source.title,
            outputs=tuple(outputs),
            start_seconds=found.start_seconds,
            duration_seconds=duration,
            frames=frames or None,
            warnings=found.warnings,
            extra={"codec": found.codec, "pixel_format": found.libav_format},
        )

    # -- in the worker ---------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Open the input again, in the process that decodes it. Raises BadMedia."""
        params = cast(DecodeParameters, self.params)
        source = _input(params, context.source)
        self._title = source.title
        self._limit = _frame_limit(params, context.source, source)
        self._container = open_input(source)
        found = describe(source, self._container)
        self._found = found
        video = found.video
        self._layout = layout_of(video)
        self._normaliser = Normaliser(found, context.warn)
        self._colors = format_colors(video)
        self._time_base = (video.time_base.num, video.time_base.den)
        rate = video.frames_per_second
        self._usual_duration = max(1, round(1 / (rate * video.time_base.fraction))) if rate else 1
        self._reader = FrameReader(self._container, found, params.threads, "audio" in context.outputs)
        self._events = iter(self._reader)
        self._audio_index = {stream.index: place for place, stream in enumerate(self._reader.audio_streams)}
        for place, stream in enumerate(self._reader.audio_streams):
            self._publish_audio_parameters(stream, place, context)

    def step(self, context: Context) -> bool:
        """Publish one frame, and the audio before it. False at the end of the input or of the frames asked for."""
        if self._limit and self._index >= self._limit:
            return False
        if self._slot is None:
            self._slot = context.acquire(self._layout.total_bytes)
        self._slot.launch()
        frame = self._next_frame(context)
        if frame is None:
            self._report_end(context)
            return False
        self._publish(frame, self._slot, context.warn)
        self._slot = None
        context.count_frame()
        return True

    def flush(self, context: Context) -> None:
        """Give back the slot that no frame came for."""
        if self._slot is not None:
            self._slot.abandon()
            self._slot = None

    def close(self) -> None:
        """Close the input."""
        if self._container is not None:
            events = cast("Iterator[object]", self._events) if hasattr(self, "_events") else None
            if events is not None:
                events.close()  # type: ignore[attr-defined]  # a generator
            self._container.close()
            self._container = None

    # -- video -----------------------------------------------------------------------------------------------------

    def _next_frame(self, context: Context) -> VideoFrame | None:
        """The next frame; audio and losses before it are handed on."""
        for event in self._events:
            if isinstance(event, VideoFrame):
                return event
            if isinstance(event, Lost):
                context.lost(self._index if event.in_order else None, event.pts, event.reason)
                self._index += event.in_order
            else:
                self._publish_audio(event, context)
        return None

    def _publish(self, frame: VideoFrame, slot: WriteLease, warn: Callable[[str], None]) -> None:
        size = self._layout.total_bytes
        duration = frame.duration or self._usual_duration
        flags = KEY_FRAME if frame.key_frame else 0
        pts = frame.pts
        if pts is None:
            pts = self._clock if self._clock is not None else (frame.dts or 0)
            flags |= DISCONTINUITY
        self._clock = pts + duration
        if self._index == 0:
            _warn_of_what_is_ignored(frame, warn)
        copy_to_slot(self._normaliser.normalise(frame), self._layout, slot.array[:size])
        slot.publish(
            Descriptor(
                payload_kind=PayloadKind.VIDEO_FRAME,
                source_index=self._index,
                pts=pts,
                duration=duration,
                time_base=self._time_base,
                pixel_format=self._layout.pixel_format,
                width=self._layout.width,
                height=self._layout.height,
                planes=self._layout.offsets_and_strides,
                color=self._color_of(frame),
                sample_aspect=self._found.video.sample_aspect or (0, 1),
                flags=flags,
            ),
            size,
        )
        self._index += 1

    def _color_of(self, frame: VideoFrame) -> tuple[int, int, int, int]:
        """What the frame says of its colours; what it does not say is as the stream says."""
        if self._found.from_rgb:
            return self._colors
        primaries, transfer, matrix, full = self._colors
        return (
            primaries if frame.color_primaries == UNSPECIFIED else frame.color_primaries,
            transfer if frame.color_trc == UNSPECIFIED else frame.color_trc,
            matrix if frame.colorspace == UNSPECIFIED else frame.colorspace,
            frame.color_range or full,
        )

    def _report_end(self, context: Context) -> None:
        """The input has ended: was that all? Raises BadMedia when it was nothing."""
        if self._reader.delivered == 0:
            mend = "see whether a media player shows it"
            raise BadMedia("no frame of it can be decoded", file=self._title, mend=mend)
        if self._reader.splices.found:
            context.warn("the times of the input jump back; what follows was moved behind what came before")
        promised = self._found.duration_seconds
        if promised is None or self._clock is None:
            return
        reached = float(self._clock * self._found.video.time_base.fraction) - self._found.start_seconds
        if promised - reached > max(1.0, promised / 10):
            context.warn(f"the video ends at {reached:.1f} s, the container's header says {promised:.1f} s")

    # -- audio -----------------------------------------------------------------------------------------------------

    def _publish_audio_parameters(self, stream: AudioStream, place: int, context: Context) -> None:
        said = audio_parameters(stream, place).model_dump_json(exclude_none=True).encode()
        with context.acquire(len(said), "audio") as slot:
            slot.array[: len(said)] = np.frombuffer(said, np.uint8)
            slot.publish(Descriptor(payload_kind=PayloadKind.CODEC_PARAMETERS, stream_index=place), len(said))

    def _publish_audio(self, packet: Packet[AudioStream], context: Context) -> None:
        size = packet.size
        if size > AUDIO_SLOTS[-1].slot_bytes:
            context.warn(f"audio packets of more than {AUDIO_SLOTS[-1].slot_bytes} bytes are left out")
            return
        place = self._audio_index[packet.stream_index]
        time_base = packet.time_base
        with context.acquire(size, "audio") as slot:
            slot.array[:size] = np.frombuffer(memoryview(packet), np.uint8)
            slot.publish(
                Descriptor(
                    payload_kind=PayloadKind.AUDIO_PACKET,
                    stream_index=place,
                    pts=_known(packet.pts),
                    dts=_known(packet.dts),
                    duration=_known(packet.duration),
                    time_base=(time_base.numerator, time_base.denominator),
                    flags=KEY_FRAME if packet.is_keyframe else 0,
                ),
                size,
            )


def _warn_of_what_is_ignored(frame: VideoFrame, warn: Callable[[str], None]) -> None:
    if frame.rotation:
        warn(f"the input asks players to turn it by {frame.rotation} degrees; frames are left as they are")
    if frame.interlaced_frame:
        warn("the input is interlaced; its frames are handled as progressive ones")


def _known(time: int | None) -> int:
    return UNKNOWN_I64 if time is None else time


def _input(params: DecodeParameters, request: SourceRequest) -> Input:
    location = request.input if request.input is not None else params.path
    return Input(params.source.graph, generated=True) if location is None else Input(location)


def _frame_limit(params: DecodeParameters, request: SourceRequest, source: Input) -> int | None:
    """How many frames at most; None or 0: no limit."""
    if request.frames is not None:
        return request.frames
    if params.frames is not None:
        return params.frames
    return GENERATED_FRAMES if source.generated else None
