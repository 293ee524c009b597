"""The video encoders: their presets, what they look ahead, and how many frames they can hold.

Everything that makes an encoder keep frames (look-ahead, reordering, frame threads) is set explicitly, so that
`EncoderSetup.held_frames` is a true bound, the frame being worked on included. The formulas were read off the libraries
and measured; tests/operators/test_held_frames.py holds the encoders to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dataplane.errors import BadParameters
from observatory.model.media import PixelFormat

Options = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EncoderWish:
    """What a user can ask of any encoder. `bitrate` is in bits per second."""

    preset: str | None
    bitrate: int | None
    crf: float | None
    gop: int
    threads: int
    look_ahead: int | None
    profile: str | None
    options: Options
    closed_gops: bool = False  # what follows a key frame needs nothing from before it


@dataclass(frozen=True, slots=True)
class EncoderSetup:
    """How to open an encoder, and the most input frames that are in it while their packets are not a prefix yet.

    `group_frames` is the most packets that come out one after the other before they are a prefix in presentation order:
    a frame and the B-frames before it, pyramids or not. 1: packets come in presentation order.
    """

    options: dict[str, str]
    threads: int
    slice_threads: bool  # threads share a frame, instead of working on several
    held_frames: int
    group_frames: int = 1


@dataclass(frozen=True, slots=True)
class VideoEncoder:
    """One encoder: libavcodec's name of it and of its codec, and how to set it up."""

    name: str
    codec: str
    presets: tuple[str, ...]
    default_preset: str
    profiles: tuple[str, ...]
    pixel_formats: frozenset[PixelFormat]
    crf_range: tuple[float, float]
    default_crf: float
    setup: Callable[[EncoderWish], EncoderSetup]


def video_encoder(name: str) -> VideoEncoder:
    """The encoder of that name. Raises BadParameters."""
    found = ENCODERS.get(name)
    if found is None:
        raise BadParameters(f"encode: there is no encoder {name!r}", mend=f"known: {', '.join(ENCODERS)}")
    return found


def set_up(encoder: VideoEncoder, wish: EncoderWish) -> EncoderSetup:
    """Check a wish against an encoder and turn it into options. Raises BadParameters."""
    if wish.preset is not None and wish.preset not in encoder.presets:
        known = ", ".join(encoder.presets)
        raise BadParameters(f"encode: {encoder.name} has no preset {wish.preset!r}", mend=f"known: {known}")
    if wish.profile is not None and wish.profile not in encoder.profiles:
        known = ", ".join(encoder.profiles) or "none that can be chosen"
        raise BadParameters(f"encode: {encoder.name} has no profile {wish.profile!r}", mend=f"known: {known}")
    low, high = encoder.crf_range
    if wish.crf is not None and not low <= wish.crf <= high:
        raise BadParameters(f"encode: crf {wish.crf:g} is outside {low:g} to {high:g} of {encoder.name}")
    return encoder.setup(wish)


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _colon_list(text: str) -> dict[str, str]:
    """`a=1:b=2` as a mapping."""
    pairs = (part.partition("=") for part in text.split(":") if part)
    return {name: value or "1" for name, _, value in pairs}


def _joined(pairs: Mapping[str, object]) -> str:
    return ":".join(f"{name}={value}" for name, value in pairs.items())


def _rate(wish: EncoderWish, default_crf: float) -> dict[str, str]:
    """Bit rate or constant quality."""
    if wish.bitrate is not None:
        return {"b": str(wish.bitrate)}
    if "b" in wish.options or "qp" in wish.options:
        return {}
    return {"crf": f"{default_crf if wish.crf is None else wish.crf:g}"}


def _number(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else int(text)
    except ValueError:
        return otherwise


# -- x264: preset -> (look-ahead, B-frames, whether B-frames are placed by a trellis) ---------------------------------

_X264 = {
    "ultrafast": (0, 0, False),
    "superfast": (0, 3, False),
    "veryfast": (10, 3, False),
    "faster": (20, 3, False),
    "fast": (30, 3, False),
    "medium": (40, 3, False),
    "slow": (50, 3, False),
    "slower": (60, 3, True),
    "veryslow": (60, 8, True),
    "placebo": (60, 16, True),
}


def _x264(wish: EncoderWish) -> EncoderSetup:
    own = _colon_list(wish.options.get("x264-params", ""))
    look_ahead, b_frames, trellis = _X264[wish.preset or "veryfast"]
    zero_latency = "zerolatency" in wish.options.get("tune", "")
    if zero_latency:
        look_ahead = b_frames = 0
    look_ahead = look_ahead if wish.look_ahead is None else wish.look_ahead
    look_ahead = _number(own.get("rc-lookahead") or wish.options.get("rc-lookahead"), look_ahead)
    b_frames = _number(own.get("bframes") or wish.options.get("bf"), b_frames)
    trellis = _number(own.get("b-adapt") or wish.options.get("b_strategy"), 2 if trellis else 1) == 2
    threads = wish.threads or -(-_cpus() * 3 // 2)
    synchronous = zero_latency or threads == 1
    ahead = 0 if synchronous else b_frames + 1
    ahead = _number(own.get("sync-lookahead"), ahead)
    params = {"rc-lookahead": look_ahead, "bframes": b_frames, "sync-lookahead": ahead} | own
    options = {"preset": wish.preset or "veryfast", "g": str(wish.gop), **_rate(wish, 23), **wish.options}
    if wish.profile is not None:
        options["profile"] = wish.profile
    options["x264-params"] = _joined(params)
    inside = max(look_ahead, 4 * max(b_frames, 3) if trellis and b_frames else b_frames)
    frame_threads = 0 if zero_latency else threads - 1
    out_of_order = max(1, b_frames)  # all of a group but its last packet
    # + 1 to know a frame's duration, + 1 coming out, + 1 going in
    held = inside + frame_threads + ahead + out_of_order + 3
    return EncoderSetup(options, threads, zero_latency, held, b_frames + 1)


# -- x265: preset -> (look-ahead, B-frames) ---------------------------------------------------------------------------

_X265 = {
    "ultrafast": (5, 3),
    "superfast": (10, 3),
    "veryfast": (15, 4),
    "faster": (15, 4),
    "fast": (15, 4),
    "medium": (20, 4),
    "slow": (25, 4),
    "slower": (40, 8),
    "veryslow": (40, 8),
    "placebo": (60, 8),
}


def _x265(wish: EncoderWish) -> EncoderSetup:
    own = _colon_list(wish.options.get("x265-params", ""))
    preset = wish.preset or "superfast"
    look_ahead, b_frames = _X265[preset]
    if "zerolatency" in wish.options.get("tune", ""):
        look_ahead = b_frames = 0
    look_ahead = look_ahead if wish.look_ahead is None else wish.look_ahead
    threads = wish.threads or _cpus()
    frame_threads = 1 if "zerolatency" in wish.options.get("tune", "") else min(threads, 4)
    params = {
        "log-level": "error",
        "rc-lookahead": max(look_ahead, b_frames + 1) if b_frames else look_ahead,
        "bframes": b_frames,
        "frame-threads": frame_threads,
        "pools": threads,
        "keyint": wish.gop,
    }
    options = {"preset": preset, **_rate(wish, 28)}
    if wish.closed_gops:  # the others have them anyway
        params["open-gop"] = 0
        options["forced-idr"] = "1"
    params |= own
    options |= wish.options
    if wish.profile is not None:
        options["profile"] = wish.profile
    options["x265-params"] = _joined(params)
    held = sum(_number(str(params[name]), 0) for name in ("rc-lookahead", "bframes", "frame-threads"))
    # + 4 that x265 keeps between its look-ahead and its frame encoders, + 1 coming out, + 1 going in
    ahead = str(params["rc-lookahead"]) != "0" or str(params["bframes"]) != "0"
    b_frames = _number(str(params["bframes"]), b_frames)  # of a group all but the last packet are out of order
    return EncoderSetup(options, threads, False, held + (6 if ahead else 2) + max(0, b_frames - 1), b_frames + 1)


# -- SVT-AV1 ----------------------------------------------------------------------------------------------------------


def _svt_av1(wish: EncoderWish) -> EncoderSetup:
    own = _colon_list(wish.options.get("svtav1-params", ""))
    threads = wish.threads or _cpus()
    # A mini-GOP is 2**levels frames, coded as a whole. More parallel levels than 4 make it hold far more frames.
    defaults = {
        "hierarchical-levels": 4,
        "lookahead": 0 if wish.look_ahead is None else wish.look_ahead,
        "lp": min(threads, 4),
        "keyint": wish.gop,
    }
    params = defaults | own
    _refuse_low_delay(params)
    options = {"preset": wish.preset or "10", **_rate(wish, 35), **wish.options}
    options["svtav1-params"] = _joined(params)
    return EncoderSetup(options, threads, False, _svt_av1_holds(params))


def _refuse_low_delay(params: Mapping[str, object]) -> None:
    """SVT-AV1 4.1 was seen to deadlock there: all its threads asleep, the encoder waiting for a packet for ever."""
    if str(params.get("pred-struct", "2")) == "1" or str(params.get("rtc", "0")) != "0":
        raise BadParameters(
            "encode: the low-delay modes of libsvtav1 (pred-struct=1, rtc) can hang for ever",
            mend="use libvpx-vp9 with preset 8, or libx264 with options: {tune: zerolatency}",
        )


def _svt_av1_holds(params: Mapping[str, object]) -> int:
    """SVT-AV1 says nothing of what it holds: this is what was measured (presets 4 to 12), plus a margin for timing."""
    mini_gop = 1 << _number(str(params["hierarchical-levels"]), 4)
    parallel = _number(str(params["lp"]), 1)
    held = 2 * mini_gop + 12 + (mini_gop + 1 if str(params["lookahead"]) != "0" else 0)
    if parallel > 4:  # from here on it takes as much as its pools have
        return held + 8 * mini_gop
    return held + mini_gop // 2 * (parallel - 1) + 2 * parallel + 1


# -- VP9: preset is cpu-used; from 5 on in real-time mode -------------------------------------------------------------


def _vp9(wish: EncoderWish) -> EncoderSetup:
    speed = int(wish.preset or "7")
    realtime = speed >= 5
    lag = (0 if realtime else 16) if wish.look_ahead is None else min(25, wish.look_ahead)
    lag = _number(wish.options.get("lag-in-frames"), lag)
    threads = wish.threads or _cpus()
    rate = _rate(wish, 32)
    if "crf" in rate:
        rate["b"] = "0"  # constant quality, not constrained by the default bit rate
    options = {
        "deadline": "realtime" if realtime else "good",
        "cpu-used": str(speed),
        "lag-in-frames": str(lag),
        "row-mt": "1",
        "tile-columns": str(min(2, (threads - 1).bit_length())),
        "g": str(wish.gop),
        **rate,
        **wish.options,
    }
    return EncoderSetup(options, threads, False, lag + 2)  # + 1 coming out, + 1 going in


_8_AND_10_BIT = frozenset({PixelFormat.YUV420P, PixelFormat.YUV420P10LE})

ENCODERS: dict[str, VideoEncoder] = {
    encoder.name: encoder
    for encoder in (
        VideoEncoder(
            name="libx264",
            codec="h264",
            presets=tuple(_X264),
            default_preset="veryfast",
            profiles=("baseline", "main", "high", "high10"),
            pixel_formats=_8_AND_10_BIT | {PixelFormat.NV12},
            crf_range=(0, 51),
            default_crf=23,
            setup=_x264,
        ),
        VideoEncoder(
            name="libx265",
            codec="hevc",
            presets=tuple(_X265),
            default_preset="superfast",
            profiles=("main", "main10", "mainstillpicture", "main-intra", "main10-intra"),
            pixel_formats=_8_AND_10_BIT,
            crf_range=(0, 51),
            default_crf=28,
            setup=_x265,
        ),
        VideoEncoder(
            name="libsvtav1",
            codec="av1",
            presets=tuple(str(number) for number in range(14)),
            default_preset="10",
            profiles=(),
            pixel_formats=_8_AND_10_BIT,
            crf_range=(1, 63),
            default_crf=35,
            setup=_svt_av1,
        ),
        VideoEncoder(
            name="libvpx-vp9",
            codec="vp9",
            presets=tuple(str(number) for number in range(9)),
            default_preset="7",
            profiles=(),
            pixel_formats=frozenset({PixelFormat.YUV420P}),
            crf_range=(0, 63),
            default_crf=32,
            setup=_vp9,
        ),
    )
}
