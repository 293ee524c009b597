"""The live graph: a topology, and what receivers see of its links, as they see it.

    live = LiveTopology(topology)
    live.apply(batch)                 of `Seen`, from any receiver; cheap
    costs.take(live.arrays())         bandwidth, latency and state as they are now
    live.changes(version)             what has become of links since
    live.snapshot()                   a topology with the present values

The last good value holds: a source that falls silent, or says that it does not know, changes nothing but the age, and
with it the confidence. Only a value that was measured changes a link. What is seen of hardware that the topology does
not have is counted, not guessed at.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from observatory.model.link import BandwidthSource, Link, LinkKind
from observatory.model.observation import Address, AddressKind, Observation, Seen
from observatory.model.topology import Topology
from observatory.topology.addresses import AddressBook
from observatory.topology.graph import LinkArrays, TopologyGraph
from observatory.topology.live_devices import STATUS, FailedDevices
from observatory.topology.live_links import LiveLinks, State, speed_words
from observatory.topology.live_nvlinks import NvlinkEnds
from observatory.topology.rates import Counter, known

STALE_AFTER_SECONDS = 5.0
"""Twenty periods of the receivers' default: from then on the confidence halves with every further such time."""

MOST_CHANGES = 100_000
_MOST_UNPLACED = 1_000
_MEDIAN = "0.5"
_TCP_KINDS = frozenset({LinkKind.ETHERNET, LinkKind.NETWORK})
_WATCHED = ("bandwidth", "latency", "state", "width", "speed")


@dataclass(frozen=True, slots=True)
class LinkChange:
    """One property of a link is another than before; None: not known.

    `name` is bandwidth_bytes_per_second, latency_seconds, state, width or speed (in words: `16.0 GT/s`).
    """

    version: int
    link: str
    name: str
    before: float | str | None
    after: float | str | None
    at_ns: int


class LiveTopology:
    """One topology, kept up to date. For one thread at a time.

    `version` grows with every batch that changes a bandwidth, a latency, a state, a width or a speed.
    """

    def __init__(self, topology: Topology, *, stale_after_seconds: float = STALE_AFTER_SECONDS) -> None:
        self.graph = TopologyGraph(topology)
        self.book = AddressBook(topology)
        self.links = LiveLinks(self.graph)
        self.stale_after_seconds = stale_after_seconds
        self.version = 0
        self.unplaced: Tally[Address] = Tally()
        self._numbers = {link.id: number for number, link in enumerate(topology.links)}
        self._now: list[Link] = list(topology.links)
        self._dirty: set[int] = set()
        self._snapshot: Topology | None = topology
        self._log: deque[LinkChange] = deque(maxlen=MOST_CHANGES)
        self._routes: dict[tuple[Address, str, str], int | None] = {}
        self._counters: dict[tuple[Address, str, str], Counter] = {}
        self._nvlinks = NvlinkEnds(self.links)
        self._failed_devices = FailedDevices(topology, self.book)
        self._setters: Mapping[str, Callable[[int, float, Observation], None]] = {
            "link.width": self._column("width"),
            "link.width.best": self._column("best_width"),
            "link.speed": self._column("speed"),
            "link.speed.best": self._column("best_speed"),
            "link.bandwidth": self._column("stated"),
            "hw.network.bandwidth.limit": self._column("stated"),
            "link.up": self._column("up"),
            "hw.network.up": self._column("up"),
            "link.utilization": self._utilised,
            "link.throughput": self._throughput,
            "link.latency": self._latency,
            "link.io": self._counted,
            "hw.network.io": self._counted,
            "hw.gpu.io": self._counted,
            "link.errors": self._failed,
        }

    # -- taking in -----------------------------------------------------------------------------------------------

    def apply(self, batch: Iterable[Seen]) -> bool:
        """Take what was seen; whether the graph is another than before."""
        touched: set[int] = set()
        latest = 0
        for seen in batch:
            if not isinstance(seen, Observation) or (value := known(seen.value)) is None:
                continue
            if seen.metric == STATUS:
                changed = self._device_says(seen, value)
                touched.update(changed)
                latest = max(latest, seen.at_ns) if changed else latest
                continue
            setter = self._setters.get(seen.metric)
            if setter is None:
                continue
            number = self._link_of(seen)
            if number is None:
                continue
            if seen.subject.kind is AddressKind.NVLINK and self._nvlinks.takes(seen.metric):
                self._nvlinks.see(number, seen.subject.key, seen.metric, value)
            else:
                setter(number, value, seen)
            self.links.observed_ns[number] = max(int(self.links.observed_ns[number]), seen.at_ns)
            latest = max(latest, seen.at_ns)
            touched.add(number)
        return bool(touched) and self._work_out(sorted(touched), latest)

    def _device_says(self, seen: Observation, value: float) -> list[int]:
        """Links that a device takes down with it, or that are what they were because it is well again."""
        changed = list(self._failed_devices.see(seen, value))
        for number in changed:
            link = self.graph.topology.links[number]
            self.links.lost_end[number] = self._failed_devices.has_failed(link.a, link.b)
        return changed

    def _link_of(self, seen: Observation) -> int | None:
        """The link that an observation is about; looked up once for every address."""
        peer = seen.attributes.get("link.peer", "")
        key = (seen.subject, seen.metric if seen.subject.kind is AddressKind.INTERFACE else "", peer)
        if key not in self._routes:
            link = self.book.link(seen.subject, seen.attributes)
            self._routes[key] = None if link is None else self._numbers[link]
        number = self._routes[key]
        if number is None and (seen.subject in self.unplaced or len(self.unplaced) < _MOST_UNPLACED):
            self.unplaced[seen.subject] += 1
        return number

    def _column(self, name: str) -> Callable[[int, float, Observation], None]:
        column = getattr(self.links, name)

        def put(number: int, value: float, seen: Observation) -> None:
            column[number] = value

        return put

    def _utilised(self, number: int, value: float, seen: Observation) -> None:
        self.links.share[number] = value

    def _throughput(self, number: int, value: float, seen: Observation) -> None:
        direction = seen.attributes.get("network.io.direction", "transmit")
        if seen.subject.kind is AddressKind.NVLINK:
            value = self._nvlinks.carried(number, seen.subject.key, direction, value)
        sent = direction != "receive"
        (self.links.sent if sent else self.links.received)[number] = value

    def _latency(self, number: int, value: float, seen: Observation) -> None:
        """The median. What TCP takes through an interface is no latency of the same cable under RDMA."""
        if seen.attributes.get("link.latency.quantile", _MEDIAN) != _MEDIAN:
            return
        kind = self.graph.topology.links[number].kind
        if seen.subject.kind is not AddressKind.INTERFACE or kind in _TCP_KINDS:
            self.links.latency[number] = value

    def _counted(self, number: int, value: float, seen: Observation) -> None:
        rate = self._counter(seen).read(value, seen.at_ns).per_second
        if rate is not None:
            self._throughput(number, rate, seen)

    def _failed(self, number: int, value: float, seen: Observation) -> None:
        growth = self._counter(seen).read(value, seen.at_ns)
        if growth.amount is not None:
            self.links.errors[number] += growth.amount
            self.links.errors_per_second[number] = growth.per_second

    def _counter(self, seen: Observation) -> Counter:
        attributes = seen.attributes
        series = attributes.get("network.io.direction", "") + attributes.get("error.type", "")
        key = (seen.subject, f"{seen.source}/{seen.metric}", series)
        if key not in self._counters:
            self._counters[key] = Counter()
        return self._counters[key]

    # -- what follows --------------------------------------------------------------------------------------------

    def _work_out(self, touched: list[int], at_ns: int) -> bool:
        numbers = np.array(touched, dtype=np.intp)
        self._dirty.update(touched)
        self._snapshot = None
        found, kept = self.links.work_out(numbers), self.links.effective
        version = self.version + 1
        changed = False
        for name in _WATCHED:
            before, after = getattr(kept, name), getattr(found, name)
            old = before[numbers]
            same = (old == after) | (np.isnan(old) & np.isnan(after))
            for at in np.flatnonzero(~same).tolist():
                link = self.graph.topology.links[touched[at]].id
                change = LinkChange(version, link, _NAMES[name], _said(name, old[at]), _said(name, after[at]), at_ns)
                self._log.append(change)
                changed = True
            before[numbers] = after
        self.version += changed
        return changed

    def arrays(self) -> LinkArrays:
        """Bandwidths, latencies and states as they are now, for `ClusterCosts.take`."""
        return self.links.arrays()

    def changes(self, since: int) -> tuple[LinkChange, ...]:
        """What has become of links after that version, oldest first; of the last 100,000 changes."""
        found: list[LinkChange] = []
        for change in reversed(self._log):
            if change.version <= since:
                break
            found.append(change)
        return tuple(reversed(found))

    def snapshot(self) -> Topology:
        """The topology with the present values of its links; the same object as long as nothing is seen."""
        if self._snapshot is None:
            shares = self.links.utilisation()
            for number in self._dirty:
                self._now[number] = self._link_now(number, _number(shares[number]))
            self._dirty.clear()
            self._snapshot = self.graph.topology.model_copy(update={"links": tuple(self._now)})
        return self._snapshot

    def _link_now(self, number: int, share: float | None) -> Link:
        links, now = self.links, self.links.effective
        described = self.graph.topology.links[number]
        width, best = _number(now.width[number]), _number(links.best_width[number])
        bandwidth = _number(now.bandwidth[number])
        update: dict[str, object] = {
            "bandwidth_bytes_per_second": bandwidth,
            "latency_seconds": _number(now.latency[number]),
            "state": State(int(now.state[number])).link_state,
            "width": None if width is None else int(width),
            "best_width": None if best is None else int(best),
            "utilisation": share,
        }
        if not np.isnan(links.speed[number]):
            update["speed"] = speed_words(float(links.speed[number]))
        if not np.isnan(links.best_speed[number]):
            update["best_speed"] = speed_words(float(links.best_speed[number]))
        if bandwidth is not None and bandwidth != described.bandwidth_bytes_per_second:
            stated = not np.isnan(links.stated[number])
            update["bandwidth_source"] = BandwidthSource.STATED if stated else BandwidthSource.NEGOTIATED
        return described.model_copy(update=update)

    # -- how old it is -------------------------------------------------------------------------------------------

    def age_seconds(self, link: str, now_ns: int) -> float | None:
        """Since the last value of a link that was good, on CLOCK_MONOTONIC; None: there was none. Raises KeyError."""
        seen = int(self.links.observed_ns[self._numbers[link]])
        return None if seen == 0 else max(0, now_ns - seen) / 1e9

    def confidence(self, link: str, now_ns: int) -> float | None:
        """1 while values come, halved by every `stale_after_seconds` that they have been missing for beyond the first;
        None for a link that is described only. Raises KeyError.
        """
        age = self.age_seconds(link, now_ns)
        return None if age is None else 0.5 ** max(0.0, age / self.stale_after_seconds - 1)


_NAMES = {"bandwidth": "bandwidth_bytes_per_second", "latency": "latency_seconds"} | {
    name: name for name in ("state", "width", "speed")
}


def _said(name: str, value: float) -> float | str | None:
    if name == "state":
        return State(int(value)).link_state.value
    if np.isnan(value):
        return None
    return speed_words(float(value)) if name == "speed" else float(value)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
