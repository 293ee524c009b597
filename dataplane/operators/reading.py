"""Opening a media input and saying what is in it. Nothing here decodes more than one frame."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import SupportsFloat, cast

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Disposition, Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from dataplane.errors import BadMedia, WrongAddress
from dataplane.operators.addresses import DATAGRAMS, Input, Kind, opening
from dataplane.operators.formats import even, is_full_range, is_rgb, nearest_format, same_planes
from dataplane.operators.timeline import TS_BASE, TS_WRAP
from observatory.model.media import AudioFormat, AudioStreamFormat, CodecParameters, TimeBase, VideoFormat

OPEN_SECONDS, READ_SECONDS = 15.0, 60.0  # patience with network inputs
_OF_ONE_PROCESS = ("/dev/stdin", "/dev/fd/", "/proc/self/")
_USUAL_LAYOUTS = {"1 channels": "mono", "2 channels": "stereo", "6 channels": "5.1", "8 channels": "7.1"}
BT709, LIMITED_RANGE, FULL_RANGE = 1, 1, 2
SENDER_MEND = "start the sender, and see that it sends here: MPEG-TS to udp://, RTP to rtp:// or as an .sdp says"
MEND = "give a file that a media player opens; `ffprobe FILE` or `mediainfo FILE` say what is wrong with this one"


@dataclass(frozen=True, slots=True)
class InputDescription:
    """What an input holds, and what becomes of it on our edges."""

    video: VideoFormat
    video_stream: int  # index in the container
    libav_format: str
    size: tuple[int, int]  # as decoded; odd sizes are cut
    codec: str
    audio: AudioFormat | None
    audio_streams: tuple[int, ...]
    start_seconds: float
    duration_seconds: float | None
    frames: int | None
    live: bool  # it has no end of its own, and may stay away for a while
    warnings: tuple[str, ...]

    @property
    def from_rgb(self) -> bool:
        """Whether frames are converted from red, green and blue."""
        return is_rgb(self.libav_format)


def open_input(
    source: Input, open_seconds: SupportsFloat = OPEN_SECONDS, read_seconds: float = READ_SECONDS
) -> InputContainer:
    """Open an input for demuxing; `open_seconds` is taken for the header, and anew for the look into the streams.

    Raises:
        BadMedia: it is missing, unreadable, a folder, empty, or nothing that libavformat knows.
    """
    if source.generated:
        try:
            return av.open(source.location, "r", format="lavfi")
        except (av.FFmpegError, ValueError) as error:
            raise BadMedia(f"cannot generate {source.location}: {reason_of(error)}") from None
    check_file(source.readable)
    how = opening(source)
    timeout = (cast(float, open_seconds), read_seconds)  # it is only ever converted to one
    try:
        return av.open(how.url, "r", how.format, how.options, timeout=timeout, metadata_errors="replace")
    except (av.FFmpegError, ValueError) as error:
        raise _cannot_open(source, error) from None


def _cannot_open(source: Input, error: Exception) -> BadMedia:
    """What is wrong, in words that help with this kind of source."""
    code = getattr(error, "errno", None)
    title = source.title
    if code == errno.EADDRINUSE:
        words, mend = "another program listens on this port", "end it, or take another port; `ss -ulpn` names it"
        return WrongAddress(words, file=title, mend=mend)
    if code == errno.EADDRNOTAVAIL:
        words, mend = "this is no address of this machine", "listen on one that `ip addr` shows, or on 0.0.0.0"
        return WrongAddress(words, file=title, mend=mend)
    if isinstance(error, av.error.ProtocolNotFoundError):
        words, mend = "this kind of address is not known", "take udp, rtp, srt, http, https, a file, or an .sdp file"
        return WrongAddress(words, file=title, mend=mend)
    if isinstance(error, av.error.ExitError) and source.kind in DATAGRAMS:
        return BadMedia("nothing came that can be read", file=title, mend=SENDER_MEND)
    return BadMedia(f"cannot be opened as media ({reason_of(error)})", file=title, mend=MEND)


def describe(source: Input, container: InputContainer) -> InputDescription:
    """What is in an open input.

    Raises:
        BadMedia: no video in it, or none that can be decoded.
    """
    stream = _video_stream(source, container)
    context = stream.codec_context
    warnings: list[str] = []
    libav_format, size = context.pix_fmt, (context.width, context.height)
    live = _is_live(source, container)
    if libav_format is None or not all(size):
        if live:
            raise BadMedia("no picture of it can be decoded yet", file=source.title, mend=SENDER_MEND)
        first = _first_frame(source, stream.index)
        libav_format, size = first.format.name, (first.width, first.height)
    audio, audio_streams = _audio(container, warnings)
    return InputDescription(
        video=_video_format(source, stream, libav_format, size, warnings),
        video_stream=stream.index,
        libav_format=libav_format,
        size=size,
        codec=context.codec.canonical_name,
        audio=audio,
        audio_streams=audio_streams,
        start_seconds=0.0 if begins_at_zero(source, stream) else _start(stream, container),
        duration_seconds=_duration(stream, container),
        frames=stream.frames or None,
        live=live,
        warnings=tuple(warnings),
    )


def _is_live(source: Input, container: InputContainer) -> bool:
    """A playlist has a duration once it is complete."""
    return source.kind in DATAGRAMS or (source.kind is Kind.HLS and container.duration is None)


def counts_33_bits(stream: Stream) -> bool:
    """Whether the times of a stream are those of MPEG-TS or MPEG-PS, also within HLS and RTP."""
    if stream.time_base != TS_BASE:
        return False
    tag = stream.codec_tag  # of MPEG-TS a stream type, elsewhere four letters
    return stream.container.format.name == "mpeg" or (ord(tag[0]) > 0 and tag[1:] == "\0\0\0")


def begins_at_zero(source: Input, stream: Stream) -> bool:
    """Whether libavformat counts the times of this stream from each connection on, as it does for plain RTP.

    The first packet has no time then, and what libavformat puts in its place is a guess.
    """
    return source.kind in (Kind.RTP, Kind.SDP) and not counts_33_bits(stream)


def _start(stream: VideoStream, container: InputContainer) -> float:
    start = (container.start_time or 0) / av.time_base
    return start % float(TS_WRAP * TS_BASE) if counts_33_bits(stream) else start


def _duration(stream: VideoStream, container: InputContainer) -> float | None:
    """Of the video where it has one of its own: the sound may be longer."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / av.time_base


def audio_parameters(stream: AudioStream, stream_index: int) -> CodecParameters:
    """What a muxer needs to know about a coded audio stream; `stream_index` is its place on our port."""
    context = stream.codec_context
    return CodecParameters(
        stream_index=stream_index,
        media="audio",
        codec=context.codec.canonical_name,
        time_base=_time_base(stream.time_base),
        extradata_hex=(context.extradata or b"").hex(),
        sample_rate=context.sample_rate,
        channels=context.layout.nb_channels,
        channel_layout=_USUAL_LAYOUTS.get(context.layout.name, context.layout.name),
        sample_format=_sample_format(stream),
        frame_size=context.frame_size or None,
        bit_rate=context.bit_rate,
        language=stream.language,
    )


def _sample_format(stream: AudioStream) -> str | None:
    try:
        return stream.codec_context.format.name
    except (AttributeError, TypeError):  # a codec that only knows once it has decoded
        return None


def check_file(location: str) -> None:
    """Raises BadMedia, with better words than libavformat has."""
    if "://" in location:
        return
    path = Path(location)
    try:
        location.encode()
    except UnicodeEncodeError:
        raise BadMedia("the name of this file is not UTF-8", file=location, mend="rename it") from None
    if location.startswith(_OF_ONE_PROCESS):
        words = "this names an open file of one process; another one decodes it"
        raise BadMedia(words, file=location, mend="give the path of a file, or a URL")
    try:
        found = path.stat()
        size = found.st_size
    except OSError as error:
        words = "there is no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))
        raise BadMedia(words, file=location, mend="check the path given with --input or `path`") from None
    if path.is_dir():
        raise BadMedia("this is a folder", file=location, mend="give a media file in it")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        words = "this is a pipe or a device: what is read from it once cannot be read again"
        raise BadMedia(words, file=location, mend="write it into a file first, or give a URL")
    if not os.access(path, os.R_OK):
        raise BadMedia("this file may not be read", file=location, mend="change its permissions, or run as its owner")
    if stat.S_ISREG(found.st_mode) and size == 0:
        raise BadMedia("this file is empty", file=location, mend=MEND)


def reason_of(error: Exception) -> str:
    """What libav says is wrong."""
    return getattr(error, "strerror", None) or str(error)


def _video_stream(source: Input, container: InputContainer) -> VideoStream:
    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    if not streams:
        found = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
        raise BadMedia(f"no video in it, only {found}", file=source.title, mend="give a file with a video stream")
    usable = [s for s in streams if _has_decoder(s)]
    if not usable:
        words = "no decoder for its video codec in this build of libavcodec"
        raise BadMedia(words, file=source.title, mend="convert it to H.264, HEVC, VP9 or AV1 first")
    return usable[0]


def _first_frame(source: Input, stream_index: int) -> VideoFrame:
    """Decode one frame, for inputs that do not say their format before."""
    with open_input(source) as container:
        stream = container.streams[stream_index]
        try:
            for frame in container.decode(stream):
                if isinstance(frame, VideoFrame) and frame.width and frame.height:
                    return frame
        except av.FFmpegError:
            pass
    raise BadMedia("no frame of it can be decoded", file=source.title, mend=MEND)


def _video_format(
    source: Input, stream: VideoStream, libav_format: str, size: tuple[int, int], warnings: list[str]
) -> VideoFormat:
    context = stream.codec_context
    width, height = even(size)
    if not (0 < width <= 16384 and 0 < height <= 16384):
        raise BadMedia(f"pictures of {size[0]}x{size[1]} are not possible here", file=source.title)
    if (width, height) != tuple(size):
        warnings.append(f"{size[0]}x{size[1]} is cut to even sizes: {width}x{height}")
    pixel_format = nearest_format(libav_format)
    if same_planes(libav_format) is None:
        warnings.append(f"pixel format {libav_format} is converted to {pixel_format.label}")
    rate = stream.average_rate or stream.guessed_rate
    primaries, transfer = _said(context.color_primaries), _said(context.color_trc)
    matrix, color_range = _said(context.colorspace), context.color_range or None
    if is_rgb(libav_format):
        matrix, color_range = BT709, LIMITED_RANGE
    elif is_full_range(libav_format):
        color_range = FULL_RANGE
    return VideoFormat(
        width=width,
        height=height,
        pixel_format=pixel_format,
        time_base=_time_base(stream.time_base),
        frames_per_second=float(rate) if rate else None,
        sample_aspect=_aspect(stream.sample_aspect_ratio),
        color_primaries=primaries,
        color_transfer=transfer,
        color_matrix=matrix,
        color_range=color_range,
    )


def _audio(container: InputContainer, warnings: list[str]) -> tuple[AudioFormat | None, tuple[int, ...]]:
    formats, indices = [], []
    for stream in container.streams.audio:
        context = stream.codec_context
        if not _has_decoder(stream) or not context.sample_rate or not context.layout.nb_channels:
            warnings.append(f"audio stream {stream.index} is left out: its codec is not known")
            continue
        formats.append(
            AudioStreamFormat(
                codec=context.codec.canonical_name,
                time_base=_time_base(stream.time_base),
                sample_rate=context.sample_rate,
                channels=context.layout.nb_channels,
                language=stream.language,
            )
        )
        indices.append(stream.index)
    return (AudioFormat(streams=tuple(formats)), tuple(indices)) if formats else (None, ())


def _has_decoder(stream: Stream) -> bool:
    return getattr(stream, "codec_context", None) is not None


def _said(code_point: int) -> int | None:
    return None if code_point == 2 else code_point


def _aspect(ratio: Fraction | None) -> tuple[int, int] | None:
    return (ratio.numerator, ratio.denominator) if ratio else None


def _time_base(value: Fraction | None) -> TimeBase:
    return TimeBase(num=value.numerator, den=value.denominator) if value else TimeBase(num=1, den=90000)
