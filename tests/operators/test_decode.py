"""decode against plain PyAV: the same pictures and times, and an account of what is damaged."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.packet import Packet

from dataplane.errors import BadMedia
from dataplane.operators.base import SourceRequest
from dataplane.operators.decode import Decode
from observatory.model.media import AudioFormat, CodecParameters, PayloadKind, PixelFormat, VideoFormat
from tests.operators.harness import Bench, Payload, clip, run
from tests.operators.media import digest_of, make, pictures, planes_of, read_back
from tests.peers import ffmpeg


def decoded(path: Path | str, **params: object) -> tuple[Bench, list[Payload]]:
    bench = Bench(Decode, {"path": str(path), **params}, ports=("video",))
    return bench, run(bench)


def video(bench: Bench) -> VideoFormat:
    found = bench.format()
    assert isinstance(found, VideoFormat)
    return found


def remux(source: Path, target: Path, mangle: Callable[[int, bytes], bytes], **options: str) -> list[bytes]:
    """Copy the video packets of a file, changed by `mangle`."""
    packets: list[bytes] = []
    with av.open(str(source)) as given, av.open(str(target), "w", container_options=options) as output:
        stream = given.streams.video[0]
        copied = output.add_stream_from_template(stream, opaque=True)
        for packet in given.demux(stream):
            if packet.dts is None:
                continue
            data = mangle(len(packets), bytes(packet))
            packets.append(data)
            made = av.Packet(data)
            made.pts, made.dts, made.duration, made.time_base = (
                packet.pts,
                packet.dts,
                packet.duration,
                packet.time_base,
            )
            made.is_keyframe = packet.is_keyframe
            made.stream = copied
            output.mux_one(made)
    return packets


# -- whole inputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bikes.mp4", "bigbuckbunny.mp4"])
def test_real_clips_give_the_pictures_and_times_that_pyav_gives(name: str) -> None:
    path = clip(name)
    expected = read_back(path)

    bench, frames = decoded(path)

    assert [frame.pts for frame in frames] == expected.pts
    assert [digest_of(frame.data) for frame in frames] == expected.digests
    assert [frame.descriptor.source_index for frame in frames] == list(range(len(frames)))
    assert all(Fraction(*frame.descriptor.time_base) == expected.time_base for frame in frames)
    assert frames[0].descriptor.flags & 1
    assert bench.probe is not None
    assert bench.probe.frames == len(frames) == bench.counted
    assert sum(frame.descriptor.duration for frame in frames) / 12800 == expected.duration
    assert not bench.lost_frames
    assert not bench.warnings


def test_transport_streams_keep_their_own_times(tmp_path: Path) -> None:
    path = make(tmp_path / "x.ts", audio="aac")
    expected = read_back(path)

    bench, frames = decoded(path)

    assert [frame.pts for frame in frames] == expected.pts
    assert bench.probe is not None
    assert 0 < bench.probe.start_seconds <= expected.seconds[0]


def test_joined_transport_streams_go_on_where_the_first_ends(tmp_path: Path) -> None:
    one = make(tmp_path / "one.ts", count=25, size=(64, 48), audio="aac", options={"bf": "2"})
    two = tmp_path / "two.ts"
    two.write_bytes(one.read_bytes() * 2)

    bench = Bench(Decode, {"path": str(two)}, ports=("video", "audio"))
    taken: dict[str, list[int]] = {"video": [], "audio": []}
    for step in bench.steps():
        for port, payloads in step.items():
            taken[port] += [p.descriptor.pts for p in payloads if p.kind != PayloadKind.CODEC_PARAMETERS]

    assert [b - a for a, b in pairwise(taken["video"])] == [3600] * 49
    steps = [b - a for a, b in pairwise(taken["audio"])]
    assert all(step == pytest.approx(1920, abs=1) for step in steps[:40])
    assert min(steps) > 0
    assert max(steps) < 90_000 / 10
    assert bench.warnings == ["the times of the input jump back; what follows was moved behind what came before"]
    own = read_back(one)
    length = own.pts[-1] + 3600 - own.pts[0]
    assert bench.epochs == [("the times of the input jump back", length)]


def test_frames_behind_a_splice_are_of_another_epoch_and_have_their_own_pts(tmp_path: Path) -> None:
    one = make(tmp_path / "one.ts", count=10, size=(64, 48))
    two = tmp_path / "two.ts"
    two.write_bytes(one.read_bytes() * 3)

    bench, frames = decoded(two)

    assert [frame.descriptor.epoch for frame in frames] == [0] * 10 + [2] * 10 + [3] * 10
    offsets = {0: 0, 2: bench.epochs[0][1], 3: bench.epochs[1][1]}
    assert [frame.pts - offsets[frame.descriptor.epoch] for frame in frames] == read_back(one).pts * 3
    assert [frame.descriptor.source_index for frame in frames] == list(range(30))


@pytest.mark.parametrize(("suffix", "codec", "before"), [("ts", "libx264", 200_000), ("mpg", "mpeg2video", 100_000)])
def test_stamps_that_begin_again_at_33_bits_go_on(tmp_path: Path, suffix: str, codec: str, before: int) -> None:
    whole = make(tmp_path / f"whole.{suffix}", codec=codec, count=50, size=(64, 48), options={"bf": "2"})
    wrap = 1 << 33
    path = tmp_path / f"x.{suffix}"
    command = [ffmpeg(), "-v", "error", "-i", str(whole), "-c", "copy"]
    subprocess.run([*command, "-output_ts_offset", str((wrap - before) / 90_000), str(path)], check=True)

    bench, frames = decoded(path)

    assert len(frames) == 50
    assert {b.pts - a.pts for a, b in pairwise(frames)} == {3600}
    assert bench.epochs == [("the 33 bits of the time stamps began again", wrap)]
    assert frames[0].pts < wrap < frames[-1].pts
    assert [frame.descriptor.epoch for frame in frames] == [0 if frame.pts < wrap else 2 for frame in frames]
    assert not bench.warnings
    assert not bench.lost_frames


def test_fragments_are_read(tmp_path: Path) -> None:
    path = make(tmp_path / "x.mp4", container={"movflags": "frag_keyframe+empty_moov"}, options={"g": "10"})

    _, frames = decoded(path)

    assert [frame.pts for frame in frames] == read_back(path).pts
    assert [bool(frame.descriptor.flags & 1) for frame in frames] == [n % 10 == 0 for n in range(30)]


def test_ten_bit_stays_ten_bit(tmp_path: Path) -> None:
    path = make(tmp_path / "x.mkv", codec="libx265", pixel_format="yuv420p10le", options={"x265-params": "log-level=0"})

    bench, frames = decoded(path)

    assert video(bench).pixel_format is PixelFormat.YUV420P10LE
    assert [digest_of(frame.data) for frame in frames] == read_back(path).digests
    assert max(int(frame.planes()[0].max()) for frame in frames) > 255


def test_colours_and_sample_aspect_travel(tmp_path: Path) -> None:
    def colour(context: av.VideoCodecContext) -> None:
        context.color_primaries, context.color_trc, context.colorspace, context.color_range = 9, 16, 9, 1
        context.sample_aspect_ratio = Fraction(4, 3)

    path = make(tmp_path / "x.mp4", setup=colour, count=3)

    bench, frames = decoded(path)

    assert frames[0].descriptor.color == (9, 16, 9, 1)
    assert frames[0].descriptor.sample_aspect == (4, 3)
    found = video(bench)
    assert (found.color_primaries, found.color_transfer, found.color_matrix, found.color_range) == (9, 16, 9, 1)
    assert found.sample_aspect == (4, 3)


def test_full_range_is_a_range_and_no_format(tmp_path: Path) -> None:
    path = make(tmp_path / "x.mkv", codec="mjpeg", pixel_format="yuvj420p", count=3)

    bench, frames = decoded(path)

    assert video(bench).pixel_format is PixelFormat.YUV420P
    assert video(bench).color_range == 2
    assert frames[0].descriptor.color[3] == 2
    assert not bench.probe or not bench.probe.warnings
    assert [digest_of(frame.data) for frame in frames] == read_back(path).digests


@pytest.mark.parametrize(
    ("codec", "pixel_format", "ours"),
    [
        ("ffv1", "yuv444p", PixelFormat.YUV420P),
        ("ffv1", "yuv422p10le", PixelFormat.YUV420P10LE),
        ("ffv1", "gray", PixelFormat.YUV420P),
        ("ffv1", "bgr0", PixelFormat.YUV420P),
    ],
)
def test_other_formats_are_converted_and_said(tmp_path: Path, codec: str, pixel_format: str, ours: PixelFormat) -> None:
    path = make(tmp_path / "x.mkv", codec=codec, pixel_format=pixel_format, count=2, size=(64, 48))

    bench, frames = decoded(path)

    assert video(bench).pixel_format is ours
    assert bench.probe is not None
    assert [w for w in bench.probe.warnings if pixel_format in w and ours.label in w]
    # An independent way to the same picture: up to RGB and down to luma in floating point.
    (picture, *_) = pictures(1, (64, 48), pixel_format)
    red, green, blue = np.moveaxis(picture.to_ndarray(format="rgb24").astype(float), 2, 0)
    matrix = (0.2126, 0.7152, 0.0722) if pixel_format == "bgr0" else (0.299, 0.587, 0.114)
    luma = 16 + 219 * (matrix[0] * red + matrix[1] * green + matrix[2] * blue) / 255
    got = frames[0].planes()[0] / (4 if ours is PixelFormat.YUV420P10LE else 1)
    assert np.abs(got - luma).mean() < 2
    if pixel_format == "bgr0":
        assert (video(bench).color_matrix, video(bench).color_range) == (1, 1)


def test_odd_sizes_are_cut_and_said(tmp_path: Path) -> None:
    path = make(tmp_path / "x.mkv", codec="ffv1", size=(321, 181), pixel_format="yuv420p", count=2)

    bench, frames = decoded(path)

    assert (video(bench).width, video(bench).height) == (320, 180)
    assert bench.probe is not None
    assert "321x181" in bench.probe.warnings[0]
    (original, *_) = pictures(1, (321, 181), "yuv420p")
    planes = [plane.reshape(rows, -1) for plane, rows in zip(planes_of(original), (181, 91, 91), strict=True)]
    for got, whole in zip(frames[0].planes(), planes, strict=True):
        assert np.array_equal(got, whole[: got.shape[0], : got.shape[1]])


def test_a_change_of_size_is_brought_back_and_said(tmp_path: Path) -> None:
    parts = [
        make(tmp_path / f"{width}.h264", size=(width, height), count=10) for width, height in [(320, 180), (640, 360)]
    ]
    path = tmp_path / "x.h264"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))

    bench, frames = decoded(path)

    assert len(frames) == 20
    assert {(f.descriptor.width, f.descriptor.height, f.data.size) for f in frames} == {(320, 180, 86400)}
    assert len(bench.warnings) == 1
    assert "640x360" in bench.warnings[0]
    small, large = frames[4].planes()[0].astype(float), frames[14].planes()[0].astype(float)
    assert np.abs(small.mean() - large.mean()) < 8  # the same test pictures, only coded larger


def test_frames_without_times_get_some(tmp_path: Path) -> None:
    path = make(tmp_path / "x.h264", count=12, options={"bf": "0"})
    with av.open(str(path)) as plain:
        assert any(frame.pts is None for frame in plain.decode(video=0))  # or this tests nothing

    _, frames = decoded(path)

    times = [frame.pts for frame in frames]
    steps = {b - a for a, b in pairwise(times)}
    assert steps == {frames[0].descriptor.duration}
    assert Fraction(*frames[0].descriptor.time_base) * frames[0].descriptor.duration == Fraction(1, 25)
    assert any(frame.descriptor.flags & 2 for frame in frames)


# -- limits and the generated picture ----------------------------------------------------------------------------------


def test_without_an_input_a_picture_is_generated() -> None:
    bench = Bench(Decode, {"source": {"size": "320x180", "rate": "30000/1001"}})
    assert bench.probe is not None
    assert bench.probe.frames == 300
    assert bench.probe.duration_seconds == pytest.approx(10.01, abs=0.001)

    frames = run(bench)

    assert len(frames) == 300
    (first, *_) = pictures(1)
    assert digest_of(frames[0].data) == digest_of(np.concatenate(planes_of(first)))


@pytest.mark.parametrize(("own", "asked", "count"), [(None, 7, 7), (5, None, 5), (5, 7, 7)])
def test_frames_can_be_limited(own: int | None, asked: int | None, count: int) -> None:
    params = {"source": {"size": "64x48"}} | ({} if own is None else {"frames": own})
    bench = Bench(Decode, params, source=SourceRequest(frames=asked))

    assert len(run(bench)) == count
    assert not bench.lost_frames


def test_no_limit_never_ends() -> None:
    bench = Bench(Decode, {"source": {"size": "64x48"}}, source=SourceRequest(frames=0))

    steps = bench.steps()

    assert sum(len(next(steps)["video"]) for _ in range(400)) == 400
    bench.operator.flush(bench)
    bench.operator.close()
    bench.close()


def test_what_is_not_done_for_the_picture_is_said(tmp_path: Path) -> None:
    def interlace(context: av.VideoCodecContext) -> None:
        context.flags |= 1 << 29 | 1 << 18  # interlaced motion estimation and DCT
        context.field_order = 2

    path = make(tmp_path / "x.mkv", codec="mpeg2video", setup=interlace, count=3, size=(320, 192))

    bench, frames = decoded(path)

    assert len(frames) == 3
    assert any("interlaced" in words for words in bench.warnings)


# -- audio -------------------------------------------------------------------------------------------------------------


def test_audio_is_handed_on_as_it_is() -> None:
    path = clip("bigbuckbunny.mp4")
    expected = read_back(path).audio
    bench = Bench(Decode, {"path": str(path)})
    assert isinstance(bench.format("audio"), AudioFormat)

    payloads = [payload for step in bench.steps() for payload in step.get("audio", [])]

    said, packets = payloads[0], payloads[1:]
    assert said.kind == PayloadKind.CODEC_PARAMETERS
    parameters = CodecParameters.model_validate_json(said.data.tobytes())
    assert (parameters.media, parameters.codec, parameters.sample_rate) == ("audio", "aac", 48000)
    assert parameters.extradata_hex
    assert [(packet.pts, packet.data.tobytes()) for packet in packets] == expected
    assert all(packet.kind == PayloadKind.AUDIO_PACKET for packet in packets)


def test_audio_that_nobody_takes_is_not_read() -> None:
    bench = Bench(Decode, {"path": str(clip("bigbuckbunny.mp4"))}, ports=("video",))

    assert len(run(bench)) == 132


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "suffix", "places"),
    [("libx264", "mkv", []), ("libx264", "mp4", []), ("mpeg4", "mkv", [20, 21, 40])],
    ids=["h264-mkv", "h264-mp4", "mpeg4"],
)
def test_damaged_packets_are_listed_and_the_rest_is_delivered(
    tmp_path: Path, codec: str, suffix: str, places: list[int]
) -> None:
    """H.264 makes no picture of noise; MPEG-4 patches one up and marks it, so that its place is known."""
    source = make(tmp_path / "whole.mp4", codec=codec, count=60, options={"g": "15", "bf": "0"})
    damaged = {20, 21, 40}

    def mangle(number: int, data: bytes) -> bytes:
        kept = 5 if codec == "libx264" else len(data) // 2
        return data[:kept] + random.Random(number).randbytes(len(data) - kept) if number in damaged else data

    path = tmp_path / f"x.{suffix}"
    remux(source, path, mangle)
    whole = read_back(source)

    bench, frames = decoded(path)

    tick = Fraction(*frames[0].descriptor.time_base)
    lost = [float(pts * tick) for _, pts, _ in bench.lost_frames if pts is not None]
    assert len(frames) + len(bench.lost_frames) == 60
    assert sorted(lost) == pytest.approx([whole.seconds[number] for number in sorted(damaged)], abs=0.001)
    assert [index for index, _, _ in bench.lost_frames if index is not None] == places
    indices = [frame.descriptor.source_index for frame in frames]
    assert indices == [number for number in range(len(frames) + len(places)) if number not in places]
    good = {round(float(f.pts * tick), 2): digest_of(f.data) for f in frames}
    for number in (0, 19, 45, 59):  # before the damage, and after the next key frame
        assert good[round(whole.seconds[number], 2)] == whole.digests[number]


def test_a_cut_file_gives_what_is_there_and_counts_what_is_not(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.mp4", count=50, container={"movflags": "faststart"})
    path = tmp_path / "x.mp4"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 6 // 10])

    bench, frames = decoded(path)

    assert 5 < len(frames) < 50
    assert len(frames) + len(bench.lost_frames) == 50
    assert any("input ends early" in reason for _, _, reason in bench.lost_frames)


def test_sound_that_is_longer_than_the_picture_is_no_damage(tmp_path: Path) -> None:
    short = make(tmp_path / "short.mp4", count=5, size=(64, 48))
    long = make(tmp_path / "long.mp4", count=100, size=(64, 48), audio="aac")
    with av.open(str(short)) as a, av.open(str(long)) as b, av.open(str(tmp_path / "x.mp4"), "w") as output:
        copies = [output.add_stream_from_template(s) for s in (a.streams.video[0], b.streams.audio[0])]
        sources: list[Iterator[Packet[Any]]] = [a.demux(video=0), b.demux(audio=0)]
        for source, copy in zip(sources, copies, strict=True):
            for packet in source:
                if packet.size:
                    packet.stream = copy
                    output.mux(packet)
    bench = Bench(Decode, {"path": str(tmp_path / "x.mp4")})
    assert len(run(bench)) == 5
    assert bench.warnings == []


def test_a_cut_file_that_does_not_count_its_frames_says_so(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.mkv", count=100)
    path = tmp_path / "x.mkv"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])

    bench, frames = decoded(path)

    assert 5 < len(frames) < 100
    end = (frames[-1].pts + frames[-1].descriptor.duration) / 1000
    assert bench.warnings == [f"the video ends at {end:.1f} s, the container's header says 4.0 s"]


def test_half_a_transport_stream_is_no_error(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.ts", count=50)
    path = tmp_path / "x.ts"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])

    _, frames = decoded(path)

    assert 5 < len(frames) < 50


def test_nothing_but_damage_is_an_error(tmp_path: Path) -> None:
    source = make(tmp_path / "whole.mp4", count=10)
    path = tmp_path / "x.mp4"
    remux(source, path, lambda number, data: random.Random(number).randbytes(len(data)))

    with pytest.raises(BadMedia, match="no frame"):
        decoded(path)


# -- what cannot be opened ---------------------------------------------------------------------------------------------


def bad(folder: Path, what: str) -> Path:
    path = folder / "x.mp4"
    match what:
        case "junk":
            path.write_bytes(random.Random(1).randbytes(100_000))
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "no index":
            whole = make(folder / "whole.mp4")
            path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
        case "only sound":
            with av.open(str(folder / "x.m4a"), "w") as output:
                stream = output.add_stream("aac", rate=48000)
                silence = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), "fltp", "stereo")
                silence.sample_rate = 48000
                output.mux([*stream.encode(silence), *stream.encode(None)])
            shutil.move(folder / "x.m4a", path)
    return path


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("missing", "no such file"),
        ("folder", "folder"),
        ("empty", "empty"),
        ("junk", "cannot be opened"),
        ("no index", "cannot be opened"),
        ("only sound", "no video"),
    ],
)
def test_what_cannot_be_decoded_is_named_with_a_mend(tmp_path: Path, what: str, words: str) -> None:
    path = bad(tmp_path, what)

    with pytest.raises(BadMedia, match=words) as caught:
        Decode.probe(Decode.Params.model_validate({}), SourceRequest(input=str(path)))

    assert caught.value.file == str(path)
    assert caught.value.mend
