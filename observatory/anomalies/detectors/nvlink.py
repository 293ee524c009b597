"""NVLinks that are not active, or slower than their siblings.

Single links (`link.up` of addresses of kind `nvlink`) are judged per GPU once a batch is complete: as many should be
active as were most active on that GPU, or on another GPU of the same machine and model. Bundles that the topology knows
(`link.width` of all links to one peer) are judged against their best width; where both ends tell of a bundle, the lower
width is taken, and its single links add only how fast they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from observatory.anomalies.detectors.base import Detector
from observatory.anomalies.finding import Finding
from observatory.anomalies.settings import WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.observation import AddressKind, Observation

DEGRADED, DOWN = "nvlink_degraded", "nvlink_down"


@dataclass(slots=True)
class _Group:
    """The single links of one GPU as one source sees them."""

    subject: str
    source: str
    peers: str
    names: dict[str, str] = field(default_factory=dict)  # number -> subject of the link
    up: dict[str, bool] = field(default_factory=dict)
    rate: dict[str, float] = field(default_factory=dict)
    best_rate: float = 0.0
    most_active: int = 0
    end: str | None = None  # the GPU that tells of them
    at_ns: int = 0


class NvlinkDegraded(Detector):
    """Judges `link.up`, `link.bandwidth` and `link.width` of NVLinks."""

    metrics: ClassVar[tuple[str, ...]] = ("link.up", "link.bandwidth", "link.width", "link.width.best")

    def __init__(self, settings: WatchSettings, subjects: Subjects) -> None:
        super().__init__(settings, subjects)
        self._groups: dict[tuple[str, str], _Group] = {}
        self._dirty: set[tuple[str, str]] = set()
        self._most_of_peers: dict[str, int] = {}
        self._best_width: dict[str, float] = {}
        self._widths: dict[tuple[str, str], dict[str, float]] = {}  # by subject, source and end

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """A value of one link of a GPU, or of a bundle."""
        if seen.metric in ("link.up", "link.bandwidth"):
            if seen.subject.kind is AddressKind.NVLINK:
                self._single(subject, seen, value)
        elif self.subjects.owner(subject) is not None:  # a bundle that no topology knows: its links are told apart too
            return
        elif seen.metric == "link.width.best":
            self._best_width[subject] = max(value, self._best_width.get(subject, 0.0))
        else:
            self._bundle(subject, seen, value)

    def _single(self, subject: str, seen: Observation, value: float) -> None:
        owner = self.subjects.owner(subject)
        key = (owner or subject, seen.source)
        group = self._groups.get(key)
        if group is None:
            model = seen.attributes.get("hw.model", "")
            group = self._groups[key] = _Group(*key, peers=f"{seen.subject.node} {model}" if owner else "")
        gpu, _, number = seen.subject.key.rpartition("/")
        if group.end is None:
            group.end = gpu
        elif group.end != gpu:  # the other end of the same links, told once more
            return
        group.names[number] = subject if owner else f"{subject}/{number}"
        group.at_ns = max(group.at_ns, seen.at_ns)
        if seen.metric == "link.up":
            group.up[number] = value > 0
        else:
            group.rate[number] = value
            group.best_rate = max(group.best_rate, value)
        self._dirty.add(key)

    def settle(self, now_ns: int, out: list[Finding]) -> None:
        """Judge the GPUs of which something was seen, and their peers where the most of them has grown."""
        if not self._dirty:
            return
        grown = set()
        for key in self._dirty:
            group = self._groups[key]
            group.most_active = max(group.most_active, sum(group.up.values()))
            if group.peers and group.most_active > self._most_of_peers.get(group.peers, 0):
                self._most_of_peers[group.peers] = group.most_active
                grown.add(group.peers)
        judged = self._dirty | {key for key, group in self._groups.items() if group.peers in grown}
        for key in sorted(judged):
            self._judge(self._groups[key], out)
        self._dirty.clear()

    def _judge(self, group: _Group, out: list[Finding]) -> None:
        widths = self._widths.get((group.subject, group.source))
        down = [] if widths else [number for number, up in group.up.items() if not up]
        if widths:
            active, expected, seen_active = int(min(widths.values())), int(self._best_width[group.subject]), True
        else:
            active = sum(group.up.values())
            of_peers = self._most_of_peers.get(group.peers, 0)
            expected = max(group.most_active, min(of_peers, len(group.up)))
            seen_active = group.most_active > active
        slow = [
            number
            for number, rate in group.rate.items()
            if group.up.get(number, True) and rate < group.best_rate * self.settings.width_share
        ]
        bad = active < expected or bool(slow)
        for kind in (DOWN, DEGRADED):
            shown = bad and kind == (DOWN if active == 0 and expected > 0 else DEGRADED)
            if not shown and not self._is_bad(kind, group.subject, group.source):
                continue
            finding = Finding(
                kind, group.subject, group.source, group.at_ns, shown,
                _words(active, expected, slow) if shown else "", "link.width" if widths else "link.up",
                float(active), float(expected),
                trust=0.85 if seen_active or slow else 0.6,  # else only the peers say so
                affected=tuple(sorted(group.names[n] for n in (*down, *slow))) if shown else (),
            )  # fmt: skip
            self._say(out, finding, (active, expected, tuple(slow)))

    def _bundle(self, subject: str, seen: Observation, value: float) -> None:
        key = (subject, seen.source)
        self._widths.setdefault(key, {})[seen.subject.key.partition("/")[0]] = value
        self._best_width[subject] = max(self._best_width.get(subject, 0.0), value)
        group = self._groups.setdefault(key, _Group(subject, seen.source, peers=""))
        group.at_ns = max(group.at_ns, seen.at_ns)
        self._dirty.add(key)


def _words(active: int, expected: int, slow: list[str]) -> str:
    parts = []
    if active < expected:
        parts.append(f"{active} of {expected} links are active")
    if slow:
        parts.append(f"{len(slow)} of them {'is' if len(slow) == 1 else 'are'} slower than the others")
    return ", ".join(parts)
