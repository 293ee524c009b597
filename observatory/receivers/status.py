"""How a receiver fares: what the runner counts of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ReceiverState(StrEnum):
    """What a receiver does now."""

    STARTING = "starting"
    WORKING = "working"
    FAILING = "failing"  # tried again after a while that grows
    UNAVAILABLE = "unavailable"  # this machine has no such source, or may not read it: looked for again now and then
    HANGING = "hanging"  # in a call that has not come back within its time limit
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """A snapshot. Counts and seconds are since the runner was made.

    `stale` is True where what was last seen is too old to rely on, or nothing was seen yet. `age_seconds` is the time
    since the last good poll (of a source that tells by itself: since it was last known to be open), None before the
    first. `seconds` is what polls took by the clock, `cpu_seconds` on a processor. `refused` counts what made no sense
    by reason, `dropped` what came too fast, `lost` what the source itself says was lost before it was read.
    """

    name: str
    state: ReceiverState
    reason: str | None
    mend: str | None
    period_seconds: float | None
    stale: bool
    age_seconds: float | None
    polls: int
    failures: int
    timeouts: int
    seconds: float
    cpu_seconds: float
    observations: int
    events: int
    refused: Mapping[str, int]
    dropped: int
    lost: int


@dataclass(slots=True)
class Tally:
    """What one receiver's thread counts; read by others at any time."""

    state: ReceiverState = ReceiverState.STARTING
    reason: str | None = None
    mend: str | None = None
    period_seconds: float | None = None
    polls: int = 0
    failures: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    observations: int = 0
    events: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    lost: int = 0
    last_good_ns: int | None = None
    called_ns: int | None = None  # when the call began that the receiver is in

    def snapshot(self, name: str, now_ns: int, limit_seconds: float, stale_after_seconds: float) -> ReceiverStatus:
        """What is known at `now_ns` (CLOCK_MONOTONIC)."""
        last_good_ns, called_ns = self.last_good_ns, self.called_ns
        hangs = called_ns is not None and now_ns - called_ns > limit_seconds * 1.5e9
        age = None if last_good_ns is None else max(0, now_ns - last_good_ns) / 1e9
        state = ReceiverState.HANGING if hangs and self.state is not ReceiverState.STOPPED else self.state
        reason = self.reason
        if state is ReceiverState.HANGING and called_ns is not None:
            reason = f"a call to its source has not come back for {(now_ns - called_ns) / 1e9:.0f} s"
        fresh = state is ReceiverState.WORKING and age is not None and age <= stale_after_seconds
        return ReceiverStatus(
            name=name,
            state=state,
            reason=reason,
            mend=self.mend,
            period_seconds=self.period_seconds,
            stale=not fresh,
            age_seconds=age,
            polls=self.polls,
            failures=self.failures,
            timeouts=self.timeouts,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            observations=self.observations,
            events=self.events,
            refused=dict(self.refused.copy()),
            dropped=self.dropped,
            lost=self.lost,
        )
