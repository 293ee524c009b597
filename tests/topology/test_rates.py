"""Counters: growth, resets, wraps, dips, blank values."""

from __future__ import annotations

import pytest

from observatory.topology.rates import Counter, Step, known

SECOND = 10**9


@pytest.mark.parametrize(
    "value",
    [None, float("nan"), float("inf"), -1, 2**32 - 1, 0x7FFFFFF0, 0x7FFFFFF2, 9223372036854775794, 2.0**63, 2**64 - 1,
     140737488355328.0],
)  # fmt: skip
def test_blank_values_are_unknown(value: float | None) -> None:
    assert known(value) is None


@pytest.mark.parametrize("value", [0, 0.0, 1, 2**31 - 1, 2**32, 2**62])
def test_numbers_are_numbers(value: float) -> None:
    assert known(value) == value


def steps(counter: Counter, *values: float | None) -> list[tuple[Step, float | None]]:
    """One reading a second."""
    grown = [counter.read(value, (n + 1) * SECOND) for n, value in enumerate(values)]
    return [(g.step, g.amount) for g in grown]


def test_growth_and_rate() -> None:
    counter = Counter()
    assert counter.read(100, SECOND).per_second is None
    assert counter.read(350, SECOND + SECOND // 2).per_second == 500
    assert counter.read(350, 3 * SECOND).per_second == 0.0
    assert counter.read(360, 3 * SECOND).step is Step.REPEATED


def test_a_blank_reading_is_bridged() -> None:
    counter = Counter()
    counter.read(100, SECOND)
    assert counter.read(2**63 - 14, 2 * SECOND).amount is None
    assert counter.read(700, 3 * SECOND).per_second == 300


def test_a_reset_is_no_growth() -> None:
    assert steps(Counter(), 5_000, 7, 9) == [(Step.FIRST, None), (Step.RESET, None), (Step.GROWN, 2)]
    # Not even of a register that could have wrapped: too far from its end.
    assert steps(Counter(bits=32), 5_000, 7)[1] == (Step.RESET, None)


def test_a_wrap_is_growth() -> None:
    assert steps(Counter(), 2**32 - 10, 90)[1] == (Step.WRAPPED, 100)
    assert steps(Counter(bits=16), 65_530, 4)[1] == (Step.WRAPPED, 10)
    assert steps(Counter(), 2**31, 90)[1] == (Step.RESET, None)
    assert steps(Counter(), 2**40, 90)[1] == (Step.RESET, None)
    # 25 Gb/s cannot carry 4e9 bytes in a second: the card was reset.
    assert (
        steps(Counter(bits=32, most_per_second=25e9 / 8), 2**32 - 4_000_000_000 + 2**31, 2**31 - 1)[1][0] is Step.RESET
    )
    assert steps(Counter(most_per_second=10), 2**32 - 10, 90)[1] == (Step.RESET, None)


def test_one_wrong_reading_is_a_dip() -> None:
    assert steps(Counter(), 1000, 0, 1010)[1:] == [(Step.RESET, None), (Step.DIPPED, 10)]
    assert steps(Counter(), 1000, 0, 5, 1010)[1:] == [(Step.RESET, None), (Step.GROWN, 5), (Step.GROWN, 1005)]
    # A fast link can have carried that since the reset.
    assert steps(Counter(most_per_second=1e9), 1000, 0, 1010)[2] == (Step.GROWN, 1010)
