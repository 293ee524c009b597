"""The streams of an open input that are read: the picture, and the sound that is passed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from av.container import InputContainer
from av.stream import Discard, Stream
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from dataplane.operators.addresses import Input
from dataplane.operators.reading import InputDescription, audio_parameters, begins_at_zero, counts_33_bits
from observatory.model.media import AudioFormat, CodecParameters


@dataclass(frozen=True, slots=True)
class Tracks:
    """What is needed of an input after it was opened, also when its container is closed already.

    Streams are called by their index in the container, sound by its place on our port too.
    """

    video: int
    decoder: VideoCodecContext
    audio: Mapping[int, CodecParameters]  # `stream_index` is the place on our port
    wrapping: frozenset[int]  # those whose times count 33 bits
    jumps_possible: bool  # libavformat says that times may jump
    guessed: frozenset[int]  # those whose first packet has a time that libavformat made up

    @property
    def wanted(self) -> frozenset[int]:
        """The streams to read."""
        return frozenset((self.video, *self.audio))


TIMES_MAY_JUMP = 0x0200  # libavformat's AVFMT_TS_DISCONT


def tracks_of(
    source: Input, container: InputContainer, description: InputDescription, threads: int, sound: AudioFormat | None
) -> Tracks:
    """Choose the streams of an open input, prepare its decoder, and tell the demuxer to skip the others.

    `sound` is what the job was promised: streams that are something else now are left out; None: no sound at all.

    Of live inputs one frame is decoded at a time, by slice threads: frame threads would hold back each frame until as
    many more have come as there are threads. Who asks for a number of threads gets frame threads all the same.
    """
    video = container.streams[description.video_stream]
    assert isinstance(video, VideoStream)
    decoder = video.codec_context
    decoder.copy_opaque = True
    decoder.thread_type = "SLICE" if description.live and not threads else "AUTO"  # AUTO: frames and slices
    decoder.thread_count = threads
    audio = _audio(container, description, sound)
    tracks = Tracks(
        video=video.index,
        decoder=decoder,
        audio=audio,
        wrapping=frozenset(s.index for s in container.streams if _is_clocked(s) and counts_33_bits(s)),
        guessed=frozenset(s.index for s in container.streams if begins_at_zero(source, s)),
        jumps_possible=description.live or bool(container.format.flags & TIMES_MAY_JUMP),
    )
    for stream in container.streams:
        if stream.index not in tracks.wanted:
            stream.discard = Discard.all
    return tracks


def _audio(
    container: InputContainer, description: InputDescription, sound: AudioFormat | None
) -> dict[int, CodecParameters]:
    found = {}
    for place, (index, promised) in enumerate(
        zip(description.audio_streams, sound.streams if sound is not None else (), strict=False)
    ):
        stream = next(stream for stream in container.streams.audio if stream.index == index)
        said = audio_parameters(stream, place)
        if (said.codec, said.sample_rate, said.channels) == (promised.codec, promised.sample_rate, promised.channels):
            found[index] = said
    return found


def _is_clocked(stream: Stream) -> bool:
    return stream.type in ("video", "audio")
