"""Event rings, from Python."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane._ring import EventRing, RingError
from observatory.model.event import EVENT_DTYPE, EventKind


def emit(ring: EventRing, source_index: int) -> bool:
    return ring.emit(EventKind.FENCE_SIGNAL, 11, source_index, -5, (1, 25), 1, 2, 3, 4, 5, 6)


def test_an_event_is_read_as_it_was_written() -> None:
    ring = EventRing.create(8)
    assert emit(ring, 77)
    events = ring.drain()
    assert events.dtype == EVENT_DTYPE
    assert events.tolist() == [(11, 77, -5, 1, 25, 1, 2, 3, 4, 5, 2, 6, 0)]
    events["pts"] = 0  # a copy, not the ring
    assert len(ring.drain()) == 0


@given(st.integers(1, 20), st.lists(st.integers(-9, 9), max_size=60))
def test_a_ring_is_a_bounded_queue(capacity: int, steps: list[int]) -> None:
    ring = EventRing.create(capacity)
    room = ring.capacity
    assert room >= capacity > room // 2
    queue: list[int] = []
    written = lost = 0
    for step in steps:
        if step < 0:
            assert ring.drain(-step)["source_index"].tolist() == queue[:-step]
            del queue[:-step]
        for _ in range(step):
            kept = len(queue) < room
            assert emit(ring, written) is kept
            if kept:
                queue.append(written)
                written += 1
            else:
                lost += 1
    assert (ring.written, ring.lost) == (written, lost)
    assert ring.drain()["source_index"].tolist() == queue


def test_a_second_mapping_needs_no_descriptor() -> None:
    collector = EventRing.create(4)
    descriptor = os.dup(collector.fd)
    traced = EventRing.attach(descriptor)
    os.close(descriptor)
    assert emit(traced, 1)
    assert collector.drain()["source_index"].tolist() == [1]
    with pytest.raises(RingError, match="keeps no descriptor"):
        _ = traced.fd
    traced.close()
    with pytest.raises(RingError, match="closed"):
        emit(traced, 2)
    collector.close()
    collector.close()
    with pytest.raises(RingError, match="closed"):
        collector.drain()


def test_other_files_are_refused() -> None:
    with pytest.raises(RingError, match="Bad file descriptor"):
        EventRing.attach(-1)
    descriptor = os.memfd_create("x")
    with pytest.raises(RingError, match="not sealed"):
        EventRing.attach(descriptor)
    os.close(descriptor)
    with pytest.raises(RingError, match="not 0"):
        EventRing.create(0)


def test_limits_of_drain() -> None:
    ring = EventRing.create(4)
    emit(ring, 1)
    assert ring.drain(0).shape == (0,)
    assert np.array_equal(ring.drain(10**9)["source_index"], [1])
