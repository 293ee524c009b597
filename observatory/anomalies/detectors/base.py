"""What all detectors share: how they are fed, and that they speak only where something changed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.observation import HardwareEvent, Observation


class Detector:
    """Base of the detectors. `metrics` and `events` say what a detector wants to see.

    All times are given in: a detector has no clock. Verdicts are appended to `out`.
    """

    metrics: ClassVar[tuple[str, ...]] = ()
    events: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: WatchSettings, subjects: Subjects) -> None:
        self.settings = settings
        self.subjects = subjects
        self._said: dict[tuple[str, str, str], Hashable] = {}

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A value that is known and can be."""

    def hear(self, subject: str, event: HardwareEvent, out: list[Finding]) -> None:
        """An event of a kind in `events`."""

    def settle(self, now_ns: int, out: list[Finding]) -> None:
        """The batch is over: judge what only all of it together tells, and what time alone changes."""

    def _say(self, out: list[Finding], finding: Finding, face: Hashable = True) -> None:
        """Append a verdict about a state where it differs from the last one; `face` is what makes it differ."""
        key = (finding.kind, finding.subject, finding.source)
        if finding.bad:
            if self._said.get(key) != face:
                self._said[key] = face
                out.append(finding)
        elif self._said.pop(key, None) is not None:
            out.append(finding)

    def _is_bad(self, kind: str, subject: str, source: str) -> bool:
        return (kind, subject, source) in self._said


def state(kind: str, subject: str, seen: Observation, bad: bool, words: str = "", **more: Any) -> Finding:
    """A verdict about a state, from the value that showed it."""
    return Finding(kind, subject, seen.source, seen.at_ns, bad, words, seen.metric, seen.value, **more)
