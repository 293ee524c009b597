"""Frame pools while they are in use: their books as plain data, and advice on giving idle memory back.

A slab is sealed, so no part of it can be freed, and consumers keep it mapped: memory returns a whole slab at a time,
when the producer and all consumers have let go of it. A port therefore gets rid of memory by a **cut**: the producer
ends its ring, goes on in a new one with other slabs, and each consumer drops the old slabs when it has read the old
ring and released what it holds of it. `advise` says when that is worth it, and to which size classes; who runs the job
lets its operator go over to a process with such a pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from dataplane import _ring


class ClassUse(BaseModel):
    """One size class at one moment. `high_water`: most slots in use at a time since the report before."""

    model_config = ConfigDict(frozen=True)

    slot_bytes: int
    slot_count: int
    in_use: int
    high_water: int
    payload_bytes: int
    resident_bytes: int
    external_bytes: int
    idle_bytes: int

    @property
    def internal_bytes(self) -> int:
        """Wasted inside the slots in use: `in_use * slot_bytes - payload_bytes`."""
        return self.in_use * self.slot_bytes - self.payload_bytes


class PoolUse(BaseModel):
    """The pool of one port at one moment, as its worker reports it (`_ring.PoolStats` as data).

    `seconds` is CLOCK_MONOTONIC; the counts of allocations are since the ring was made. `layout` counts the rings that
    the port has had: after a cut it is another one.
    """

    model_config = ConfigDict(frozen=True)

    seconds: float
    layout: int = 0
    classes: tuple[ClassUse, ...]
    hits: int = 0
    fallbacks: int = 0
    reclaims: int = 0
    waits_for_slot: int = 0
    waits_for_descriptor: int = 0
    too_big: int = 0

    @classmethod
    def of(cls, stats: _ring.PoolStats, seconds: float, layout: int = 0) -> Self:
        """The native books as data."""
        return cls(
            seconds=seconds,
            layout=layout,
            classes=tuple(
                ClassUse(
                    slot_bytes=one.made.slot_bytes,
                    slot_count=one.made.slot_count,
                    in_use=one.in_use,
                    high_water=one.high_water,
                    payload_bytes=one.payload_bytes,
                    resident_bytes=one.resident_bytes,
                    external_bytes=one.external_bytes,
                    idle_bytes=one.idle_bytes,
                )
                for one in stats.classes
            ),
            hits=stats.hits,
            fallbacks=stats.fallbacks,
            reclaims=stats.reclaims,
            waits_for_slot=stats.waits_for_slot,
            waits_for_descriptor=stats.waits_for_descriptor,
            too_big=stats.too_big,
        )

    @property
    def allocations(self) -> int:
        """Allocations but those that no class could ever hold."""
        return self.hits + self.fallbacks + self.reclaims + self.waits_for_slot + self.waits_for_descriptor

    @property
    def hit_rate(self) -> float | None:
        """How many of them got a slot of the right class at once, 0 to 1; None before the first."""
        return self.hits / self.allocations if self.allocations else None

    @property
    def resident_bytes(self) -> int:
        """What the slabs take in memory (or swap)."""
        return sum(one.resident_bytes for one in self.classes)

    @property
    def internal_bytes(self) -> int:
        """Internal fragmentation of all classes."""
        return sum(one.internal_bytes for one in self.classes)

    @property
    def external_bytes(self) -> int:
        """External fragmentation of all classes."""
        return sum(one.external_bytes for one in self.classes)


@dataclass(frozen=True, slots=True)
class ClassNeed:
    """What sizing knows of a class: below `least_slots` the pipeline deadlocks, `full_slots` is what it was given.

    Raises:
        ValueError: not 1 <= least_slots <= full_slots.
    """

    slot_bytes: int
    least_slots: int
    full_slots: int

    def __post_init__(self) -> None:
        if not 1 <= self.least_slots <= self.full_slots:
            raise ValueError(f"{self.least_slots} slots at least and {self.full_slots} in full cannot be")


@dataclass(frozen=True, slots=True)
class Policy:
    """When a cut is worth it.

    Args:
        window_seconds: so long nothing may have waited before memory is given back; twice as long after each of the
            newest cuts in the history, so that a load that comes and goes makes ever fewer.
        spare_share: slots kept beyond the most that were in use, of that number; at least `spare_slots`.
        least_saving_bytes: a cut that gives back less is not worth it ...
        least_saving_share: ... nor one that gives back less of what is resident.
        settle_seconds: how old the ring has to be before waits count as a lack of slots.
    """

    window_seconds: float = 60.0
    spare_share: float = 0.25
    spare_slots: int = 1
    least_saving_bytes: int = 16 << 20
    least_saving_share: float = 0.25
    settle_seconds: float = 5.0


MOST_DOUBLINGS = 5


@dataclass(frozen=True, slots=True)
class Advice:
    """A cut to these slots per class (in the order of the needs), and why.

    `compact` gives memory back; `restore` goes back to what sizing gave, because there were too few slots.
    `bytes_saved`: resident bytes that it gives back at least once nobody has the old slabs mapped; negative for what it
    may take.
    """

    kind: Literal["compact", "restore"]
    slots: tuple[int, ...]
    bytes_saved: int
    reason: str


def advise(history: Sequence[PoolUse], needs: Sequence[ClassNeed], policy: Policy | None = None) -> Advice | None:
    """What to do with a port's pool after these reports, oldest first; None: keep it as it is.

    Pure. Only reports of the newest layout say what is needed; those before only say how often there was a cut. The
    history may be cut off at its beginning as the caller likes.

    Raises:
        ValueError: the needs are not those of the newest report's classes.
    """
    policy = policy or Policy()
    if not history:
        return None
    newest = history[-1]
    if [n.slot_bytes for n in needs] != [c.slot_bytes for c in newest.classes]:
        raise ValueError("the needs are those of other size classes than the pool has")
    current = [use for use in history if use.layout == newest.layout]
    if (advice := _restore(current, needs, policy)) is not None:
        return advice
    cuts = len({use.layout for use in history}) - 1
    window = policy.window_seconds * 2 ** min(cuts, MOST_DOUBLINGS)
    return _compact(current, needs, policy, window)


def _restore(current: Sequence[PoolUse], needs: Sequence[ClassNeed], policy: Policy) -> Advice | None:
    newest = current[-1]
    short = [n for n, c in zip(needs, newest.classes, strict=True) if c.slot_count < n.full_slots]
    settled = [use for use in current if use.seconds >= current[0].seconds + policy.settle_seconds]
    if not short or len(settled) < 2:
        return None
    waits = _waits(settled)
    if waits == 0:
        return None
    slots = tuple(max(n.full_slots, c.slot_count) for n, c in zip(needs, newest.classes, strict=True))
    more = sum((n - c.slot_count) * c.slot_bytes for n, c in zip(slots, newest.classes, strict=True))
    return Advice("restore", slots, -more, f"{waits} allocations found no slot: back to {_words(slots, newest)}")


def _compact(current: Sequence[PoolUse], needs: Sequence[ClassNeed], policy: Policy, window: float) -> Advice | None:
    newest = current[-1]
    recent = [use for use in current if use.seconds >= newest.seconds - window]
    if newest.seconds - current[0].seconds < window or _waits(recent):
        return None
    slots = []
    for index, (need, one) in enumerate(zip(needs, newest.classes, strict=True)):
        peak = max(use.classes[index].high_water for use in recent)
        wanted = max(need.least_slots, peak + max(policy.spare_slots, math.ceil(peak * policy.spare_share)))
        slots.append(min(wanted, one.slot_count))
    # Once the new slabs are all touched, they take that much of what is resident now.
    saved = sum(
        max(0, one.resident_bytes - count * one.slot_bytes) for count, one in zip(slots, newest.classes, strict=True)
    )
    if saved < max(policy.least_saving_bytes, policy.least_saving_share * newest.resident_bytes):
        return None
    return Advice(
        "compact",
        tuple(slots),
        saved,
        f"{saved / 1e6:.1f} MB of {newest.resident_bytes / 1e6:.1f} MB were idle for {window:g} s: "
        f"{_words(slots, newest)} are enough",
    )


def _waits(uses: Sequence[PoolUse]) -> int:
    """Allocations that found no slot between the first and the last of these reports."""
    return uses[-1].waits_for_slot + uses[-1].reclaims - uses[0].waits_for_slot - uses[0].reclaims


def _words(slots: Iterable[int], use: PoolUse) -> str:
    return " + ".join(f"{n} x {c.slot_bytes / 1e6:.1f} MB" for n, c in zip(slots, use.classes, strict=True))
