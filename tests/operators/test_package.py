"""package: presentations that a whole FFmpeg plays, frame by frame, at every moment of their lives."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import pytest

from dataplane._ring import Descriptor
from dataplane.errors import BadParameters, OutputFailed
from dataplane.operators.encode import Encode
from dataplane.operators.package import Package
from dataplane.operators.piece_writer import boxes
from observatory.model.media import CodecParameters, PacketFormat, PayloadKind, PixelFormat, PortFormat, TimeBase
from tests.operators.harness import Bench, Payload
from tests.operators.media import make, pictures, read_back
from tests.operators.presenting import LADDER, LEAD, Presenting, Rung, listed, parts_of, pictures_of, play
from tests.operators.test_mux import audio_format, little_room, names_in
from tests.operators.test_per_frame import raw, video_format
from tests.peers import ffmpeg

COUNT = 65  # 2.6 s at 25 frames a second


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures from 0 s on, and sound."""
    return make(tmp_path_factory.mktemp("source") / "source.mkv", count=COUNT, size=(320, 180), audio="aac")


# -- playing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_every_rendition_plays_from_the_master_playlist(tmp_path: Path, source: Path, container: str) -> None:
    rungs = (*LADDER, Rung((128, 96), {"preset": "veryfast", "options": {"bf": 3}}))  # with frames out of order
    bench = Presenting(source, tmp_path / "live", rungs, container=container).run()

    *videos, sound = play(tmp_path / "live" / "master.m3u8")

    assert [video.size for video in videos] == ["320x180", "160x90", "128x96"]
    assert all(sorted(video.seconds) == seconds(0, COUNT) for video in videos)
    assert sound.kind == "audio"
    assert bench.files == [(str(tmp_path / "live" / "master.m3u8"), 3 * COUNT)]
    assert bench.counted == 3 * COUNT
    assert not bench.warnings
    assert not bench.lost_frames
    assert not [name for name in names_in(tmp_path / "live") if name.startswith(".")]


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_the_sound_is_the_sources_and_in_time_with_the_picture(tmp_path: Path, source: Path, container: str) -> None:
    Presenting(source, tmp_path / "live", container=container).run()

    *_, sound = play(tmp_path / "live" / "master.m3u8")

    before = read_back(source)
    assert before.audio_time_base is not None
    original = [pts * before.audio_time_base for pts, _ in before.audio if pts is not None]
    assert len(sound.seconds) == len(original)
    assert all(abs(got - LEAD - was) < 0.0011 for got, was in zip(sound.seconds, original, strict=True))
    copied = subprocess.run(
        [
            *(ffmpeg(), "-v", "error", "-i", str(tmp_path / "live" / "master.m3u8")),
            *("-map", "0:a", "-c", "copy", "-f", "data", "-"),
        ],
        capture_output=True,
        check=True,
    ).stdout
    adts = 7 if container == "mpegts" else 0  # MPEG-TS wants a header on every packet
    assert len(copied) == sum(len(data) + adts for _, data in before.audio)
    if not adts:
        assert copied == b"".join(data for _, data in before.audio)


@pytest.mark.parametrize(
    ("codec", "params"),
    [("libx265", {}), ("libsvtav1", {"preset": "12"}), ("libvpx-vp9", {"preset": "8"})],
)
def test_other_codecs_play_too(tmp_path: Path, source: Path, codec: str, params: dict[str, Any]) -> None:
    Presenting(source, tmp_path / "live", (Rung((160, 90), {"codec": codec, **params}),), audio="none").run()

    (video,) = play(tmp_path / "live" / "master.m3u8")

    assert sorted(video.seconds) == seconds(0, COUNT)


def test_every_language_is_a_rendition(tmp_path: Path) -> None:
    source = tmp_path / "source.mkv"
    subprocess.run(
        [
            *(ffmpeg(), "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=160x90:rate=25:duration=1.4"),
            *("-f", "lavfi", "-i", "sine=300:duration=1.4", "-f", "lavfi", "-i", "sine=900:duration=1.4"),
            *("-map", "0", "-map", "1", "-map", "2", "-c:v", "libx264", "-preset", "ultrafast"),
            *("-c:a:0", "aac", "-c:a:1", "ac3", "-metadata:s:a:0", "language=deu", "-metadata:s:a:1", "language=eng"),
            str(source),
        ],
        check=True,
    )
    Presenting(source, tmp_path / "live", (Rung((160, 90)),)).run()

    text = (tmp_path / "live" / "master.m3u8").read_text()
    said = re.findall(r'NAME="([^"]*)",LANGUAGE="([^"]*)",DEFAULT=(\w+),.*URI="([^"]*)"', text)
    assert said == [("deu 1", "deu", "YES", "audio-1.m3u8"), ("eng 2", "eng", "NO", "audio-2.m3u8")]
    assert 'CODECS="avc1.42c00b,mp4a.40.2,ac-3"' in text
    video, *sounds = play(tmp_path / "live" / "master.m3u8")
    assert len(video.seconds) == 35
    assert all(sound.kind == "audio" and len(sound.seconds) >= 40 for sound in sounds)
    assert len(sounds) == 2


# -- segments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_segments_stand_alone_and_begin_together(tmp_path: Path, source: Path, container: str) -> None:
    folder = tmp_path / "live"
    Presenting(source, folder, container=container, keyframe_seconds=0.5).run()

    starts = []
    for name in ("video-e0.m3u8", "video-e1.m3u8"):
        playlist, segments = listed(folder / name), pictures_of(folder, name)
        assert playlist.seconds == [1.0, 1.0, 0.6]  # 2.6 s, cut at 1 s and 2 s
        assert [len(packets) for packets in segments] == [25, 25, 15]
        assert all(packets[0][1] for packets in segments)
        starts.append([min(time for time, _ in packets) for packets in segments])
        assert playlist.number("TARGETDURATION") == 1
        assert playlist.number("MEDIA-SEQUENCE") == 0
        assert playlist.text.endswith("#EXT-X-ENDLIST\n")
    assert starts == [[10, 11, 12], [10, 11, 12]]
    sound = listed(folder / "audio-1.m3u8")
    # Packets of 1024 samples, the first one before 0 s: a segment begins with the first at or after its boundary.
    assert sound.seconds[:2] == pytest.approx([1, 1], abs=2 * 1024 / 48000)
    assert len(sound.seconds) == 3


def test_the_counters_of_mpegts_run_on_over_segments(tmp_path: Path, source: Path) -> None:
    """ISO/IEC 13818-1: a player that sees a jump throws data away."""
    Presenting(source, tmp_path / "live", container="mpegts").run()

    for name in ("video-e0", "audio-1"):
        names = listed(tmp_path / "live" / f"{name}.m3u8").names
        data = b"".join((tmp_path / "live" / segment).read_bytes() for segment in names)
        last: dict[int, int] = {}
        for at in range(0, len(data), 188):
            assert data[at] == 0x47
            pid = int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF
            counter, payload = data[at + 3] & 15, bool(data[at + 3] & 0x10)
            if pid in last:
                assert counter == (last[pid] + payload) % 16, f"packet {at // 188} of PID {pid}"
            last[pid] = counter
        assert len(last) >= 3  # tables and a stream


def test_frames_whose_times_are_no_whole_ticks_of_a_second(tmp_path: Path) -> None:
    """30000/1001 frames a second: 10 s later is exact all the same, and a segment begins at or after its boundary."""
    source = tmp_path / "source.mp4"
    subprocess.run(
        [
            *(ffmpeg(), "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=160x90:rate=30000/1001"),
            *("-frames:v", "70", "-c:v", "libx264", "-preset", "ultrafast", str(source)),
        ],
        check=True,
    )
    Presenting(source, tmp_path / "live", (Rung((160, 90)),)).run()

    (video,) = play(tmp_path / "live" / "master.m3u8")

    assert video.seconds == [LEAD + Fraction(round(n * 1001 * 3), 90000) for n in range(70)]
    assert listed(tmp_path / "live" / "video-e0.m3u8").seconds == [
        pytest.approx(30 * 1001 / 30000, abs=1e-6),  # frame 30 is at 1.001 s, frame 29 at 0.968 s
        pytest.approx(30 * 1001 / 30000, abs=1e-6),  # frame 60 at 2.002 s
        pytest.approx(10 * 1001 / 30000, abs=1e-6),
    ]


# -- the master playlist -----------------------------------------------------------------------------------------------


def test_the_master_playlist_says_what_a_player_chooses_by(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "live"
    rungs = (Rung((320, 180), {"profile": "baseline", "options": {"level": "3.1"}}), Rung((160, 90)))
    Presenting(source, folder, rungs).run()

    text = (folder / "master.m3u8").read_text()

    first, second = re.findall(r"^#EXT-X-STREAM-INF:(.*)$", text, re.M)
    # By hand, ISO/IEC 14496-15: profile_idc 66 = 0x42; constraint flags 0 and 1 for constrained baseline = 0xC0;
    # level 3.1 = 31 = 0x1F. AAC LC is object type 0x40 with audio object type 2.
    assert 'CODECS="avc1.42c01f,mp4a.40.2"' in first
    assert "RESOLUTION=320x180,FRAME-RATE=25.000" in first
    assert "RESOLUTION=160x90,FRAME-RATE=25.000" in second
    assert first.endswith('AUDIO="audio"')
    assert re.findall(r"^#EXT-X-MEDIA:(.*)$", text, re.M) == [
        'TYPE=AUDIO,GROUP-ID="audio",NAME="audio 1",DEFAULT=YES,AUTOSELECT=YES,CHANNELS="2",URI="audio-1.m3u8"'
    ]
    peak = peak_of(folder, "video-e0") + peak_of(folder, "audio-1")
    assert f"BANDWIDTH={peak}," in first  # RFC 8216, 4.3.4.2: the largest sum of segment bit rates


def peak_of(folder: Path, name: str) -> int:
    found = listed(folder / f"{name}.m3u8")
    rates = [(folder / n).stat().st_size * 8 / s for n, s in zip(found.names, found.seconds, strict=True)]
    return -int(-max(rates) // 1)


def codecs_of_ours(tmp_path: Path, codec: str, params: dict[str, Any], pixel_format: str) -> str:
    """What the master playlist says of a rendition, which is in `ours`."""
    form = video_format((160, 96), PixelFormat[pixel_format.upper()])
    encode = Bench(Encode, {"codec": codec, "threads": 1, "keyframe_seconds": 1, **params}, {"s->e": form})
    package = Bench(Package, {"folder": str(tmp_path / "ours"), "segment_seconds": 1}, {"e->p": encode.format()})
    frames = [frame.reformat(format=pixel_format) for frame in pictures(30, (160, 96))]
    packets = [p for frame in raw(frames, form) for p in encode.feed(frame).get("video", [])]
    for packet in packets + encode.finish().get("video", []):
        package.feed(packet)
    package.finish()
    return codecs_in(tmp_path / "ours")


def codecs_in(folder: Path) -> str:
    found = re.search(r'CODECS="([^"]*)"', (folder / "master.m3u8").read_text())
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("codec", "params", "pixel_format"),
    [
        ("libx264", {"preset": "veryfast"}, "yuv420p"),
        ("libx264", {"preset": "ultrafast"}, "yuv420p10le"),
        ("libsvtav1", {"preset": "12"}, "yuv420p10le"),
        ("libvpx-vp9", {"preset": "8"}, "yuv420p"),
    ],
)
def test_codecs_are_called_as_ffmpeg_calls_them(
    tmp_path: Path, codec: str, params: dict[str, Any], pixel_format: str
) -> None:
    ours = codecs_of_ours(tmp_path, codec, params, pixel_format)

    (tmp_path / "theirs").mkdir()
    subprocess.run(
        [
            *(ffmpeg(), "-v", "error", "-i", str(tmp_path / "ours" / "video-e.m3u8"), "-c", "copy"),
            *("-f", "hls", "-hls_time", "1", "-hls_segment_type", "fmp4"),
            *("-master_pl_name", "master.m3u8", str(tmp_path / "theirs" / "x.m3u8")),
        ],
        check=True,
    )
    assert ours == codecs_in(tmp_path / "theirs")


def test_hevc_is_called_as_its_standard_says(tmp_path: Path) -> None:
    """By hand, ISO/IEC 14496-15 annex E: FFmpeg's own playlists say nothing of it.

    Main is profile 1, compatible with profiles 1 and 2, so bits 1 and 2 of the flags, lowest bit first: 6. Main 10 is
    profile 2: 4. Level 1.0 is 30. Progressive and frame-only are the first and the fourth bit of a byte: 90.
    """
    (tmp_path / "main").mkdir()
    (tmp_path / "main10").mkdir()
    main = codecs_of_ours(tmp_path / "main", "libx265", {"preset": "ultrafast"}, "yuv420p")
    main_10 = codecs_of_ours(tmp_path / "main10", "libx265", {"preset": "ultrafast"}, "yuv420p10le")

    assert (main, main_10) == ("hvc1.1.6.L30.90", "hvc1.2.4.L30.90")


# -- live --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_a_live_window_moves_and_never_names_what_is_not_there(tmp_path: Path, source: Path, container: str) -> None:
    """Of 6 segments 2 are listed, at every moment all of them whole; 3 more stay for players that come late."""
    folder = tmp_path / "live"
    live = Presenting(source, folder, LADDER, 0.5, container=container, segment_seconds=0.5, window_segments=2)
    firsts, sizes = set(), dict[str, int]()
    for _ in live.steps():
        for playlist in folder.glob("[!m]*.m3u8"):
            now = listed(playlist)
            assert len(now.names) <= 2
            assert "ENDLIST" not in now.text
            assert "PLAYLIST-TYPE" not in now.text
            for name in (*now.names, *now.inits):
                size = (folder / name).stat().st_size
                assert sizes.setdefault(name, size) == size > 0, "a listed file changed"
            if playlist.name == "video-e0.m3u8":
                firsts.add(now.number("MEDIA-SEQUENCE"))
    live.finish()

    assert firsts | {4} == {0, 1, 2, 3, 4}
    suffix = {"cmaf": "m4s", "mpegts": "ts"}[container]
    for name in ("video-e0", "video-e1"):
        last = listed(folder / f"{name}.m3u8")
        assert last.names == [f"{name}-000004.{suffix}", f"{name}-000005.{suffix}"]
        assert last.number("MEDIA-SEQUENCE") == 4
        # Boundaries at 2.0 s (frame 50) and 2.5 s: frame 63, as 62.5 is none; 65 frames.
        assert last.seconds == [13 / 25, 2 / 25]
        assert last.text.endswith("#EXT-X-ENDLIST\n")
        assert sorted(p.name for p in folder.glob(f"{name}-0*")) == [f"{name}-00000{n}.{suffix}" for n in range(1, 6)]
    first, *_ = play(folder / "master.m3u8")
    assert first.seconds == seconds(50, 65)


def dates_in(playlist: Path) -> list[datetime]:
    return [datetime.fromisoformat(date) for date in re.findall(r"PROGRAM-DATE-TIME:(\S+)", playlist.read_text())]


def test_dates_rise_as_the_pictures_do_and_are_the_same_in_all_renditions(tmp_path: Path, source: Path) -> None:
    Presenting(source, tmp_path / "live", window_segments=5).run()

    dates = [dates_in(tmp_path / "live" / f"{name}.m3u8") for name in ("video-e0", "video-e1")]
    assert dates[0] == dates[1]
    assert [(b - a).total_seconds() for a, b in pairwise(dates[0])] == [1.0, 1.0]


def test_after_a_discontinuity_dates_are_the_clocks_again(tmp_path: Path, stream: Stream) -> None:
    """A source that was away for an hour, of which the times in the job know nothing: simulated by times that jump."""
    inputs: dict[str, PortFormat] = {"a->p": stream.edge, "b->p": stream.edge}
    params = {"folder": str(tmp_path / "live"), "segment_seconds": 1, "window_segments": 9}
    bench = Bench(Package, params, inputs)
    for edge in inputs:
        bench.feed(stream.said, edge)
        for number, epoch in ((0, 0), (1, 0), (3601, 2), (3602, 2)):
            for packet in stream.second(number, epoch):
                bench.feed(packet, edge)
    bench.finish()

    a, b = (dates_in(tmp_path / "live" / f"video-{name}.m3u8") for name in "ab")
    assert a == b
    assert [(y - x).total_seconds() for x, y in pairwise(a)] == [1.0, pytest.approx(0, abs=30), 1.0]
    assert not bench.warnings


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_a_killed_presentation_plays_and_is_continued(tmp_path: Path, source: Path, container: str) -> None:
    folder = tmp_path / "live"
    killed = Presenting(source, folder, container=container)
    for number, _ in enumerate(killed.steps()):
        if number == 56:  # in the middle of the third segment
            break
    (folder / ".video-e0.part").write_bytes(b"half of a segment")
    orphan = folder / f"video-e0-000002.{'m4s' if container == 'cmaf' else 'ts'}"
    orphan.write_bytes(b"written and never listed")
    (folder / "notes.txt").write_text("somebody else's")
    killed.die()

    before = listed(folder / "video-e0.m3u8")
    assert before.seconds == [1.0, 1.0]
    assert "ENDLIST" not in before.text
    assert parts_of(folder, "video-e0.m3u8") == [seconds(0, 50)]

    Presenting(source, folder, container=container).run()

    after = listed(folder / "video-e0.m3u8")
    assert after.names[:2] == before.names
    assert len(after.names) == 5
    lines = after.text.splitlines()
    where = [lines.index(line) for line in (after.names[1], "#EXT-X-DISCONTINUITY", after.names[2])]
    assert where == sorted(where)
    assert after.text.count("#EXT-X-DISCONTINUITY\n") == 1
    assert after.text.endswith("#EXT-X-ENDLIST\n")
    assert orphan.read_bytes() != b"written and never listed"
    assert (folder / "notes.txt").exists()
    assert not [name for name in names_in(folder) if name.endswith(".part")]
    assert parts_of(folder, "video-e0.m3u8") == [seconds(0, 50), seconds(0, COUNT)]
    assert len(after.inits) == (container == "cmaf"), "some players take no second header"


def seconds(first: int, end: int) -> list[Fraction]:
    """Times of frames at 25 a second, as segments say them."""
    return [LEAD + Fraction(number, 25) for number in range(first, end)]


def test_a_presentation_that_was_ended_is_replaced(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "live"
    Presenting(source, folder, (*LADDER, Rung((64, 48)))).run()
    assert (folder / "video-e2.m3u8").exists()

    Presenting(source, folder, LADDER, container="mpegts").run()

    assert len(listed(folder / "video-e0.m3u8").names) == 3
    assert not list(folder.glob("*.m4s"))
    assert not list(folder.glob("*.mp4"))
    assert not list(folder.glob("video-e2*")), "a rendition of the earlier presentation"
    assert len(play(folder / "master.m3u8")) == 3


def test_one_that_was_killed_is_replaced_if_wished(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "live"
    killed = Presenting(source, folder)
    for number, _ in enumerate(killed.steps()):
        if number == 40:
            break
    killed.die()

    Presenting(source, folder, existing="replace").run()

    found = listed(folder / "video-e0.m3u8")
    assert len(found.names) == 3
    assert "DISCONTINUITY\n" not in found.text


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "live"
    first = Presenting(source, folder)
    for number, _ in enumerate(first.steps()):
        if number == 30:
            break
    before = names_in(folder)

    with pytest.raises(OutputFailed, match="another run writes there") as refused:
        Presenting(source, folder).run()

    assert refused.value.file == str(folder)
    assert names_in(folder) == before
    first.die()


# -- what is not smooth ------------------------------------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def stream() -> Stream:
    return Stream()


def packaging(folder: Path, stream: Stream, **params: Any) -> Bench:
    bench = Bench(Package, {"folder": str(folder), "segment_seconds": 1, **params}, {"e->p": stream.edge})
    bench.feed(stream.said)
    return bench


def feed(bench: Bench, payloads: Iterator[Payload]) -> None:
    for payload in payloads:
        bench.feed(payload)


def test_a_new_epoch_is_a_discontinuity(tmp_path: Path, stream: Stream) -> None:
    """In the middle of a segment too: what comes before it is a shorter segment."""
    bench = packaging(tmp_path / "live", stream)
    feed(bench, stream.second(0))
    feed(bench, list(stream.second(1))[:10])  # type: ignore[arg-type]
    late = [replace(p, descriptor=at(p.descriptor, p.pts + 36000, 2)) for p in stream.second(1)]
    feed(bench, iter(late))
    bench.finish()

    found = listed(tmp_path / "live" / "video-e.m3u8")
    assert found.seconds == [1.0, 0.4, 1.0]
    assert not bench.warnings
    before, _, behind = found.text.partition("#EXT-X-DISCONTINUITY\n")
    assert found.names[1] in before
    assert found.names[2] in behind
    assert parts_of(tmp_path / "live", "video-e.m3u8") == [seconds(0, 35), seconds(35, 60)]


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


@pytest.mark.parametrize("ahead", [True, False])
def test_all_renditions_have_the_same_discontinuities(
    tmp_path: Path, stream: Stream, source: Path, ahead: bool
) -> None:
    """RFC 8216, 6.2.4. The sound does not say that an epoch began, and may be a second further on when it does."""
    tone = Tone(source)
    inputs = {"e->p": stream.edge, "d->p:audio": audio_format("aac")}
    bench = Bench(Package, {"folder": str(tmp_path / "live"), "segment_seconds": 1}, inputs)
    bench.feed(stream.said, "e->p")
    bench.feed(tone.said, "d->p:audio")
    for second in range(6):
        for payload in tone.second(second) if ahead else ():
            bench.feed(payload, "d->p:audio")
        for payload in stream.second(second, epoch=2 if second >= 3 else 0):
            bench.feed(payload, "e->p")
        for payload in tone.second(second) if not ahead else ():
            bench.feed(payload, "d->p:audio")
    bench.finish()

    video, audio = (listed(tmp_path / "live" / f"{name}.m3u8") for name in ("video-e", "audio-1"))
    assert [text.text.count("#EXT-X-DISCONTINUITY\n") for text in (video, audio)] == [1, 1]
    behind = audio.text.partition("#EXT-X-DISCONTINUITY\n")[2]
    assert behind.count("#EXTINF") == (2 if ahead else 3)
    assert not bench.warnings


def test_a_sound_that_pauses_breaks_the_pictures_too(tmp_path: Path, stream: Stream, source: Path) -> None:
    tone = Tone(source)
    inputs = {"e->p": stream.edge, "d->p:audio": audio_format("aac")}
    bench = Bench(Package, {"folder": str(tmp_path / "live"), "segment_seconds": 1}, inputs)
    bench.feed(stream.said, "e->p")
    bench.feed(tone.said, "d->p:audio")
    for second in range(7):
        for payload in tone.second(second) if second not in (2, 3) else ():
            bench.feed(payload, "d->p:audio")
        for payload in stream.second(second):
            bench.feed(payload, "e->p")
    bench.finish()

    video, audio = (listed(tmp_path / "live" / f"{name}.m3u8") for name in ("video-e", "audio-1"))
    assert [text.text.count("#EXT-X-DISCONTINUITY\n") for text in (video, audio)] == [1, 1]
    assert video.seconds == [1.0] * 7
    assert audio.seconds == [1.0] * 5


def test_what_was_never_described_is_listed_as_lost(tmp_path: Path, stream: Stream) -> None:
    bench = Bench(Package, {"folder": str(tmp_path / "live"), "segment_seconds": 1}, {"e->p": stream.edge})
    bench.feed(next(stream.second(0)))

    assert [(pts, "codec" in reason) for _, pts, reason in bench.lost_frames] == [(0, True)]
    bench.operator.abort()
    bench.operator.close()


def test_discontinuities_that_left_the_window_are_counted(tmp_path: Path, stream: Stream) -> None:
    bench = packaging(tmp_path / "live", stream, window_segments=2)
    for second in range(6):
        feed(bench, stream.second(second, epoch=second // 2))
    bench.finish()

    found = listed(tmp_path / "live" / "video-e.m3u8")
    assert found.number("MEDIA-SEQUENCE") == 4
    assert found.text.count("#EXT-X-DISCONTINUITY\n") == 1  # before second 4; the one before second 2 has left
    assert found.number("DISCONTINUITY-SEQUENCE") == 1


def test_a_gap_in_the_source_is_no_long_segment(tmp_path: Path, stream: Stream) -> None:
    bench = packaging(tmp_path / "live", stream)
    feed(bench, stream.second(0))
    feed(bench, stream.second(100))
    bench.finish()

    found = listed(tmp_path / "live" / "video-e.m3u8")
    assert found.seconds == [1.0, 1.0]
    assert found.number("TARGETDURATION") == 1
    assert found.text.count("#EXT-X-DISCONTINUITY\n") == 1


def test_an_encoder_with_other_parameters_gets_a_header_of_its_own(tmp_path: Path, stream: Stream) -> None:
    other = Bench(Encode, {"preset": "medium", "threads": 1, "keyframe_seconds": 1, "gop": 25}, {"s->e": stream.form})
    made = [p for f in raw(list(pictures(25, (64, 48))), stream.form) for p in other.feed(f).get("video", [])]
    said, *packets = made + other.finish().get("video", [])
    bench = packaging(tmp_path / "live", stream)
    feed(bench, stream.second(0))
    bench.feed(said)
    shift = 90000 - min(p.pts for p in packets)
    for packet in packets:
        moved = at(packet.descriptor, packet.pts + shift)
        bench.feed(replace(packet, descriptor=with_dts(moved, packet.descriptor.dts + shift)))
    bench.finish()

    found = listed(tmp_path / "live" / "video-e.m3u8")
    assert found.inits == ["video-e-init-000000.mp4", "video-e-init-000001.mp4"]
    assert found.text.count("#EXT-X-DISCONTINUITY\n") == 1
    assert parts_of(tmp_path / "live", "video-e.m3u8") == [seconds(0, 25), seconds(25, 50)]


def with_dts(said: Descriptor, dts: int) -> Descriptor:
    return Descriptor(
        payload_kind=said.payload_kind,
        source_index=said.source_index,
        pts=said.pts,
        dts=dts,
        duration=said.duration,
        time_base=said.time_base,
        flags=said.flags,
    )


def test_what_comes_before_the_first_key_frame_is_listed_as_lost(tmp_path: Path, stream: Stream) -> None:
    bench = packaging(tmp_path / "live", stream)
    feed(bench, iter(list(stream.second(0))[20:]))
    feed(bench, stream.second(1))
    bench.finish()

    assert [(index, pts) for index, pts, _ in bench.lost_frames] == [(n, n * 3600) for n in range(20, 25)]
    assert all("key frame" in reason for _, _, reason in bench.lost_frames)
    assert listed(tmp_path / "live" / "video-e.m3u8").seconds == [1.0]
    assert bench.counted == 25


def test_renditions_that_lost_different_frames_are_said(tmp_path: Path, stream: Stream) -> None:
    inputs: dict[str, PortFormat] = {"a->p": stream.edge, "b->p": stream.edge}
    bench = Bench(Package, {"folder": str(tmp_path / "live"), "segment_seconds": 1}, inputs)
    for edge in inputs:
        bench.feed(stream.said, edge)
        for second in range(3):
            for n, packet in enumerate(stream.second(second)):
                late = second == 1 and edge == "b->p" and n == 0
                moved = at(packet.descriptor, packet.pts + 1800) if late else packet.descriptor
                bench.feed(replace(packet, descriptor=moved), edge)
    bench.finish()

    assert len(bench.warnings) == 1
    assert "do not begin with the same frames" in bench.warnings[0]


def test_a_sound_that_never_comes_does_not_hold_the_pictures_up(tmp_path: Path, stream: Stream) -> None:
    inputs = {"e->p": stream.edge, "d->p:audio": audio_format("aac")}
    bench = Bench(Package, {"folder": str(tmp_path / "live"), "segment_seconds": 1}, inputs)
    bench.feed(stream.said, "e->p")
    master = tmp_path / "live" / "master.m3u8"
    for second in range(4):
        assert not master.exists()
        for packet in stream.second(second):
            bench.feed(packet, "e->p")
    assert "AUDIO" not in master.read_text()  # with the third segment
    bench.finish()

    assert "left out" in bench.warnings[0]
    assert not (tmp_path / "live" / "audio-1.m3u8").exists()


def test_memory_does_not_grow_with_the_stream(tmp_path: Path, stream: Stream) -> None:
    process = psutil.Process()
    bench = packaging(tmp_path / "live", stream, window_segments=3)
    for second in range(100):
        feed(bench, stream.second(second))
    before = process.memory_info().rss
    for second in range(100, 500):
        feed(bench, stream.second(second))
    grown = process.memory_info().rss - before
    bench.finish()

    # 10,000 packets of about 200 bytes, and 1000 with their object, would be 10 MB.
    assert grown < 3e6
    assert len(names_in(tmp_path / "live")) <= 3 + 4 + 3  # listed, leaving, header and two playlists


def test_a_source_that_jumps_back_breaks_all_renditions_at_the_same_frame(tmp_path: Path) -> None:
    """A transport stream of 60 frames, twice: within the job its times go on rising, 0.08 s being its first."""
    once = make(tmp_path / "once.ts", count=60, size=(320, 180), audio="aac")
    (tmp_path / "twice.ts").write_bytes(2 * once.read_bytes())

    bench = Presenting(tmp_path / "twice.ts", tmp_path / "live").run()

    first = round(read_back(once).seconds[0] * 25)
    for name in ("video-e0.m3u8", "video-e1.m3u8"):
        assert parts_of(tmp_path / "live", name) == [seconds(first, first + 60), seconds(first + 60, first + 120)]
    assert listed(tmp_path / "live" / "audio-1.m3u8").text.count("#EXT-X-DISCONTINUITY\n") == 1
    assert not bench.warnings


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "no playlist", "#EXTM3U\n#EXTINF:1,\n../x.m4s\n", "#EXTM3U\n#EXTINF:1,\n" + 300 * "x" + "\n", "\xff"]
)
def test_a_playlist_of_somebody_elses_in_the_folder_is_replaced(tmp_path: Path, stream: Stream, text: str) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "x.m4s").write_bytes(b"not ours")
    (tmp_path / "live" / "video-e.m3u8").write_bytes(text.encode("latin-1"))

    bench = packaging(tmp_path / "live", stream)
    feed(bench, stream.second(0))
    bench.finish()

    assert listed(tmp_path / "live" / "video-e.m3u8").seconds == [1.0]
    assert (tmp_path / "x.m4s").read_bytes() == b"not ours"


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_a_full_disk_is_named_and_what_was_finished_plays(tmp_path: Path, stream: Stream, container: str) -> None:
    bench = packaging(tmp_path / "live", stream, container=container)
    feed(bench, stream.second(0))
    feed(bench, stream.second(1))

    with little_room(2000), pytest.raises(OutputFailed, match="no space") as caught:
        feed(bench, stream.second(2))
    bench.operator.abort()
    bench.operator.close()
    bench.close()

    assert caught.value.file == str(tmp_path / "live")
    assert caught.value.mend
    assert not [name for name in names_in(tmp_path / "live") if name.startswith(".")]
    assert parts_of(tmp_path / "live", "video-e.m3u8") == [seconds(0, 25)]


def test_no_frames_make_no_presentation(tmp_path: Path, stream: Stream) -> None:
    bench = packaging(tmp_path / "live", stream)

    with pytest.raises(OutputFailed, match="no frame"):
        bench.finish()
    bench.operator.abort()
    bench.operator.close()

    assert names_in(tmp_path / "live") == []


def coded(codec: str, keyframe_seconds: float | None) -> PacketFormat:
    return PacketFormat(
        codec=codec,
        video=video_format((64, 48)),
        bytes_per_packet=1000,
        largest_packet_bytes=200_000,
        keyframe_seconds=keyframe_seconds,
    )


@pytest.mark.parametrize(
    ("params", "inputs", "words", "mend"),
    [
        ({"folder": "{}/no/where"}, [coded("h264", 1)], "no folder", "mkdir -p"),
        ({"folder": "{}/file"}, [coded("h264", 1)], "is no folder", "folder"),
        ({"folder": "{}/" + 300 * "x"}, [coded("h264", 1)], "too long", "shorter"),
        ({"container": "mpegts"}, [coded("av1", 1)], "mpegts segments cannot carry av1", "h264, hevc, or cmaf"),
        ({}, [coded("mpeg4", 1)], "cmaf segments cannot carry mpeg4", "encoder"),
        ({}, [coded("h264", 1), audio_format("pcm_s16le")], "cannot carry pcm_s16le", "audio: none"),
        ({"container": "mpegts"}, [coded("h264", 1), audio_format("opus")], "cannot carry opus", "audio: none"),
        ({}, [coded("h264", None)], "nothing says that a segment can begin", "keyframe_seconds: 4"),
        ({}, [coded("h264", 4), coded("h264", 3)], "4 s is no whole multiple of the 3 s", "keyframe_seconds: 4"),
        ({"segment_seconds": 0.7}, [coded("h264", 0.2)], "no whole multiple", "keyframe_seconds: 0.7"),
        ({}, [video_format((64, 48))], "raw frames", "encode"),
    ],
)
def test_what_cannot_work_is_found_before_anything_runs(
    tmp_path: Path, params: dict[str, Any], inputs: list[PortFormat], words: str, mend: str
) -> None:
    (tmp_path / "file").touch()
    settings = {"folder": "{}/live"} | params
    settings["folder"] = str(settings["folder"]).format(tmp_path)

    with pytest.raises(BadParameters, match=words) as caught:
        Package.output(Package.Params.model_validate(settings), inputs)
    assert mend in (caught.value.mend or "")
    assert names_in(tmp_path) == ["file"]


def test_lengths_are_exact_decimals(tmp_path: Path) -> None:
    """0.6 is three times 0.2, though 0.6 % 0.2 of doubles is 0.2."""
    params = Package.Params.model_validate({"folder": str(tmp_path / "live"), "segment_seconds": 0.6})

    assert Package.output(params, [coded("h264", 0.2)]) == ()
    assert not (tmp_path / "live").exists(), "nothing is made before anything runs"


def test_a_header_has_nothing_of_the_pictures(tmp_path: Path, stream: Stream) -> None:
    """ISO/IEC 23000-19: an init segment, and fragments without one."""
    bench = packaging(tmp_path / "live", stream)
    feed(bench, stream.second(0))
    bench.finish()

    def kinds(path: Path) -> list[str]:
        return [kind for kind, _, _ in boxes(path.read_bytes())]

    assert kinds(tmp_path / "live" / "video-e-init-000000.mp4") == ["ftyp", "moov"]
    assert kinds(tmp_path / "live" / "video-e-000000.m4s") == ["moof", "mdat"]


def test_sound_out_of_an_mpegts_source(tmp_path: Path) -> None:
    """Its AAC has no header of its own there: each packet carries one."""
    source = make(tmp_path / "source.ts", count=40, size=(160, 90), audio="aac")
    Presenting(source, tmp_path / "live", (Rung((160, 90)),)).run()

    video, sound = play(tmp_path / "live" / "master.m3u8")

    assert len(video.seconds) == 40
    assert len(sound.seconds) >= 75  # 1.6 s of 1024 samples
    assert "mp4a.40.2" in (tmp_path / "live" / "master.m3u8").read_text()
    assert av.open(str(source)).streams.audio
