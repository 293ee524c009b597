"""Switches, groups and machines below them, as schedulers name them: without cards and without rates."""

from __future__ import annotations

from typing import Any

from observatory.model.link import LinkKind
from observatory.model.topology import VertexKind
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.hostlist import expand_hostlist
from observatory.topology.importers.source import Source

FABRIC = "fabric"
"""What switches and domains are named below: they belong to no machine."""


class NetworkTree:
    """Adds vertices and links of a network to a topology. The technology and the rate of its links are not told."""

    def __init__(self, source: Source, build: TopologyBuilder) -> None:
        self.source = source
        self.build = build

    def switch(self, name: str) -> str:
        """The vertex of a switch."""
        return self.build.named_vertex(FABRIC, name, VertexKind.SWITCH)

    def domain(self, name: str) -> str:
        """The vertex of a group of machines."""
        return self.build.named_vertex(FABRIC, name, VertexKind.DOMAIN)

    def machine(self, hostname: str) -> str:
        """The vertex of a whole machine."""
        return self.build.host(self.build.node(hostname))

    def machines_below(self, hostnames: list[str], above: str, **fields: Any) -> None:
        """Add whole machines and link each to what is above it."""
        self.build.hosts_below(hostnames, above, LinkKind.NETWORK, **fields)

    def join(self, below: str, above: str, **fields: Any) -> None:
        """Link a vertex to what is above it."""
        self.build.link(below, above, LinkKind.NETWORK, **fields)

    def names(self, text: str, line: int) -> list[str]:
        """The names in a host list. Raises BadTopology with the line."""
        try:
            return expand_hostlist(text)
        except ValueError as error:
            self.source.fail(f"has a list of names that makes no sense: {error}", line, "the form is tux[0-3,12],leaf1")
