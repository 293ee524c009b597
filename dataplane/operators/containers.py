"""Output containers: which one a path means, what it can carry, and streams in it made from codec parameters.

PyAV has no call to add a stream from bare codec parameters that also takes extradata, colours or channels. But a stream
made from a template is never opened as an encoder, and keeps what is set on its codec context until the header is
written: so a throw-away container with a stream of the right codec serves as the template.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av.audio.codeccontext import AudioCodecContext
from av.container import OutputContainer
from av.stream import Stream
from av.video.codeccontext import VideoCodecContext

from dataplane.errors import BadParameters
from observatory.model.media import CodecParameters

_BY_SUFFIX = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
    ".webm": "webm",
    ".ts": "mpegts",
    ".m2ts": "mpegts",
    ".mts": "mpegts",
}
FORMATS = ("mp4", "mov", "matroska", "webm", "mpegts")
MOV_FAMILY = frozenset({"mp4", "mov"})

# libavformat does not say what MPEG-TS cannot carry: it writes it as private data that nobody reads.
_MPEGTS_VIDEO = frozenset({"h264", "hevc", "mpeg2video", "mpeg1video"})
_MPEGTS_AUDIO = frozenset({"aac", "mp2", "mp3", "ac3", "eac3", "opus", "dts", "truehd"})

# The muxer of mov refuses them only when it writes the header.
_ONLY_IN_MP4 = frozenset({"vp9", "av1", "flac", "opus"})

# Tags that players insist on where libavformat's own choice is another one.
_TAGS = {("mp4", "hevc"): "hvc1", ("mov", "hevc"): "hvc1"}


def container_format(path: str, wanted: str | None) -> str:
    """Libavformat's name of the container that `path` means. Raises BadParameters."""
    if wanted is not None:
        return wanted
    suffix = Path(path).suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise BadParameters(
            f"mux: no container is known for {Path(path).name!r}",
            mend=f"end the path in {', '.join(_BY_SUFFIX)}, or set format to one of {', '.join(FORMATS)}",
        )
    return _BY_SUFFIX[suffix]


def can_carry(container: str, codec: str) -> bool:
    """Whether a container takes a codec (by its canonical name, as `h264`)."""
    if container == "mpegts":
        return codec in _MPEGTS_VIDEO | _MPEGTS_AUDIO
    if container == "mov" and codec in _ONLY_IN_MP4:
        return False
    with av.open(io.BytesIO(), "w", format=container) as output:
        return codec in _canonical(output.supported_codecs)


def _canonical(names: Iterable[str]) -> set[str]:
    """Names of codecs for names of encoders and decoders."""
    found = set(names)
    for name in names:
        for mode in ("w", "r"):
            try:
                found.add(av.Codec(name, mode).canonical_name)
            except ValueError:
                continue
    return found


def can_describe(codec: str) -> bool:
    """Whether this build of libavcodec has what `add_coded_stream` needs to describe a codec: an encoder."""
    try:
        _template(codec, None)
    except (av.FFmpegError, ValueError):
        return False
    return True


def _template(codec: str, rate: Fraction | None) -> Stream:
    """A stream of a throw-away container; nut takes nearly everything."""
    pattern = av.open(io.BytesIO(), "w", format="mov" if codec == "alac" else "nut")
    return pattern.add_stream(codec) if rate is None else pattern.add_stream(codec, rate=rate)


def add_coded_stream(output: OutputContainer, said: CodecParameters) -> Stream:
    """Add a stream for packets that are coded already.

    Raises:
        BadParameters: the container does not take the codec, or libavcodec has no encoder to describe it with.
    """
    rate = None if said.frames_per_second is None else Fraction(said.frames_per_second).limit_denominator(1001)
    try:
        stream = output.add_stream_from_template(_template(said.codec, rate if said.media == "video" else None))
    except (av.FFmpegError, ValueError) as error:
        mend = "set audio: none, or choose another container" if said.media == "audio" else "choose another container"
        raise BadParameters(f"mux: {output.format.name} cannot take {said.codec} ({error})", mend=mend) from None
    stream.time_base = said.time_base.fraction
    context = stream.codec_context
    if said.extradata_hex:
        context.extradata = bytes.fromhex(said.extradata_hex)
    tag = _TAGS.get((output.format.name, said.codec))
    if tag is not None:
        context.codec_tag = tag
    if said.bit_rate:
        context.bit_rate = said.bit_rate
    if said.profile:
        context.profile = said.profile
    if said.media == "video":
        _describe_video(cast(VideoCodecContext, context), said)
    else:
        _describe_audio(cast(AudioCodecContext, context), said)
    if said.language:
        stream.metadata["language"] = said.language
    return stream


def loses_aspect(container: str, said: CodecParameters) -> bool:
    """Whether the sample aspect ratio gets lost.

    VP9 and AV1 have none of their own, and Matroska is written with the stream's, which PyAV cannot set.
    """
    return (
        container in ("matroska", "webm")
        and said.codec in ("vp9", "av1")
        and said.sample_aspect is not None
        and said.sample_aspect[0] != said.sample_aspect[1]
    )


def _describe_video(context: VideoCodecContext, said: CodecParameters) -> None:
    context.width, context.height = said.width or 0, said.height or 0
    if said.pixel_format is not None:
        context.pix_fmt = said.pixel_format
    if said.sample_aspect is not None:
        context.sample_aspect_ratio = Fraction(*said.sample_aspect)
    context.color_primaries = 2 if said.color_primaries is None else said.color_primaries
    context.color_trc = 2 if said.color_transfer is None else said.color_transfer
    context.colorspace = 2 if said.color_matrix is None else said.color_matrix
    context.color_range = said.color_range or 0


def _describe_audio(context: AudioCodecContext, said: CodecParameters) -> None:
    context.sample_rate = said.sample_rate or 0
    if said.channel_layout is not None:
        context.layout = said.channel_layout
    if said.sample_format is not None:
        context.format = said.sample_format
