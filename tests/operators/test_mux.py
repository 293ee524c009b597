"""mux: files that plain PyAV reads back with the same packets, times and durations."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from dataplane._ring import Descriptor
from dataplane.errors import BadParameters, OutputFailed
from dataplane.operators.base import SourceRequest
from dataplane.operators.decode import Decode
from dataplane.operators.encode import Encode
from dataplane.operators.mux import Mux
from observatory.model.media import (
    AudioFormat,
    AudioStreamFormat,
    PacketFormat,
    PayloadKind,
    PixelFormat,
    PortFormat,
    TimeBase,
    VideoFormat,
)
from tests.operators.harness import Bench, Payload, clip
from tests.operators.media import make, pictures, read_back
from tests.operators.test_per_frame import raw, video_format


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


FAST: dict[str, dict[str, Any]] = {
    "libx264": {"preset": "ultrafast", "threads": 1, "options": {"bf": 2}},
    "libx265": {"preset": "ultrafast", "threads": 1},
    "libsvtav1": {"preset": "12", "threads": 1},
    "libvpx-vp9": {"preset": "8", "threads": 1},
}


def pipeline(
    source: Path, target: Path, codecs: tuple[str, ...] = ("libx264",), audio: bool = True, **mux: Any
) -> tuple[Bench, Bench]:
    """Decode -> encode (one for each codec) -> mux, in this process; the decoder's and the muxer's bench."""
    decode = Bench(Decode, {"path": str(source)}, ports=("video", "audio") if audio else ("video",), name="decode")
    assert decode.probe is not None
    encoders = [Bench(Encode, {"codec": c, **FAST[c]}, {"decode->e": decode.format()}, name=c) for c in codecs]
    inputs = {f"e{number}->mux": encoder.format() for number, encoder in enumerate(encoders)}
    if "audio" in decode.outputs:
        inputs["decode->mux:audio"] = decode.format("audio")
    mux_bench = Bench(Mux, {"path": str(target), **mux}, inputs, start_seconds=decode.probe.start_seconds, name="mux")
    for step in decode.steps():
        for payload in step.get("audio", []):
            mux_bench.feed(payload, "decode->mux:audio")
        for payload in step.get("video", []):
            for number, encoder in enumerate(encoders):
                for packet in encoder.feed(payload).get("video", []):
                    mux_bench.feed(packet, f"e{number}->mux")
    for number, encoder in enumerate(encoders):
        for packet in encoder.finish().get("video", []):
            mux_bench.feed(packet, f"e{number}->mux")
    mux_bench.finish()
    return decode, mux_bench


@pytest.mark.parametrize("name", ["bikes.mp4", "bigbuckbunny.mp4"])
def test_real_clips_keep_every_time_and_the_audio(tmp_path: Path, name: str) -> None:
    source, target = clip(name), tmp_path / "x.mp4"

    _, mux = pipeline(source, target)

    before, after = read_back(source), read_back(target)
    assert [time * after.time_base for time in after.pts] == [time * before.time_base for time in before.pts]
    assert after.duration == before.duration
    assert after.audio == before.audio
    assert after.audio_time_base == before.audio_time_base
    assert mux.files == [(str(target), len(before.pts))]
    assert mux.counted == len(before.pts)
    assert names_in(tmp_path) == ["x.mp4"]
    assert not mux.warnings


@pytest.mark.parametrize(
    ("suffix", "codec", "audio"),
    [
        ("mp4", "libx264", "aac"),
        ("mp4", "libx265", "aac"),
        ("mp4", "libsvtav1", "libopus"),
        ("mp4", "libvpx-vp9", "ac3"),
        ("mov", "libx264", "aac"),
        ("mov", "libx264", "alac"),
        ("mkv", "libx264", "libmp3lame"),
        ("mkv", "libx265", "flac"),
        ("mkv", "libsvtav1", "eac3"),
        ("webm", "libsvtav1", "libopus"),
        ("webm", "libvpx-vp9", "libopus"),
        ("ts", "libx264", "aac"),
        ("ts", "libx265", "mp2"),
    ],
)
def test_every_container_takes_what_it_says(tmp_path: Path, suffix: str, codec: str, audio: str) -> None:
    source = make(tmp_path / ("source.mov" if audio == "alac" else "source.mkv"), count=25, size=(160, 96), audio=audio)
    target = tmp_path / f"x.{suffix}"

    decode, mux = pipeline(source, target, (codec,))

    before, after = read_back(source), read_back(target)
    names = {"libx264": "h264", "libx265": "hevc", "libsvtav1": "av1", "libvpx-vp9": "vp9"}
    assert after.codec == names[codec]
    assert len(after.pts) == 25
    steps = [b - a for a, b in zip(after.seconds, after.seconds[1:], strict=False)]
    assert steps == pytest.approx([0.04] * 24, abs=0.0011)
    adts = 7 if (suffix, audio) == ("ts", "aac") else 0  # MPEG-TS wants a header on every packet
    assert [data[adts:] for _, data in after.audio] == [data for _, data in before.audio]
    assert not decode.lost_frames
    assert not mux.warnings
    # Picture and sound are as far from each other as before.
    assert before.audio_time_base is not None
    assert after.audio_time_base is not None
    assert before.audio[1][0] is not None
    assert after.audio[1][0] is not None
    apart = [float(r.audio[1][0] * r.audio_time_base) - r.seconds[0] for r in (before, after)]  # type: ignore[operator]
    assert apart[1] == pytest.approx(apart[0], abs=0.003)
    if suffix in ("mp4", "mov"):
        assert after.duration == pytest.approx(1.0, abs=0.0001)


def test_pcm_whose_channels_have_no_names(tmp_path: Path) -> None:
    source = make(tmp_path / "source.avi", count=5, size=(160, 96), audio="pcm_s16le")
    with av.open(str(source)) as container:
        assert container.streams.audio[0].layout.name == "2 channels"
    pipeline(source, tmp_path / "x.mp4")
    sound = [b"".join(data for _, data in read_back(path).audio) for path in (source, tmp_path / "x.mp4")]
    assert sound[0]
    assert sound[0] == sound[1]


def at_zero(said: Descriptor) -> Descriptor:
    return Descriptor(payload_kind=said.payload_kind, pts=0, dts=0, duration=said.duration, time_base=said.time_base)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_sound_that_goes_back_is_moved_and_said(tmp_path: Path, suffix: str) -> None:
    source = make(tmp_path / "source.mp4", count=5, size=(64, 48), audio="aac")
    decode = Bench(Decode, {"path": str(source)}, ports=("video", "audio"))
    encode = Bench(Encode, FAST["libx264"], {"a->b": decode.format()})
    inputs = {"e->mux": encode.format(), "decode->mux:audio": decode.format("audio")}
    mux = Bench(Mux, {"path": str(tmp_path / f"x.{suffix}")}, inputs)
    packets = 0
    for step in decode.steps():
        for payload in step.get("audio", []):
            if payload.kind == PayloadKind.AUDIO_PACKET and (packets := packets + 1) == 4:
                payload = replace(payload, descriptor=at_zero(payload.descriptor))
            mux.feed(payload, "decode->mux:audio")
        for payload in step.get("video", []):
            for packet in encode.feed(payload).get("video", []):
                mux.feed(packet, "e->mux")
    for packet in encode.finish()["video"]:
        mux.feed(packet, "e->mux")
    mux.finish()

    assert len(read_back(tmp_path / f"x.{suffix}").audio) == packets
    assert len(mux.warnings) == 1
    assert "do not rise" in mux.warnings[0]


def test_a_late_start_is_taken_off_but_not_from_transport_streams(tmp_path: Path) -> None:
    source = make(tmp_path / "source.ts", count=12, audio="aac")
    with av.open(str(source)) as container:
        assert container.start_time is not None
        start = container.start_time / 1e6
    assert start > 0
    before = read_back(source)

    for suffix in ("mp4", "mkv", "ts"):
        pipeline(source, tmp_path / f"x.{suffix}")
        after = read_back(tmp_path / f"x.{suffix}")
        expected = 0 if suffix == "ts" else start
        assert after.seconds[0] == pytest.approx(before.seconds[0] - expected, abs=0.09 if suffix == "mkv" else 0.001)
        assert [s - after.seconds[0] for s in after.seconds] == pytest.approx(
            [s - before.seconds[0] for s in before.seconds], abs=0.0011
        )


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [("mp4", "libx264"), ("mkv", "libx264"), ("mp4", "libx265"), ("mp4", "libsvtav1"), ("webm", "libvpx-vp9")],
)
def test_colours_and_sample_aspect_reach_the_file(tmp_path: Path, suffix: str, codec: str) -> None:
    def colour(context: av.VideoCodecContext) -> None:
        context.color_primaries, context.color_trc, context.colorspace, context.color_range = 9, 16, 9, 2
        context.sample_aspect_ratio = Fraction(4, 3)

    source = make(tmp_path / "source.mp4", count=5, setup=colour, size=(160, 96))

    _, mux = pipeline(source, tmp_path / f"x.{suffix}", (codec,))

    said = read_back(tmp_path / f"x.{suffix}").stream
    assert (said["primaries"], said["transfer"], said["matrix"], said["range"]) == (9, 16, 9, 2)
    if suffix == "webm":
        assert "aspect ratio is lost" in mux.warnings[0]
    else:
        assert said["aspect"] == Fraction(4, 3)
        assert not mux.warnings


def test_hevc_in_mp4_has_the_tag_that_players_want(tmp_path: Path) -> None:
    source = make(tmp_path / "source.mkv", count=5, size=(160, 96))

    pipeline(source, tmp_path / "x.mp4", ("libx265",))

    assert read_back(tmp_path / "x.mp4").stream["tag"] == "hvc1"


def test_several_encoders_in_one_file(tmp_path: Path) -> None:
    source = make(tmp_path / "source.mkv", count=10, size=(160, 96), audio="aac")

    _, mux = pipeline(source, tmp_path / "x.mkv", ("libx264", "libvpx-vp9"))

    with av.open(str(tmp_path / "x.mkv")) as container:
        assert [stream.codec_context.codec.canonical_name for stream in container.streams] == ["h264", "vp9", "aac"]
        counts = [0, 0, 0]
        for packet in container.demux():
            counts[packet.stream_index] += bool(packet.size)
        assert counts[:2] == [10, 10]
    assert mux.files == [(str(tmp_path / "x.mkv"), 20)]


def test_without_audio_there_is_none(tmp_path: Path) -> None:
    pipeline(make(tmp_path / "source.mkv", count=5, audio="aac"), tmp_path / "x.mp4", audio=False)

    assert not read_back(tmp_path / "x.mp4").audio


def test_fragments_stay_playable_when_cut(tmp_path: Path) -> None:
    source, target = clip("bikes.mp4"), tmp_path / "x.mp4"

    pipeline(source, target, fragmented=True)

    data = target.read_bytes()
    assert data.count(b"moof") > 1 or data.count(b"moof") == 1
    assert data.index(b"moov") < data.index(b"mdat")
    assert len(read_back(target).pts) == 250


def test_fragments_take_the_sound_of_a_transport_stream(tmp_path: Path) -> None:
    """Its AAC has a header on each packet there, which MP4 must not have."""
    source = make(tmp_path / "source.ts", count=30, size=(160, 96), audio="aac")

    pipeline(source, tmp_path / "x.mp4", fragmented=True)

    before, after = read_back(source), read_back(tmp_path / "x.mp4")
    assert len(after.pts) == 30
    assert [data for _, data in after.audio] == [data[7:] for _, data in before.audio]


def test_faststart_puts_the_index_first(tmp_path: Path) -> None:
    pipeline(make(tmp_path / "source.mkv", count=5), tmp_path / "x.mp4", faststart=True)

    data = (tmp_path / "x.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    assert names_in(tmp_path).count("x.mp4") == 1
    assert len(read_back(tmp_path / "x.mp4").pts) == 5


# -- failures ----------------------------------------------------------------------------------------------------------


def packets_of(form: VideoFormat, codec: str = "h264") -> PacketFormat:
    return PacketFormat(codec=codec, video=form, bytes_per_packet=1000, largest_packet_bytes=200_000)


def test_an_abort_leaves_nothing(tmp_path: Path) -> None:
    encode = Bench(Encode, {"preset": "ultrafast"}, {"a->b": video_format((64, 48))})
    target = tmp_path / "x.mp4"
    target.write_bytes(b"what was here before")
    mux = Bench(Mux, {"path": str(target)}, {"a->b": encode.format()})
    for packet in encode.finish()["video"]:
        mux.feed(packet, "a->b")
    made = {str(path) for path in tmp_path.iterdir() if path != target}
    assert len(made) == 3  # the file and its journal
    assert made <= set(mux.scratches)

    mux.operator.abort()
    mux.operator.close()
    mux.close()

    assert names_in(tmp_path) == ["x.mp4"]
    assert target.read_bytes() == b"what was here before"


def test_no_frames_make_no_file(tmp_path: Path) -> None:
    encode = Bench(Encode, {"preset": "ultrafast"}, {"a->b": video_format((64, 48))})
    mux = Bench(Mux, {"path": str(tmp_path / "x.mp4")}, {"a->b": encode.format()})
    for packet in encode.finish()["video"]:
        mux.feed(packet, "a->b")

    with pytest.raises(OutputFailed, match="no frame"):
        mux.finish()
    mux.operator.abort()
    mux.operator.close()
    mux.close()

    assert names_in(tmp_path) == []


@contextmanager
def little_room(limit: int) -> Iterator[None]:
    """Files cannot grow beyond `limit` bytes: what a full disk is to a writer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def write_all(mux: Bench, packets: list[Payload]) -> None:
    for packet in packets:
        mux.feed(packet, "a->b")
    mux.finish()


@pytest.mark.parametrize("limit", [0, 30_000])
def test_a_full_disk_is_named(tmp_path: Path, limit: int) -> None:
    form = video_format((320, 180))
    encode = Bench(Encode, FAST["libx264"], {"a->b": form})
    mux = Bench(Mux, {"path": str(tmp_path / "x.mp4")}, {"a->b": encode.format()})
    packets = [p for f in raw(list(pictures(60, (320, 180))), form) for p in encode.feed(f).get("video", [])]
    packets += encode.finish().get("video", [])
    assert sum(packet.data.size for packet in packets) > 60_000

    with little_room(limit), pytest.raises(OutputFailed, match="no space") as caught:
        write_all(mux, packets)
    mux.operator.abort()
    mux.operator.close()

    assert caught.value.file == str(tmp_path / "x.mp4")
    assert caught.value.mend
    assert names_in(tmp_path) == []


def audio_format(codec: str) -> AudioFormat:
    stream = AudioStreamFormat(codec=codec, time_base=TimeBase(num=1, den=48000), sample_rate=48000, channels=2)
    return AudioFormat(streams=(stream,))


@pytest.mark.parametrize(
    ("params", "inputs", "words", "mend"),
    [
        ({"path": "{}/no/where/x.mp4"}, ["h264"], "no folder", "mkdir"),
        ({"path": "{}/x.avi2"}, ["h264"], "no container", ".mp4"),
        ({"path": "{}"}, ["h264"], "no container", "set format"),
        ({"path": "{}", "format": "mp4"}, ["h264"], "is a folder", "path"),
        ({"path": "{}/x.webm"}, ["h264"], "webm cannot carry h264", "encoder"),
        ({"path": "{}/x.ts"}, ["av1"], "mpegts cannot carry av1", "encoder"),
        ({"path": "{}/x.webm"}, ["vp9", "audio:aac"], "webm cannot carry aac", "audio: none"),
        ({"path": "{}/x.mp4"}, ["h264", "audio:wmav2"], "mp4 cannot carry wmav2", "audio: none"),
        ({"path": "{}/x.ts"}, ["h264", "audio:vorbis"], "mpegts cannot carry vorbis", "audio: none"),
        ({"path": "{}/x.mov"}, ["h264", "audio:opus"], "mov cannot carry opus", "audio: none"),
        ({"path": "{}/x.mov"}, ["av1"], "mov cannot carry av1", "encoder"),
        ({"path": "{}/x.mkv"}, ["h264", "audio:dts"], "dts cannot be written with this build", "audio: none"),
        ({"path": "{}/x.mkv", "faststart": True}, ["h264"], "faststart", ".mp4"),
        ({"path": "{}/x.mp4", "faststart": True, "fragmented": True}, ["h264"], "exclude", ""),
        ({"path": "{}/x.mp4"}, ["raw"], "raw frames", "encode"),
    ],
)
def test_what_cannot_work_is_found_before_anything_runs(
    tmp_path: Path, params: dict[str, Any], inputs: list[str], words: str, mend: str
) -> None:
    video = video_format((64, 48), PixelFormat.YUV420P)
    formats: list[PortFormat] = []
    for name in inputs:
        if name == "raw":
            formats.append(video)
        elif name.startswith("audio:"):
            formats.append(audio_format(name.removeprefix("audio:")))
        else:
            formats.append(packets_of(video, name))
    params["path"] = params["path"].format(tmp_path)

    with pytest.raises(BadParameters, match=words) as caught:
        Mux.output(Mux.Params.model_validate(params), formats)
    assert mend in (caught.value.mend or "")
    assert names_in(tmp_path) == []


def test_a_stream_that_never_began_is_left_out(tmp_path: Path) -> None:
    source = make(tmp_path / "source.mkv", count=5, size=(160, 96))
    decode = Bench(Decode, source=SourceRequest(input=str(source)))
    encode = Bench(Encode, FAST["libx264"], {"a->b": decode.format()})
    inputs = {"a->b": encode.format(), "a->b:audio": audio_format("aac")}
    mux = Bench(Mux, {"path": str(tmp_path / "x.mp4")}, inputs)
    frames = [p for step in decode.steps() for p in step.get("video", [])]
    packets = [p for frame in frames for p in encode.feed(frame).get("video", [])] + encode.finish()["video"]

    write_all(mux, packets)

    assert len(read_back(tmp_path / "x.mp4").pts) == 5
    assert "left out" in mux.warnings[0]


def test_the_payload_is_what_the_encoder_made(tmp_path: Path) -> None:
    """The bytes in the file are those of the packets (MPEG-4 part 2 in Matroska is written as it comes)."""
    source = make(tmp_path / "source.mkv", count=5, size=(160, 96))
    decode = Bench(Decode, {"path": str(source)})
    encode = Bench(Encode, FAST["libvpx-vp9"] | {"codec": "libvpx-vp9"}, {"a->b": decode.format()})
    mux = Bench(Mux, {"path": str(tmp_path / "x.webm")}, {"a->b": encode.format()})
    frames = [p for step in decode.steps() for p in step.get("video", [])]
    packets = [p for frame in frames for p in encode.feed(frame).get("video", [])] + encode.finish().get("video", [])
    write_all(mux, packets)

    with av.open(str(tmp_path / "x.webm")) as container:
        got = [np.frombuffer(bytes(packet), np.uint8) for packet in container.demux() if packet.size]
    assert [a.tobytes() for a in got] == [p.data.tobytes() for p in packets[1:]]
