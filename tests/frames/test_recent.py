"""The latency of the last ten seconds: what came before is forgotten, and nothing is known when nothing comes."""

from __future__ import annotations

import numpy as np
import pytest

from observatory.frames.latency import Histogram
from observatory.frames.recent import RecentLatency

MILLISECOND = 1_000_000


def add(histogram: Histogram, milliseconds: float, frames: int = 30) -> None:
    histogram.add(np.full(frames, milliseconds * MILLISECOND, np.int64))


def test_a_slow_start_is_forgotten_after_ten_seconds() -> None:
    histogram = Histogram()
    recent = RecentLatency(histogram, 100.0)
    add(histogram, 900.0)
    recent.note(101.0)
    assert recent.histogram().quantile(0.99) == pytest.approx(0.9, rel=0.01)
    for second in range(2, 12):
        add(histogram, 20.0)
        recent.note(100.0 + second)
    assert recent.histogram().quantile(0.99) == pytest.approx(0.02, rel=0.01)
    assert recent.histogram().count == 300, "those of ten seconds"
    assert histogram.quantile(0.99) == pytest.approx(0.9, rel=0.01), "the run's own still has it"


def test_nothing_is_known_when_nothing_came_for_ten_seconds() -> None:
    histogram = Histogram()
    recent = RecentLatency(histogram, 0.0)
    add(histogram, 20.0)
    recent.note(1.0)
    recent.note(6.0)
    assert recent.histogram().count == 30
    recent.note(11.0)
    recent.note(16.5)
    assert recent.histogram().quantile(0.5) is None


def test_what_is_remembered_stays_small_however_often_it_is_told() -> None:
    histogram = Histogram()
    recent = RecentLatency(histogram, 0.0)
    for step in range(10_000):
        recent.note(step * 0.25)
    assert len(recent._remembered) <= 12
