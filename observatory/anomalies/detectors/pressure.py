"""Memory that tasks wait for: pressure stall information (PSI), and pages taken from the wrong NUMA node.

PSI: Linux, Documentation/accounting/psi.rst: `full` is the share of time in which no task could go on. NUMA counters:
Documentation/admin-guide/numastat.rst: `numa_miss` counts pages taken here that were wanted elsewhere.
"""

from __future__ import annotations

from typing import ClassVar

from observatory.anomalies.counters import Counters
from observatory.anomalies.detectors.base import Detector, state
from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.observation import Observation


class MemoryPressure(Detector):
    """Judges `node.pressure` (memory, full, ten seconds) and `numa.allocations`."""

    metrics: ClassVar[tuple[str, ...]] = ("node.pressure", "numa.allocations")

    def __init__(self, settings: WatchSettings, subjects: Subjects) -> None:
        super().__init__(settings, subjects)
        self._pages = Counters(most_per_second=1e9)
        self._looks: dict[tuple[str, str], int] = {}

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A share of time, or a count of pages."""
        if seen.metric == "numa.allocations":
            self._misplaced(subject, seen, value, out)
            return
        of = seen.attributes
        if (
            of.get("resource") != "memory"
            or of.get("scope") != "full"
            or of.get("window") not in ("10", "10s", "avg10")
        ):
            return
        if "cgroup" in of:  # one control group may wait for the memory that it was denied: no matter of the machine
            return
        settings = self.settings
        was = self._is_bad("memory_pressure", subject, seen.source)
        bad = value >= (settings.pressure_over_share if was else settings.pressure_share)
        words = f"no task could go on for {value:.0%} of the last 10 s for want of memory" if bad else ""
        self._say(out, state("memory_pressure", subject, seen, bad, words, expected=settings.pressure_share))

    def _misplaced(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        if seen.attributes.get("numa.kind") not in ("numa_miss", "miss"):
            return
        grew = self._pages.grew((subject, seen.source), value, seen.at_ns)
        if grew is None or grew[1] <= 0:
            return
        rate = grew[0] * 1e9 / grew[1]
        key = (subject, seen.source)
        self._looks[key] = self._looks.get(key, 0) + 1 if rate >= self.settings.misplaced_pages_per_second else 0
        bad = self._looks[key] >= self.settings.confirmations
        words = f"{rate:.0f} pages per second were wanted on another NUMA node" if bad else ""
        expected = self.settings.misplaced_pages_per_second
        self._say(out, state("numa_misplaced", subject, seen, bad, words, expected=expected))
