"""What frames and streams of an input say of themselves, and what stands in for what they do not say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from av.video.frame import VideoFrame

from dataplane.operators.base import OutputPort
from dataplane.operators.decoding import VIDEO
from dataplane.operators.frames import UNSPECIFIED
from dataplane.operators.reading import InputDescription
from observatory.model.media import AudioFormat, VideoFormat

Color = tuple[int, int, int, int]


def color_of(frame: VideoFrame, usual: Color, found: InputDescription) -> Color:
    """What the frame says of its colours; what it does not say is as the stream says (`usual`)."""
    if found.from_rgb:
        return usual
    primaries, transfer, matrix, full = usual
    return (
        primaries if frame.color_primaries == UNSPECIFIED else frame.color_primaries,
        transfer if frame.color_trc == UNSPECIFIED else frame.color_trc,
        matrix if frame.colorspace == UNSPECIFIED else frame.colorspace,
        frame.color_range or full,
    )


def usual_duration(video: VideoFormat) -> int:
    """Ticks from frame to frame, where the input does not say."""
    rate = video.frames_per_second
    return max(1, round(1 / (rate * video.time_base.fraction))) if rate else 1


def warn_of_what_is_ignored(frame: VideoFrame, warn: Callable[[str], None]) -> None:
    """Say what people might expect of the input, and will not get."""
    if frame.rotation:
        warn(f"the input asks players to turn it by {frame.rotation} degrees; frames are left as they are")
    if frame.interlaced_frame:
        warn("the input is interlaced; its frames are handled as progressive ones")


def time_bases(outputs: Iterable[OutputPort]) -> dict[object, Fraction]:
    """What the job was promised: a source that comes back may count in other ticks."""
    bases: dict[object, Fraction] = {}
    for port in outputs:
        if isinstance(port.format, VideoFormat):
            bases[VIDEO] = port.format.time_base.fraction
        elif isinstance(port.format, AudioFormat):
            bases |= {place: stream.time_base.fraction for place, stream in enumerate(port.format.streams)}
    return bases
