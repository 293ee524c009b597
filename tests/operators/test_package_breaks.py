"""package: sources that are not smooth: discontinuities, gaps, other parameters, lost frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dataplane._ring import Descriptor
from dataplane.operators.encode import Encode
from dataplane.operators.package import Package
from observatory.model.media import PortFormat
from tests.operators.harness import Bench
from tests.operators.media import make, pictures, read_back
from tests.operators.packaging import Stream, Tone, at, feed, packaging, seconds
from tests.operators.presenting import Presenting, listed, parts_of
from tests.operators.test_mux import audio_format, names_in
from tests.operators.test_per_frame import raw

# -- what is not smooth ------------------------------------------------------------------------------------------------


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
