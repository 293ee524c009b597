"""Telemetry that cannot be trusted or stays away: impossible values, silent sources, silent machines."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from observatory.anomalies.detectors.base import Detector
from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import SECOND_NS, WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.observation import Observation

_OWN_GAP_NS = 3 * SECOND_NS // 2  # nobody was given the time for longer: it is we who were paused
_COUNTED_OF_GAP_NS = SECOND_NS // 4
_LEARN_LOOKS = 3  # a source whose period is not known yet is not silent


@dataclass(slots=True)
class _Source:
    """One polled source of one machine."""

    last_ns: int  # on the clock of `Telemetry`
    period_ns: float = 0.0
    looks: int = 1


@dataclass(slots=True)
class _Lies:
    at_ns: deque[int] = field(default_factory=deque)


class Telemetry(Detector):
    """Judges the sources themselves. Values that cannot be are given to `refused`, batches to `heard`.

    Silence is measured on a clock that runs only while this process does: what a platform that was paused did not hear
    is no silence of others. It goes by how often `heard` is called, for empty batches too.
    """

    def __init__(self, settings: WatchSettings, subjects: Subjects) -> None:
        super().__init__(settings, subjects)
        self._sources: dict[tuple[str, str], _Source] = {}
        self._lies: dict[tuple[str, str], _Lies] = {}
        self._heard_ns: int | None = None
        self._awake_ns = 0

    def refused(self, subject: str, seen: Observation, why: str, out: list[Finding]) -> None:
        """A value that cannot be: told when it happens often."""
        lies = self._lies.setdefault((subject, seen.source), _Lies())
        lies.at_ns.append(seen.at_ns)
        since = seen.at_ns - int(self.settings.window_seconds * SECOND_NS)
        while lies.at_ns and lies.at_ns[0] < since:
            lies.at_ns.popleft()
        if len(lies.at_ns) >= self.settings.lies_to_tell:
            words = f"{seen.metric} {why}: {seen.value}"
            out.append(
                Finding(
                    "telemetry_unreliable", subject, seen.source, seen.at_ns, True, words, seen.metric, seen.value,
                    trust=0.7, momentary=True,
                )
            )  # fmt: skip

    def heard(self, sources: set[tuple[str, str]], now_ns: int) -> None:
        """These sources (machine, name) gave values in this batch."""
        gap_ns = 0 if self._heard_ns is None else max(0, now_ns - self._heard_ns)
        self._awake_ns += gap_ns if gap_ns <= _OWN_GAP_NS else _COUNTED_OF_GAP_NS
        self._heard_ns = now_ns
        for key in sources:
            source = self._sources.get(key)
            if source is None:
                self._sources[key] = _Source(self._awake_ns)
                continue
            elapsed = self._awake_ns - source.last_ns
            if elapsed <= 0:
                continue
            source.looks += 1
            source.period_ns = elapsed if source.period_ns == 0 else source.period_ns * 0.8 + elapsed * 0.2
            source.last_ns = self._awake_ns

    def settle(self, now_ns: int, out: list[Finding]) -> None:
        """Who is silent? A machine of which two sources or more are silent, and none is heard, is silent itself."""
        machines: dict[str, list[tuple[str, bool, _Source]]] = {}
        for (node, name), source in self._sources.items():
            machines.setdefault(node, []).append((name, self._is_silent(source), source))
        for node, sources in machines.items():
            gone = len(sources) > 1 and all(silent for _, silent, _ in sources)
            for name, silent, source in sources:
                self._say(out, self._finding("telemetry_lost", node, name, source, now_ns, silent and not gone))
                self._say(out, self._finding("node_silent", node, name, source, now_ns, gone))

    def is_silent(self, node: str, name: str) -> bool:
        """Whether nothing was heard of that source for too long; one that was never polled is not silent."""
        source = self._sources.get((node, name))
        return source is not None and self._is_silent(source)

    def _is_silent(self, source: _Source) -> bool:
        if source.looks < _LEARN_LOOKS:
            return False
        settings = self.settings
        allowed = max(source.period_ns * settings.stale_periods, settings.stale_least_seconds * SECOND_NS)
        return self._awake_ns - source.last_ns > allowed

    def _finding(self, kind: str, node: str, name: str, source: _Source, now_ns: int, bad: bool) -> Finding:
        silent = (self._awake_ns - source.last_ns) / 1e9
        words = f"{name} is silent for {silent:.1f} s; its last values are held" if bad else ""
        subject = f"{node}:{name}" if kind == "telemetry_lost" else f"{node}:node"
        return Finding(kind, subject, name, now_ns, bad, words, trust=0.9)
