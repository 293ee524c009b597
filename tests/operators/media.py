"""Inputs made by the tests, and files read back: plain PyAV, nothing of the product."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream


def pictures(count: int, size: tuple[int, int] = (320, 180), pixel_format: str = "yuv420p") -> Iterator[VideoFrame]:
    """Moving test pictures."""
    even = [side + side % 2 for side in size]
    graph = f"testsrc2=size={even[0]}x{even[1]}:rate=25,scale={size[0]}:{size[1]},format={pixel_format}"
    with av.open(graph, format="lavfi") as source:
        for number, frame in enumerate(source.decode(video=0)):
            if number == count:
                return
            frame.pict_type = 0  # else an encoder makes a key frame of each
            yield frame


def make(
    path: Path,
    *,
    codec: str = "libx264",
    count: int = 30,
    size: tuple[int, int] = (320, 180),
    pixel_format: str = "yuv420p",
    audio: str | None = None,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    setup: Callable[[Any], None] | None = None,
) -> Path:
    """Write a file: `count` frames at 25 per second, and a tone in `audio`'s codec."""
    with av.open(str(path), "w", container_options=container or {}) as output:
        stream = cast(VideoStream, output.add_stream(codec, rate=25, options=options or {}))
        stream.width, stream.height = size
        stream.pix_fmt = pixel_format
        stream.time_base = Fraction(1, 12800)
        if setup is not None:
            setup(stream.codec_context)
        tone = cast(AudioStream, output.add_stream(audio, rate=48000)) if audio else None
        for number, frame in enumerate(pictures(count, size, pixel_format)):
            frame.pts, frame.time_base = number, Fraction(1, 25)
            output.mux(stream.encode(frame))
            if tone is not None:
                output.mux(tone.encode(_tone(number)))
        output.mux(stream.encode(None))
        if tone is not None:
            output.mux(tone.encode(None))
    return path


def _tone(number: int) -> av.AudioFrame:
    samples = np.sin((np.arange(1920) + number * 1920) * 0.05).astype(np.float32)
    frame = av.AudioFrame.from_ndarray(np.stack([samples, samples]), "fltp", "stereo")
    frame.sample_rate, frame.pts, frame.time_base = 48000, number * 1920, Fraction(1, 48000)
    return frame


@dataclass
class ReadBack:
    """What plain PyAV finds in a file."""

    pts: list[int]
    digests: list[str]
    time_base: Fraction
    duration: float | None  # seconds, of the video stream
    codec: str
    audio: list[tuple[int | None, bytes]]
    audio_time_base: Fraction | None
    stream: dict[str, Any]

    @property
    def seconds(self) -> list[float]:
        return [float(time * self.time_base) for time in self.pts]


def read_back(path: Path | str) -> ReadBack:
    """Decode all of a file."""
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        sound = container.streams.audio[0] if container.streams.audio else None
        pts, digests, audio = [], [], []
        last: dict[str, Any] = {}
        for packet in container.demux():
            if packet.stream is sound:
                if packet.size:
                    audio.append((packet.pts, bytes(packet)))
                continue
            for frame in packet.decode():
                assert isinstance(frame, VideoFrame)
                assert frame.pts is not None
                pts.append(frame.pts)
                digests.append(digest(frame))
                last = {"range": frame.color_range, "matrix": frame.colorspace}
                last |= {"primaries": frame.color_primaries, "transfer": frame.color_trc, "format": frame.format.name}
        said = last | {"aspect": video.sample_aspect_ratio, "width": video.width, "height": video.height}
        said |= {"tag": video.codec_tag, "rate": video.average_rate}
        return ReadBack(
            pts=pts,
            digests=digests,
            time_base=video.time_base or Fraction(1),
            duration=None if video.duration is None else float(video.duration * (video.time_base or 1)),
            codec=video.codec_context.codec.canonical_name,
            audio=audio,
            audio_time_base=sound.time_base if sound else None,
            stream=said,
        )


def planes_of(frame: VideoFrame) -> list[npt.NDArray[np.uint8]]:
    """The bytes of each plane without padding, by a way of their own: row by row."""
    found = []
    for index, plane in enumerate(frame.planes):
        component = next(c for c in frame.format.components if c.plane == index)
        interleaved = sum(c.plane == index for c in frame.format.components)
        row = component.width * interleaved * (2 if component.bits > 8 else 1)
        whole = bytes(plane)
        rows = [whole[top * plane.line_size : top * plane.line_size + row] for top in range(component.height)]
        found.append(np.frombuffer(b"".join(rows), np.uint8))
    return found


def digest(frame: VideoFrame) -> str:
    """Of the picture only."""
    return hashlib.sha256(b"".join(plane.tobytes() for plane in planes_of(frame))).hexdigest()


def digest_of(data: npt.NDArray[np.uint8]) -> str:
    """Of a packed frame."""
    return hashlib.sha256(data.tobytes()).hexdigest()
