"""How long an operator takes for one frame, before anything was measured: estimates by operator, device kind and size.

Two origins, told apart in every estimate:

- `measured`: seconds per 1080p and per 4K frame on one class of x86 machine (2 virtual Xeon cores at 2.1 GHz, PyAV
  18.1), decoding with 2 threads. Between and beyond the two sizes a line through both, below 1080p in proportion to the
  pixels.
- `estimate`: a ratio to something measured, a figure from a document (the reason says which), or an assumption about
  the order of magnitude. "Unverified, from memory" means that no public source was found for the figure.

The measured ones are wall time with two threads at most, taken here as the time of one engine (a core, a decoder, an
encoder). All are starting points, to be replaced by what an operator is seen to take on the machine at hand.
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
    "convert": _guess(1.0e-3, "assumption: like scaling without a change of size"),
    "super_res": _guess(30e-3, "assumption: a small convolution per pixel on one core"),
    "mux": _guess(0.05e-3, "assumption: a write of one packet"),
}
_ENCODERS: dict[str, Profile] = {
    "ultrafast": Profile(4.3e-3, 11e-3, "measured", "x264 ultrafast"),
    "veryfast": Profile(12.9e-3, 41e-3, "measured", "x264 veryfast"),
}
_RATIOS: dict[str, dict[str, float]] = {
    # CPU time per 1080p frame against x264 veryfast, two threads, 40 frames of an animation, on a busy machine; steps
    # between and beyond the ones measured are interpolated.
    "libx264": {
        "superfast": 0.54, "faster": 1.7, "fast": 2.2, "medium": 2.9, "slow": 3.6, "slower": 5.5, "veryslow": 7.0,
        "placebo": 15.0,
    },
    "libx265": {
        "ultrafast": 1.6, "superfast": 3.0, "veryfast": 3.7, "faster": 4.0, "fast": 4.5, "medium": 6.9, "slow": 14.0,
        "slower": 30.0, "veryslow": 50.0, "placebo": 100.0,
    },
    "libsvtav1": {
        "13": 0.7, "12": 0.8, "11": 0.95, "10": 1.1, "9": 1.6, "8": 2.2, "7": 3.2, "6": 4.5, "5": 7.0, "4": 11.0,
        "3": 20.0, "2": 35.0, "1": 60.0, "0": 100.0,
    },
    "libvpx-vp9": {
        "8": 1.2, "7": 1.4, "6": 2.0, "5": 2.8, "4": 4.0, "3": 6.0, "2": 9.0, "1": 14.0, "0": 25.0,
    },
}  # fmt: skip
_DEFAULT_PRESETS = {"libx264": "veryfast", "libx265": "superfast", "libsvtav1": "10", "libvpx-vp9": "7"}
_OTHER_CODEC = 3.0  # assumption

_OTHERS: dict[DeviceKind, dict[str, Profile]] = {
    DeviceKind.GPU: {
        "decode": _guess(1.3e-3, "one hardware decoder, some 750 frames/s of 1080p H.264: unverified, from memory"),
        "encode": _guess(1.5e-3, "one hardware encoder, some 650 frames/s of 1080p H.264: unverified, from memory"),
        "scale": _guess(0.05e-3, "assumption: bound by device memory"),
        "watermark": _guess(0.03e-3, "assumption: bound by device memory"),
        "crop": _guess(0.03e-3, "assumption: bound by device memory"),
        "blend": _guess(0.05e-3, "assumption: bound by device memory"),
        "convert": _guess(0.03e-3, "assumption: bound by device memory"),
        "super_res": _guess(1.0e-3, "assumption: a small convolution per pixel"),
    },
    DeviceKind.VPU: {
        # AMD, AMA Video SDK 1.2.1 documentation, "Specs and Features", of the Alveo MA35D: a decode engine does 4
        # streams of 4Kp60, or 16 of 1080p60: 960 frames/s. An AVC or HEVC encode engine does 4Kp60, or 4 of 1080p60:
        # 240 frames/s (four on a card: 16 streams of 1080p60. The 32 that are advertised take its AV1 engines as well).
        "decode": _guess(1.04e-3, "Alveo MA35D, AMA Video SDK documentation: 16 streams of 1080p60 a decode engine"),
        "encode": _guess(4.17e-3, "Alveo MA35D, AMA Video SDK documentation: 4 streams of 1080p60 an encode engine"),
        "scale": _guess(0.5e-3, "assumption: a fixed-function scaler beside the encoder"),
    },
    DeviceKind.FPGA: {
        "scale": _guess(1.0e-3, "assumption: two samples per clock at some hundred MHz"),
        "super_res": _guess(5.0e-3, "assumption: a small convolution per pixel"),
    },
}
_UNKNOWN = _guess(2.0e-3, "assumption: no profile for this operator")


def service_time(op: str, kind: DeviceKind, pixels: int, params: Mapping[str, Any]) -> ServiceTime:
    """What one frame of `pixels` takes in operator `op` on one engine of a device of that kind."""
    if kind is DeviceKind.CPU:
        profile = _encode_profile(params) if op == "encode" else _CPU.get(op, _UNKNOWN)
    else:
        profile = _OTHERS.get(kind, {}).get(op, _UNKNOWN)
    return profile.at(pixels)


def _encode_profile(params: Mapping[str, Any]) -> Profile:
    codec = str(params.get("codec") or "libx264")
    preset = str(params.get("preset") or _DEFAULT_PRESETS.get(codec, ""))
    if codec == "libx264" and preset in _ENCODERS:
        return _ENCODERS[preset]
    ratio = _RATIOS.get(codec, {}).get(preset, _OTHER_CODEC)
    return _ENCODERS["veryfast"].times(ratio, f"{codec} {preset}: {ratio:g} times x264 veryfast")
