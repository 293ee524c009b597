"""decode, killed everywhere: the same frames byte by byte, the same sound, each lost frame listed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dataplane.errors import BadMedia
from dataplane.operators import anchors, decode
from dataplane.operators.base import Published, Resume, SourceRequest
from dataplane.operators.continuing import AlreadyOut, Notes
from dataplane.operators.decode import Decode
from dataplane.operators.pacing import Pacer
from observatory.model.media import PayloadKind
from tests.operators.harness import clip
from tests.operators.media import make, pictures
from tests.operators.restarts import Account, Lives, Move

SIZE = (96, 64)
COUNT = 70


def essence(account: Account) -> list[tuple[Any, ...]]:
    """Everything of the frames that a consumer can see."""
    found: list[tuple[Any, ...]] = []
    epochs: dict[int, int] = {}  # a death after its number was given leaves an epoch without frames
    for payload in account.frames():
        said = payload.descriptor
        epoch = epochs.setdefault(said.epoch, len(epochs))
        picture = hashlib.sha256(payload.data.tobytes()).hexdigest()
        found.append((said.source_index, said.pts, said.duration, said.flags, said.color, epoch, picture))
    return found


def sound(account: Account) -> list[tuple[Any, ...]]:
    packets = [p for p in account.made.get("audio", []) if p.kind == PayloadKind.AUDIO_PACKET]
    return [(p.descriptor.stream_index, p.pts, p.descriptor.dts, p.data.tobytes()) for p in packets]


# -- inputs -----------------------------------------------------------------------------------------------------------

X264 = {"preset": "veryfast", "threads": "1"}


def closed(folder: Path, count: int = COUNT) -> Path:
    options = {**X264, "x264-params": "keyint=16:min-keyint=16:bframes=3:b-pyramid=normal:scenecut=0"}
    return make(folder / "closed.mp4", count=count, size=SIZE, audio="aac", options=options)


def open_gops(folder: Path) -> Path:
    options = {**X264, "x264-params": "open-gop=1:keyint=14:min-keyint=14:bframes=3:b-adapt=0:scenecut=0"}
    return make(folder / "open.mkv", count=COUNT, size=SIZE, audio="libopus", options=options)


def hevc(folder: Path) -> Path:
    options = {"preset": "ultrafast", "x265-params": "log-level=0:keyint=14:min-keyint=14:open-gop=1:bframes=4:pools=1"}
    return make(folder / "hevc.mp4", codec="libx265", count=COUNT, size=SIZE, options=options)


def refreshed(folder: Path) -> Path:
    """No picture is whole: columns are refreshed one after the other."""
    options = {**X264, "x264-params": "intra-refresh=1:keyint=12:bframes=0"}
    return make(folder / "refreshed.mp4", count=COUNT, size=SIZE, options=options)


def transport_stream(folder: Path) -> Path:
    options = {"g": "12", "bf": "2", "b": "500k"}
    return make(folder / "some.ts", codec="mpeg2video", count=COUNT, size=SIZE, audio="mp2", options=options)


def jumping(folder: Path) -> Path:
    """A recording that was joined to another one: its times jump back in the middle."""
    options = {"g": "12", "bf": "2", "b": "300k"}
    one = make(folder / "one.ts", codec="mpeg2video", count=30, size=SIZE, audio="mp2", options=options)
    both = folder / "both.ts"
    both.write_bytes(one.read_bytes() * 2)
    return both


def damaged(folder: Path) -> Path:
    path = closed(folder)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
    for number in (20, 21, 38, 60):  # the first of them in the second group of pictures
        packet = packets[number]
        assert packet.pos is not None
        begin = packet.pos + packet.size // 3
        data[begin : begin + packet.size // 2] = bytes(255 - b for b in data[begin : begin + packet.size // 2])
    (folder / "damaged.mp4").write_bytes(data)
    return folder / "damaged.mp4"


def gaps(folder: Path) -> Path:
    """Packets that make no frame at all, the last ones before key frames among them; found out 64 packets later."""
    path = closed(folder, 150)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
    for number in (14, 15, 29, 31, 46, 47, 62, 63, 100, 111):
        packet = packets[number]
        assert packet.pos is not None
        data[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    (folder / "gaps.mp4").write_bytes(data)
    return folder / "gaps.mp4"


def late_sound(folder: Path) -> Path:
    """Sound lies in the file almost a second behind the picture that it belongs to."""
    options = {**X264, "x264-params": "keyint=12:min-keyint=12:bframes=0:scenecut=0"}
    whole = make(folder / "prompt.mp4", count=120, size=SIZE, audio="aac", options=options)
    path = folder / "late.mp4"
    with av.open(str(whole)) as source:
        packets = [p for p in source.demux() if p.size]
        with av.open(str(path), "w", container_options={"max_interleave_delta": "1"}) as output:
            streams = {s.index: output.add_stream_from_template(s) for s in source.streams}
            late = {s.index: 0.9 if s.type == "audio" else 0.0 for s in source.streams}
            for packet in sorted(packets, key=lambda p: float((p.dts or 0) * p.time_base) + late[p.stream_index]):
                packet.stream = streams[packet.stream_index]
                output.mux(packet)
    return path


def truncated(folder: Path) -> Path:
    options = {**X264, "x264-params": "keyint=16:min-keyint=16:bframes=2:scenecut=0"}
    path = make(folder / "whole.mkv", count=COUNT, size=SIZE, audio="aac", options=options)
    data = path.read_bytes()
    (folder / "truncated.mkv").write_bytes(data[: len(data) * 3 // 5])
    return folder / "truncated.mkv"


def fragmented(folder: Path) -> Path:
    options = {**X264, "x264-params": "keyint=16:min-keyint=16:bframes=2:scenecut=0"}
    flags = {"movflags": "frag_keyframe+empty_moov"}
    return make(folder / "fragments.mp4", count=COUNT, size=SIZE, audio="aac", options=options, container=flags)


def complete_playlist(folder: Path) -> Path:
    """HLS that has ended: read by the thread that reads live sources, and always from its first segment."""
    options = {**X264, "x264-params": "keyint=12:min-keyint=12:bframes=2:scenecut=0"}
    segments = {"hls_time": "0.4", "hls_list_size": "0"}
    return make(folder / "list.m3u8", count=COUNT, size=SIZE, audio="aac", options=options, container=segments)


def elementary(folder: Path) -> Path:
    """No times, no index: nothing but pictures."""
    return make(folder / "bare.m2v", codec="mpeg2video", count=COUNT, size=SIZE, options={"g": "12", "bf": "2"})


def every_picture(folder: Path) -> Path:
    return make(folder / "mjpeg.avi", codec="mjpeg", count=COUNT, size=SIZE, pixel_format="yuvj420p")


def vp9(folder: Path) -> Path:
    options = {"g": "16", "deadline": "good", "cpu-used": "6", "lag-in-frames": "8", "b": "300k"}
    return make(folder / "vp9.webm", codec="libvpx-vp9", count=COUNT, size=SIZE, audio="libopus", options=options)


def uneven(folder: Path) -> Path:
    """Frames at 1 ms and at half a second from each other, which begin before time 0, under an edit list."""
    path = folder / "uneven.mp4"
    with av.open(str(path), "w") as output:
        options = {**X264, "x264-params": "keyint=12:min-keyint=12:bframes=3:b-adapt=0:scenecut=0"}
        stream = output.add_stream("libx264", rate=25, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        time = -1200
        for number, frame in enumerate(pictures(COUNT, SIZE)):
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            output.mux(stream.encode(frame))
            time += (1, 40, 500)[number // 3 % 3]
        output.mux(stream.encode(None))
    return path


INPUTS: list[Callable[[Path], Path]] = [
    closed,
    open_gops,
    hevc,
    refreshed,
    transport_stream,
    jumping,
    damaged,
    gaps,
    late_sound,
    truncated,
    fragmented,
    complete_playlist,
    elementary,
    every_picture,
    vp9,
    uneven,
]


def lives_of(path: Path, **params: Any) -> Lives:
    return Lives(Decode, {"path": str(path), "threads": 1, **params})


def some(usual: Account, most: int = 30) -> range:
    """Points to die at, all over the run; never only those of one kind."""
    stride = max(1, usual.points // most) | 1
    return range(1, usual.points, stride)


def compare(account: Account, usual: Account, words: str) -> None:
    assert essence(account) == essence(usual), words
    assert sound(account) == sound(usual), words
    assert sorted(map(str, account.lost)) == sorted(map(str, usual.lost)), words


@pytest.mark.parametrize("build", INPUTS, ids=lambda build: build.__name__)
def test_a_death_anywhere_changes_nothing(build: Callable[[Path], Path], tmp_path: Path) -> None:
    lives = lives_of(build(tmp_path))
    usual = lives.live()
    assert len(essence(usual)) > 20
    assert [said[0] for said in essence(usual)] == sorted({said[0] for said in essence(usual)})

    for point in some(usual):
        compare(lives.live(point), usual, f"killed at point {point}")


def test_every_single_place(tmp_path: Path) -> None:
    options = {**X264, "x264-params": "open-gop=1:keyint=8:min-keyint=8:bframes=2:b-adapt=0:scenecut=0"}
    lives = lives_of(make(tmp_path / "short.mp4", count=28, size=SIZE, options=options))
    usual = lives.live()

    for point in range(usual.points):
        compare(lives.live(point), usual, f"killed at point {point}")


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("build", [closed, hevc, damaged])
def test_with_frame_threads(build: Callable[[Path], Path], threads: int, tmp_path: Path) -> None:
    lives = lives_of(build(tmp_path), threads=threads)
    usual = lives.live()

    for point in some(usual, 12):
        compare(lives.live(point), usual, f"killed at point {point}")


@pytest.mark.parametrize("build", [closed, transport_stream, vp9, complete_playlist])
@pytest.mark.parametrize("flushed", [True, False])
def test_it_can_be_moved(build: Callable[[Path], Path], flushed: bool, tmp_path: Path) -> None:
    lives = lives_of(build(tmp_path))

    account = lives.live(Move(13, flushed), Move(30, flushed), Move(0, flushed), Move(40, flushed))

    compare(account, lives.live(), "moved")
    assert account.lives == 5


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True)
@given(deaths=st.lists(st.integers(0, 150), min_size=2, max_size=6), build=st.sampled_from(INPUTS))
def test_successors_die_too(
    deaths: list[int], build: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lives = lives_of(build(tmp_path_factory.mktemp("clip")))

    compare(lives.live(*deaths), lives.live(), f"killed at points {deaths}")


@pytest.mark.parametrize("name", ["bikes.mp4", "bigbuckbunny.mp4"])
def test_real_clips(name: str) -> None:
    lives = Lives(Decode, {"path": str(clip(name))})
    usual = lives.live()

    for share in (0.3, 0.55, 0.9):
        point = int(usual.points * share)
        compare(lives.live(point), usual, f"killed at point {point}")


# -- how it gets there -------------------------------------------------------------------------------------------------


def decoded_packets(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Notes what goes into the decoder, of every instance: its time."""
    found: list[float | None] = []
    usual = Decode._begin_work

    def noted(self: Decode, seconds: float | None) -> None:
        found.append(seconds)
        usual(self, seconds)

    monkeypatch.setattr(Decode, "_begin_work", noted)
    return found


@pytest.mark.parametrize("build", [closed, open_gops, hevc, fragmented, vp9])
def test_it_seeks_where_it_can(build: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []
    real = anchors.seek

    def seek(*arguments: Any) -> object:
        found.append(real(*arguments))
        return found[-1]

    monkeypatch.setattr(anchors, "seek", seek)
    lives = lives_of(build(tmp_path))
    usual = lives.live()

    compare(lives.live(usual.points - 8), usual, "killed near the end")

    assert len(found) == 1
    assert found[0] is not None


def test_where_the_key_frame_is_not_found_by_seeking_it_is_read_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchors, "seek", lambda *_: None)
    lives = lives_of(closed(tmp_path))
    usual = lives.live()

    for point in some(usual):
        compare(lives.live(point), usual, f"killed at point {point}")


def test_little_is_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lives = lives_of(closed(tmp_path))
    points = lives.live().points
    went_in = decoded_packets(monkeypatch)
    lives.live()
    usual = len([seconds for seconds in went_in if seconds is not None])
    went_in.clear()

    lives.live(points - 8)

    again = len([seconds for seconds in went_in if seconds is not None]) - usual
    assert 0 <= again <= 16 + 25 + 8  # the length of a group of pictures, the distance of notes, the rest


# -- limits, paces, generated pictures --------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 20, 33])
def test_the_number_of_frames_asked_for_is_kept(limit: int, tmp_path: Path) -> None:
    lives = lives_of(closed(tmp_path), frames=limit)
    usual = lives.live()
    assert len(essence(usual)) == limit

    for point in some(usual, 10):
        compare(lives.live(point), usual, f"killed at point {point}")


def test_a_generated_picture_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"source": {"size": "64x48", "rate": "30000/1001"}, "frames": 60}
    lives = Lives(Decode, params)
    usual = lives.live()
    assert len(essence(usual)) == 60

    for point in some(usual):
        compare(lives.live(point), usual, f"killed at point {point}")

    # Too far to make all pictures again: they begin anew, their times and numbers do not.
    monkeypatch.setattr(decode, "MOST_SAMPLES_PASSED_OVER", 64 * 48 * 20)
    account = lives.live(usual.points - 10)
    begun = account.begun[1]
    assert 20 < begun < 60
    assert [said[:3] for said in essence(account)] == [said[:3] for said in essence(usual)]
    assert essence(account)[begun][6] == essence(usual)[0][6]
    assert any("begins with its first one again" in said for said in account.warnings)


def test_the_pace_is_kept_but_not_for_what_is_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(Pacer, "wait", lambda _self, seconds: waited.append(seconds))
    lives = lives_of(closed(tmp_path), pace="realtime")
    points = lives.live().points
    waited.clear()

    account = lives.live(points // 2)

    first, second = waited[: waited.index(max(waited))], essence(account)
    begun = account.begun[1]
    later = waited[len([w for w in waited if w in first and w <= second[begun - 1][1] / 12800 + 1]) :]
    assert all(seconds >= second[begun][1] / 12800 - 1 for seconds in later)


def test_sound_of_the_same_times_is_known_again() -> None:
    """Out of order by a little, as in broken recordings: all up to the packet that was published last are out."""
    out = AlreadyOut(Resume(2, "died", None, {"audio": Published(last_dts={0: 11})}), Notes())
    answers = []
    for dts in (10, 12, 11, 13, 11, 14):
        packet: av.Packet[Any] = av.Packet(4)
        packet.dts, packet.time_base = dts, Fraction(1, 48_000)
        answers.append(out.has_sound(0, packet))
    assert answers == [True, True, True, False, False, False]


def test_an_input_that_has_changed_is_refused(tmp_path: Path) -> None:
    path = closed(tmp_path)
    other = make(tmp_path / "other.mp4", count=COUNT, size=SIZE, options={"preset": "ultrafast", "crf": "40"})

    def change(_: object) -> None:
        """Under the name that is open already: whoever has it open still reads what was there."""
        path.unlink()
        path.write_bytes(other.read_bytes())

    lives = Lives(Decode, {"path": str(path), "threads": 1}, change=change, ports=("video",))
    with pytest.raises(BadMedia, match="not what it was"):
        lives.live(140)


@pytest.mark.parametrize(
    ("location", "moves"),
    [("x.mp4", True), (None, True), ("udp://127.0.0.1:5000", False), ("srt://127.0.0.1:5000", False)],
)
def test_it_says_what_it_can(location: str | None, moves: bool) -> None:
    said = Decode.restart(Decode.Params(), SourceRequest(input=location))
    assert (said.after_death, said.migration) == (True, moves)
    assert ("port" in said.why) != moves
