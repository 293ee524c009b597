"""mux: real kills, migrations, files of others, encoders that come back, and what it takes to continue for long."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest

from dataplane._ring import Descriptor
from dataplane.errors import OutputFailed
from dataplane.operators import journal
from dataplane.operators.encode import Encode
from dataplane.operators.mux import Mux
from dataplane.operators.places import hold
from observatory.model.media import PortFormat
from tests.operators.dying import Died, Fate, World
from tests.operators.harness import Bench, Payload
from tests.operators.media import pictures, read_back
from tests.operators.test_mux import audio_format, little_room, names_in
from tests.operators.test_mux_deaths import KINDS, VIDEO, Material, check, contents, material, world
from tests.operators.test_per_frame import raw, video_format
from tests.peers import ffmpeg

RATE = 25
TICKS = 90_000 // RATE


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return material(tmp_path_factory.mktemp("material"), "libx264", "aac", 8000)


class Encoded:
    """Packets of an encoder, made once and given with times of the test's choosing."""

    def __init__(self, count: int = RATE, size: tuple[int, int] = (64, 48), **params: Any) -> None:
        form = video_format(size)
        encode = Bench(Encode, {"preset": "ultrafast", "threads": 1, "gop": count, **params}, {"s->e": form})
        made = [p for frame in raw(list(pictures(count, size)), form) for p in encode.feed(frame).get("video", [])]
        self.edge = encode.format()
        self.said, *self.packets = made + encode.finish().get("video", [])

    def from_(self, first: int, earlier: int = 0) -> Iterator[Payload]:
        """The packets as frames `first` and on; their decoding times that many frames earlier."""
        for number, packet in enumerate(self.packets, first):
            time = number * TICKS
            said = Descriptor(
                payload_kind=packet.descriptor.payload_kind,
                source_index=number,
                pts=time,
                dts=time - earlier * TICKS,
                duration=TICKS,
                time_base=(1, 90_000),
                flags=packet.descriptor.flags,
            )
            yield replace(packet, descriptor=said)


@pytest.fixture(scope="module")
def encoded() -> Encoded:
    return Encoded()


# -- deaths and migrations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "params"), [(kind[0], kind[1]) for kind in KINDS[:5]])
def test_processes_that_are_killed_for_real(
    tmp_path: Path, given: Material, suffix: str, params: dict[str, Any]
) -> None:
    assert world(tmp_path / "u", suffix, params, given).live(Fate())
    wanted = contents(tmp_path / "u" / f"x.{suffix}")
    chance = random.Random(suffix)
    (tmp_path / "log").mkdir()
    for number in range(4):
        folder = tmp_path / str(number)
        killed = world(folder, suffix, params, given)
        while not killed.live_in_a_process(tmp_path / "log", chance.uniform(0.0, 0.06) if killed.lives < 8 else None):
            pass
        check(killed, folder, suffix, wanted)


@pytest.mark.parametrize(("suffix", "params"), [(kind[0], kind[1]) for kind in KINDS[:5]])
def test_an_instance_that_moves_elsewhere(tmp_path: Path, given: Material, suffix: str, params: dict[str, Any]) -> None:
    """The new one is opened while the old one works."""
    assert world(tmp_path / "u", suffix, params, given).live(Fate())
    wanted = contents(tmp_path / "u" / f"x.{suffix}")
    moving = world(tmp_path / "m", suffix, params, given)
    left = iter(range(0, len(given.script), 9))
    places: list[int] = []

    def move() -> None:
        if sum(moving.acked.values()) in places:
            raise Died("not killed: ended, its files closed")

    for place in left:
        places[:] = [place + 5]
        moving.after_each = move
        before = Mux(Mux.Params.model_validate(moving.params))
        before.open(_Opened(moving))  # type: ignore[arg-type]
        if moving.live(Fate(), "migrated"):
            break
    check(moving, tmp_path / "m", suffix, wanted)
    assert moving.lives > 4


class _Opened:
    """All that may be asked while another instance works."""

    def __init__(self, of: World) -> None:
        self.inputs = of.inputs


def test_files_that_wait_for_a_restart_are_left_alone_by_other_jobs(tmp_path: Path, given: Material) -> None:
    """The supervisor holds what a worker reported as scratch; what nobody holds is removed."""
    waiting = world(tmp_path / "x", "mp4", {}, given)
    assert not waiting.live(Fate(60))
    abandoned = tmp_path / "x" / ".x.part-1.mp4"
    abandoned.write_bytes(b"of a job that was killed")
    parts = sorted(path for path in waiting.scratches if Path(path).exists())
    assert len(parts) == 3
    streams = [Path(path).open("rb") for path in parts]  # noqa: SIM115
    for stream in streams:
        hold(stream.fileno())

    other = world(tmp_path / "x", "mp4", {}, given)
    other.lives = 0
    assert other.live(Fate())

    assert names_in(tmp_path / "x") == sorted([*(Path(path).name for path in parts), "x.mp4"])
    wanted = contents(tmp_path / "x" / "x.mp4")
    assert waiting.live(Fate())
    check(waiting, tmp_path / "x", "mp4", wanted)
    for stream in streams:
        stream.close()

    unheld = world(tmp_path / "y", "mp4", {}, given)
    assert not unheld.live(Fate(60))
    assert len(names_in(tmp_path / "y")) == 3
    assert world(tmp_path / "y", "mp4", {}, given).live(Fate())
    assert names_in(tmp_path / "y") == ["x.mp4"]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_what_is_behind_the_last_whole_piece_is_cut_off(tmp_path: Path, given: Material, suffix: str) -> None:
    """A piece that was torn may have been longer than what comes in its place."""
    assert world(tmp_path / "u", suffix, {}, given).live(Fate())
    torn = world(tmp_path / "x", suffix, {}, given)
    assert not torn.live(Fate(80))
    assert torn.state is not None
    with Path(str(torn.state["temporary"])).open("ab") as stream:
        stream.write(b"\0\0\0\x10mdat" * 10_000)

    assert torn.live(Fate())
    check(torn, tmp_path / "x", suffix, contents(tmp_path / "u" / f"x.{suffix}"))
    sizes = [(tmp_path / folder / f"x.{suffix}").stat().st_size for folder in "ux"]
    assert sizes[0] == sizes[1]


def test_one_whose_file_was_removed_says_so(tmp_path: Path, given: Material) -> None:
    robbed = world(tmp_path / "x", "mkv", {}, given)
    assert not robbed.live(Fate(80))
    for path in (tmp_path / "x").iterdir():
        if not path.name.endswith(("-a.mkv", "-b.mkv")):
            path.unlink()

    with pytest.raises(OutputFailed, match="temporary file is gone"):
        robbed.live(Fate())


# -- long recordings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_a_long_recording_is_continued_from_little(
    tmp_path: Path, encoded: Encoded, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four minutes: neither the journal nor what is read of it grows with them."""
    monkeypatch.setattr(journal, "CHUNK_BYTES", 16 * 1024)
    seconds = 240
    script = [(VIDEO, encoded.said)]
    script += [(VIDEO, packet) for second in range(seconds) for packet in encoded.from_(second * RATE)]
    long = World(Mux, {"path": str(tmp_path / f"x.{suffix}")}, {VIDEO: encoded.edge}, script)
    largest = 0

    def look() -> None:
        nonlocal largest
        if len(long.acked) and not sum(long.acked.values()) % 50:
            sizes = [p.stat().st_size for p in tmp_path.iterdir() if p.name.endswith((f"-a.{suffix}", f"-b.{suffix}"))]
            largest = max(largest, *sizes)
        if long.lives == 1 and sum(long.acked.values()) == seconds * RATE - 20:
            raise Died

    long.after_each = look
    assert not long.live(Fate())
    coded = sum(payload.data.size for _, payload in script)
    assert coded > 10 * largest > 0
    read: list[int] = []
    recover = journal.Journal.recover

    def counted(self: journal.Journal) -> Any:
        state, records = recover(self)
        read.append(len(records))
        return state, records

    monkeypatch.setattr(journal.Journal, "recover", counted)
    assert long.live(Fate())

    assert read[0] < seconds * RATE / 10
    back = read_back(tmp_path / f"x.{suffix}")
    assert len(back.pts) == seconds * RATE
    assert names_in(tmp_path) == [f"x.{suffix}"]


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_players_find_every_place_by_the_index(tmp_path: Path, encoded: Encoded, suffix: str) -> None:
    """Seeking gives the key frame before the wanted time, one a second here."""
    script = [(VIDEO, encoded.said)]
    script += [(VIDEO, packet) for second in range(20) for packet in encoded.from_(second * RATE)]
    assert World(Mux, {"path": str(tmp_path / f"x.{suffix}")}, {VIDEO: encoded.edge}, script).live(Fate())

    with av.open(str(tmp_path / f"x.{suffix}")) as container:
        stream = container.streams.video[0]
        unit = stream.time_base or 1
        assert container.duration == 20_000_000
        for second in (17, 3, 11):
            container.seek(int((second + 0.5) / unit), stream=stream)
            packet = next(container.demux(stream))
            assert packet.pts is not None
            assert (packet.pts * unit, packet.is_keyframe) == (second, True)


# -- encoders that come back -------------------------------------------------------------------------------------------


def played(path: Path) -> int:
    """How many pictures a whole FFmpeg shows; anything that it complains of is an error."""
    command = [ffmpeg(), "-v", "warning", "-xerror", "-i", str(path), "-fps_mode", "passthrough", "-f", "framemd5", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return sum(not line.startswith("#") for line in done.stdout.splitlines())


@pytest.mark.parametrize("suffix", ["mp4", "mov", "mkv", "ts"])
@pytest.mark.parametrize("death", [None, 85, 130])
def test_an_encoder_that_comes_back_with_other_parameters(
    tmp_path: Path, encoded: Encoded, suffix: str, death: int | None
) -> None:
    """Other SPS and PPS: a player that sees only the first ones could not decode what follows."""
    other = Encoded(preset="medium", options={"bf": 0})
    assert other.said.data.tobytes() != encoded.said.data.tobytes()
    script = [encoded.said, *encoded.from_(0), *encoded.from_(RATE), encoded.said, *encoded.from_(2 * RATE)]
    script += [other.said, *other.from_(3 * RATE), *other.from_(4 * RATE)]
    pairs = [(VIDEO, payload) for payload in script]
    done = World(Mux, {"path": str(tmp_path / f"x.{suffix}")}, {VIDEO: encoded.edge}, pairs)
    done.to_the_end([Fate(death)])

    assert played(tmp_path / f"x.{suffix}") == 5 * RATE
    if suffix == "ts":
        assert not done.warnings
    else:
        assert len(done.warnings) == 1
        assert "the codec parameters changed" in done.warnings[0]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_decoding_times_that_go_back_by_a_hair(tmp_path: Path, encoded: Encoded, suffix: str) -> None:
    """An encoder that was restarted begins its reordering anew: two frames earlier than the last one."""
    script = [encoded.said, *encoded.from_(0), encoded.said, *encoded.from_(RATE, earlier=2)]
    pairs = [(VIDEO, payload) for payload in script]
    done = World(Mux, {"path": str(tmp_path / f"x.{suffix}")}, {VIDEO: encoded.edge}, pairs)
    assert done.live(Fate())

    back = read_back(tmp_path / f"x.{suffix}")
    assert back.seconds == pytest.approx([n / RATE for n in range(2 * RATE)], abs=0.0011)
    assert played(tmp_path / f"x.{suffix}") == 2 * RATE
    assert len(done.warnings) == 1
    assert "times of the picture" in done.warnings[0]


def test_a_sound_that_comes_late_holds_nothing_up_for_long(tmp_path: Path, encoded: Encoded) -> None:
    """After 10 s the pictures are written without it, and are in the file when it comes."""
    inputs: dict[str, PortFormat] = {VIDEO: encoded.edge, "d->m:audio": audio_format("aac")}
    bench = Bench(Mux, {"path": str(tmp_path / "x.mp4")}, inputs)
    tone = material(tmp_path, "libx264", "aac", 8000)
    (tmp_path / "libx264-aac.mkv").unlink()
    sound = [payload for edge, payload in tone.script if edge != VIDEO]
    bench.feed(sound[0], "d->m:audio")
    bench.feed(encoded.said, VIDEO)
    (part,) = (path for path in map(Path, bench.scratches) if path.name.endswith(f"-{os.getpid()}.mp4"))
    for second in range(12):
        for packet in encoded.from_(second * RATE):
            bench.feed(packet, VIDEO)
    assert part.stat().st_size > 0
    for payload in sound[1:]:
        bench.feed(payload, "d->m:audio")
    bench.finish()

    back = read_back(tmp_path / "x.mp4")
    assert len(back.pts) == 12 * RATE
    assert len(back.audio) == len(sound) - 1
    assert played(tmp_path / "x.mp4") > 12 * RATE  # with the sound


@pytest.mark.parametrize("limit", [0, 5_000, 20_000])
def test_a_full_disk_after_a_death_is_named(tmp_path: Path, encoded: Encoded, limit: int) -> None:
    script = [(VIDEO, encoded.said)]
    script += [(VIDEO, packet) for second in range(9) for packet in encoded.from_(second * RATE)]
    full = World(Mux, {"path": str(tmp_path / "x.mp4")}, {VIDEO: encoded.edge}, script)
    assert not full.live(Fate(100))

    with ExitStack() as stack:
        full.after_each = lambda: stack.enter_context(little_room(limit))
        with pytest.raises(OutputFailed, match="no space"):
            full.live(Fate())
    for path in full.scratches:
        Path(path).unlink(missing_ok=True)
    assert names_in(tmp_path) == []


def test_what_was_never_described_is_listed_as_lost_once(tmp_path: Path, encoded: Encoded) -> None:
    early = list(encoded.from_(0))[:3]
    script = [(VIDEO, payload) for payload in (*early, encoded.said, *encoded.from_(RATE))]
    fate = Fate()
    assert World(Mux, {"path": str(tmp_path / "u.mp4")}, {VIDEO: encoded.edge}, script).live(fate)
    for at in range(20):
        disturbed = World(Mux, {"path": str(tmp_path / f"{at}.mp4")}, {VIDEO: encoded.edge}, script)
        disturbed.to_the_end([Fate(at)])
        assert disturbed.lost_indices() == [0, 1, 2]
        assert len(read_back(tmp_path / f"{at}.mp4").pts) == RATE
