"""Times without a frame, from frame records: what the consumers of a pipeline wait when a worker dies or moves.

A gap is the time between two consecutive launches of one consumer. What lies in a window is any gap that the window has
a part in, so a gap that began before a death counts whole. How long the same consumer waits anyway is its longest gap
in the second before the death.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

QUIET_SECONDS = 1.0
Times = np.ndarray[Any, Any]  # CLOCK_MONOTONIC, nanoseconds, ascending


@dataclass(frozen=True, slots=True)
class Gap:
    """What one survivor waited over one death; seconds. `usual`: its longest gap before; None: it had none."""

    consumer: str
    downstream: bool
    longest: float
    usual: float | None

    @property
    def added(self) -> float:
        """What the death has added; all of it where it is not known how long the consumer waits anyway."""
        return max(0.0, self.longest - (self.usual or 0.0))


def longest_gap(at: Times, begin_ns: int, end_ns: int) -> float | None:
    """Seconds of the longest gap that has a part in that window; None: there is none."""
    over = (at[1:] >= begin_ns) & (at[:-1] <= end_ns)
    return float(np.diff(at)[over].max()) / 1e9 if over.any() else None


def downstream_of(operator: str, edges: Collection[tuple[str, str]]) -> set[str]:
    """Everybody whom that operator feeds, directly or not."""
    found: set[str] = set()
    todo = [operator]
    while todo:
        at = todo.pop()
        fed = {consumer for producer, consumer in edges if producer == at} - found
        found |= fed
        todo += fed
    return found


def survivors(
    launches: Mapping[str, Times], edges: Collection[tuple[str, str]], dead: str, begin_ns: int, end_ns: int
) -> list[Gap]:
    """The gaps of all consumers but the dead one, from its death (`begin_ns`) until its successor works (`end_ns`)."""
    fed = downstream_of(dead, edges)
    found = []
    for consumer, at in launches.items():
        longest = longest_gap(at, begin_ns, end_ns)
        if consumer == dead or longest is None:
            continue
        before = at[at < begin_ns]
        usual = longest_gap(before, begin_ns - int(QUIET_SECONDS * 1e9), begin_ns)
        found.append(Gap(consumer, consumer in fed, longest, usual))
    return found


def worst(gaps: Iterable[Iterable[Gap]], downstream: bool) -> dict[str, float] | None:
    """Over the deaths, the survivor of each to which it has added most.

    Returns:
        `deaths` (with such a survivor), `p50_seconds` and `max_seconds` of what was added, and `longest_seconds`, the
        longest gap of all as it was seen; None: no death had such a survivor.
    """
    each = [[gap for gap in one if gap.downstream == downstream] for one in gaps]
    each = [one for one in each if one]
    if not each:
        return None
    added = [max(gap.added for gap in one) for one in each]
    return {
        "deaths": len(each),
        "p50_seconds": float(np.median(added)),
        "max_seconds": max(added),
        "longest_seconds": max(gap.longest for one in each for gap in one),
    }
