"""What tests of packaged presentations share: a source, and packets with times of the test's choosing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from dataplane._ring import Descriptor
from dataplane.operators.encode import Encode
from dataplane.operators.package import Package
from observatory.model.media import CodecParameters, PayloadKind, TimeBase
from tests.operators.harness import Bench, Payload
from tests.operators.media import pictures
from tests.operators.presenting import LEAD
from tests.operators.test_per_frame import raw, video_format

COUNT = 65  # 2.6 s at 25 frames a second


def seconds(first: int, end: int) -> list[Fraction]:
    """Times of frames at 25 a second, as segments say them."""
    return [LEAD + Fraction(number, 25) for number in range(first, end)]


class Stream:
    """Packets of one encoder, made once and fed with times of the test's choosing."""

    def __init__(self, count: int = 25) -> None:
        self.form = video_format((64, 48))
        encode = Bench(
            Encode, {"preset": "ultrafast", "threads": 1, "keyframe_seconds": 1, "gop": count}, {"s->e": self.form}
        )
        frames = raw(list(pictures(count, (64, 48))), self.form)
        made = [p for frame in frames for p in encode.feed(frame).get("video", [])]
        self.edge = encode.format()
        self.said, *self.packets = made + encode.finish().get("video", [])
        assert [p.descriptor.flags & 1 for p in self.packets] == [1] + [0] * (count - 1)

    def second(self, number: int, epoch: int = 0) -> Iterator[Payload]:
        """The packets, as those of one second of the stream."""
        for n, packet in enumerate(self.packets):
            time = number * 90000 + n * 3600
            yield replace(packet, descriptor=at(packet.descriptor, time, epoch))


def at(said: Descriptor, time: int, epoch: int = 0) -> Descriptor:
    return Descriptor(
        payload_kind=said.payload_kind,
        source_index=time // 3600,
        pts=time,
        dts=time,
        duration=3600,
        time_base=(1, 90000),
        flags=said.flags,
        epoch=epoch,
    )


def packaging(folder: Path, stream: Stream, **params: Any) -> Bench:
    bench = Bench(Package, {"folder": str(folder), "segment_seconds": 1, **params}, {"e->p": stream.edge})
    bench.feed(stream.said)
    return bench


def feed(bench: Bench, payloads: Iterator[Payload]) -> None:
    for payload in payloads:
        bench.feed(payload)


class Tone:
    """Sound to go with a Stream: 48 packets of 1024 samples to the second (of 49152 samples, so that it comes out)."""

    def __init__(self, source: Path) -> None:
        with av.open(str(source)) as container:
            track = container.streams.audio[0]
            extradata = (track.codec_context.extradata or b"").hex()
            self.data = [np.frombuffer(bytes(packet), np.uint8) for packet in container.demux(track) if packet.size]
        said = CodecParameters(
            media="audio",
            codec="aac",
            time_base=TimeBase(num=1, den=49152),
            extradata_hex=extradata,
            sample_rate=48000,
            channels=2,
            channel_layout="stereo",
            sample_format="fltp",
        )
        words = np.frombuffer(said.model_dump_json().encode(), np.uint8)
        self.said = Payload(Descriptor(payload_kind=PayloadKind.CODEC_PARAMETERS), words)

    def second(self, number: int) -> Iterator[Payload]:
        for n in range(48):
            time = (number * 48 + n) * 1024
            said = Descriptor(
                payload_kind=PayloadKind.AUDIO_PACKET, pts=time, dts=time, duration=1024, time_base=(1, 49152)
            )
            yield Payload(said, self.data[n])
