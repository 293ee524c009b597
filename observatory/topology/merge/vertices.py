"""Switches, sockets and other vertices that are one: by PCI bus id, else by name."""

from __future__ import annotations

from observatory.model.topology import Topology, Vertex, VertexKind
from observatory.topology.merge.machines import normal_bus_id

_BY_ID = frozenset(
    {VertexKind.SOCKET, VertexKind.NUMA, VertexKind.HOST, VertexKind.SWITCH, VertexKind.DOMAIN, VertexKind.DIE}
)


class VertexMerge:
    """Vertices as merged so far, by id."""

    def __init__(self) -> None:
        self.vertices: dict[str, Vertex] = {}
        self._by_bus_id: dict[tuple[str | None, str], str] = {}
        self._next: dict[str, int] = {}
        self._hosts: dict[tuple[str | None, str], str] = {}

    def add(self, part: Topology) -> dict[str, str]:
        """Take in one topology; its vertex ids -> those of the merged one."""
        names: dict[str, str] = {}
        here: dict[tuple[str | None, str], str] = {}
        for vertex in part.vertices:
            key = (vertex.node, normal_bus_id(vertex.pci_bus_id)) if vertex.pci_bus_id else None
            known = self._by_bus_id.get(key) if key else None
            if known is None and vertex.kind in _BY_ID and vertex.id in self.vertices:
                known = vertex.id if self.vertices[vertex.id].kind is vertex.kind else None
            if known is None and vertex.kind is VertexKind.HOST_BRIDGE and vertex.name:
                known = self._hosts.get((vertex.node, vertex.name))
            if known is None:
                known = self._new(vertex)
            if key:
                here.setdefault(key, known)
            names[vertex.id] = known
        self._by_bus_id = here | self._by_bus_id
        return names

    def _new(self, vertex: Vertex) -> str:
        if vertex.id in self.vertices:
            stem = vertex.id.rstrip("0123456789") or vertex.id
            number = self._next.get(stem, 0)
            while f"{stem}{number}" in self.vertices:
                number += 1
            self._next[stem] = number + 1
            vertex = vertex.model_copy(update={"id": f"{stem}{number}"})
        self.vertices[vertex.id] = vertex
        if vertex.kind is VertexKind.HOST_BRIDGE and vertex.name:
            self._hosts.setdefault((vertex.node, vertex.name), vertex.id)
        return vertex.id
