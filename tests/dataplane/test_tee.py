"""One process works for several jobs: each is told of its frames, under its own numbers."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane._ring import EventRing
from dataplane.shares import Shares
from dataplane.tee import MOST_KEPT, Labels, Outlet, Tee
from observatory.model.event import EventKind

MADE = (EventKind.DMA_BUF_ALLOC, EventKind.PRODUCER_KERNEL_LAUNCH, EventKind.FENCE_SIGNAL)


@pytest.fixture
def events() -> EventRing:
    return EventRing.create(1 << 10)


@pytest.fixture
def tee(events: EventRing) -> Tee:
    made = Tee()
    made.add_ring(events)
    return made


def emit(events: EventRing, kind: int, source_index: int, *, place: int = 0, epoch: int = 0) -> None:
    assert events.emit(kind, 1000 + source_index, source_index, 7, (1, 25), 0, epoch, place, 3, 100, 0)


def produce(events: EventRing, *source_indices: int, epoch: int = 0) -> None:
    for index in source_indices:
        for kind in MADE:
            emit(events, kind, index, epoch=epoch)


def told(outlet: Outlet) -> list[dict[str, Any]]:
    taken = outlet.drain()
    return [{name: int(event[name]) for name in taken.dtype.names} for event in taken]


def indices(outlet: Outlet) -> list[int]:
    return [event["source_index"] for event in told(outlet) if event["kind"] == EventKind.FENCE_SIGNAL]


def job(tee: Tee, stream: int, epoch: int = 1, port: int = 0) -> Outlet:
    outlet = tee.outlet()
    outlet.label(Labels(stream=stream, epoch=epoch, device=stream + 1, ports={0: port}))
    return outlet


def test_each_job_gets_every_event_under_its_own_numbers(tee: Tee, events: EventRing) -> None:
    one, other = job(tee, 4, epoch=9), job(tee, 5, epoch=2, port=3)
    for outlet in (one, other):
        outlet.begins(0, 0)
    produce(events, 0)
    expected = {"source_index": 0, "pts": 7, "time_ns": 1000, "slot": 3, "bytes": 100}
    for outlet, labels in ((one, (4, 9, 0, 5)), (other, (5, 2, 3, 6))):
        found = told(outlet)
        assert [event["kind"] for event in found] == list(MADE)
        for event in found:
            assert (event["stream"], event["epoch"], event["place"], event["device"]) == labels
            assert expected.items() <= event.items()
        assert told(outlet) == []


def test_a_later_epoch_has_one_number_for_all(tee: Tee, events: EventRing) -> None:
    outlet = job(tee, 4, epoch=2)
    outlet.begins(0, 0)
    produce(events, 0)
    produce(events, 1, epoch=12)
    assert [event["epoch"] for event in told(outlet)] == [2] * 3 + [12] * 3


def test_a_job_is_told_nothing_of_ports_and_hops_that_it_does_not_have(tee: Tee, events: EventRing) -> None:
    outlet = tee.outlet()
    outlet.label(Labels(stream=1, epoch=1, device=0, ports={0: 6}, hops={2: 8}))
    outlet.begins(0, 0)
    for place in (0, 1, 2):
        emit(events, EventKind.FENCE_SIGNAL, 0, place=place)
        emit(events, EventKind.SLOT_RELEASE, 0, place=place)
    assert [(event["kind"], event["place"]) for event in told(outlet)] == [
        (EventKind.FENCE_SIGNAL, 6),
        (EventKind.SLOT_RELEASE, 8),
    ]


def test_events_wait_until_it_is_known_where_a_share_begins(tee: Tee, events: EventRing) -> None:
    outlet = job(tee, 1)
    produce(events, 4, 5)
    assert indices(outlet) == []
    produce(events, 6, 7)
    outlet.begins(0, 6)
    assert indices(outlet) == [6, 7]
    outlet.begins(0, 0)
    produce(events, 8)
    assert indices(outlet) == [8]


def test_what_follows_a_share_is_told_nobody(tee: Tee, events: EventRing) -> None:
    ending, staying = job(tee, 1), job(tee, 2)
    for outlet in (ending, staying):
        outlet.begins(0, 0)
    produce(events, 0, 1)
    ending.expect_last(0)
    produce(events, 2, 3)
    assert indices(ending) == [0, 1], "what was published before is its own in any case"
    ending.ends(0, 3)
    produce(events, 4)
    assert indices(ending) == [2]
    assert indices(staying) == [0, 1, 2, 3, 4]


def test_a_closed_outlet_still_gives_what_came_before(tee: Tee, events: EventRing) -> None:
    outlet = job(tee, 1)
    outlet.begins(0, 0)
    outlet.expect_last(0)
    produce(events, 0)
    outlet.close()
    produce(events, 1)
    assert indices(outlet) == [0]


def test_events_that_a_ring_lost_are_lost_for_who_was_there(tee: Tee) -> None:
    small = EventRing.create(4)
    tee.add_ring(small)
    before = job(tee, 1)
    while small.emit(EventKind.FENCE_SIGNAL, 0, 0, 0, (1, 25), 0, 0, 0, 0, 0, 0):
        pass
    after = job(tee, 2)
    assert (before.lost, after.lost) == (1, 0)


def test_of_a_job_that_takes_nothing_so_much_is_kept(tee: Tee, events: EventRing) -> None:
    idle, busy = job(tee, 1), job(tee, 2)
    busy.begins(0, 0)
    rounds = MOST_KEPT // 900 + 2
    for _ in range(rounds):
        produce(events, *range(300))
        assert len(busy.drain()) == 900
    assert idle.lost == 900 * rounds - MOST_KEPT // 900 * 900
    assert busy.lost == 0


def test_a_ring_that_was_never_read_is_no_trouble_at_the_end(tee: Tee, events: EventRing) -> None:
    """Its processes did not come to their start."""
    outlet = job(tee, 1)
    outlet.begins(0, 0)
    stranger = EventRing.create(8)
    tee.remove_ring(stranger)
    produce(events, 5)
    assert indices(outlet) == [5]
    stranger.close()


def test_an_end_said_by_a_process_that_published_nothing_takes_no_events_away(tee: Tee, events: EventRing) -> None:
    """Those before it did: it knows the sequence, and of no frame."""
    outlet = job(tee, 1)
    shares = Shares(outlet, {("decode", "video"): 0})
    shares.begin({("decode", "video"): 0}, {("decode", "video")})
    shares.begun(("decode", "video"), 0, 0)
    produce(events, 5, 6)
    shares.end({("decode", "video"): 2}, ())
    shares.ended(("decode", "video"), 2, 0)
    assert indices(outlet) == [5, 6]
