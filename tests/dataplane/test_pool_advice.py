"""When a pool is told to give memory back, and when to take it again."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.pool import Advice, ClassNeed, ClassUse, Policy, PoolUse, advise

MB = 1 << 20
POLICY = Policy()


def use(
    seconds: float,
    high_water: int,
    *,
    slots: int = 40,
    touched: int | None = None,
    waits: int = 0,
    layout: int = 0,
    slot_bytes: int = 4 * MB,
) -> PoolUse:
    """One report of a pool with one class; `touched` slots are resident."""
    touched = slots if touched is None else touched
    one = ClassUse(
        slot_bytes=slot_bytes,
        slot_count=slots,
        in_use=min(1, high_water),
        high_water=high_water,
        payload_bytes=0,
        resident_bytes=touched * slot_bytes,
        external_bytes=0,
        idle_bytes=0,
    )
    return PoolUse(seconds=seconds, layout=layout, classes=(one,), waits_for_slot=waits)


def need(least: int = 4, full: int = 40) -> list[ClassNeed]:
    return [ClassNeed(4 * MB, least, full)]


def quiet(high_water: int = 8, seconds: float = 120, **more: int) -> list[PoolUse]:
    return [use(t, high_water, **more) for t in range(0, int(seconds) + 1, 5)]


def test_idle_memory_is_given_back() -> None:
    # 8 of 40 slots were ever in use for two minutes: 8 + a quarter of it are 10, and 30 x 4 MB come back.
    assert advise(quiet(), need()) == Advice(
        "compact", (10,), 30 * 4 * MB, "125.8 MB of 167.8 MB were idle for 60 s: 10 x 4.2 MB are enough"
    )


def test_never_below_what_the_pipeline_needs() -> None:
    advice = advise(quiet(high_water=1), need(least=25))
    assert advice is not None
    assert advice.slots == (25,)


def test_not_before_the_window_is_over() -> None:
    assert advise(quiet(seconds=55), need()) is None
    assert advise(quiet(seconds=60), need()) is not None
    assert advise([], need()) is None


def test_one_peak_in_the_window_keeps_it() -> None:
    history = quiet()
    history[-3] = use(history[-3].seconds, 38)
    assert advise(history, need()) is None
    history = quiet(seconds=200)
    history[1] = use(5, 38)  # long ago
    assert advise(history, need()) is not None


def test_what_was_never_touched_is_nothing_to_give_back() -> None:
    assert advise(quiet(touched=11), need()) is None


def test_small_savings_are_not_worth_a_cut() -> None:
    assert advise(quiet(high_water=28), need()) is None  # 5 of 40 slots


def test_waiting_allocations_keep_it() -> None:
    history = [*quiet()[:-1], use(120, 8, waits=1)]
    assert advise(history, need()) is None


def test_waits_bring_the_slots_back() -> None:
    history = quiet() + [use(t, 10, slots=10, layout=1, waits=(t - 125) // 5) for t in range(125, 140, 5)]
    advice = advise(history, need())
    assert advice is not None
    assert (advice.kind, advice.slots, advice.bytes_saved) == ("restore", (40,), -30 * 4 * MB)
    # A ring that has just begun still has to settle.
    assert advise(history[:-2], need()) is None


def test_a_load_that_comes_and_goes_is_followed_ever_less() -> None:
    history = quiet() + [use(t, 8, layout=2) for t in range(200, 401, 5)]
    assert advise([h for h in history if h.seconds <= 260], need()) is None  # one cut before: 120 s now
    assert advise([h for h in history if h.seconds <= 320], need()) is not None


def test_needs_of_another_pool_are_refused() -> None:
    with pytest.raises(ValueError, match="other size classes"):
        advise(quiet(), [ClassNeed(MB, 1, 2)])
    with pytest.raises(ValueError, match="5 slots at least and 4 in full"):
        ClassNeed(MB, 5, 4)


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[PoolUse], list[ClassNeed]]:
    kinds = draw(st.integers(1, 3))
    needs = []
    for index in range(kinds):
        least = draw(st.integers(1, 20))
        needs.append(ClassNeed((index + 1) * MB, least, least + draw(st.integers(0, 60))))
    slots = [draw(st.integers(n.least_slots, n.full_slots)) for n in needs]
    history, waits, seconds, touched = [], 0, 0.0, [0] * kinds
    for _ in range(draw(st.integers(1, 25))):
        seconds += draw(st.floats(1, 30))
        waits += draw(st.sampled_from([0, 0, 0, 0, 0, 0, 3]))
        classes = []
        for index, need_ in enumerate(needs):
            peak = draw(st.integers(0, slots[index]))
            touched[index] = max(touched[index], peak)
            classes.append(
                ClassUse(
                    slot_bytes=need_.slot_bytes,
                    slot_count=slots[index],
                    in_use=draw(st.integers(0, peak)),
                    high_water=peak,
                    payload_bytes=0,
                    resident_bytes=touched[index] * need_.slot_bytes,
                    external_bytes=0,
                    idle_bytes=0,
                )
            )
        history.append(PoolUse(seconds=seconds, classes=tuple(classes), waits_for_slot=waits))
    return history, needs


@given(pools())
def test_advice_is_sane(pool: tuple[list[PoolUse], list[ClassNeed]]) -> None:
    history, needs = pool
    advice = advise(history, needs)
    if advice is None:
        return
    newest = history[-1]
    for slots, need_, one in zip(advice.slots, needs, newest.classes, strict=True):
        assert need_.least_slots <= slots <= need_.full_slots
        assert (slots <= one.slot_count) if advice.kind == "compact" else (slots >= one.slot_count)
    if advice.kind == "compact":
        window = [u for u in history if u.seconds >= newest.seconds - POLICY.window_seconds]
        assert all(a.waits_for_slot == b.waits_for_slot for a, b in pairwise(window))
        for index, slots in enumerate(advice.slots):
            assert slots >= max(u.classes[index].high_water for u in window)
        assert advice.bytes_saved >= POLICY.least_saving_bytes


@given(pools())
def test_who_follows_advice_gets_no_other_for_the_same_load(pool: tuple[list[PoolUse], list[ClassNeed]]) -> None:
    history, needs = pool
    advice = advise(history, needs)
    if advice is None or advice.kind != "compact":
        return
    after = []
    for report in history:
        classes = tuple(
            one.model_copy(
                update={
                    "slot_count": slots,
                    "high_water": min(one.high_water, slots),
                    "in_use": min(one.in_use, slots),
                    "resident_bytes": min(one.resident_bytes, slots * one.slot_bytes),
                }
            )
            for one, slots in zip(report.classes, advice.slots, strict=True)
        )
        seconds = report.seconds + history[-1].seconds * math.pi
        after.append(report.model_copy(update={"seconds": seconds, "layout": 1, "classes": classes}))
    again = advise(after, needs)
    assert again is None or again.kind == "restore"
    assert (again is None) or after[-1].waits_for_slot > after[0].waits_for_slot
