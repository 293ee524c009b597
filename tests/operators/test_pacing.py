"""Frames at their own pace, by a clock of the test's own; and generated pictures, paced where that is asked for."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dataplane.errors import Stopped
from dataplane.operators.base import SourceRequest
from dataplane.operators.decode import Decode
from dataplane.operators.pacing import MOST_CAUGHT_UP_SECONDS, Pacer
from tests.operators.harness import Bench, run


class Clock(threading.Event):
    """Time that passes only by waiting, with the error of a real sleep."""

    now = 1000.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout + 0.001
        return self.is_set()

    def __call__(self) -> float:
        return self.now


def test_frames_come_when_they_are_due_and_nothing_adds_up() -> None:
    clock = Clock()
    pacer = Pacer(clock, clock)
    for number in range(100_000):  # over an hour
        pacer.wait(number / 25)
        assert clock.now == pytest.approx(1000 + number / 25, abs=0.0011)


def test_a_short_delay_is_made_up_for_and_a_long_one_is_not() -> None:
    clock = Clock()
    pacer = Pacer(clock, clock)
    pacer.wait(0.0)
    clock.now += MOST_CAUGHT_UP_SECONDS - 0.1
    pacer.wait(0.04)
    pacer.wait(1.0)
    assert clock.now == pytest.approx(1001, abs=0.002)
    clock.now += 100
    resumed = clock.now
    for number in range(1, 6):
        pacer.wait(1.0 + number * 0.04)
    assert clock.now == pytest.approx(resumed + 4 * 0.04, abs=0.002)  # no burst


def test_a_stop_is_heard_between_two_frames() -> None:
    clock = Clock()
    pacer = Pacer(clock, clock)
    pacer.wait(0.0)
    clock.set()
    with pytest.raises(Stopped):
        pacer.wait(5.0)


@pytest.mark.parametrize(
    ("params", "asked", "paced"),
    [({"pace": "realtime"}, None, True), ({}, True, True), ({"pace": "realtime"}, False, False)],
)
def test_a_generated_picture_takes_its_time_where_that_is_asked_for(
    params: dict[str, Any], asked: bool | None, paced: bool
) -> None:
    source = SourceRequest(frames=26, realtime=asked)
    began = time.monotonic()
    frames = run(Bench(Decode, {"source": {"size": "64x48", "rate": 50}} | params, source=source))
    assert len(frames) == 26
    signalled = [frame.descriptor.signal_ns for frame in frames]
    if paced:
        assert time.monotonic() - began >= 0.45  # 25 intervals of 20 ms, less what the decoder holds back
        waited = sum(f.descriptor.signal_ns - f.descriptor.launch_ns for f in frames)
        assert waited < (signalled[-1] - signalled[0]) / 2  # the wait is no work
