"""package: killed at every effect it has, its presentation is the one that it would have been."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dataplane.errors import OutputFailed
from dataplane.operators.encode import Encode
from dataplane.operators.package import Package
from dataplane.operators.places import hold
from observatory.model.media import PortFormat
from tests.operators.dying import Died, Fate, World
from tests.operators.harness import Bench, Payload
from tests.operators.media import make, pictures
from tests.operators.packaging import Stream, Tone
from tests.operators.presenting import listed, play
from tests.operators.test_mux import audio_format, names_in
from tests.operators.test_per_frame import raw, video_format
from tests.peers import ffmpeg

Script = list[tuple[str, Payload]]

RATE = 25
SECONDS = 4
A, B, SOUND = "a->p", "b->p", "d->p:audio"


@pytest.fixture(scope="module")
def tone(tmp_path_factory: pytest.TempPathFactory) -> Tone:
    return Tone(make(tmp_path_factory.mktemp("source") / "source.mkv", count=65, size=(64, 48), audio="aac"))


def sparse(payloads: Iterator[Payload], step: int) -> list[Payload]:
    """The first, and then every so many: deaths are tried at each."""
    return [payload for number, payload in enumerate(payloads) if number % step == 0]


def script_of(stream: Stream, tone: Tone, epochs: tuple[int, ...] = (0,) * SECONDS, step: int = 5) -> Script:
    script: Script = [(A, stream.said), (B, stream.said), (SOUND, tone.said)]
    for second, epoch in enumerate(epochs):
        script += [(A, payload) for payload in sparse(stream.second(second, epoch), step)]
        script += [(SOUND, payload) for payload in sparse(tone.second(second), 2 * step)]
        script += [(B, payload) for payload in sparse(stream.second(second, epoch), step)]
    return script


def world(folder: Path, stream: Stream, script: Script, **params: Any) -> World:
    inputs: dict[str, PortFormat] = {A: stream.edge, B: stream.edge, SOUND: audio_format("aac")}
    folder.mkdir(exist_ok=True)
    return World(Package, {"folder": str(folder / "live"), "segment_seconds": 1, **params}, inputs, script)


def contents(folder: Path, dates: bool = False) -> dict[str, bytes]:
    """Every file; dates only when asked for, as they are those of the clock."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    if dates:
        return found
    return {name: re.sub(rb"#EXT-X-PROGRAM-DATE-TIME.*\n", b"", data) for name, data in found.items()}


def readable(folder: Path) -> Callable[[], None]:
    """What holds at every moment: a playlist is whole, and names only files that are there and do not change."""
    sizes: dict[str, int] = {}
    numbers: dict[str, int] = {}
    ends: dict[str, int] = {}

    def look() -> None:
        for playlist in folder.glob("[!m.]*.m3u8"):
            now = listed(playlist)
            assert now.text.startswith("#EXTM3U\n")
            for name in (*now.names, *now.inits):
                assert sizes.setdefault(name, (folder / name).stat().st_size) == (folder / name).stat().st_size > 0
            first = now.number("MEDIA-SEQUENCE")
            assert first >= numbers.get(playlist.name, 0), "a playlist went back"
            assert first + len(now.names) >= ends.get(playlist.name, 0), "a segment was taken back"
            numbers[playlist.name], ends[playlist.name] = first, first + len(now.names)

    return look


SETTINGS = [
    ({}, (0, 0, 0)),
    ({"container": "mpegts"}, (0, 0, 0)),
    ({"window_segments": 1}, (0, 0, 0, 0)),
    ({"window_segments": 1, "container": "mpegts"}, (0, 2, 2)),
    ({}, (0, 2, 3)),
]
IDS = ["cmaf", "mpegts", "live", "live-mpegts-discontinuity", "discontinuities"]


@pytest.mark.parametrize(("params", "epochs"), SETTINGS, ids=IDS)
@pytest.mark.parametrize("torn", [False, True])
def test_a_death_anywhere_changes_nothing(
    tmp_path: Path, stream: Stream, tone: Tone, params: dict[str, Any], epochs: tuple[int, ...], torn: bool
) -> None:
    script = script_of(stream, tone, epochs, step=12)
    undisturbed, fate = world(tmp_path / "u", stream, script, **params), Fate()
    assert undisturbed.live(fate)
    wanted = contents(tmp_path / "u" / "live")
    for at, name in enumerate(fate.names):
        if torn and not name.startswith(("pwrite", "write")):
            continue
        folder = tmp_path / f"{at}"
        disturbed = world(folder, stream, script, **params)
        disturbed.after_each = readable(folder / "live")
        disturbed.to_the_end([Fate(at, torn)])
        assert disturbed.lives == 2
        found = contents(folder / "live")
        assert found.keys() == wanted.keys(), (at, name)
        assert found == wanted, (at, name)
        assert set(disturbed.outputs) == {(str(folder / "live" / "master.m3u8"), undisturbed.counted)}
        assert disturbed.counted == undisturbed.counted
        assert not disturbed.losses
        assert not disturbed.warnings


@pytest.mark.parametrize(("params", "epochs"), SETTINGS[:4], ids=IDS[:4])
def test_deaths_during_recovery_too(
    tmp_path: Path, stream: Stream, tone: Tone, params: dict[str, Any], epochs: tuple[int, ...]
) -> None:
    script = script_of(stream, tone, epochs)
    undisturbed = world(tmp_path / "u", stream, script, **params)
    assert undisturbed.live(Fate())
    wanted = contents(tmp_path / "u" / "live")
    chance = random.Random(str(params))
    lives = 0
    for number in range(8):
        folder = tmp_path / str(number)
        disturbed = world(folder, stream, script, **params)
        disturbed.after_each = readable(folder / "live")
        disturbed.to_the_end([Fate(int(chance.expovariate(1 / 30)), chance.random() < 0.5) for _ in range(10)])
        assert contents(folder / "live") == wanted
        assert disturbed.counted == undisturbed.counted
        assert not disturbed.losses
        lives += disturbed.lives
    assert lives > 40


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_edges_that_come_in_another_order_after_a_death(
    tmp_path: Path, stream: Stream, tone: Tone, container: str
) -> None:
    script = script_of(stream, tone)
    undisturbed = world(tmp_path / "u", stream, script, container=container)
    assert undisturbed.live(Fate())
    wanted = contents(tmp_path / "u" / "live")
    chance = random.Random(container)
    for number in range(4):
        folder = tmp_path / str(number)
        disturbed = world(folder, stream, script, container=container)
        disturbed.shuffle = chance
        disturbed.to_the_end([Fate(int(chance.expovariate(1 / 30))) for _ in range(6)])
        assert contents(folder / "live") == wanted


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_processes_that_are_killed_for_real(tmp_path: Path, stream: Stream, tone: Tone, container: str) -> None:
    script = script_of(stream, tone, step=1)
    undisturbed = world(tmp_path / "u", stream, script, container=container)
    assert undisturbed.live(Fate())
    wanted = contents(tmp_path / "u" / "live")
    chance = random.Random(container)
    (tmp_path / "log").mkdir()
    for number in range(4):
        killed = world(tmp_path / str(number), stream, script, container=container)
        while not killed.live_in_a_process(tmp_path / "log", chance.uniform(0.0, 0.08) if killed.lives < 8 else None):
            pass
        assert contents(tmp_path / str(number) / "live") == wanted
        pictures_, *_ = play(tmp_path / str(number) / "live" / "master.m3u8")
        assert len(pictures_.seconds) == SECONDS * RATE


def test_an_instance_that_moves_elsewhere(tmp_path: Path, stream: Stream, tone: Tone) -> None:
    script = script_of(stream, tone)
    undisturbed = world(tmp_path / "u", stream, script)
    assert undisturbed.live(Fate())
    moving = world(tmp_path / "m", stream, script)

    def move() -> None:
        if sum(moving.acked.values()) % 20 == 0:
            raise Died

    moving.after_each = move
    while not moving.live(Fate(), "migrated"):
        pass
    assert moving.lives > 3
    assert contents(tmp_path / "m" / "live") == contents(tmp_path / "u" / "live")


def test_dates_go_on_rising_as_the_pictures_do(tmp_path: Path, stream: Stream, tone: Tone) -> None:
    """Also where the clock was read before a death and the playlist written after it."""
    script = script_of(stream, tone, step=12)
    fate = Fate()
    assert world(tmp_path / "u", stream, script, window_segments=9).live(fate)
    first = fate.names.index("replace")  # of the first segment; its playlist follows, then what the journal says of it
    for at in range(first - 4, first + 12):
        folder = tmp_path / str(at)
        disturbed = world(folder, stream, script, window_segments=9)
        assert not disturbed.live(Fate(at))
        time.sleep(0.01)
        assert disturbed.live(Fate())
        dates = [
            re.findall(r"PROGRAM-DATE-TIME:.*?T\d+:\d+:(\S+)\+", (folder / "live" / f"video-{name}.m3u8").read_text())
            for name in "ab"
        ]
        assert dates[0] == dates[1]
        assert len({date.partition(".")[2] for date in dates[0]}) == 1, "whole seconds apart"


def test_lost_frames_are_listed_once(tmp_path: Path, stream: Stream, tone: Tone) -> None:
    """Those before the first key frame, wherever death comes."""
    late = [(A, stream.said), *((A, payload) for payload in list(stream.second(0))[20:])]
    late += [(A, payload) for payload in sparse(stream.second(1), 5)]
    fate = Fate()
    inputs: dict[str, PortFormat] = {A: stream.edge}
    assert World(Package, {"folder": str(tmp_path / "u"), "segment_seconds": 1}, inputs, late).live(fate)
    for at in range(len(fate.names)):
        disturbed = World(Package, {"folder": str(tmp_path / str(at)), "segment_seconds": 1}, inputs, late)
        disturbed.to_the_end([Fate(at)])
        assert disturbed.lost_indices() == [20, 21, 22, 23, 24]
        assert disturbed.counted == 5


def test_a_live_player_reads_on_through_deaths(tmp_path: Path, tone: Tone) -> None:
    """A whole FFmpeg follows the playlist while its writer is killed again and again, and sees every picture once."""
    form = video_format((64, 48))
    encode = Bench(Encode, {"preset": "ultrafast", "threads": 1, "keyframe_seconds": 0.5}, {"s->e": form})
    made = [p for frame in raw(list(pictures(150, (64, 48))), form) for p in encode.feed(frame).get("video", [])]
    made += encode.finish().get("video", [])
    folder = tmp_path / "live"
    params = {"folder": str(folder), "segment_seconds": 0.5, "window_segments": 6}
    live = World(Package, params, {A: encode.format()}, [(A, packet) for packet in made])
    player: subprocess.Popen[str] | None = None
    chance = random.Random(7)

    def pace() -> None:
        nonlocal player
        time.sleep(0.02)
        if player is None and (folder / "master.m3u8").exists():
            command = [ffmpeg(), "-v", "error", "-xerror", "-copyts", "-live_start_index", "0"]
            command += ["-i", str(folder / "video-a.m3u8"), "-fps_mode", "passthrough", "-f", "framemd5", "-"]
            player = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if player is not None and chance.random() < 0.08:
            raise Died

    live.after_each = pace
    while not live.live(Fate()):
        pass
    assert player is not None
    out, complaints = player.communicate(timeout=60)

    assert live.lives > 4
    assert player.returncode == 0, complaints
    assert not complaints
    lines = [line for line in out.splitlines() if not line.startswith("#")]
    times = [int(line.split(",")[2]) for line in lines]
    assert len(times) == 150
    assert {b - a for a, b in pairwise(times)} == {times[1] - times[0]}


def test_a_folder_that_waits_for_a_restart_is_nobody_elses(tmp_path: Path, stream: Stream, tone: Tone) -> None:
    """The supervisor holds the journal while nobody writes there."""
    script = script_of(stream, tone)
    waiting = world(tmp_path / "x", stream, script)
    assert not waiting.live(Fate(80))
    with (tmp_path / "x" / "live" / ".journal-a").open("rb") as held:
        hold(held.fileno())
        with pytest.raises(OutputFailed, match="another run writes there"):
            world(tmp_path / "x", stream, script).live(Fate())
        assert waiting.live(Fate())
    assert not [name for name in names_in(tmp_path / "x" / "live") if name.startswith(".")]


def test_one_whose_folder_is_gone_says_so(tmp_path: Path, stream: Stream, tone: Tone) -> None:
    robbed = world(tmp_path / "x", stream, script_of(stream, tone))
    assert not robbed.live(Fate(80))
    for path in (tmp_path / "x" / "live").iterdir():
        path.unlink()
    (tmp_path / "x" / "live").rmdir()

    with pytest.raises(OutputFailed, match="cannot be written"):
        robbed.live(Fate())
