"""Devices that failed: what their driver says of them (`hw.status`), and the links that end with them.

Only the device's own state counts: the last word of every source. An event of one line (an Xid, a line of the kernel's
log) may be old or wrong and is never taken back, so it takes no link down.
"""

from __future__ import annotations

from collections.abc import Iterable

from observatory.model.observation import AddressKind, Observation
from observatory.model.topology import Topology
from observatory.topology.addresses import AddressBook, PlaceKind

STATUS = "hw.status"
_BROKEN = frozenset({"failed", "lost", "missing"})
_WHOLE_DEVICES = frozenset({AddressKind.DEVICE, AddressKind.PCI, AddressKind.GPU})


class FailedDevices:
    """Which devices of one topology have failed, by what sources said last."""

    def __init__(self, topology: Topology, book: AddressBook) -> None:
        self._book = book
        self._links: dict[str, list[int]] = {}
        for number, link in enumerate(topology.links):
            for end in (link.a, link.b):
                self._links.setdefault(end, []).append(number)
        self._says: dict[str, set[tuple[str, str]]] = {}  # device -> (source, state) that hold now

    def see(self, seen: Observation, value: float) -> Iterable[int]:
        """Take one state of one thing, 1 where it is in it; links (by number) of what failed or is well again by it.

        `ok` of a source takes back all that this source said before; nothing takes back what another one says.
        """
        state = seen.attributes.get("hw.state", "")
        if state not in _BROKEN and not (state == "ok" and value > 0):
            return ()
        if seen.subject.kind not in _WHOLE_DEVICES or self._book.leads_down(seen.subject):
            return ()
        place = self._book.place(seen.subject)
        if place is None or place.kind is not PlaceKind.DEVICE:
            return ()
        says = self._says.setdefault(place.id, set())
        was = bool(says)
        if state == "ok":
            says -= {word for word in says if word[0] == seen.source}
        elif value > 0:
            says.add((seen.source, state))
        else:
            says.discard((seen.source, state))
        return self._links.get(place.id, ()) if bool(says) is not was else ()

    def has_failed(self, *devices: str) -> bool:
        """Whether one of these devices has."""
        return any(self._says.get(device) for device in devices)
