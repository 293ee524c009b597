"""Publishers and subscribers of processes that nobody supervises."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataplane.errors import ExchangeError
from dataplane.exchange import (
    AddressTaken,
    BadAddress,
    Descriptor,
    Dismissed,
    Frame,
    NobodyServes,
    NoRoom,
    PayloadKind,
    Publisher,
    Refused,
    RingEnded,
    Subscriber,
    TooManyHeld,
)
from dataplane.exchange.pace import Pace

from .exchange_stage import BLOCK, FRAME_BYTES, ROOT, is_whole, peer, publish, stage, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cam.sock"


@pytest.fixture
def out(path: Path) -> Iterator[Publisher]:
    with Publisher(path, frame_bytes=FRAME_BYTES, slots=8, description={"camera": "left"}) as made:
        yield made


# -- frames --------------------------------------------------------------------------------------------------------


def test_frames_arrive_in_another_process(path: Path) -> None:
    with stage(path) as scene:
        scene.publish(500)
        scene.check()
    assert not path.exists()
    assert not path.with_name("cam.sock.lock").exists()


def test_many_processes_read_the_same_frames(path: Path) -> None:
    with stage(path, slots=16) as scene, peer("read", path, "block") as second, peer("read", path, "block") as third:
        assert second.hears()["ready"]
        assert third.hears()["ready"]
        scene.publish(300)
        scene.check()
        assert second.hears() == third.hears() == {"seen": 300, "gaps": 0, "torn": 0, "end": "end_of_stream"}


def test_a_subscriber_starts_with_what_is_published_next(path: Path, out: Publisher) -> None:
    publish(out, 0)  # nobody is there: nobody gets it, and it does not wait
    with Subscriber(path) as frames:
        assert frames.description == {"camera": "left"}
        assert frames.publisher_pid == os.getpid()
        assert frames.take(0.0) is None
        publish(out, 1)
        frame = frames.take(30.0)
        assert frame is not None
        assert (frame.sequence, frame.descriptor.pts, frame.lost_before, frame.incarnation) == (1, 1, None, 1)
        assert is_whole(frame)
        assert np.asarray(frame).shape == (FRAME_BYTES,)
        assert not frame.array.flags.writeable


def test_what_is_not_published_is_given_back(out: Publisher) -> None:
    for _ in range(20):
        with out.acquire() as slot:
            slot.array[:] = 1
    assert out.published == 0


def test_a_slow_subscriber_loses_the_oldest_and_knows_how_many(path: Path, out: Publisher) -> None:
    with Subscriber(path) as frames:
        for index in range(30):
            publish(out, index)
        (state,) = out.consumers
        assert (state.policy, state.backlog, state.held, state.dropped) == ("drop_oldest", 8, 0, 22)
        first = frames.take(30.0)
        assert first is not None
        assert (first.sequence, first.lost_before) == (22, None)
        first.release()
        for index in range(30, 40):
            publish(out, index)
        second = frames.take(30.0)
        assert second is not None
        assert second.lost_before == second.sequence - 23 > 0


def test_a_view_that_is_kept_keeps_its_frame(path: Path, out: Publisher) -> None:
    with Subscriber(path, hold=2) as frames:
        for index in range(4):
            publish(out, index)
        with next(frames) as frame:
            picture = frame.array
        assert out.consumers[0].held == 1
        with next(frames) as frame:
            other = frame.array[:8]
        with pytest.raises(TooManyHeld, match="because of arrays") as error:
            next(frames)
        assert "np.array(frame.array)" in str(error.value.mend)
        assert np.array_equal(picture[:8].view(np.uint64), [0x1234567])  # still what it was
        del picture, other
        third = next(frames)
        assert third.sequence == 2
        assert out.consumers[0].held == 1  # the two others were given back


def test_a_loop_without_with_gives_frames_back_as_it_goes(path: Path) -> None:
    with Publisher(path, frame_bytes=FRAME_BYTES, slots=8) as out, Subscriber(path) as frames:
        for index in range(6):
            publish(out, index)
        out.close()
        assert [frame.sequence for frame in frames] == [0, 1, 2, 3, 4, 5]


def test_a_frame_cannot_be_read_after_its_block(path: Path, out: Publisher) -> None:
    with Subscriber(path) as frames:
        publish(out, 0)
        with next(frames) as frame:
            pass
        with pytest.raises(Exception, match="released"):
            _ = frame.array


# -- ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_when_the_publisher_is_killed_everything_published_is_still_delivered(path: Path, policy: str) -> None:
    with peer("publish_and_stay", path, 50) as publisher:
        assert publisher.hears()["ready"]
        with Subscriber(path, policy=policy) as frames:  # type: ignore[arg-type]
            assert publisher.hears() == {"published": 50}
            publisher.process.kill()
            publisher.process.wait(60)
            for sequence in range(50):
                with next(frames) as frame:
                    assert is_whole(frame)
                    assert frame.sequence == sequence
            with pytest.raises(RingEnded) as end:
                next(frames)
            assert end.value.reason == "failed"


def test_a_subscriber_that_sleeps_is_told_of_the_death_at_once(path: Path) -> None:
    with peer("publish_and_stay", path, 0) as publisher:
        assert publisher.hears()["ready"]
        with Subscriber(path) as frames:
            assert publisher.hears() == {"published": 0}
            publisher.process.send_signal(signal.SIGKILL)
            with pytest.raises(RingEnded, match="failed"):
                frames.take(60.0)


def test_a_stopped_publisher_is_not_a_dead_one(path: Path) -> None:
    with peer("publish_and_stay", path, 0) as publisher:
        assert publisher.hears()["ready"]
        with Subscriber(path) as frames:
            publisher.process.send_signal(signal.SIGSTOP)
            assert frames.take(1.5) is None
            publisher.process.send_signal(signal.SIGCONT)
            assert frames.take(0.2) is None


@pytest.mark.parametrize(
    ("error", "reason"), [(None, "end_of_stream"), (KeyboardInterrupt, "stopped"), (OSError, "failed")]
)
def test_the_way_a_publisher_ends_is_told(path: Path, error: type[BaseException] | None, reason: str) -> None:
    out = Publisher(path, frame_bytes=FRAME_BYTES)
    with Subscriber(path) as frames:
        publish(out, 0)
        out.__exit__(error, None if error is None else error(), None)
        assert frames.take(30.0) is not None
        with pytest.raises(RingEnded) as end:
            frames.take(30.0)
        assert end.value.reason == reason
    with pytest.raises(NobodyServes):
        Subscriber(path)


def test_a_killed_subscriber_gives_back_what_it_held(path: Path) -> None:
    with Publisher(path, frame_bytes=FRAME_BYTES, slots=8, grants=BLOCK, stall_seconds=60) as out:
        with peer("hold", path, "block", 2) as victim:
            assert victim.hears()["ready"]
            for index in range(8):
                publish(out, index)
            assert victim.hears() == {"held": 2}
            with pytest.raises(NoRoom):
                out.acquire(timeout_seconds=0.05)
            (state,) = out.consumers
            assert (state.pid, state.uid, state.policy, state.held, state.backlog) == (
                victim.process.pid, os.geteuid(), "block", 2, 6,
            )  # fmt: skip
            victim.process.kill()
            publish(out, 8)  # waits for the death to be noticed, and for nothing else
        assert [(gone.pid, gone.code) for gone in out.dismissals] == [(victim.process.pid, "gone")]
        assert out.consumers == ()


def test_a_stopped_subscriber_loses_frames_and_is_shown(path: Path) -> None:
    with stage(path) as scene, peer("read", path, "drop_oldest") as sleeper:
        assert sleeper.hears()["ready"]
        sleeper.process.send_signal(signal.SIGSTOP)
        scene.publish(100)
        until(lambda: any(state.stalled_seconds for state in scene.out.consumers if state.pid == sleeper.process.pid))
        (state,) = [state for state in scene.out.consumers if state.pid == sleeper.process.pid]
        assert state.dropped >= 80
        assert state.policy == "drop_oldest"
        scene.publish(100)
        assert scene.codes == []
        sleeper.process.send_signal(signal.SIGCONT)
        until(lambda: all(state.stalled_seconds is None for state in scene.out.consumers))
        scene.check()
        said = sleeper.hears()
        assert said["torn"] == 0
        assert said["end"] == "end_of_stream"


def test_a_stopped_block_subscriber_is_dismissed_after_the_time_declared_and_told_so(path: Path) -> None:
    with (
        Publisher(path, frame_bytes=FRAME_BYTES, slots=8, grants=BLOCK, stall_seconds=0.5) as out,
        Subscriber(path, policy="block") as frames,
    ):
        for index in range(8):
            publish(out, index)
        first, second = next(frames), next(frames)
        began = time.monotonic()
        publish(out, 8)
        assert time.monotonic() - began >= 0.5
        assert [gone.code for gone in out.dismissals] == ["stalled"]
        with pytest.raises(Dismissed, match=r"wait for 0\.5 s") as error:
            first.release()  # what was read of it cannot be relied on
        assert (error.value.code, error.value.mend is not None) == ("stalled", True)
        with pytest.raises(Dismissed), second:
            pass
        with pytest.raises(Dismissed):
            frames.take(30.0)


def test_a_block_subscriber_that_makes_progress_is_waited_for(path: Path) -> None:
    with (
        Publisher(path, frame_bytes=FRAME_BYTES, slots=4, grants=BLOCK, stall_seconds=1.0) as out,
        peer("dawdle", path, 0.2) as reader,
    ):
        assert reader.hears()["ready"]
        for index in range(15):  # 2 s and more of waiting in all
            publish(out, index)
        out.close()
        assert reader.hears() == {"seen": 15, "end": "end_of_stream"}
        assert out.dismissals == ()


def test_holding_more_than_asked_for_costs_the_place_when_room_is_short(path: Path) -> None:
    with stage(path) as scene, Subscriber(path, hold=2) as frames:
        kept: list[Frame] = []
        scene.publish(20)
        frames._hello = frames._hello.__class__("drop_oldest", 100)  # does not keep to what it said
        while (frame := frames.take(0.0)) is not None:
            kept.append(frame)
        assert len(kept) > 2
        scene.publish(100)
        assert scene.codes == ["held"]
        with pytest.raises(Dismissed, match="2 had been asked for"):
            frames.take(30.0)
        scene.check()


# -- a publisher that comes again ----------------------------------------------------------------------------------


def test_reconnecting_shows_where_one_publisher_ends_and_the_next_begins(path: Path) -> None:
    with peer("publish_and_stay", path, 5) as first:
        assert first.hears()["ready"]
        frames = Subscriber(path, reconnect=True)
        first.hears()
        first.process.kill()
        assert [names(frames) for _ in range(5)] == [(1, 0, None), (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0)]
    assert frames.take(0.3) is None  # nobody is there yet
    with peer("publish_and_stay", path, 2) as second:
        assert second.hears()["ready"]
        assert [names(frames) for _ in range(2)] == [(2, 0, None), (2, 1, 0)]
        frames.close()


def names(frames: Subscriber) -> tuple[int, int, int | None]:
    with next(frames) as frame:
        return frame.incarnation, frame.sequence, frame.lost_before


def test_an_orderly_end_is_the_end_even_for_who_reconnects(path: Path) -> None:
    with Publisher(path, frame_bytes=FRAME_BYTES) as out:
        frames = Subscriber(path, reconnect=True)
        publish(out, 0)
    assert [frame.sequence for frame in frames] == [0]
    frames.close()


# -- asyncio -------------------------------------------------------------------------------------------------------


def test_async_for_reads_while_other_tasks_run(path: Path) -> None:
    async def main() -> tuple[list[int], int]:
        ticks, seen = 0, []

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        with Publisher(path, frame_bytes=FRAME_BYTES) as out, Subscriber(path) as frames:

            async def feed() -> None:
                for index in range(10):
                    publish(out, index)
                    await asyncio.sleep(0.02)
                out.close()

            feeding = asyncio.create_task(feed())
            async for frame in frames:
                with frame:
                    seen.append(frame.sequence)
            await feeding
        ticking.cancel()
        return seen, ticks

    seen, ticks = asyncio.run(main())
    assert seen == list(range(10))
    assert ticks >= 5


def test_async_for_is_told_of_the_death_of_the_publisher(path: Path) -> None:
    async def main() -> None:
        with peer("publish_and_stay", path, 3) as publisher:
            assert publisher.hears()["ready"]
            with Subscriber(path) as frames:
                publisher.hears()
                for sequence in range(3):
                    with await anext(frames) as frame:
                        assert frame.sequence == sequence
                waiting = asyncio.ensure_future(anext(frames))
                await asyncio.sleep(0.1)
                publisher.process.kill()
                with pytest.raises(RingEnded, match="failed"):
                    await asyncio.wait_for(waiting, 30)

    asyncio.run(main())


def test_async_for_goes_on_with_the_next_publisher(path: Path) -> None:
    async def main() -> list[tuple[int, int]]:
        seen = []
        with peer("publish_and_stay", path, 2) as first:
            assert first.hears()["ready"]
            frames = Subscriber(path, reconnect=True)
            first.hears()
            first.process.kill()
            for _ in range(2):
                with await anext(frames) as frame:
                    seen.append((frame.incarnation, frame.sequence))
        waiting = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        with peer("publish_and_stay", path, 1) as second:
            assert second.hears()["ready"]
            with await asyncio.wait_for(waiting, 30) as frame:
                seen.append((frame.incarnation, frame.sequence))
            frames.close()
        return seen

    assert asyncio.run(main()) == [(1, 0), (1, 1), (2, 0)]


def test_a_cancelled_task_loses_no_frame(path: Path, out: Publisher) -> None:
    async def main() -> None:
        with Subscriber(path) as frames:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(frames), 0.05)
            publish(out, 0)
            assert (await asyncio.wait_for(anext(frames), 30)).sequence == 0

    asyncio.run(main())


# -- addresses -----------------------------------------------------------------------------------------------------


def test_only_the_owner_may_connect_from_the_first_moment_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # what comes after the first moment
    before = os.umask(0)
    try:
        with Publisher(path, frame_bytes=FRAME_BYTES):
            assert path.is_socket()
            assert path.stat().st_mode & 0o7777 == 0o600
    finally:
        os.umask(before)


def test_the_owner_may_connect_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o777)
    try:
        with Publisher(path, frame_bytes=FRAME_BYTES):
            assert path.stat().st_mode & 0o7777 == 0o600
    finally:
        os.umask(before)


def test_nobody_serves(path: Path) -> None:
    with pytest.raises(NobodyServes, match="nobody publishes at") as error:
        Subscriber(path)
    assert "wait_seconds" in str(error.value.mend)
    with pytest.raises(NobodyServes):
        Subscriber(path, wait_seconds=0.2)


def test_a_subscriber_may_wait_for_its_publisher(path: Path) -> None:
    with peer("read", path, "block") as reader:
        time.sleep(0.3)
        with Publisher(path, frame_bytes=FRAME_BYTES, grants=BLOCK) as out:
            assert reader.hears()["ready"]
            publish(out, 0)
        assert reader.hears()["seen"] == 1


def test_a_living_publisher_keeps_its_address(path: Path, out: Publisher) -> None:
    with pytest.raises(AddressTaken, match=f"pid {os.getpid()} serves at .* already"):
        Publisher(path, frame_bytes=1)
    with Subscriber(path) as frames:  # and nothing has happened to it
        publish(out, 0)
        assert frames.take(30.0) is not None


def test_something_that_listens_without_our_lock_keeps_its_address(path: Path) -> None:
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as listener:
            listener.bind(str(path))
            listener.listen()
            with pytest.raises(AddressTaken):
                Publisher(path, frame_bytes=1)
            assert path.exists()
        path.unlink()


def test_the_socket_of_a_killed_publisher_is_taken_over(path: Path) -> None:
    with peer("publish_and_stay", path, 0) as first:
        assert first.hears()["ready"]
        first.process.kill()
        first.process.wait(60)
    assert path.is_socket()
    with pytest.raises(NobodyServes, match="a dead one left its socket"):
        Subscriber(path)
    with Publisher(path, frame_bytes=FRAME_BYTES) as out, Subscriber(path) as frames:
        publish(out, 0)
        assert frames.take(30.0) is not None


def test_of_many_that_start_at_once_one_gets_the_address(path: Path) -> None:
    script = (
        "import sys, time\nfrom dataplane.exchange import AddressTaken, Publisher\n"
        "try:\n    out = Publisher(sys.argv[1], frame_bytes=1)\nexcept AddressTaken:\n    print('taken')\n"
        "else:\n    print('mine')\nsys.stdout.flush(); sys.stdin.read()\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for _ in range(6)
    ]
    said = [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
    for racer in racers:
        racer.communicate(timeout=60)
    assert sorted(said) == ["mine"] + ["taken"] * 5


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(BadAddress, match="is no socket"):
        Publisher(path, frame_bytes=1)
    assert path.read_text() == "precious"


def test_folders_in_which_others_may_write_are_refused(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(BadAddress, match="others may write") as error:
        Publisher(open_folder / "cam.sock", frame_bytes=1)
    assert "chmod go-w" in str(error.value.mend)
    open_folder.chmod(0o1777)  # as /tmp: nobody can remove what is not theirs
    Publisher(open_folder / "cam.sock", frame_bytes=1).close()
    with pytest.raises(BadAddress, match="no folder"):
        Publisher(tmp_path / "nowhere" / "cam.sock", frame_bytes=1)
    with pytest.raises(BadAddress, match="too long"):
        Publisher(tmp_path / ("x" * 120), frame_bytes=1)


def test_what_cannot_be_is_refused_in_words(path: Path) -> None:
    with pytest.raises(ExchangeError, match="needs 2 slots"):
        Publisher(path, frame_bytes=1, slots=2)
    with pytest.raises(ExchangeError, match="grants are some of"):
        Publisher(path, frame_bytes=1, grants=("newest",))  # type: ignore[arg-type]
    with pytest.raises(ExchangeError, match="JSON"):
        Publisher(path, frame_bytes=1, description={"camera": object()})
    with pytest.raises(ExchangeError, match="more than 16384"):
        Publisher(path, frame_bytes=1, description={"camera": "x" * 20000})
    assert not path.exists()
    with Publisher(path, frame_bytes=100) as out, pytest.raises(Exception, match="no slot holds 5000 bytes"):
        out.acquire(5000)


def test_a_publisher_grants_what_it_said_and_no_more(path: Path, out: Publisher) -> None:
    with pytest.raises(Refused, match="does not grant 'block'") as error:
        Subscriber(path, policy="block")
    assert error.value.code == "policy"
    with Subscriber(path, hold=4), Subscriber(path, hold=2):
        with pytest.raises(Refused, match="of the publisher's 8 slots 6 are promised to 2") as error:
            Subscriber(path, hold=1)
        assert error.value.code == "full"
        assert "9 or more" in str(error.value.mend)
    until(lambda: out.consumers == ())
    Subscriber(path, hold=6).close()


def test_a_publisher_can_wait_for_its_readers(path: Path, out: Publisher) -> None:
    assert not out.wait_for_consumers(1, timeout_seconds=0.05)
    with peer("read", path, "drop_oldest") as reader:
        assert out.wait_for_consumers(1, timeout_seconds=60)
        assert reader.hears()["ready"]


def test_nothing_is_left_of_closed_ones(path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    counts = []
    for _ in range(4):
        with Publisher(path, frame_bytes=FRAME_BYTES) as out, Subscriber(path) as frames:
            publish(out, 0)
            with next(frames):
                pass
        gc.collect()
        counts.append(descriptors())
    assert counts == counts[:1] * 4


def test_permits_grow_again_with_time() -> None:
    now = 0.0
    pace = Pace(2.0, 3, clock=lambda: now)
    assert [pace.take() for _ in range(4)] == [True, True, True, False]
    assert pace.wait_seconds == 0.5
    now = 0.5
    assert [pace.take(), pace.take()] == [True, False]
    now = 100.0
    assert pace.full
    assert [pace.take() for _ in range(4)] == [True, True, True, False]


def test_any_process_may_describe_its_frames(path: Path, out: Publisher) -> None:
    with Subscriber(path) as frames:
        with out.acquire() as slot:
            slot.array[: 4 * 6] = np.arange(24)
            slot.publish(
                Descriptor(payload_kind=PayloadKind.VIDEO_FRAME, width=2, height=4, planes=[(0, 6)], pts=7), 4 * 6
            )
        with next(frames) as frame:
            assert frame.plane(0).tolist() == np.arange(24).reshape(4, 6).tolist()
            assert "sequence=0" in repr(frame)
