"""Records out of events: whatever order the rings are read in, the records are the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane._ring import Assembler, RingError
from observatory.model.event import EVENT_DTYPE, PRODUCER_KINDS, UNKNOWN_I64, UNKNOWN_U16, UNKNOWN_U32, EventKind
from observatory.model.record import RECORD_DTYPE, RecordFlag

PORT_HOPS = [[0, 1], [2], []]
HOP_DEVICES = [(0, 1, 2, 3), (0, 4, 2, 5), (6, 7, 8, 9)]
CONSUMER_KINDS = (EventKind.CONSUMER_WAIT_FENCE, EventKind.CONSUMER_KERNEL_LAUNCH, EventKind.SLOT_RELEASE)
NEEDED = (EventKind.FENCE_SIGNAL, EventKind.CONSUMER_KERNEL_LAUNCH, EventKind.SLOT_RELEASE)

Event = tuple[int, ...]  # fields of EVENT_DTYPE
Record = dict[str, Any]


def event(kind: EventKind, source_index: int, place: int, time_ns: int, device: int = UNKNOWN_U16) -> Event:
    said_bytes = 5000 + source_index % 7 if kind in PRODUCER_KINDS else UNKNOWN_U32
    return (
        time_ns,
        source_index,
        source_index % 1000,
        1,
        25,
        3,
        4,
        place,
        source_index % 5,
        said_bytes,
        kind,
        device,
        0,
    )


def rows(events: Sequence[Event]) -> npt.NDArray[np.void]:
    return np.array(list(events), EVENT_DTYPE)


def reference(events: Sequence[Event]) -> dict[tuple[int, int], Record]:
    """What the records of these events are, by (hop, source index); for at most one delivery of each frame."""
    records: dict[tuple[int, int], Record] = {}
    for time_ns, index, pts, num, den, stream, epoch, place, slot, size, kind, device, _ in events:
        producer = kind in PRODUCER_KINDS
        for hop in PORT_HOPS[place] if producer else [place]:
            planned = dict(zip(("producer", "consumer"), HOP_DEVICES[hop][2:], strict=True))
            record = records.setdefault(
                (hop, index), {"times": [UNKNOWN_I64] * len(EventKind), "bytes": UNKNOWN_U32, **planned}
            )
            record["times"][kind] = time_ns
            record |= {"pts": pts, "time_base": (num, den), "stream": stream, "epoch": epoch, "slot": slot}
            if producer:
                record["bytes"] = size
            if device != UNKNOWN_U16 and kind not in (EventKind.LINK_START, EventKind.LINK_END):
                record["producer" if producer else "consumer"] = device
    return records


def as_reference(found: npt.NDArray[np.void]) -> dict[tuple[int, int], Record]:
    """Records as the reference has them."""
    return {
        (int(r["hop"]), int(r["source_index"])): {
            "times": r["times_ns"].tolist(),
            "bytes": int(r["bytes"]),
            "producer": int(r["producer_real_device"]),
            "consumer": int(r["consumer_real_device"]),
            "pts": int(r["pts"]),
            "time_base": (int(r["time_base_num"]), int(r["time_base_den"])),
            "stream": int(r["stream"]),
            "epoch": int(r["epoch"]),
            "slot": int(r["slot"]),
        }
        for r in found
    }


@st.composite
def event_rings(draw: st.DrawFn) -> list[list[Event]]:
    """One ring per process: its own events in order, frames and events missing here and there."""
    indices = draw(st.lists(st.integers(0, 2**64 - 2), unique=True, max_size=12))
    rings: list[list[Event]] = [[] for _ in range(len(PORT_HOPS) + len(HOP_DEVICES))]
    clock = 0
    for number, ring in enumerate(rings):
        port = number < len(PORT_HOPS)
        place = number if port else number - len(PORT_HOPS)
        device = draw(st.sampled_from([UNKNOWN_U16, 40 + number]))
        for index in indices:
            for kind in PRODUCER_KINDS if port else CONSUMER_KINDS:
                clock += 1
                if draw(st.integers(0, 19)):
                    ring.append(event(kind, index, place, clock, device))
    return rings


@given(event_rings(), st.randoms(use_true_random=False))
def test_any_interleaving_gives_the_same_records(rings: list[list[Event]], random: Any) -> None:
    wanted = reference([one for ring in rings for one in ring])
    assembler = Assembler(PORT_HOPS, HOP_DEVICES)
    # Each ring keeps its order; where one is read before the other is chance.
    order = [number for number, ring in enumerate(rings) for _ in ring]
    random.shuffle(order)
    queues = [iter(ring) for ring in rings]
    stream = [next(queues[number]) for number in order]
    cuts = sorted({0, len(stream), *(random.randint(0, len(stream)) for _ in range(4))})
    found = [assembler.feed(rows(stream[start:end])) for start, end in pairwise(cuts)]
    complete = np.concatenate([np.empty(0, RECORD_DTYPE), *found])
    opened = assembler.open_records
    rest = assembler.flush()
    assert len(rest) == opened
    assert (assembler.open_records, assembler.unmatched_events) == (0, 0)

    for records, done in ((complete, True), (rest, False)):
        for key, record in as_reference(records).items():
            assert record == wanted.pop(key)
            assert all(record["times"][kind] != UNKNOWN_I64 for kind in NEEDED) is done
        assert set(records["version"]) <= {1}
    assert wanted == {}
    assert np.all(rest["flags"] == RecordFlag.INCOMPLETE)
    all_seen = np.delete(complete["times_ns"], [EventKind.LINK_START, EventKind.LINK_END], axis=1) != UNKNOWN_I64
    assert np.array_equal(complete["flags"] == 0, all_seen.all(axis=1))


def test_planned_devices_come_from_the_run() -> None:
    assembler = Assembler(PORT_HOPS, HOP_DEVICES)
    assembler.feed(rows([event(kind, 1, 0, kind) for kind in PRODUCER_KINDS]))
    records = assembler.flush()
    names = ["producer_device", "consumer_device", "producer_real_device", "consumer_real_device"]
    assert sorted(tuple(int(record[name]) for name in names) for record in records) == sorted(HOP_DEVICES[:2])


def test_dropped_frames_close_when_their_signal_is_known() -> None:
    assembler = Assembler(PORT_HOPS, HOP_DEVICES)
    assembler.feed(rows([event(kind, 1, 1, kind) for kind in PRODUCER_KINDS]))
    now = assembler.drop(2, [1, 2])
    later = assembler.feed(rows([event(kind, 2, 1, kind) for kind in PRODUCER_KINDS]))
    for records, index in ((now, 1), (later, 2)):
        assert records["source_index"].tolist() == [index]
        assert records["flags"].tolist() == [RecordFlag.DROPPED]
    assert assembler.open_records == 0
    assert assembler.drop(2, []).dtype == RECORD_DTYPE
    with pytest.raises(RingError, match="no hop 3"):
        assembler.drop(3, [1])


def test_links_are_waited_for_where_they_are_expected() -> None:
    kinds = [*PRODUCER_KINDS, *CONSUMER_KINDS]
    stream = [event(kind, 1, 0, kind) for kind in kinds]
    assembler = Assembler([[0]], HOP_DEVICES[:1], [True])
    assert len(assembler.feed(rows(stream))) == 0
    link = [event(EventKind.LINK_START, 1, 0, 7), event(EventKind.LINK_END, 1, 0, 8)]
    (record,) = assembler.feed(rows(link))
    assert (record["flags"], record["times_ns"][EventKind.LINK_END]) == (0, 8)
    with pytest.raises(RingError, match="expect_link"):
        Assembler([[0]], HOP_DEVICES[:1], [True, False])
    with pytest.raises(RingError, match="hop 1 of 1"):
        Assembler([[1]], HOP_DEVICES[:1])


def test_events_of_other_runs_are_counted() -> None:
    assembler = Assembler(PORT_HOPS, HOP_DEVICES)
    foreign = [event(EventKind.FENCE_SIGNAL, 1, 3, 0), event(EventKind.SLOT_RELEASE, 1, 3, 0)]
    assert len(assembler.feed(rows(foreign))) == 0
    assert (assembler.unmatched_events, assembler.open_records) == (2, 0)


def test_any_array_of_events_will_do_and_nothing_else() -> None:
    stream = rows(
        [event(kind, 1, 1, kind) for kind in PRODUCER_KINDS] + [event(kind, 1, 2, kind) for kind in CONSUMER_KINDS]
    )
    read_only = stream.copy()
    read_only.flags.writeable = False
    spread = np.repeat(stream, 2)[::2]
    shifted = np.frombuffer(b"x" + stream.tobytes(), EVENT_DTYPE, offset=1)  # no event on its own boundary
    for events in (stream, read_only, spread, shifted):
        assert len(Assembler(PORT_HOPS, HOP_DEVICES).feed(events)) == 1
    for wrong in (stream.view(np.uint8), stream["pts"], [1, 2]):
        with pytest.raises(TypeError, match="frame events"):
            Assembler(PORT_HOPS, HOP_DEVICES).feed(wrong)  # type: ignore[arg-type]


def test_what_never_completes_does_not_pile_up() -> None:
    assembler = Assembler([[0]], HOP_DEVICES[:1])
    events = np.zeros(200_000, EVENT_DTYPE)
    events["kind"] = EventKind.FENCE_SIGNAL
    events["source_index"] = np.arange(len(events))
    closed = assembler.feed(events)
    assert assembler.open_records + len(closed) == len(events)
    assert assembler.open_records <= 2**16
    assert np.all(closed["flags"] == RecordFlag.INCOMPLETE)
    assert np.array_equal(closed["source_index"], np.arange(len(closed)))
