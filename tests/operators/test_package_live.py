"""package: presentations that go on: live windows, dates, and what an earlier run left in the folder."""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from dataplane.errors import OutputFailed
from dataplane.operators.package import Package
from observatory.model.media import PortFormat
from tests.operators.harness import Bench
from tests.operators.packaging import COUNT, Stream, seconds
from tests.operators.presenting import LADDER, Presenting, Rung, listed, parts_of, play
from tests.operators.test_mux import names_in

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
