"""Which device workers really run on: named only when it is known."""

from __future__ import annotations

import os

from observatory.app.placing import real_device_here

ALLOWED = tuple(os.sched_getaffinity(0))
BEYOND = (max(ALLOWED) + 1, max(ALLOWED) + 2)


def test_the_only_device_is_the_one() -> None:
    assert real_device_here([("n0/cpu0", None)]) == "n0/cpu0"


def test_confinement_tells_which() -> None:
    assert real_device_here([("n0/cpu0", BEYOND), ("n0/cpu1", ALLOWED)]) == "n0/cpu1"


def test_of_several_without_confinement_none_is_named() -> None:
    halves = [("n0/cpu0", ALLOWED[:1]), ("n0/cpu1", (*ALLOWED[1:], *BEYOND))]
    if len(ALLOWED) == 1:
        halves = [("n0/cpu0", BEYOND[:1]), ("n0/cpu1", BEYOND[1:])]
    assert real_device_here(halves) == "n0/cpu?"
