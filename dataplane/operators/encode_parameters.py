"""Parameters of encode."""

from __future__ import annotations

import re

from pydantic import Field, field_validator, model_validator

from dataplane.operators.base import Parameters
from dataplane.operators.codecs import EncoderWish

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
