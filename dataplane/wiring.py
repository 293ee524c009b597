"""Who is connected to whom: trades ring, slab and page descriptors between workers, and keeps a monitor per ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dataplane import _ring
from dataplane.assignment import Assignment, InputAssignment
from dataplane.control import Channel, close_all


@dataclass(slots=True)
class Port:
    """An output port as its worker made it, and the consumers that were admitted."""

    fds: list[int]  # ring, slabs
    slot_bytes: list[int]
    monitor: _ring.RingMonitor
    consumers: dict[str, int] = field(default_factory=dict)  # edge key -> handle in the monitor


class Wiring:
    """The rings of one job. Descriptors are held only until both ends have them."""

    def __init__(self, assignments: Sequence[Assignment]) -> None:
        self._edges: list[tuple[Assignment, InputAssignment]] = [(a, i) for a in assignments for i in a.inputs]
        self._ports: dict[tuple[str, str], Port] = {}
        self._pages: dict[tuple[str, str], int] = {}

    def offer_port(self, operator: str, port: str, fds: list[int], slot_bytes: list[int]) -> None:
        """A worker made a port: descriptors of its ring and slabs, which are ours now."""
        self._ports[operator, port] = Port(fds, slot_bytes, _ring.RingMonitor(fds[0]))

    def offer_page(self, operator: str, edge: str, fd: int) -> None:
        """A worker made the consumer page of one of its input edges; the descriptor is ours now."""
        self._pages[operator, edge] = fd

    def connect(self, channels: Mapping[str, Channel]) -> None:
        """Give each consumer its producer's ring and slabs, and each producer its consumers' pages."""
        for assignment, edge in self._edges:
            key = edge.key
            port = self._ports[edge.producer, edge.port]
            page = self._pages[assignment.operator, key]
            port.consumers[key] = port.monitor.watch(page)
            channels[assignment.operator].send("input", edge=key, slot_bytes=port.slot_bytes, fds=port.fds)
            channels[edge.producer].send("output", port=edge.port, edge=key, policy=edge.policy, fds=[page])
        for port in self._ports.values():
            port.monitor.seal_ring()
        self._close_fds()

    def queues(self) -> dict[str, dict[str, int]]:
        """Per edge: frames `queued` (published, not taken) and `held` (taken, not acknowledged)."""
        found = {}
        for port in self._ports.values():
            tail = port.monitor.tail
            for key, handle in port.consumers.items():
                page = port.monitor.consumer(handle)
                found[key] = {"queued": max(0, tail - page["taken"]), "held": page["held"]}
        return found

    def published(self) -> dict[tuple[str, str], int]:
        """Per (operator, port): payloads published so far."""
        return {key: port.monitor.tail for key, port in self._ports.items()}

    def end_rings_of(self, operator: str) -> None:
        """End the rings of a worker whose pidfd has reported its death."""
        for (producer, _), port in self._ports.items():
            if producer == operator and not port.monitor.ended:
                port.monitor.end("failed")

    def close(self) -> None:
        """Unmap and close everything."""
        self._close_fds()
        for port in self._ports.values():
            port.monitor.close()
        self._ports.clear()

    def _close_fds(self) -> None:
        for port in self._ports.values():
            close_all(port.fds)
            port.fds = []
        close_all(list(self._pages.values()))
        self._pages.clear()
