"""docs/receivers.md names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from observatory.receivers import interfaces, kernel_log, sysfs_pcie
from observatory.receivers.kernel_log_rules import RULES
from observatory.receivers.rdma_counters import HARDWARE_COUNTERS, PORT_COUNTERS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "receivers.md").read_text()


@pytest.mark.parametrize("kind", sorted({*sysfs_pcie.ERROR_TYPES, *interfaces.ERROR_TYPES}))
def test_error_types_are_named(kind: str) -> None:
    assert f"`{kind}`" in PAGE


def test_counters_in_the_table_are_what_they_say() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 7]
    told: dict[str, str] = {}
    for row in rows:
        kind, *names = re.findall(r"`([\w ]+)`", row)
        if "..." not in row:
            told |= dict.fromkeys(names, kind)
    known = PORT_COUNTERS | HARDWARE_COUNTERS
    assert told == {name: known[name].attributes["error.type"] for name in told}
    assert len(told) >= 24


def test_kinds_of_events_are_named_in_both_places() -> None:
    kinds = set(re.findall(r"^    (\w+) {2,}", kernel_log.__doc__ or "", re.MULTILINE))
    section = PAGE.partition("## kmsg")[2].partition("## endpoint")[0]
    assert len(kinds) >= 17
    assert {kind for kind in kinds if f"`{kind}`" not in section} == set()
    assert len(RULES) > len(kinds)
