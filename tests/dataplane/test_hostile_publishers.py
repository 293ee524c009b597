"""Publishers that lie to their subscribers: an error in words, never a wrong frame, a signal or a hang."""

from __future__ import annotations

import fcntl
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dataplane.exchange import (
    BrokenPublisher,
    Dismissed,
    ExchangeError,
    Publisher,
    Refused,
    RingEnded,
    Subscriber,
    connection,
)

from .exchange_stage import FRAME_BYTES, is_whole, publish
from .fake_publisher import FakePublisher, welcome

UNKNOWN = 2**64 - 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cam.sock"


def memfd(size: int, seals: int) -> int:
    fd = os.memfd_create("slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_the_fake_one_is_believed_when_it_does_nothing_wrong(path: Path) -> None:
    with FakePublisher(path, welcome()) as fake, Subscriber(path) as frames:
        fake.publish(0)
        with next(frames) as frame:
            assert is_whole(frame)
        fake.producer.finish("stopped")
        with pytest.raises(RingEnded, match="stopped"):
            frames.take(30.0)


# -- the handshake ----------------------------------------------------------------------------------------------------


BAD_ANSWERS: list[dict[str, Any] | bytes] = [
    b"\0",
    b"[]",
    {"type": "hello"},
    {"type": "dismissed"},
    welcome(publisher=7),
    welcome(slot_bytes=None),
    welcome(slot_bytes=[FRAME_BYTES, FRAME_BYTES]),
    welcome(slot_bytes=[-1]),
    welcome(slot_bytes=[True]),
    welcome(slot_bytes=["4096"]),
    welcome(slot_bytes=[0]),
    welcome(slot_bytes=[2**62]),
    welcome(slot_bytes=[2**70]),
    welcome(hold=None),
    welcome(stall_seconds="long"),
    welcome(description=[]),
]


@pytest.mark.parametrize("number", range(len(BAD_ANSWERS)))
def test_answers_that_make_no_sense(path: Path, number: int) -> None:
    with FakePublisher(path, BAD_ANSWERS[number]), pytest.raises(ExchangeError) as error:
        Subscriber(path)
    assert isinstance(error.value, BrokenPublisher | Refused)


def test_a_refusal_is_shown_without_control_characters(path: Path) -> None:
    said = {"type": "refused", "code": "\x1b[31m", "message": "\x07" * 9000, "mend": 7}
    with FakePublisher(path, said, []), pytest.raises(Refused) as refused:
        Subscriber(path)
    words = f"{refused.value.code} {refused.value} {refused.value.mend}"
    assert words.isprintable()
    assert len(words) < 700


def test_silence_after_the_hello_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.2)
    with FakePublisher(path, None), pytest.raises(Refused, match="did not answer") as refused:
        Subscriber(path)
    assert refused.value.code == "timeout"


def test_a_connection_that_closes_without_a_word(path: Path) -> None:
    with FakePublisher(path, None, close_after=True), pytest.raises(Refused, match="without a word"):
        Subscriber(path)


# -- memory -----------------------------------------------------------------------------------------------------------


SHRINK, FUTURE_WRITE = fcntl.F_SEAL_SHRINK, 0x10


@pytest.mark.parametrize(
    ("size", "seals", "words"),
    [
        (FRAME_BYTES, 0, "not sealed against shrinking writing"),
        (FRAME_BYTES, SHRINK, "not sealed against writing"),
        (FRAME_BYTES, FUTURE_WRITE, "not sealed against shrinking"),
        (FRAME_BYTES - 1, SHRINK | FUTURE_WRITE, "too short"),
        (0, SHRINK | FUTURE_WRITE, "too short"),
    ],
)
def test_a_slab_that_could_be_pulled_away(path: Path, size: int, seals: int, words: str) -> None:
    slab = memfd(size, seals)
    with FakePublisher(path, welcome()) as fake:
        fake._handles = [fake.producer.ring_fd, slab]
        with pytest.raises(BrokenPublisher, match=words):
            Subscriber(path)
    os.close(slab)


@pytest.mark.parametrize("thing", ["pipe", "slab", "unsealed", "short"])
def test_a_ring_that_is_none(path: Path, thing: str) -> None:
    with FakePublisher(path, welcome()) as fake:
        (slab,) = fake.producer.slab_fds
        ring = {
            "pipe": lambda: os.pipe()[0],
            "slab": lambda: os.dup(slab),
            "unsealed": lambda: memfd(1 << 16, 0),
            "short": lambda: memfd(100, SHRINK | fcntl.F_SEAL_GROW),
        }[thing]()
        fake._handles = [ring, slab]
        with pytest.raises(BrokenPublisher, match="memory cannot be used"):
            Subscriber(path)
        os.close(ring)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("magic", 0),
        ("abi", 0),
        ("capacity", 3),
        ("capacity", 1 << 31),
        ("descriptor_bytes", 8),
        ("first_sequence", UNKNOWN),
    ],
)
def test_a_ring_that_contradicts_itself(path: Path, name: str, value: int) -> None:
    with FakePublisher(path, welcome()) as fake:
        fake.store(name, value)
        with pytest.raises(BrokenPublisher):
            Subscriber(path)


def test_memory_that_is_resized_while_it_is_read(path: Path) -> None:
    with FakePublisher(path, welcome()) as fake, Subscriber(path) as frames:
        fake.publish(0)
        for fd in (fake.producer.ring_fd, *fake.producer.slab_fds):
            for size in (0, 1 << 30):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, size)
        with next(frames) as frame:
            assert is_whole(frame)


# -- words ------------------------------------------------------------------------------------------------------------


DAMAGES = [
    ("sequence", 7, "<Q"),
    ("payload_kind", 0, "<H"),
    ("payload_kind", 99, "<H"),
    ("pixel_format", 99, "<H"),
    ("slab", 1, "<I"),
    ("slab", 2**32 - 1, "<I"),
    ("slot", 8, "<I"),
    ("slot", 2**32 - 1, "<I"),
    ("offset", 1, "<Q"),
    ("offset", 2**63, "<Q"),
    ("bytes", FRAME_BYTES + 1, "<Q"),
    ("bytes", UNKNOWN, "<Q"),
    ("plane_count", 5, "<H"),
]


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_descriptors_that_point_elsewhere(path: Path, policy: str, tmp_path: Path) -> None:
    for number, (name, value, form) in enumerate(DAMAGES):
        here = tmp_path / f"{number}.sock"
        with FakePublisher(here, welcome()) as fake, Subscriber(here, policy=policy) as frames:  # type: ignore[arg-type]
            fake.publish(0)
            with next(frames) as frame:
                assert is_whole(frame)
            sequence = fake.publish(1)
            fake.damage(sequence, name, value, form)
            with pytest.raises(BrokenPublisher, match="writes what cannot be"):
                frames.take(30.0)


@pytest.mark.parametrize("tail", [UNKNOWN, UNKNOWN - 1, 2**63, 1000])
def test_a_tail_that_is_far_ahead(path: Path, tail: int) -> None:
    with FakePublisher(path, welcome()) as fake, Subscriber(path) as frames:
        fake.publish(0)
        fake.store("tail", tail)
        with next(frames) as frame:
            assert is_whole(frame)
        with pytest.raises(BrokenPublisher):
            frames.take(30.0)


def test_a_tail_that_goes_back(path: Path) -> None:
    """What was taken is taken; what was announced and withdrawn may come or not; nothing comes twice."""
    with FakePublisher(path, welcome()) as fake, Subscriber(path, hold=6) as frames:
        for index in range(4):
            fake.publish(index)
        first = [next(frames), next(frames)]
        fake.store("tail", 0)
        later = []
        while (frame := frames.take(0.05)) is not None:
            later.append(frame)
        sequences = [frame.sequence for frame in (*first, *later)]
        assert sequences in ([0, 1], [0, 1, 2, 3])
        assert all(is_whole(frame) for frame in (*first, *later))


def test_an_end_that_comes_and_goes(path: Path) -> None:
    """Flapping a million times a second: every take ends, with a frame or the end; no frame is wrong or comes twice."""
    with FakePublisher(path, welcome()) as fake, Subscriber(path, hold=2) as frames:
        stop = threading.Event()

        def flap() -> None:
            while not stop.is_set():
                for value in (0, 3, UNKNOWN, 2**63, 5, UNKNOWN):
                    fake.store("final_seq", value)

        flapping = threading.Thread(target=flap)
        flapping.start()
        last, ends = -1, 0
        deadline = time.monotonic() + 1.5
        for index in range(6):
            try:
                fake.publish(index)
            except Exception:
                continue  # it believes its own word, too
        while time.monotonic() < deadline:
            try:
                frame = frames.take(0.01)
            except RingEnded:
                ends += 1
                continue
            if frame is not None:
                with frame:
                    assert frame.sequence > last
                    assert is_whole(frame)
                    last = frame.sequence
        stop.set()
        flapping.join()
        assert ends > 0


@pytest.mark.parametrize("start", [5, UNKNOWN, 2**63])
def test_being_let_in_where_nothing_is(path: Path, start: int) -> None:
    with FakePublisher(path, welcome()) as fake, Subscriber(path) as frames:
        fields = fake._header["fields"]
        at = fields["admissions"] + 8
        fake.memory[at : at + 8] = start.to_bytes(8, "little")
        with pytest.raises(BrokenPublisher):
            frames.take(30.0)


def test_never_being_let_in(path: Path) -> None:
    """A publisher that answers but does not list us: nothing comes, and leaving works."""
    with FakePublisher(path, welcome(), admit=False) as fake, Subscriber(path) as frames:
        fake.publish(0)
        assert frames.take(0.2) is None


def test_a_dismissal_without_a_word(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WORD_SECONDS", 0.1)
    with FakePublisher(path, welcome()) as fake, Subscriber(path) as frames:
        fake.publish(0)
        next(frames).release()
        fake.producer.dismiss(0)
        fake.publish(1)
        with pytest.raises(Dismissed, match="without a word"):
            frames.take(30.0)


def test_chatter_after_the_handshake_is_ignored_or_ends(path: Path) -> None:
    with FakePublisher(path, welcome()) as fake, Subscriber(path) as frames:
        assert fake.connection is not None
        for _ in range(300):
            fake.connection.send(b'{"type": "news"}')
        fake.publish(0)
        with next(frames) as frame:
            assert is_whole(frame)
        fake.connection.send(b"\0garbage")
        with pytest.raises(RingEnded, match="failed"):
            frames.take(30.0)


def test_refused_ones_leave_nothing_open(path: Path, tmp_path: Path) -> None:
    counts = []
    for number in range(6):
        here = tmp_path / f"{number}.sock"
        with FakePublisher(here, BAD_ANSWERS[number]), pytest.raises(ExchangeError):
            Subscriber(here)
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    assert len(set(counts)) == 1


def test_one_bad_publisher_says_nothing_of_another(path: Path, tmp_path: Path) -> None:
    with (
        Publisher(tmp_path / "good.sock", frame_bytes=FRAME_BYTES) as good,
        Subscriber(tmp_path / "good.sock") as frames,
        FakePublisher(path, welcome()) as fake,
        Subscriber(path) as others,
    ):
        fake.store("tail", UNKNOWN)
        with pytest.raises(BrokenPublisher):
            others.take(30.0)
        publish(good, 0)
        with next(frames) as frame:
            assert is_whole(frame)
