"""How long an operator takes for one frame, before anything was measured: estimates by operator, device kind and size.

Two origins, told apart in every estimate:

- `measured`: seconds per 1080p and per 4K frame on one class of x86 machine (2 virtual Xeon cores at 2.1 GHz, PyAV
  18.1), decoding with 2 threads. Between and beyond the two sizes a line through both, below 1080p in proportion to the
  pixels.
- `estimate`: no measurement of ours. From a data sheet where there is one (the reason says which), else a guess of the
  order of magnitude.

An engine second is one engine (a core, a decoder, an encoder) busy for a second. They are starting points: measured
figures of this machine replace them once an operator has run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from observatory.model.device import DeviceKind

FULL_HD = 1920 * 1080
ULTRA_HD = 3840 * 2160

Origin = Literal["measured", "estimate"]


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Seconds of one engine for one frame, and how we know."""

    seconds: float
    origin: Origin
    reason: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds for a 1080p and for a 4K frame."""

    full_hd_seconds: float
    ultra_hd_seconds: float
    origin: Origin
    reason: str

    def at(self, pixels: int) -> ServiceTime:
        """The time for a frame of that many pixels."""
        if pixels <= FULL_HD:
            seconds = self.full_hd_seconds * pixels / FULL_HD
        else:
            slope = (self.ultra_hd_seconds - self.full_hd_seconds) / (ULTRA_HD - FULL_HD)
            seconds = self.full_hd_seconds + slope * (pixels - FULL_HD)
        return ServiceTime(max(seconds, 1e-6), self.origin, self.reason)

    def times(self, factor: float, reason: str) -> Profile:
        """The same operator, harder or easier by a factor that nobody measured."""
        return Profile(self.full_hd_seconds * factor, self.ultra_hd_seconds * factor, "estimate", reason)


def _guess(full_hd_seconds: float, reason: str) -> Profile:
    return Profile(full_hd_seconds, 4 * full_hd_seconds, "estimate", reason)


_CPU: dict[str, Profile] = {
    "decode": Profile(2.7e-3, 7.4e-3, "measured", "H.264, 2 threads"),
    "scale": Profile(0.77e-3, 3.0e-3, "measured", "to 2/3, bilinear"),
    "watermark": Profile(0.08e-3, 0.46e-3, "measured", "copy of the planes, and the blend of a small region"),
    "crop": Profile(0.07e-3, 0.45e-3, "measured", "copy of the planes"),
    "blend": Profile(0.24e-3, 0.94e-3, "measured", "overlay filter"),
    "convert": _guess(1.0e-3, "like scaling without a change of size"),
    "super_res": _guess(30e-3, "a small convolution per pixel on one core"),
    "mux": _guess(0.05e-3, "a write of one packet"),
}
_ENCODERS: dict[str, Profile] = {
    "ultrafast": Profile(4.3e-3, 11e-3, "measured", "x264 ultrafast"),
    "veryfast": Profile(12.9e-3, 41e-3, "measured", "x264 veryfast"),
}
_PRESET_FACTORS = {  # of x264 veryfast; guesses of the order of magnitude
    "superfast": 0.6,
    "faster": 1.5,
    "fast": 2.0,
    "medium": 2.5,
    "slow": 5.0,
    "slower": 10.0,
    "veryslow": 20.0,
}
_CODEC_FACTORS = {"libx264": 1.0, "libx265": 4.0, "libsvtav1": 3.0, "libvpx-vp9": 6.0}

_OTHERS: dict[DeviceKind, dict[str, Profile]] = {
    DeviceKind.GPU: {
        "decode": _guess(1.3e-3, "one hardware decoder, some 750 frames/s of 1080p H.264"),
        "encode": _guess(1.5e-3, "one hardware encoder, some 650 frames/s of 1080p H.264"),
        "scale": _guess(0.05e-3, "bound by device memory"),
        "watermark": _guess(0.03e-3, "bound by device memory"),
        "crop": _guess(0.03e-3, "bound by device memory"),
        "blend": _guess(0.05e-3, "bound by device memory"),
        "convert": _guess(0.03e-3, "bound by device memory"),
        "super_res": _guess(1.0e-3, "a small convolution per pixel"),
    },
    DeviceKind.VPU: {
        "decode": _guess(1.04e-3, "Alveo MA35D product brief: 32 streams of 1080p60 over two units"),
        "encode": _guess(1.04e-3, "Alveo MA35D product brief: 32 streams of 1080p60 over two units"),
        "scale": _guess(0.5e-3, "a fixed-function scaler beside the encoder"),
    },
    DeviceKind.FPGA: {
        "scale": _guess(1.0e-3, "two samples per clock at some hundred MHz"),
        "super_res": _guess(5.0e-3, "a small convolution per pixel"),
    },
}
_UNKNOWN = _guess(2.0e-3, "no profile for this operator")


def service_time(op: str, kind: DeviceKind, pixels: int, params: Mapping[str, Any]) -> ServiceTime:
    """What one frame of `pixels` takes in operator `op` on one engine of a device of that kind."""
    if kind is DeviceKind.CPU:
        profile = _encode_profile(params) if op == "encode" else _CPU.get(op, _UNKNOWN)
    else:
        profile = _OTHERS.get(kind, {}).get(op, _UNKNOWN)
    return profile.at(pixels)


def _encode_profile(params: Mapping[str, Any]) -> Profile:
    codec, preset = params.get("codec") or "libx264", params.get("preset") or "medium"
    if codec == "libx264" and preset in _ENCODERS:
        return _ENCODERS[preset]
    base = _ENCODERS.get(str(preset), _ENCODERS["veryfast"])
    factor = 1.0 if preset in _ENCODERS else _PRESET_FACTORS.get(str(preset), _PRESET_FACTORS["medium"])
    return base.times(factor * _CODEC_FACTORS.get(str(codec), 3.0), f"{codec} {preset}, scaled from x264")
