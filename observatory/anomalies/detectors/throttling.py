"""GPU clocks that are held back.

NVML's reasons are of three sorts (nvml.h, nvmlClocksEventReasons). What protects the hardware (heat, an external power
brake, hardware slowdown: the clock is halved or worse) is a trouble at any time. A GPU that works at its power limit
does what it should, and one that is idle, has its clocks set by its user, or keeps step with others is well. A lock of
the clocks shows in none of them: it is seen as a clock far below what the same GPU ran at under load before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from observatory.anomalies.detectors.base import Detector, state
from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import SECOND_NS, WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.observation import Observation

KIND = "gpu_throttled"
_HARMFUL = ("thermal", "brake", "slowdown", "prochot", "hotspot")
_WORKING_SHARE = 0.5  # of time that the GPU works: below, it may lower its clock by itself
_CORES = frozenset({"sm", "graphics", "gfx", "core"})


@dataclass(slots=True)
class _Clock:
    best: float = 0.0
    low_looks: int = 0


class Throttling(Detector):
    """Judges `gpu.throttled` and `gpu.clock`."""

    metrics: ClassVar[tuple[str, ...]] = ("gpu.throttled", "gpu.clock", "hw.gpu.utilization")

    def __init__(self, settings: WatchSettings, subjects: Subjects) -> None:
        super().__init__(settings, subjects)
        self._reasons: dict[tuple[str, str], set[str]] = {}
        self._busy: dict[str, tuple[int, bool]] = {}
        self._clocks: dict[tuple[str, str, str], _Clock] = {}
        self._low: dict[tuple[str, str], set[str]] = {}  # clocks that are held back
        self._load_ns = int(settings.load_lasts_seconds * SECOND_NS)

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A reason, a clock, or how busy the GPU is."""
        if seen.metric == "hw.gpu.utilization":
            if seen.attributes.get("hw.gpu.task", "general") == "general":
                self._busy[subject] = (seen.at_ns, value >= _WORKING_SHARE)
        elif seen.metric == "gpu.throttled":
            self._reason(subject, seen, value, out)
        else:
            self._clock(subject, seen, value, out)

    def _reason(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        reason = seen.attributes.get("reason", "").lower()
        if not any(word in reason for word in _HARMFUL):
            return
        reasons = self._reasons.setdefault((subject, seen.source), set())
        before = len(reasons)
        (reasons.add if value > 0 else reasons.discard)(reason)
        if len(reasons) != before:
            words = f"the clock is held back: {', '.join(sorted(reasons))}" if reasons else ""
            self._say(out, state(KIND, subject, seen, bool(reasons), words, trust=0.85), tuple(sorted(reasons)))

    def _clock(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        domain = seen.attributes.get("gpu.clock.domain", "")
        at_ns, busy = self._busy.get(subject, (0, False))
        if domain not in _CORES or not busy or abs(seen.at_ns - at_ns) > self._load_ns:
            return
        clock = self._clocks.setdefault((subject, seen.source, domain), _Clock())
        clock.best = max(clock.best, value)
        clock.low_looks = clock.low_looks + 1 if value < clock.best * self.settings.clock_share else 0
        bad = clock.low_looks >= self.settings.confirmations
        if self._reasons.get((subject, seen.source)):
            return  # the reason is known already
        low = self._low.setdefault((subject, seen.source), set())
        before = len(low)
        (low.add if bad else low.discard)(domain)
        if len(low) != before:  # all its clocks are one verdict
            words = f"the {domain} clock is {value / 1e6:.0f} MHz under load, it was {clock.best / 1e6:.0f}"
            finding = state(KIND, subject, seen, bool(low), words if low else "", expected=clock.best, trust=0.6)
            self._say(out, finding, tuple(sorted(low)))
