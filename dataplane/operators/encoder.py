"""Encoders of libavcodec, opened for the frames of an edge, and what a muxer has to know of them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av.codec.context import Flags
from av.video.codeccontext import VideoCodecContext

from dataplane.errors import BadParameters
from dataplane.operators.codecs import EncoderSetup, VideoEncoder
from dataplane.operators.frames import format_colors
from observatory.model.media import CodecParameters, VideoFormat

USUAL_RATE = Fraction(25)  # where the source does not say


def open_encoder(encoder: VideoEncoder, setup: EncoderSetup, source: VideoFormat) -> VideoCodecContext:
    """An open encoder for frames of that format, with its parameters in extradata. Raises BadParameters."""
    os.environ.setdefault("SVT_LOG", "1")  # errors only; SVT-AV1 has no other switch
    context = cast(VideoCodecContext, av.CodecContext.create(encoder.name, "w"))
    context.width, context.height = source.width, source.height
    context.pix_fmt = source.pixel_format.label
    context.time_base = source.time_base.fraction
    context.framerate = rate_of(source)
    if source.sample_aspect is not None:
        context.sample_aspect_ratio = Fraction(*source.sample_aspect)
    context.color_primaries, context.color_trc, context.colorspace, context.color_range = format_colors(source)
    context.flags |= Flags.global_header
    context.thread_count = setup.threads
    context.thread_type = "SLICE" if setup.slice_threads else "AUTO"  # PyAV's own default is slices, for x264 too
    context.options = dict(setup.options)
    try:
        with ordinary_threads():
            context.open()
    except (av.FFmpegError, ValueError) as error:
        raise BadParameters(
            f"encode: {encoder.name} cannot be opened for {source.width}x{source.height} "
            f"{source.pixel_format.label} with {setup.options} ({error})",
            mend="check preset, profile and options",
        ) from None
    if context.options:
        unknown = ", ".join(sorted(context.options))
        raise BadParameters(f"encode: {encoder.name} has no option {unknown}", mend="see `ffmpeg -h encoder=NAME`")
    return context


@contextlib.contextmanager
def ordinary_threads() -> Iterator[None]:
    """Whatever class this thread is scheduled in, it and all that is started here stay in it.

    SVT-AV1 makes root's thread that opens it a real-time one of the highest priority, and those it starts with it:
    before everything else on the machine.
    """
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    before = _threads() - {threading.get_native_id()}
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            for thread in _threads() - before:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(thread, policy, parameter)


def _threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def rate_of(source: VideoFormat) -> Fraction:
    """Frames per second of an edge; a usual rate where nobody knows it."""
    if source.frames_per_second is None:
        return USUAL_RATE
    return Fraction(source.frames_per_second).limit_denominator(1001)


def codec_parameters(encoder: VideoEncoder, context: VideoCodecContext, source: VideoFormat) -> CodecParameters:
    """What a muxer has to know of what an open encoder makes."""
    return CodecParameters(
        media="video",
        codec=encoder.codec,
        time_base=source.time_base,
        extradata_hex=(context.extradata or b"").hex(),
        width=source.width,
        height=source.height,
        pixel_format=source.pixel_format.label,
        frames_per_second=source.frames_per_second,
        sample_aspect=source.sample_aspect,
        color_primaries=source.color_primaries,
        color_transfer=source.color_transfer,
        color_matrix=source.color_matrix,
        color_range=source.color_range,
        bit_rate=context.bit_rate,
        profile=context.profile,
    )
