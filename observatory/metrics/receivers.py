"""How receivers fare, as `/metrics` shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from observatory.metrics.exposition import header, simple_lines
from observatory.metrics.families import Family
from observatory.metrics.series import Sample
from observatory.receivers.status import ReceiverState, ReceiverStatus

_RECEIVER = ("receiver",)

STATE = Family(
    "observatory_receiver_state",
    "gauge",
    ("receiver", "state"),
    "1 for the state that a receiver is in, 0 for the others.",
    note=f"{', '.join(ReceiverState)}.",
)
STALE = Family(
    "observatory_receiver_stale",
    "gauge",
    _RECEIVER,
    "1 where what a receiver last saw is too old to rely on, or it has seen nothing yet, else 0.",
)
AGE = Family("observatory_receiver_age_seconds", "gauge", _RECEIVER, "Time since a receiver's last good poll.")
REFUSED = Family(
    "observatory_receiver_refused_total",
    "counter",
    ("receiver", "reason"),
    "What a receiver said that made no sense, and was left out.",
)


def _counter(name: str, words: str) -> Family:
    return Family(f"observatory_receiver_{name}_total", "counter", _RECEIVER, words)


COUNTERS: tuple[tuple[Family, Callable[[ReceiverStatus], float]], ...] = (
    (_counter("polls", "Times that a receiver was asked."), lambda s: s.polls),
    (_counter("failures", "Times that a receiver failed, time-outs included."), lambda s: s.failures),
    (_counter("timeouts", "Times that a receiver did not answer within its limit."), lambda s: s.timeouts),
    (_counter("poll_seconds", "Time that a receiver's polls took, by the clock."), lambda s: s.seconds),
    (_counter("cpu_seconds", "Time that a receiver's polls took on a processor."), lambda s: s.cpu_seconds),
    (_counter("observations", "Values that a receiver has seen."), lambda s: s.observations),
    (_counter("events", "Events that a receiver has seen."), lambda s: s.events),
    (_counter("dropped", "What a receiver saw that came too fast to be handed on."), lambda s: s.dropped),
    (_counter("lost", "What a source says was lost before its receiver could read it."), lambda s: s.lost),
)
FAMILIES = (STATE, STALE, AGE, REFUSED, *(family for family, _ in COUNTERS))


class ReceiverSeries:
    """The series of all receivers. Any thread may call anything.

    Args:
        statuses: how each fares now, as `observatory.receivers.runner.Runner.statuses` says.
    """

    def __init__(self, statuses: Callable[[], Sequence[ReceiverStatus]]) -> None:
        self._statuses = statuses

    def render(self, openmetrics: bool) -> str:
        """The text of all families."""
        statuses = self._statuses()
        parts = []
        for family, samples in self._samples(statuses):
            if samples:
                parts.append(header(family, openmetrics) + simple_lines(family, samples, openmetrics))
        return "".join(parts)

    def _samples(self, statuses: Sequence[ReceiverStatus]) -> list[tuple[Family, list[Sample]]]:
        states: list[Sample] = [
            ((one.name, state), float(one.state is state), None) for one in statuses for state in ReceiverState
        ]
        ages: list[Sample] = [((s.name,), s.age_seconds, None) for s in statuses if s.age_seconds is not None]
        refused: list[Sample] = [
            ((s.name, reason), count, None) for s in statuses for reason, count in sorted(s.refused.items())
        ]
        found: list[tuple[Family, list[Sample]]] = [
            (STATE, states),
            (STALE, [((s.name,), float(s.stale), None) for s in statuses]),
            (AGE, ages),
            (REFUSED, refused),
        ]
        for family, read in COUNTERS:
            found.append((family, [((s.name,), read(s), None) for s in statuses]))
        return found
