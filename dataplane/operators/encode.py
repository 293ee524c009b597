"""encode: coded packets from frames."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from av.packet import Packet
from av.stream import Stream
from av.video.frame import PictureType
from pydantic import Field, field_validator, model_validator

from dataplane._ring import Descriptor
from dataplane.errors import BadParameters, OperatorFailed
from dataplane.operators.base import Context, Operator, OutputPort, Parameters, SlotClass
from dataplane.operators.boundaries import Boundaries
from dataplane.operators.codecs import EncoderSetup, EncoderWish, VideoEncoder, set_up, video_encoder
from dataplane.operators.encoder import codec_parameters, open_encoder, rate_of
from dataplane.operators.formats import layout_of
from dataplane.operators.frames import KEY_FRAME, format_colors, frame_of_lease
from dataplane.operators.per_frame import single_video
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.event import UNKNOWN_I64
from observatory.model.media import PacketFormat, PayloadKind, PortFormat, VideoFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

KIB = 1024
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


class EncodeParameters(Parameters):
    """Parameters of encode."""

    codec: str = Field(default="libx264", description="Encoder: libx264, libx265, libsvtav1 or libvpx-vp9")
    bitrate: int | str | None = Field(
        default=None,
        json_schema_extra={"unit": "bits per second"},
        description="Average bit rate; 300k, 3M and 1.5M are understood",
    )
    crf: float | None = Field(
        default=None,
        description="Constant quality instead of a bit rate; lower is better; the encoder's default if absent",
    )
    preset: str | int | None = Field(
        default=None,
        description="Speed against size; x264, x265: ultrafast to placebo; SVT-AV1: 0 (slow) to 13; VP9: 0 to 8",
    )
    gop: int = Field(
        default=250,
        ge=1,
        le=100_000,
        json_schema_extra={"unit": "frames"},
        description="Longest way from one key frame to the next",
    )
    keyframe_seconds: float | None = Field(
        default=None,
        gt=0,
        le=60,
        json_schema_extra={"unit": "seconds"},
        description="A key frame at the first frame of every multiple of this time too, the same over all renditions "
        "of a source; what package needs",
    )
    look_ahead: int | None = Field(
        default=None,
        ge=0,
        le=120,
        json_schema_extra={"unit": "frames"},
        description="How far the encoder looks ahead, and so holds frames; the preset's if absent",
    )
    profile: str | None = Field(default=None, description="Profile of the codec; chosen by the encoder if absent")
    threads: int = Field(default=0, ge=0, le=128, description="Threads of the encoder; 0: by the number of CPUs")
    options: dict[str, str | int | float] = Field(
        default_factory=dict, description="Further options of the encoder, passed to libavcodec as they are"
    )

    @field_validator("bitrate")
    @classmethod
    def _bits(cls, value: int | str | None) -> int | None:
        if value is None:
            return None
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)\s*", str(value))
        bits = round(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
        if bits < 1_000:
            raise ValueError(f"bitrate {value!r} is not a number of bits per second of at least 1000, as 3M or 300k")
        return bits

    @model_validator(mode="after")
    def _consistent(self) -> EncodeParameters:
        if self.bitrate is not None and self.crf is not None:
            raise ValueError("bitrate and crf exclude each other")
        return self

    @property
    def wish(self) -> EncoderWish:
        """As the encoders' table takes it."""
        return EncoderWish(
            preset=None if self.preset is None else str(self.preset),
            bitrate=None if self.bitrate is None else int(self.bitrate),
            crf=self.crf,
            gop=self.gop,
            threads=self.threads,
            look_ahead=self.look_ahead,
            profile=self.profile,
            options={name: str(value) for name, value in self.options.items()},
            closed_gops=self.keyframe_seconds is not None,
        )


@dataclass(slots=True)
class _Held:
    """An input frame whose packet is not out yet, or is out before an earlier one's."""

    lease: ReadLease | None
    source_index: int
    epoch: int  # 0: that of the worker's trace
    pts: int
    duration: int
    published: bool = False


class Encode(Operator):
    """Encodes frames read in place; the input is acknowledged when the packets cover it as a prefix."""

    op = "encode"
    Params = EncodeParameters
    summary = "Encodes frames with x264, x265, SVT-AV1 or VP9"
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "encode", "vpu": "encode"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._held: deque[_Held] = deque()  # in presentation order
        self._by_pts: dict[int, _Held] = {}
        self._leases = 0
        self._last_pts: int | None = None
        self._last_epoch: int | None = None
        self._last_stretch: int | None = None
        self._boundaries: Boundaries | None = None  # of forced key frames
        self._announced = False

    # -- before anything runs --------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Prefix: look-ahead, reordering and threads hold frames back. Raises BadParameters."""
        _, setup = _resolve(params)
        return CommitContract(
            kind=CommitKind.PREFIX,
            copies_per_frame=0,
            held_frames=setup.held_frames,
            copies_reason="the encoder reads the slot in place",
        )

    @classmethod
    def output(cls, params: Parameters, inputs: Sequence[PortFormat]) -> tuple[OutputPort, ...]:
        """Packets on port "video". Raises BadParameters for what the encoder cannot do."""
        source = single_video(cls.op, inputs)
        encoder, setup = _resolve(params)
        if source.pixel_format not in encoder.pixel_formats:
            takes = sorted(form.label for form in encoder.pixel_formats)
            raise BadParameters(
                f"encode: {encoder.name} takes {', '.join(takes)}, not {source.pixel_format.label}",
                mend=f"put before it: {{op: convert, params: {{pixel_format: {_closest(source, encoder)}}}}}",
            )
        open_encoder(encoder, setup, source)  # finds out now whether it takes these options
        typical = _typical_packet(cast(EncodeParameters, params), source)
        largest = 2 * source.bytes_per_frame + 64 * KIB  # lossless noise takes 1.6 times its size
        slots = [SlotClass(16 * KIB, 64), SlotClass(256 * KIB, 16), SlotClass(largest, 3)]
        packets = PacketFormat(
            codec=encoder.codec,
            video=source,
            bytes_per_packet=typical,
            largest_packet_bytes=largest,
            keyframe_seconds=cast(EncodeParameters, params).keyframe_seconds,
        )
        return (
            OutputPort(
                name="video",
                format=packets,
                slots=tuple(slots if largest > 256 * KIB else [slots[0], SlotClass(largest, 16)]),
                why="small and middling packets, and 3 of any size; memory is taken only when used",
            ),
        )

    # -- in the worker ---------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Open the encoder."""
        source = single_video(self.op, list(context.inputs.values()))
        encoder, setup = _resolve(self.params)
        self._layout = layout_of(source)
        self._source = source
        self._encoder_type = encoder
        self._most_held = setup.held_frames
        self._encoder = open_encoder(encoder, setup, source)
        self._time_base = (source.time_base.num, source.time_base.den)
        self._color = format_colors(source)
        keyframe_seconds = cast(EncodeParameters, self.params).keyframe_seconds
        if keyframe_seconds is not None:
            self._boundaries = Boundaries(keyframe_seconds, source.time_base.fraction)

    def process(self, frame: ReadLease, edge: str, context: Context) -> None:
        """Encode one frame; publish what comes out; acknowledge what that covers."""
        if not self._announced:
            self._announce(context)
        descriptor = frame.descriptor
        if descriptor.payload_kind != PayloadKind.VIDEO_FRAME:
            frame.release()  # a frame that was lost upstream: it is listed there
            return
        frame.launch()
        pts = self._rising(descriptor.pts, context)
        held = _Held(frame, descriptor.source_index, descriptor.epoch, pts, max(0, descriptor.duration))
        self._held.append(held)
        self._by_pts[pts] = held
        self._leases += 1
        picture = frame_of_lease(frame, self._layout)
        picture.pts = pts
        if self._begins_anew(pts, descriptor.epoch):
            picture.pict_type = PictureType.I
        packets = self._encoder.encode(picture)
        del picture
        self._publish(packets, context)
        if self._leases > self._most_held:
            self._let_go(context)

    def flush(self, context: Context) -> None:
        """Publish what is still in the encoder; release everything."""
        if not self._announced:
            self._announce(context)
        if self._last_pts is not None:
            self._publish(self._encoder.encode(None), context)
        for held in self._held:
            context.lost(held.source_index, held.pts, "the encoder made no packet of it")
        for held in self._held:
            self._release(held)
        self._forget()

    def abort(self) -> None:
        """Acknowledge nothing: frames whose packets were not published were not done, and the encoder has them yet."""
        self._forget()

    # -- internals -------------------------------------------------------------------------------------------------

    def _rising(self, pts: int, context: Context) -> int:
        """The time of a frame, moved behind its predecessor's where it is not already."""
        last = self._last_pts
        if last is not None and pts <= last:
            context.warn("frame times that do not rise were moved behind their predecessors")
            pts = last + 1
        self._last_pts = pts
        return pts

    def _begins_anew(self, pts: int, epoch: int) -> bool:
        """Whether a frame has to be a key frame, whatever the encoder makes of it.

        At a discontinuity of the source (a new epoch) too: nothing after it has to do with what was before.
        """
        stretch = None if self._boundaries is None else self._boundaries.before(pts)
        anew = stretch != self._last_stretch or epoch != self._last_epoch
        self._last_stretch, self._last_epoch = stretch, epoch
        return anew

    def _announce(self, context: Context) -> None:
        """Publish the codec parameters: always the first payload."""
        self._announced = True
        said = codec_parameters(self._encoder_type, self._encoder, self._source).model_dump_json(exclude_none=True)
        payload = said.encode()
        with context.acquire(len(payload)) as slot:
            slot.array[: len(payload)] = np.frombuffer(payload, np.uint8)
            slot.publish(Descriptor(payload_kind=PayloadKind.CODEC_PARAMETERS), len(payload))

    def _publish(self, packets: Sequence[Packet[Stream]], context: Context) -> None:
        for packet in packets:
            held = None if packet.pts is None else self._by_pts.pop(packet.pts, None)
            if held is None:
                raise OperatorFailed(
                    f"{context.name}: {self._encoder_type.name} made a packet of no frame it was given"
                )
            size = packet.size
            with context.acquire(size) as slot:
                slot.launch()
                slot.array[:size] = np.frombuffer(memoryview(packet), np.uint8)
                slot.publish(self._describe(packet, held), size)
            held.published = True
        queue = self._held
        while queue and queue[0].published:
            self._release(queue.popleft())

    def _describe(self, packet: Packet[Stream], held: _Held) -> Descriptor:
        return Descriptor(
            payload_kind=PayloadKind.VIDEO_PACKET,
            source_index=held.source_index,
            pts=held.pts,
            dts=UNKNOWN_I64 if packet.dts is None else packet.dts,
            duration=held.duration,
            time_base=self._time_base,
            width=self._layout.width,
            height=self._layout.height,
            color=self._color,
            sample_aspect=self._source.sample_aspect or (0, 1),
            flags=KEY_FRAME if packet.is_keyframe else 0,
            epoch=held.epoch,
        )

    def _let_go(self, context: Context) -> None:
        """More is held than the contract says: acknowledge the oldest early, rather than starve the pool upstream."""
        context.warn(
            f"{self._encoder_type.name} held more than the {self._most_held} frames that were expected; frames were "
            "acknowledged before their packets were published"
        )
        for held in self._held:
            if held.lease is not None:
                self._release(held)
                return

    def _release(self, held: _Held) -> None:
        if held.lease is not None:
            held.lease.release()
            held.lease = None
            self._leases -= 1

    def _forget(self) -> None:
        self._held.clear()
        self._by_pts.clear()


def _resolve(params: Parameters) -> tuple[VideoEncoder, EncoderSetup]:
    wanted = cast(EncodeParameters, params)
    encoder = video_encoder(wanted.codec)
    return encoder, set_up(encoder, wanted.wish)


def _typical_packet(params: EncodeParameters, source: VideoFormat) -> int:
    """Bytes of an average packet: from the bit rate, else a 10th of a bit per sample."""
    bits = int(params.bitrate) if params.bitrate else source.width * source.height * float(rate_of(source)) / 10
    return max(64, round(bits / 8 / float(rate_of(source))))


def _closest(source: VideoFormat, encoder: VideoEncoder) -> str:
    """The format to convert to: the same depth where the encoder has it."""
    depth = source.pixel_format.bytes_per_sample
    same = sorted(form for form in encoder.pixel_formats if form.bytes_per_sample == depth)
    return (same or sorted(encoder.pixel_formats))[0].label
