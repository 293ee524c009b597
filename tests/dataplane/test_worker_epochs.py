"""A worker asks for the number of an epoch: what it says, and what it does while nobody answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dataplane import worker_context
from dataplane._ring import Descriptor, EventRing, RingProducer, SizeClass
from dataplane.assignment import Assignment
from dataplane.control import Channel
from dataplane.errors import DataplaneError, Stopped
from dataplane.worker_context import WorkerContext
from dataplane.worker_rings import WorkerRings
from observatory.model.media import PayloadKind


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def context(channel: Channel, **producers: RingProducer) -> WorkerContext:
    assignment = Assignment(
        operator="decode", op="decode", params={}, device="d", real_device=0, stream=1, epoch=1, inputs=(), outputs=()
    )
    rings = WorkerRings(assignment, channel, EventRing.create(8), None, {}, 1)
    rings.producers.update(producers)
    return WorkerContext(assignment, channel, rings)


def test_it_says_where_the_epoch_begins(ends: tuple[Channel, Channel]) -> None:
    ours, supervisor = ends
    producer = RingProducer(capacity=8, size_classes=[SizeClass(64, 4)])
    asking = context(ours, video=producer)

    def ask() -> dict[str, object]:
        asking.epoch_begun(7)  # the answer is there already: nothing to wait for
        assert asking.begin_epoch("the source came back", -90_000) == 7
        received = supervisor.receive(5.0)
        assert received is not None
        return received[0]

    assert ask() == {"type": "epoch", "reason": "the source came back", "pts_offset": -90_000, "source_index": 0}
    for index in (0, 1):
        with producer.acquire(64, 1.0) as slot:  # type: ignore[union-attr]
            slot.publish(Descriptor(payload_kind=PayloadKind.VIDEO_FRAME, source_index=index), 64)
    assert ask()["source_index"] == 2
    asking.lost(4, None, "damaged")
    supervisor.receive(5.0)
    assert ask()["source_index"] == 5
    asking.lost(None, None, "missing")
    supervisor.receive(5.0)
    assert ask()["source_index"] == 5
    producer.close()


def test_it_waits_for_the_answer(ends: tuple[Channel, Channel]) -> None:
    ours, supervisor = ends
    asking = context(ours)
    answer = threading.Timer(0.3, lambda: asking.epoch_begun(2**32 - 1))
    answer.start()
    assert asking.begin_epoch("jump", 0) == 2**32 - 1
    answer.join()
    assert supervisor.receive(0.0) is not None


def test_a_stop_ends_the_waiting(ends: tuple[Channel, Channel]) -> None:
    ours, supervisor = ends
    asking = context(ours)
    stop = threading.Timer(0.2, asking.stopping.set)
    stop.start()
    with pytest.raises(Stopped, match="decode was told to stop while it waited"):
        asking.begin_epoch("jump", 0)
    stop.join()
    assert supervisor.receive(0.0) is not None
    with pytest.raises(Stopped):  # and is not even asked for after it
        asking.begin_epoch("jump", 0)
    assert supervisor.receive(0.0) is None


def test_no_answer_is_an_error_in_the_end(ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_context, "EPOCH_SECONDS", 0.2)
    with pytest.raises(DataplaneError, match=r"decode: no number for a new epoch within 0\.2 s"):
        context(ends[0]).begin_epoch("jump", 0)
