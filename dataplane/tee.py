"""Frame events of processes that work for several jobs: each job gets them under its own numbers.

The event rings have one reader. Whoever wants events drains them all, and everybody gets a copy: with the stream, the
epoch, the places and the device that its own manifest gives them. An event of the epoch that the source began with
carries epoch 0 and gets the job's; later epochs have one number in all jobs.

Of a job that joined later or ends earlier only those frames are told that it was given: while it is not known yet
where its share begins or ends, its events are kept back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from observatory.model.event import EVENT_DTYPE, PRODUCER_KINDS, UNKNOWN_U32, UNKNOWN_U64

if TYPE_CHECKING:
    from dataplane._ring import EventRing

Events = npt.NDArray[np.void]

MOST_KEPT = 1 << 18  # events for a job that does not take them; what is more counts as lost
PAST_ALL = UNKNOWN_U64


@dataclass(frozen=True, slots=True)
class Labels:
    """How a job names what it is told: `ports` and `hops` by the place that the events carry.

    `hop_ports`: the place of the port that a hop's frames come from, which decides which of them are the job's.
    """

    stream: int
    epoch: int
    device: int
    ports: Mapping[int, int] = field(default_factory=dict)
    hops: Mapping[int, int] = field(default_factory=dict)
    hop_ports: Mapping[int, int] = field(default_factory=dict)


class Tee:
    """The event rings of some processes, and the jobs that are told of them. Any thread may call anything."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._rings: list[EventRing] = []
        self._gone_lost = 0  # events lost in rings that are closed
        self._outlets: list[Outlet] = []

    @property
    def lock(self) -> threading.RLock:
        """Held while events are passed on."""
        return self._lock

    @property
    def lost(self) -> int:
        """Events that the rings could not take."""
        with self._lock:
            return self._gone_lost + sum(ring.lost for ring in self._rings)

    def add_ring(self, ring: EventRing) -> None:
        """Read this ring from now on."""
        with self._lock:
            self._rings.append(ring)

    def remove_ring(self, ring: EventRing) -> None:
        """Read it a last time, if it is read; its owner closes it then."""
        with self._lock:
            if ring not in self._rings:
                return
            self.pump()
            self._gone_lost += ring.lost
            self._rings.remove(ring)

    def outlet(self) -> Outlet:
        """For one more job: it is told of everything from now on."""
        with self._lock:
            self.pump()
            outlet = Outlet(self)
            self._outlets.append(outlet)
            return outlet

    def forget(self, outlet: Outlet) -> None:
        """That job needs to know no more than it was told by now."""
        with self._lock:
            if outlet in self._outlets:
                self.pump()
                self._outlets.remove(outlet)

    def pump(self) -> None:
        """Pass on what there is."""
        with self._lock:
            for ring in self._rings:
                while len(events := ring.drain()):
                    for outlet in self._outlets:
                        outlet.take(events)


class Outlet:
    """What one job is told: the face of an event ring to its collector."""

    def __init__(self, tee: Tee) -> None:
        self._tee = tee
        self._labels: Labels | None = None
        self._first: dict[int, int | None] = {}  # by port: the first source index; None: not known yet
        self._past_last: dict[int, int | None] = {}
        self._held: deque[Events] = deque()
        self._ready: deque[Events] = deque()
        self._count = 0
        self._lost_before = tee.lost
        self._lost_here = 0
        self._lost_in_rings: int | None = None  # once it is told no more

    # -- what is known of the job ------------------------------------------------------------------------------------

    def label(self, labels: Labels) -> None:
        """How the job names things; to be called before it is let in."""
        with self._tee.lock:
            self._labels = labels
            self._first = dict.fromkeys(labels.ports)

    def begins(self, port: int, source_index: int) -> None:
        """Its frames at that port (by its place) begin with that source index."""
        with self._tee.lock:
            if port in self._first and self._first[port] is None:
                self._first[port] = source_index
            self._settle()

    def expect_last(self, port: int) -> None:
        """The job's share is being ended at that port."""
        with self._tee.lock:
            self._tee.pump()
            self._past_last.setdefault(port, None)

    def ends(self, port: int, source_index: int) -> None:
        """Its frames end before that source index."""
        with self._tee.lock:
            if port in self._past_last and self._past_last[port] is None:
                self._past_last[port] = source_index
            self._settle()

    def close(self) -> None:
        """The job needs to know no more: what is not known by now of where its share ends, never is."""
        with self._tee.lock:
            self._tee.forget(self)
            self._lost_in_rings = self._tee.lost
            self._first = {port: 0 if first is None else first for port, first in self._first.items()}
            self._past_last = {port: PAST_ALL if last is None else last for port, last in self._past_last.items()}
            self._settle()

    # -- events ------------------------------------------------------------------------------------------------------

    def take(self, events: Events) -> None:
        """Events as the rings had them."""
        if self._count + len(events) > MOST_KEPT:
            self._lost_here += len(events)
            return
        self._count += len(events)
        self._held.append(events)
        self._settle()

    def _settle(self) -> None:
        bounds = [*self._first.values(), *self._past_last.values()]
        if self._labels is None or any(bound is None for bound in bounds):
            return
        while self._held:
            events = self._held.popleft()
            told = self._translated(events, self._labels)
            self._count -= len(events) - len(told)
            if len(told):
                self._ready.append(told)

    def _translated(self, events: Events, labels: Labels) -> Events:
        made = np.isin(events["kind"], list(PRODUCER_KINDS))
        mine = np.zeros(len(events), np.bool_)
        place = np.full(len(events), UNKNOWN_U32, np.uint32)
        for theirs, own in labels.ports.items():
            rows = made & (events["place"] == theirs) & self._of_share(events, theirs)
            mine |= rows
            place[rows] = own
        for theirs, own in labels.hops.items():
            rows = ~made & (events["place"] == theirs) & self._of_share(events, labels.hop_ports.get(theirs))
            mine |= rows
            place[rows] = own
        told = events[mine]
        told["place"] = place[mine]
        told["stream"] = labels.stream
        told["device"] = labels.device
        told["epoch"][told["epoch"] == 0] = labels.epoch
        return told

    def _of_share(self, events: Events, port: int | None) -> npt.NDArray[np.bool_]:
        """Which are of frames that the job gets of that port."""
        if port is None:
            return np.ones(len(events), np.bool_)
        first, past_last = self._first.get(port), self._past_last.get(port)
        indices = events["source_index"]
        inside: npt.NDArray[np.bool_] = indices >= np.uint64(first or 0)
        return inside & (indices < np.uint64(PAST_ALL if past_last is None else past_last))

    def drain(self, limit: int = 65536) -> Any:
        """The next events for this job, at most so many (EVENT_DTYPE)."""
        with self._tee.lock:
            self._tee.pump()
            if not self._ready:
                return np.zeros(0, EVENT_DTYPE)
            found = np.concatenate(self._ready)
            self._ready.clear()
            if len(found) > limit:
                self._ready.append(found[limit:])
                found = found[:limit]
            self._count -= len(found)
            return found

    @property
    def lost(self) -> int:
        """Events that never came here."""
        with self._tee.lock:
            in_rings = self._tee.lost if self._lost_in_rings is None else self._lost_in_rings
            return in_rings - self._lost_before + self._lost_here
