"""What is left out of what a receiver says again, and what never is."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation
from observatory.receivers.repeats import WHOLE_NS, Repeats

QUARTER_NS = 250_000_000


def look(*values: float | None, at: int = 0) -> list[object]:
    return [
        Observation(Address("n0", AddressKind.PCI, f"0000:{place:02x}:00.0"), "link.width", value, at, "test")
        for place, value in enumerate(values)
    ]


def heard(repeats: Repeats, batch: list[object], now_ns: int) -> list[Any]:
    return [one.value for one in repeats.news(batch, now_ns) if isinstance(one, Observation)]


def test_what_stays_is_heard_three_times_and_then_once_a_second() -> None:
    repeats = Repeats()
    counts = [len(heard(repeats, look(16.0, None), WHOLE_NS * 100 + n * QUARTER_NS)) for n in range(13)]
    assert counts == [2, 2, 2, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]


def test_a_change_is_heard_at_once_and_confirmed() -> None:
    repeats = Repeats()
    now = WHOLE_NS * 100
    for n in range(6):
        repeats.news(look(16.0, 4.0), now + n * 1000)
    assert [heard(repeats, look(8.0, 4.0), now + 7000 + n) for n in range(4)] == [[8.0], [8.0], [8.0], []]
    assert heard(repeats, look(8.0, None), now + 8000) == [None], "what is not known any more is news"


def test_events_are_never_left_out_and_another_shape_is_heard_whole() -> None:
    repeats = Repeats()
    event = HardwareEvent(Address("n0", AddressKind.NODE), "xid", "Xid 79", 5, "test", "79")
    for _ in range(6):
        assert event in repeats.news([*look(1.0), event], WHOLE_NS)
    assert len(repeats.news(look(1.0, 2.0, 3.0), WHOLE_NS + 1)) == 3


def test_what_makes_no_sense_is_left_to_the_check() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    odd: Any = Odd()
    batch = [object(), Observation(Address("n0", AddressKind.NODE), "m", odd, 0, "s", odd)]
    again = [object(), Observation(Address("n0", AddressKind.NODE), "m", odd, 0, "s", Odd())]  # type: ignore[arg-type]
    repeats = Repeats()
    for _ in range(6):
        assert len(repeats.news(list(batch), WHOLE_NS)) == len(repeats.news(list(again), WHOLE_NS)) == 2


@given(st.lists(st.lists(st.sampled_from([None, 0.0, 1.0, 2.0]), min_size=3, max_size=3), max_size=40))
def test_who_listens_always_knows_what_holds(looks: list[list[float | None]]) -> None:
    repeats = Repeats()
    known: dict[Address, float | None] = {}
    for number, values in enumerate(looks):
        for one in repeats.news(look(*values), WHOLE_NS * 100 + number * QUARTER_NS):
            assert isinstance(one, Observation)
            known[one.subject] = one.value
        assert list(known.values()) == values
