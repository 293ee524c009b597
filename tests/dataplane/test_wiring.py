"""Heirs of dead consumers are let into rings whose producers are asked, have ended meanwhile, or are gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dataplane._ring import RingConsumer, RingEnded, RingProducer, SizeClass
from dataplane.assignment import Assignment, InputAssignment, OutputAssignment, PortSize
from dataplane.control import Channel, close_all
from dataplane.wiring import Reader, Wiring
from observatory.model.media import PixelFormat, TimeBase, VideoFormat
from tests.dataplane.rings import PAGE, put

FORMAT = VideoFormat(width=16, height=16, pixel_format=PixelFormat.YUV420P, time_base=TimeBase(num=1, den=25))
OUT = OutputAssignment(port="video", format=FORMAT, ring_capacity=8, sizes=(PortSize(slot_bytes=PAGE, slot_count=4),))
EDGE = InputAssignment(edge="a->b", producer="a", port="video", format=FORMAT)


def assignment(name: str, **edges: tuple[object, ...]) -> Assignment:
    fields = {"inputs": (), "outputs": (), **edges}
    return Assignment.model_validate(
        {"operator": name, "op": "x", "params": {}, "device": "d", "real_device": 0, "stream": 1, "epoch": 1, **fields}
    )


class Process:
    """What a worker process holds: its end of a control channel, and a page where it reads."""

    def __init__(self) -> None:
        self.supervisors_end, theirs = Channel.pair()
        self.channel = Channel(theirs)
        self.consumer = RingConsumer("block")

    def heard(self) -> list[dict[str, object]]:
        """All that it was told by now; rings are attached."""
        told = []
        while (received := self.channel.receive(0.0)) is not None:
            message, fds = received
            told.append(message)
            if message["type"] == "input":
                self.consumer.attach(fds[0], fds[1:], message["slot_bytes"])
            close_all(fds)
        return told

    def kinds(self) -> list[object]:
        return [message["type"] for message in self.heard()]

    def die(self) -> None:
        self.consumer.close()
        self.channel.close()


class Job:
    """Operator a (a ring of this process) is read by operator b."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, list[int]]] = []
        self.wiring = Wiring(
            [assignment("a", outputs=(OUT,)), assignment("b", inputs=(EDGE,))],
            lambda edge, indices: self.lost.append((edge, indices)),
        )
        self.producer = RingProducer(capacity=8, size_classes=[SizeClass(PAGE, 4)])
        self.a, self.b = Process(), Process()
        self.made = [self.a, self.b]
        self.wiring.offer_port(
            "a", "video", [os.dup(self.producer.ring_fd), *map(os.dup, self.producer.slab_fds)], [PAGE]
        )
        self._offer_page(self.b)
        self.wiring.connect(self.channels)
        for message, fds in iter(lambda: self.a.channel.receive(0.0), None):
            if message["type"] == "output":
                self.handle = self.producer.admit(fds[0], message["policy"])
            close_all(fds)
        assert self.b.kinds() == ["input"]

    @property
    def channels(self) -> dict[str, Channel]:
        return {"a": self.a.supervisors_end, "b": self.b.supervisors_end}

    def _offer_page(self, process: Process) -> None:
        self.wiring.offer_page("b", "a->b", os.dup(process.consumer.page_fd))

    def replace_b(self) -> Process:
        """The process of b dies, and another one succeeds it."""
        self.b.die()
        self.b = Process()
        self.made.append(self.b)
        self._offer_page(self.b)
        self.wiring.succeed("b", self.channels)
        return self.b

    def close(self) -> None:
        self.wiring.close()
        self.producer.close()
        for process in self.made:
            process.supervisors_end.close()
            with suppress(OSError):
                process.die()


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.close()


def read(process: Process) -> tuple[list[int], str]:
    """Source indices of all that it can take, acknowledged, and why its ring ended."""
    taken = []
    try:
        while (lease := process.consumer.take(0.0)) is not None:
            taken.append(lease.descriptor.source_index)
            lease.release()
    except RingEnded as end:
        return taken, end.reason
    return taken, "goes on"


def test_an_heir_that_has_nothing_to_read_is_told_the_end(job: Job) -> None:
    """All was acknowledged, but the dead one had not finished its work: a file without its name."""
    put(job.producer, 0)
    put(job.producer, 1)
    assert read(job.b) == ([0, 1], "goes on")
    job.producer.finish("end_of_stream")
    heir = job.replace_b()
    assert heir.kinds() == ["input"]
    assert read(heir) == ([], "end_of_stream")


def test_a_living_producer_lets_the_heir_in(job: Job) -> None:
    put(job.producer, 0)
    heir = job.replace_b()
    message, fds = job.a.channel.receive(0.0) or ({}, [])
    assert message["type"] == "replace"
    assert heir.kinds() == [], "who is not listed yet must not look"
    _, lost = job.producer.replace(job.handle, fds[0])
    close_all(fds)
    job.wiring.replaced("a", "video", "a->b", leaving=False, lost=lost)
    assert heir.kinds() == ["input"]
    assert read(heir) == ([0], "goes on")


def test_a_producer_that_ends_before_it_has_heard_leaves_nobody_outside(job: Job) -> None:
    put(job.producer, 0)
    put(job.producer, 1)
    heir = job.replace_b()
    job.producer.finish("end_of_stream")
    assert heir.kinds() == [], "its process may still do it"
    job.wiring.end_rings_of(job.a.supervisors_end, "end_of_stream")
    assert heir.kinds() == ["input"]
    assert read(heir) == ([0, 1], "end_of_stream")


def test_a_producer_that_dies_before_it_has_heard_leaves_nobody_outside(job: Job) -> None:
    put(job.producer, 0)
    job.replace_b()
    heir = job.replace_b()  # two pages are to be replaced by now
    job.wiring.end_rings_of(job.a.supervisors_end, "migrated")
    assert heir.kinds() == ["input"]
    assert read(heir) == ([0], "migrated")
    assert job.lost in ([], [("a->b", [])]), "what is delivered again is not lost"


def test_two_heirs_in_a_row_are_let_in_by_two_answers(job: Job) -> None:
    put(job.producer, 0)
    job.replace_b()
    heir = job.replace_b()
    for answers in (1, 2):
        message, fds = job.a.channel.receive(0.0) or ({}, [])
        assert message["type"] == "replace"
        _, lost = job.producer.replace(job.handle, fds[0])
        close_all(fds)
        job.wiring.replaced("a", "video", "a->b", leaving=False, lost=lost)
        assert heir.kinds() == (["input"] if answers == 2 else [])
    assert read(heir) == ([0], "goes on")


def test_another_process_of_that_operator_ends_nothing(job: Job) -> None:
    put(job.producer, 0)
    heir = job.replace_b()
    stranger = Process()
    job.made.append(stranger)
    job.wiring.end_rings_of(stranger.supervisors_end, "failed")
    assert heir.kinds() == []
    assert put(job.producer, 1) is not None, "the ring goes on"


def begin_another_ring(job: Job) -> tuple[RingProducer, Process]:
    """Another process of a takes over where the ring of the first one ended."""
    following = RingProducer(capacity=8, size_classes=[SizeClass(PAGE, 4)], incarnation=2, first_sequence=2)
    successor = Process()
    job.made.append(successor)
    fds = [os.dup(following.ring_fd), *map(os.dup, following.slab_fds)]
    job.wiring.offer_port("a", "video", fds, [PAGE])
    job.wiring.open_ports("a", {"a": successor.supervisors_end, "b": job.b.supervisors_end})
    for message, fds in iter(lambda: successor.channel.receive(0.0), None):
        if message["type"] == "output":
            following.admit(fds[0], message["policy"])
        close_all(fds)
    return following, successor


def test_an_heir_reads_the_ring_that_ended_before_the_one_that_follows(job: Job) -> None:
    """The old process of its producer has ended and has not let it in yet when the new one is there already."""
    put(job.producer, 0)
    put(job.producer, 1)
    heir = job.replace_b()
    job.producer.finish("migrated")
    following, _ = begin_another_ring(job)
    put(following, 2)
    assert heir.channel.receive(0.0) is None, "what follows would be taken for the beginning"
    job.wiring.end_rings_of(job.a.supervisors_end, "migrated")
    seen = []
    while (received := heir.channel.receive(0.0)) is not None:
        message, fds = received
        heir.consumer.attach(fds[0], fds[1:], message["slot_bytes"])
        close_all(fds)
        seen.append(read(heir))
    assert seen == [([0, 1], "migrated"), ([2], "goes on")]
    following.close()


def test_an_heir_that_dies_before_it_was_let_in_is_no_end_of_the_waiting(job: Job) -> None:
    """The producer has ended its ring and not listed the first heir: the second one is not let in either."""
    put(job.producer, 0)
    job.replace_b()
    job.producer.finish("end_of_stream")
    heir = job.replace_b()
    assert heir.kinds() == [], "it would take the ring for empty"
    job.wiring.end_rings_of(job.a.supervisors_end, "end_of_stream")
    assert heir.kinds() == ["input"]
    assert read(heir) == ([0], "end_of_stream")


def test_a_reader_of_another_job_that_comes_after_the_end_sees_the_end(job: Job) -> None:
    put(job.producer, 0)
    job.producer.finish("end_of_stream")
    late = Process()
    job.made.append(late)
    reader = Reader("c", EDGE, os.dup(late.consumer.page_fd), late.supervisors_end, job="other")
    job.wiring.admit([reader])
    assert late.kinds() == ["input"]
    assert read(late) == ([], "end_of_stream")
