"""Discontinuities that streams share, whatever the order in which they come to them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from dataplane.operators.boundaries import SharedBreaks

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.booleans()), max_size=60)


@given(STEPS)
def test_all_streams_come_to_the_same_number(steps: list[tuple[str, int, bool]]) -> None:
    breaks, times, count = SharedBreaks(), dict.fromkeys("abc", 0), Counter[str]()
    for stream, step, cause in steps:
        times[stream] += step
        due = breaks.due(stream, Fraction(times[stream]), cause)
        assert due or not cause, "a cause is never passed over"
        count[stream] += due
    for stream in times:
        while breaks.due(stream, Fraction(10**6), cause=False):
            count[stream] += 1

    assert count["a"] == count["b"] == count["c"]
    assert count["a"] <= sum(cause for _, _, cause in steps)


def test_a_break_comes_at_its_time_not_before() -> None:
    breaks = SharedBreaks()
    assert breaks.due("a", Fraction(5), cause=True)
    assert not breaks.due("b", Fraction(49, 10), cause=False)
    assert breaks.due("b", Fraction(5), cause=True), "the same one"
    assert not breaks.due("a", Fraction(6), cause=False)
    assert not breaks.due("b", Fraction(6), cause=False)


def test_a_source_that_is_never_at_rest_is_no_memory_that_grows() -> None:
    breaks = SharedBreaks()
    for number in range(5000):
        assert breaks.due("a", Fraction(number), cause=True)
        assert breaks.due("b", Fraction(number), cause=False)
    assert len(breaks._times) <= 1001
    assert not breaks.due("b", Fraction(9999), cause=False)
