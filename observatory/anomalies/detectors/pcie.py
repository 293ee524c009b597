"""PCI Express links that are narrower or slower than both ends could be.

Idle devices save power by lowering the link's speed: an idle GPU sits at 2.5 GT/s, so speed is judged under load only,
and only after several looks agree, as the link is on its way up when work begins. The power states that a link enters
by itself (ASPM: L0s, L1) keep its width, so that a narrow link is a fault at any time, with one exception: nvidia-smi
says of both values that they "may be reduced when the GPU is not in use" (`nvidia-smi --help-query-gpu`), so of a GPU
that is known to be idle and whose speed is reduced as well nothing can be said. The best is the least that any source
calls possible. Where another source sees the full width, the verdict is trusted half.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from observatory.anomalies.counters import Counters
from observatory.anomalies.detectors.base import Detector
from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import SECOND_NS, WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.observation import Observation

KIND = "pcie_downtrained"
EXPECTED = "manifest"  # the source of what an operator says that a machine should have

_LOAD = ("hw.gpu.utilization", "hw.gpu.io", "hw.network.io", "link.throughput", "link.utilization", "link.io")
_LEAST_LANES = 1
_APART_NS = 50_000_000  # looks that are closer see the same moment


@dataclass(slots=True)
class _Seen:
    """What one source says of one link."""

    width: float | None = None
    speed: float | None = None
    narrow: bool = False
    slow: bool = False
    slow_looks: int = 0
    looked_ns: int | None = None


@dataclass(slots=True)
class _Link:
    best_width: dict[str, float] = field(default_factory=dict)
    best_speed: dict[str, float] = field(default_factory=dict)
    seen: dict[str, _Seen] = field(default_factory=dict)
    busy_ns: int | None = None
    idle_ns: int | None = None


class PcieDowntrained(Detector):
    """Judges `link.width` and `link.speed` against their best."""

    metrics: ClassVar[tuple[str, ...]] = ("link.width", "link.width.best", "link.speed", "link.speed.best", *_LOAD)

    def __init__(self, settings: WatchSettings, subjects: Subjects) -> None:
        super().__init__(settings, subjects)
        self._links: dict[str, _Link] = {}
        self._bytes = Counters(most_per_second=1e13)
        self._load_ns = int(settings.load_lasts_seconds * SECOND_NS)
        self._dirty: dict[str, int] = {}

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A value of the link, or a sign of load on its device."""
        metric = seen.metric
        link = self._links.get(subject)
        if link is None:
            link = self._links[subject] = _Link()
        if metric == "link.width":
            if value < _LEAST_LANES:  # an empty slot, or a link that is down: not a matter of width
                return
            self._mine(link, seen).width = value
        elif metric == "link.speed":
            self._mine(link, seen).speed = value
        elif metric == "link.width.best":
            if value >= _LEAST_LANES:
                link.best_width[seen.source] = value
        elif metric == "link.speed.best":
            link.best_speed[seen.source] = value
        elif not self._load(subject, link, seen, value):
            return
        self._dirty[subject] = max(seen.at_ns, self._dirty.get(subject, 0))

    @staticmethod
    def _mine(link: _Link, seen: Observation) -> _Seen:
        mine = link.seen.get(seen.source)
        if mine is None:
            mine = link.seen[seen.source] = _Seen()
        return mine

    def _load(self, subject: str, link: _Link, seen: Observation, value: float) -> bool:
        """Whether it is a sign of load."""
        settings = self.settings
        if seen.metric in ("hw.gpu.utilization", "link.utilization"):
            busy = value >= settings.busy_share
            if not busy and value == 0 and seen.metric == "hw.gpu.utilization":
                link.idle_ns = seen.at_ns
        elif seen.metric == "link.throughput":
            busy = value >= settings.busy_bytes_per_second
        else:
            key = (seen.subject, seen.metric, seen.source, seen.attributes.get("network.io.direction"))
            grew = self._bytes.grew(key, value, seen.at_ns)
            busy = grew is not None and grew[1] > 0 and grew[0] * 1e9 / grew[1] >= settings.busy_bytes_per_second
        if busy:
            link.busy_ns = seen.at_ns
        return busy

    def settle(self, now_ns: int, out: list[Finding]) -> None:
        """Judge every link of which something was told."""
        for subject, at_ns in self._dirty.items():
            link = self._links[subject]
            for source, mine in link.seen.items():
                self._judge(link, mine, at_ns)
                self._verdict(subject, source, link, mine, at_ns, out)
        self._dirty.clear()

    def _judge(self, link: _Link, mine: _Seen, at_ns: int) -> None:
        busy = link.busy_ns is not None and abs(at_ns - link.busy_ns) <= self._load_ns
        idle = not busy and link.idle_ns is not None and abs(at_ns - link.idle_ns) <= self._load_ns
        stated = EXPECTED in link.best_width or EXPECTED in link.best_speed
        best_speed, best_width = _best(link.best_speed), _best(link.best_width)
        reduced = best_speed is not None and mine.speed is not None and mine.speed < best_speed * 0.99
        if best_width is not None and mine.width is not None:
            if mine.width >= best_width:
                mine.narrow = False
            elif busy or stated or not (idle and reduced):
                mine.narrow = True
        if not reduced:
            mine.slow, mine.slow_looks, mine.looked_ns = False, 0, None
        elif (busy or (stated and not idle)) and (mine.looked_ns is None or at_ns - mine.looked_ns >= _APART_NS):
            mine.slow_looks, mine.looked_ns = mine.slow_looks + 1, at_ns
            mine.slow = mine.slow or stated or mine.slow_looks >= self.settings.confirmations

    def _verdict(self, subject: str, source: str, link: _Link, mine: _Seen, at_ns: int, out: list[Finding]) -> None:
        bad = mine.narrow or mine.slow
        if not bad and not self._is_bad(KIND, subject, source):
            return
        if mine.narrow:
            metric, value, best = "link.width", mine.width, _best(link.best_width)
        else:
            metric, value, best = "link.speed", mine.speed, _best(link.best_speed)
        words = _words(link, mine) if bad else ""
        trust = self._trust(link, source)
        finding = Finding(KIND, subject, source, at_ns, bad, words, metric, value, best, trust=trust)
        self._say(out, finding, (mine.narrow and mine.width, mine.slow and mine.speed, trust))

    @staticmethod
    def _trust(link: _Link, source: str) -> float:
        """A stated expectation is surer than a maximum; a source that sees the full width makes it doubtful."""
        best = _best(link.best_width)
        others = (other.width for name, other in link.seen.items() if name != source)
        if best is not None and any(width is not None and width >= best for width in others):
            return 0.4
        return 0.9 if EXPECTED in link.best_width else 0.8


def _best(by_source: dict[str, float]) -> float | None:
    return min(by_source.values()) if by_source else None


def _words(link: _Link, mine: _Seen) -> str:
    parts = []
    if mine.narrow:
        parts.append(f"x{mine.width:.0f} of x{_best(link.best_width) or 0:.0f}")
    if mine.slow:
        parts.append(f"{(mine.speed or 0) / 1e9:g} of {(_best(link.best_speed) or 0) / 1e9:g} GT/s under load")
    return "the link runs at " + " and ".join(parts)
