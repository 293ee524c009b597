"""What of shared operators' ports is for one job: in sequences, to count it, and in source indices, for its events.

Ports that the job's own operators read begin and end with its readers. Of those between shared operators, which it does
not read itself, it has what came to it: from the beginning, up to where all ports that it reads have ended for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from observatory.model.kinds import UNKNOWN_U64

if TYPE_CHECKING:
    from dataplane.tee import Outlet

Port = tuple[str, str]
"""Operator and port, under the provider's names."""


@dataclass(slots=True)
class _Share:
    first: int
    past_last: int | None = None  # None: it goes on


@dataclass(slots=True)
class Shares:
    """Those of one job.

    Args:
        events: what it is told of the ports' frames.
        places: of the traced ports, as their events have it.
    """

    events: Outlet
    places: Mapping[Port, int]
    _ports: dict[Port, _Share] = field(default_factory=dict)
    _read: frozenset[Port] = frozenset()
    _past_frames: dict[Port, int] = field(default_factory=dict)  # of ports that have ended: the source index beyond

    def begin(self, tails: Mapping[Port, int], read: Collection[Port]) -> None:
        """The job is being let in: `tails` of all ports that it has a part in, among them those that it reads."""
        self._read = frozenset(read)
        self._ports = {port: _Share(tail if port in read else 0) for port, tail in tails.items()}
        for port, place in self.places.items():
            if port not in read:
                self.events.begins(place, 0)

    def begun(self, port: Port, sequence: int, source_index: int) -> None:
        """Its readers of a port were let in there."""
        self._ports[port].first = sequence
        if port in self.places:
            self.events.begins(self.places[port], source_index)

    def begin_unsaid(self, operator: str) -> None:
        """Who let its readers in is dead, and cannot say where: events of frames before that do no harm."""
        for port, place in self.places.items():
            if port[0] == operator:
                self.events.begins(place, 0)

    def end(self, tails: Mapping[Port, int], over: Collection[str]) -> None:
        """Nothing more is for the job. `over`: operators that have come to their end, and say nothing any more."""
        for port, share in self._ports.items():
            if port not in self._read:
                share.past_last = tails[port]
            if port in self.places and port[0] not in over:
                self.events.expect_last(self.places[port])

    def ended(self, port: Port, sequence: int, source_index: int) -> None:
        """The shares of its readers of a port have ended there."""
        self._ports[port].past_last = sequence
        if sequence and not source_index:
            source_index = UNKNOWN_U64  # by a process that has published nothing: those before it did, up to somewhere
        if port in self.places:
            self._past_frames[port] = source_index
            self.events.ends(self.places[port], source_index)
        if self._read & set(self.places) <= set(self._past_frames):
            for inner in set(self.places) - self._read:
                self.events.ends(self.places[inner], max(self._past_frames.values(), default=0))

    def operator_over(self, operator: str) -> None:
        """An operator has come to its end: nothing follows, and it says no more where a share begins or ends."""
        for port, place in self.places.items():
            if port[0] == operator:
                self.events.begins(place, UNKNOWN_U64)
                self.events.ends(place, UNKNOWN_U64)

    def close(self, tails: Mapping[Port, int]) -> None:
        """What is published from now on is not for the job, whatever was said."""
        for port, tail in tails.items():
            if port in self._ports and self._ports[port].past_last is None:
                self._ports[port].past_last = tail
        self.events.close()

    def published(self, tails: Mapping[Port, int]) -> dict[Port, int]:
        """Per port: payloads for this job so far; `tails` lacks ports whose rings are gone."""
        found = {}
        for port, share in self._ports.items():
            known = [end for end in (tails.get(port), share.past_last) if end is not None]
            if known:
                found[port] = max(0, min(known) - share.first)
        return found
