"""package: presentations that a whole FFmpeg plays, frame by frame."""

from __future__ import annotations

import re
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from dataplane.operators.piece_writer import boxes
from tests.operators.media import make, read_back
from tests.operators.packaging import COUNT, Stream, feed, packaging, seconds
from tests.operators.presenting import LADDER, LEAD, Presenting, Rung, listed, pictures_of, play
from tests.operators.test_mux import names_in
from tests.peers import ffmpeg

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
