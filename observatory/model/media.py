"""What flows over an edge: raw video frames, coded packets, audio packets, and their formats."""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class PayloadKind(IntEnum):
    """Mirror of `enum mo_payload_kind` (dataplane/abi/ring.h)."""

    VIDEO_FRAME = 1
    VIDEO_PACKET = 2
    AUDIO_PACKET = 3
    CODEC_PARAMETERS = 4
    FRAME_LOST = 5


class PixelFormat(IntEnum):
    """Mirror of `enum mo_pixel_format`; `label` is FFmpeg's name for it."""

    NONE = 0
    YUV420P = 1
    NV12 = 2
    YUV420P10LE = 3
    P010LE = 4

    @property
    def label(self) -> str:
        """FFmpeg's name of the format."""
        return self.name.lower()

    @property
    def bytes_per_sample(self) -> int:
        """Bytes one component sample takes in memory."""
        return 2 if self in (PixelFormat.YUV420P10LE, PixelFormat.P010LE) else 1

    @property
    def semi_planar(self) -> bool:
        """Whether U and V are interleaved in one plane."""
        return self in (PixelFormat.NV12, PixelFormat.P010LE)


class TimeBase(BaseModel):
    """Seconds per tick as an exact fraction, for example 1/90000."""

    model_config = ConfigDict(frozen=True)

    num: int = Field(gt=0, lt=2**32)
    den: int = Field(gt=0, lt=2**32)

    @property
    def fraction(self) -> Fraction:
        """The same value as a Fraction."""
        return Fraction(self.num, self.den)

    def __str__(self) -> str:
        return f"{self.num}/{self.den}"


class VideoFormat(BaseModel):
    """Raw video on an edge. Width and height are in luma samples and even (4:2:0)."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["video"] = "video"
    width: int = Field(gt=0, le=16384)
    height: int = Field(gt=0, le=16384)
    pixel_format: PixelFormat
    time_base: TimeBase
    frames_per_second: float | None = Field(default=None, gt=0)  # average; None when the source does not say
    sample_aspect: tuple[int, int] | None = None
    color_primaries: int | None = None  # ITU-T H.273 code points
    color_transfer: int | None = None
    color_matrix: int | None = None
    color_range: int | None = None  # 1 limited, 2 full

    @property
    def bytes_per_frame(self) -> int:
        """Bytes of one frame, planes packed without padding: 4:2:0, so 1.5 samples per pixel."""
        return self.width * self.height * 3 // 2 * self.pixel_format.bytes_per_sample


class PacketFormat(BaseModel):
    """Coded video on an edge. `bytes_per_packet` is an estimate for cost and pool sizing.

    `keyframe_seconds`: there is a key frame at the first frame of every multiple of it; None: nobody promised that.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["packet"] = "packet"
    codec: str
    video: VideoFormat
    bytes_per_packet: int = Field(gt=0)
    largest_packet_bytes: int = Field(gt=0)
    keyframe_seconds: float | None = Field(default=None, gt=0)


class AudioStreamFormat(BaseModel):
    """One audio stream as it is passed through, still coded."""

    model_config = ConfigDict(frozen=True)

    codec: str
    time_base: TimeBase
    sample_rate: int = Field(gt=0)
    channels: int = Field(gt=0)
    language: str | None = None


class AudioFormat(BaseModel):
    """The coded audio streams of one source, all on one port."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["audio"] = "audio"
    streams: tuple[AudioStreamFormat, ...]


PortFormat = Annotated[VideoFormat | PacketFormat | AudioFormat, Field(discriminator="kind")]


class CodecParameters(BaseModel):
    """Payload of MO_CODEC_PARAMETERS: what a muxer needs before the first packet of a coded stream.

    `extradata_hex` is the codec's global header (avcC, hvcC source, sequence header) in hexadecimal.
    """

    model_config = ConfigDict(frozen=True)

    stream_index: int = Field(default=0, ge=0)
    media: Literal["video", "audio"]
    codec: str
    time_base: TimeBase
    extradata_hex: str = ""
    width: int | None = None
    height: int | None = None
    pixel_format: str | None = None
    frames_per_second: float | None = None
    sample_aspect: tuple[int, int] | None = None
    color_primaries: int | None = None
    color_transfer: int | None = None
    color_matrix: int | None = None
    color_range: int | None = None
    sample_rate: int | None = None
    channels: int | None = None
    channel_layout: str | None = None
    sample_format: str | None = None
    frame_size: int | None = None
    bit_rate: int | None = None
    profile: str | None = None
    codec_tag: int | None = None
    language: str | None = None
