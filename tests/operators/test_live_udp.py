"""Live MPEG-TS over UDP and RTP on loopback: it comes, stutters, goes, returns, jumps, and is damaged."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dataplane._ring import WriteLease
from dataplane.errors import BadMedia, WrongAddress
from dataplane.operators.base import Loss, Published, Resume, SourceRequest
from dataplane.operators.decode import Decode
from dataplane.operators.timeline import TS_WRAP
from tests.operators.senders import DATAGRAM, STEP, Relay, Sender, Watched, free_port, watched

START = 126_000  # where FFmpeg's muxer begins when nothing else is asked for


def steps(seen: Watched) -> list[int]:
    return [b.pts - a.pts for a, b in pairwise(seen.frames)]


def rising(seen: Watched) -> bool:
    """Source indices without a gap, times that go on."""
    indices = [frame.source_index for frame in seen.frames]
    return indices == list(range(len(indices))) and min(steps(seen)) > 0


def waiting_is_no_work(seen: Watched) -> None:
    """Frames come every 40 ms: with the wait in it, the work on them would take up all of the time."""
    frames = seen.frames[15:]  # what was queued while the source was opened comes at once
    passed = frames[-1].signal_ns - frames[0].signal_ns
    assert all(frame.alloc_ns <= frame.launch_ns <= frame.signal_ns for frame in seen.frames)
    assert sum(frame.signal_ns - frame.launch_ns for frame in frames[1:]) < passed / 2
    assert sum(frame.launch_ns - frame.alloc_ns for frame in frames[1:]) < passed / 2


def udp(port: int) -> tuple[str, str]:
    """What to listen on, and what to send to."""
    return f"udp://127.0.0.1:{port}", f"udp://127.0.0.1:{port}?pkt_size={DATAGRAM}"


def test_a_stream_over_udp_comes_in_step_and_stops_at_once_when_told() -> None:
    url, target = udp(free_port())
    with Sender(target, audio=True), watched(url, ports=("video", "audio")) as seen:
        seen.more(40)
        probe = seen.bench.probe
        assert probe is not None
        assert probe.live
        assert probe.duration_seconds is None
        assert probe.frames is None
        assert set(steps(seen)) == {STEP}
        assert 0 <= seen.frames[0].pts - START < 40 * STEP  # the source's own times
        assert seen.frames[0].flags & 1
        assert seen.epochs == [0]
        waiting_is_no_work(seen)
        sound = [packet.pts for packet in seen.sound if packet.payload_kind != 4 and packet.pts > 0]
        assert sound
        assert max(b - a for a, b in pairwise(sound)) < 2 * 1920  # none is missing
        assert not seen.bench.lost_frames
        assert not seen.bench.warnings


def test_another_process_goes_on_in_an_epoch_of_its_own() -> None:
    url, target = udp(free_port())
    both = ("video", "audio")
    with Sender(target, audio=True):
        with watched(url, ports=both) as first:
            first.more(30)
        last, bench = first.frames[-1], first.bench
        published = {"video": Published().followed_by(first.frames), "audio": Published().followed_by(first.sound)}
        lost = (Loss(last.source_index + 1, None, "decoded with errors"),)  # it was the last thing that it said
        with watched(url, ports=both, resume=Resume(2, "died", bench.state, published, lost)) as second:
            second.more(30)

    indices = [frame.source_index for frame in second.frames]
    assert indices == list(range(last.source_index + 2, last.source_index + 2 + len(indices)))
    assert min(steps(second)) > 0
    assert last.pts < second.frames[0].pts < last.pts + 60 * STEP  # it begins with a key frame
    assert second.epochs == [2]
    assert "another process" in second.bench.epochs[0][0]
    own = second.source_pts(second.frames[0])
    assert first.source_pts(last) < own  # the sender has gone on meanwhile
    assert own < first.source_pts(last) + 20 * 25 * STEP
    sounds = [packet for packet in second.sound if packet.payload_kind != 4]
    assert sounds[0].pts > max(packet.pts for packet in first.sound if packet.payload_kind != 4) - 90_000
    assert abs(sounds[0].pts - second.frames[0].pts) < 45_000
    assert second.sound[0].payload_kind == 4  # the codec parameters once more


def test_a_stutter_is_neither_an_epoch_nor_a_loss() -> None:
    url, target = udp(free_port())
    with Sender(target) as sender, watched(url, read_timeout_seconds=2.0) as seen:
        seen.more(10)
        sender.pause(0.7)
        seen.more(30)
        assert set(steps(seen)) == {STEP}
        assert seen.epochs == [0]
        assert not seen.bench.warnings
        assert not seen.bench.lost_frames


def test_a_sender_that_is_killed_and_returns_begins_an_epoch_and_times_go_on() -> None:
    url, target = udp(free_port())
    with Sender(target) as sender, watched(url) as seen:
        seen.more(10)
        sender.kill()
        seen.wait(lambda it: any("no data for 1 s" in words for words in it.bench.warnings))
        with Sender(target, size="320x240"):
            seen.more(20)
            assert rising(seen)
            assert seen.epochs == [0, 2]
            reason, offset = seen.bench.epochs[0]
            assert "back after" in reason
            first = seen.first_of(2)
            assert first.flags & 2
            assert (first.pts - offset - START) % STEP == 0
            assert 0 <= first.pts - offset - START < 20 * STEP  # the new encoder's own first second
            assert {(frame.width, frame.height) for frame in seen.frames} == {(160, 120)}
            assert [w for w in seen.bench.warnings if "outage 1: it was away for" in w]
            assert [w for w in seen.bench.warnings if "320x240" in w]


def test_an_encoder_that_is_started_anew_at_once_begins_an_epoch_without_an_outage() -> None:
    url, target = udp(free_port())
    with Sender(target, start=100.0) as sender, watched(url, read_timeout_seconds=5.0) as seen:
        seen.more(10)
        sender.kill()
        with Sender(target):
            seen.more(20)
            assert rising(seen)
            assert seen.epochs == [0, 2]
            reason, offset = seen.bench.epochs[0]
            assert reason == "the times of the input jump back"
            assert 0 <= seen.first_of(2).pts - offset - START < 20 * STEP
            assert not [w for w in seen.bench.warnings if "away" in w]


def test_the_33_bits_begin_again_live() -> None:
    url, target = udp(free_port())
    before = float(Fraction(TS_WRAP, 90_000)) - 3.4  # the muxer adds 1.4 s
    with Sender(target, start=before, audio=True), watched(url, ports=("video", "audio")) as seen:
        seen.wait(lambda it: it.epochs == [0, 2] and it.frames[-1].pts > TS_WRAP + 10 * STEP)
        assert set(steps(seen)) == {STEP}
        assert seen.bench.epochs == [("the 33 bits of the time stamps began again", TS_WRAP)]
        assert max(seen.source_pts(f) for f in seen.frames if f.epoch == 0) < TS_WRAP
        assert seen.source_pts(seen.first_of(2)) < STEP
        sound = [packet.pts for packet in seen.sound if packet.pts > 0]
        assert max(sound) > TS_WRAP
        assert max(b - a for a, b in pairwise(sound)) < 2 * 1920


@pytest.mark.slow
def test_garbage_between_good_data_costs_frames_and_nothing_else() -> None:
    port = free_port()
    noise = random.Random(1)
    count = 0

    def mangle(datagram: bytes) -> bytes:
        nonlocal count
        count += 1
        return noise.randbytes(len(datagram)) if 60 < count < 75 or 120 < count < 125 else datagram

    url, _ = udp(port)
    with Relay(port, mangle) as relay, Sender(udp(relay.port)[1], gop=5), watched(url) as seen:
        seen.wait(lambda _: count > 200)
        seen.more(10)
        assert min(steps(seen)) > 0
        assert seen.error is None
        assert sum(steps(seen)) / STEP < len(seen.frames) + 40  # most of it came


def test_a_source_that_never_comes_is_named_with_a_mend() -> None:
    url, _ = udp(free_port())
    began = time.monotonic()
    with pytest.raises(BadMedia, match=r"within 2 s") as caught:
        Decode.probe(Decode.Params.model_validate({"open_timeout_seconds": 2}), SourceRequest(input=url))
    assert 2 <= time.monotonic() - began < 4  # and not once for its header, and again for its streams
    assert caught.value.file == url
    assert "start the sender" in (caught.value.mend or "")


@pytest.mark.slow
def test_a_source_that_comes_late_is_waited_for() -> None:
    url, target = udp(free_port())
    late: list[Sender] = []
    timer = threading.Timer(1.0, lambda: late.append(Sender(target)))
    timer.start()
    try:
        assert Decode.probe(Decode.Params(), SourceRequest(input=url)).live
    finally:
        timer.join()
        late[0].kill()


@pytest.mark.parametrize("scheme", ["udp", "rtp"])
def test_a_port_that_is_taken_is_named_at_once(scheme: str) -> None:
    port = free_port(2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", port))
        with pytest.raises(WrongAddress, match="another program listens on this port"):
            Decode.probe(Decode.Params(), SourceRequest(input=f"{scheme}://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("udp://192.0.2.7:5004", "no address of this machine"),
        ("udp://127.0.0.1", "no port"),
        ("udb://127.0.0.1:5004", "this kind of address is not known"),
        ("srt://127.0.0.1:5004?passphrase=secret", "gateway"),
    ],
)
def test_wrong_addresses_are_named_at_once(url: str, words: str) -> None:
    with pytest.raises(BadMedia, match=words) as caught:
        Decode.probe(Decode.Params(), SourceRequest(input=url))
    assert "secret" not in str(caught.value)


def test_a_stop_is_heard_while_nothing_comes() -> None:
    url, target = udp(free_port())
    with Sender(target) as sender, watched(url, open_timeout_seconds=10.0) as seen:
        seen.more(5)
        sender.kill()
        seen.wait(lambda it: bool(it.bench.warnings))  # it is gone; it is waited for, for ever
        assert not seen.ended
        seen.bench.stopping.set()
        seen.wait(lambda it: it.stopped, 3.0)  # well below what it waits for data in one go


def test_a_source_that_stays_away_ends_the_job_where_that_is_asked_for() -> None:
    url, target = udp(free_port())
    with Sender(target) as sender, watched(url, reconnect_seconds=0.5) as seen:
        seen.more(5)
        sender.kill()
        seen.wait(lambda it: it.ended)
        assert any("did not come back within 0.5 s" in words for words in seen.bench.warnings)


@pytest.mark.slow
def test_a_pipeline_that_is_too_slow_loses_whole_groups_and_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.operators.live_feed.MOST_QUEUED_PACKETS", 20)
    url, target = udp(free_port())
    with Sender(target), watched(url) as seen:
        seen.more(5)
        seen.bench.acquire = slowly(seen.bench.acquire, 2.0)  # type: ignore[method-assign]
        seen.wait(lambda it: bool(it.bench.lost_frames))
        seen.more(30)
        lost = [reason for _, _, reason in seen.bench.lost_frames]
        assert set(lost) == {"the pipeline was slower than its live source"}
        assert sum(step // STEP - 1 for step in steps(seen)) == len(lost)  # every frame came or is counted
        assert min(steps(seen)) > 0


def slowly(acquire: Callable[..., WriteLease], seconds: float) -> Callable[..., WriteLease]:
    """The same, but the first call takes long."""
    waits = [seconds]

    def acquire_late(*args: Any) -> WriteLease:
        if waits:
            time.sleep(waits.pop())
        return acquire(*args)

    return acquire_late


# -- RTP ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mpeg_ts_over_rtp() -> None:
    port = free_port(2)
    with Sender(f"rtp://127.0.0.1:{port}", "rtp_mpegts"), watched(f"rtp://127.0.0.1:{port}") as seen:
        seen.more(20)
        assert set(steps(seen)) == {STEP}
        assert all((frame.pts - START) % STEP == 0 for frame in seen.frames)


def sdp(path: Path, port: int) -> Path:
    path.write_text(
        f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=test\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\n"
        "a=rtpmap:96 H264/90000\na=fmtp:96 packetization-mode=1\n"
    )
    return path


def test_rtp_that_an_sdp_file_describes_goes_on_over_the_wrap_of_its_32_bits(tmp_path: Path) -> None:
    port = free_port(2)
    first: list[int] = []
    wrapped = threading.Event()

    def near_the_wrap(datagram: bytes) -> bytes:
        """RTP time stamps that begin 2 s before they wrap."""
        stamp = int.from_bytes(datagram[4:8], "big")
        first[:] = first or [stamp]
        moved = (stamp - first[0] + (1 << 32) - 180_000) % (1 << 32)
        if moved < 90_000:
            wrapped.set()
        return datagram[:4] + moved.to_bytes(4, "big") + datagram[8:]

    path = sdp(tmp_path / "x.sdp", port)
    with (
        Relay(port, near_the_wrap) as relay,
        Sender(f"rtp://127.0.0.1:{relay.port}", "rtp"),
        watched(str(path)) as seen,
    ):
        seen.wait(lambda _: wrapped.is_set())
        seen.more(20)
        assert set(steps(seen)) == {STEP}
        assert seen.epochs == [0]
        assert seen.bench.probe is not None
        assert seen.bench.probe.live
        assert seen.bench.probe.start_seconds == 0
