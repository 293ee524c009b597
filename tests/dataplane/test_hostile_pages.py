"""Consumers that write lies into their own page: they lose their own frames, and nobody else anything."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane import _ring
from dataplane.exchange import Dismissed, Subscriber

from .exchange_stage import ForgedPage, Intruder, Stage, hello, peer, stage

UNKNOWN = 2**64 - 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cam.sock"


@pytest.fixture
def scene(path: Path) -> Iterator[Stage]:
    with stage(path, slots=12, stall_seconds=1.0) as made:
        yield made


@pytest.mark.parametrize(("policy", "frames"), [("block", 250), ("drop_oldest", 1500)])
def test_random_words_all_over_the_page_while_it_is_read(scene: Stage, path: Path, policy: str, frames: int) -> None:
    """Fewer under `block`: whoever acknowledges at random wakes nobody, so each frame may wait for the next look."""
    with peer("scribble", path, policy, 1) as first, peer("scribble", path, policy, 2) as second:
        assert first.hears()["ready"]
        assert second.hears()["ready"]
        scene.publish(frames)
    assert set(scene.codes) <= {"held", "stalled", "gone"}
    scene.check()


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
@pytest.mark.parametrize("lie", [UNKNOWN, UNKNOWN - 1, 2**63, 10**6])
def test_acknowledging_what_was_never_published(scene: Stage, path: Path, policy: str, lie: int) -> None:
    with Intruder(path) as intruder:
        intruder.enter(policy)
        for step in range(200):
            intruder.page.store(acked=(lie - step) % 2**64, taken=(lie - step) % 2**64)
            scene.publish()
        (state,) = [state for state in scene.out.consumers if state.pid == os.getpid()]
        assert state.backlog == 0  # all its own frames are forgotten, none of the honest reader's
        scene.check()


def test_old_acknowledgements_again(scene: Stage, path: Path) -> None:
    """Acknowledges as it should and then takes it back, again and again: what was acknowledged stays so."""
    with Intruder(path) as intruder:
        intruder.enter("block")
        for step in range(1, 300):
            scene.publish()
            intruder.page.store(taken=step, acked=step)
            scene.publish()  # which believes it
            scene.out.consumers  # noqa: B018
            intruder.page.store(taken=step // 2, acked=step // 2)
            intruder.page.store(taken=2 * step, acked=2 * step)
        assert scene.codes == []
        scene.check()


@pytest.mark.parametrize("lie", [0, 1, 100, UNKNOWN, UNKNOWN - 1, 2**63])
def test_a_wild_place_under_drop_oldest(scene: Stage, path: Path, lie: int) -> None:
    """The one word with two writers. A page from which nothing can be dropped costs its owner the place."""
    with Intruder(path) as intruder:
        intruder.enter("drop_oldest")
        scene.publish(50)
        intruder.page.store(taken=lie)
        scene.publish(200)
        assert scene.codes == ["held"]
        assert intruder.hears()["code"] == "held"
        scene.check()


def test_taking_everything_and_giving_nothing_back(scene: Stage, path: Path) -> None:
    with Intruder(path) as intruder:
        intruder.enter("drop_oldest", hold=2)
        for step in range(1, 100):
            scene.publish()
            intruder.page.store(taken=step)
        assert scene.codes == ["held"]
        scene.check()


def test_the_same_again_as_often_as_it_likes(scene: Stage, path: Path) -> None:
    for _ in range(10):
        with Intruder(path) as intruder:
            intruder.enter("drop_oldest")
            first = scene.published
            for step in range(1, 30):
                scene.publish()
                intruder.page.store(taken=first + step)
    assert scene.codes == ["held"] * 10
    scene.check()


def test_holding_what_was_promised_costs_the_publisher_nothing(scene: Stage, path: Path) -> None:
    """Eight of them, each with one frame that the others do not hold: the publisher has 12 slots, and promised 10."""
    intruders = []
    for _ in range(8):
        intruder = Intruder(path)
        intruder.enter("drop_oldest")
        intruders.append(intruder)
        scene.publish()
        intruder.page.store(taken=scene.published)
    scene.publish(300)
    assert scene.codes == []
    assert sum(state.held for state in scene.out.consumers if state.pid == os.getpid()) == 8
    for intruder in intruders:
        intruder.close()
    scene.check()


def test_a_block_consumer_that_acknowledges_nothing_is_dismissed_after_the_time_declared(
    scene: Stage, path: Path
) -> None:
    with Intruder(path) as intruder:
        intruder.enter("block")
        scene.publish(100)
        assert scene.codes == ["stalled"]
        said = intruder.hears()
        assert (said["type"], said["code"]) == ("dismissed", "stalled")
        scene.check()


def test_taking_the_name_of_another_page(scene: Stage, path: Path) -> None:
    """The honest reader's page id is there for all to read, in the ring. Nobody else gets in with it."""
    with Intruder(path) as intruder:
        intruder.enter("drop_oldest")
        fields = _ring.layouts()["mo_ring_header"]["fields"]
        header = os.pread(intruder.handles[0], _ring.layouts()["mo_ring_header"]["size"], 0)
        (honest,) = struct.unpack_from("<Q", header, fields["admissions"])
        assert honest not in (0, intruder.page.page_id)
        for policy in ("block", "drop_oldest"):
            with Intruder(path) as twin:
                forged = ForgedPage(policy, page_id=honest)
                twin.send(hello(policy), forged.fd)
                assert twin.refused() == "page"
                forged.close()
        intruder.page.store(page_id=honest)
        scene.publish(100)
        with Subscriber(path) as frames:  # pages of others are not mistaken for it
            scene.publish(10)
            assert frames.take(30.0) is not None
        scene.check()


def test_rewriting_what_a_page_is(scene: Stage, path: Path) -> None:
    with Intruder(path) as intruder:
        intruder.enter("drop_oldest")
        scene.publish(10)
        intruder.page.words[:3] = 0  # magic, version, pid, policy, id
        scene.publish(100)
        intruder.page.words[:] = UNKNOWN
        scene.publish(100)
        scene.check()


def test_a_hole_in_the_page(scene: Stage, path: Path) -> None:
    """The owner may take the memory of its page away: the publisher then reads zeros, and no signal."""
    with Intruder(path) as intruder:
        intruder.enter("drop_oldest")
        scene.publish(10)
        punch_hole(intruder.page.fd)
        scene.publish(100)
        with pytest.raises(PermissionError):
            os.ftruncate(intruder.page.fd, 0)
        scene.check()


def test_claiming_to_sleep_all_the_time(scene: Stage, path: Path) -> None:
    with Intruder(path) as intruder:
        intruder.enter("drop_oldest")
        intruder.page.store(waiting=UNKNOWN)
        scene.publish(300)
        scene.check()


def test_an_honest_subscriber_that_is_dismissed_hears_why(scene: Stage, path: Path) -> None:
    with Subscriber(path, policy="block") as frames:
        scene.publish(50)
        assert scene.codes == ["stalled"]
        with pytest.raises(Dismissed, match="nothing was given back"):
            frames.take(30.0)
    scene.check()


def punch_hole(fd: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    length, start = ctypes.c_long(4096), ctypes.c_long(0)
    assert libc.fallocate(fd, 0x3, start, length) == 0, os.strerror(ctypes.get_errno())
