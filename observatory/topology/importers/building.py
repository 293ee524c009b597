"""A topology put together piece by piece: ids that are never used twice, one link of a kind between two ends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from observatory.model.device import Device, DeviceKind
from observatory.model.hardware import Cache, NumaNode, PciFunction
from observatory.model.link import BandwidthSource, Link, LinkKind, LinkState
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.importers.source import Source

MOST_THINGS = 300_000
"""Devices, vertices and links of one file: what names more than that was not written by a machine that exists."""

Model = TypeVar("Model", bound=BaseModel)

_PLAIN = re.compile(r"[\w.:-]+\Z")
_NOT_IN_NAMES = re.compile(r"[\s/]+")
_SHOWN_ALIKE = 3


class TopologyBuilder:
    """Collects nodes, devices, vertices, links and warnings of one source."""

    def __init__(
        self,
        source: Source,
        *,
        name: str | None = None,
        provenance: Literal["description", "measurement"] = "measurement",
    ) -> None:
        self.source = source
        self.name = name
        self.provenance = provenance
        self.nodes: dict[str, Node] = {}
        self.devices: dict[str, Device] = {}
        self.vertices: dict[str, Vertex] = {}
        self.links: dict[tuple[str, str, LinkKind], Link] = {}
        self.numa_nodes: list[NumaNode] = []
        self.caches: list[Cache] = []
        self.pci_functions: list[PciFunction] = []
        self._counts: dict[tuple[str, str], int] = {}
        self._warnings: dict[str, list[str]] = {}
        self._things = 0

    def node(self, hostname: str | None = None) -> str:
        """The id of a machine: its host name, or `n0` where that is not told."""
        name = "n0" if hostname is None else clean_name(hostname)
        if name not in self.nodes:
            self._count()
            self.nodes[name] = Node(id=name, hostname=hostname)
        return name

    def next_number(self, node: str, stem: str) -> int:
        """The next free number of things called `node/stem`."""
        number = self._counts.get((node, stem), 0)
        self._counts[node, stem] = number + 1
        return number

    def device(self, node: str, kind: DeviceKind, *, number: int | None = None, **fields: Any) -> str:
        """Add a device and return its id. With `number` it is that one of its kind, else the next."""
        if number is None:
            number = self.next_number(node, kind.value)
        else:
            self._counts[node, kind.value] = max(self._counts.get((node, kind.value), 0), number + 1)
        device = Device(id=f"{node}/{kind.value}{number}", kind=kind, node=node, **fields)
        if device.id in self.devices:
            self.source.fail(f"names {device.id} twice", mend="every device is told once")
        self._count()
        self.devices[device.id] = device
        return device.id

    def update(self, device_id: str, **fields: Any) -> None:
        """Change fields of a device."""
        self.devices[device_id] = self.devices[device_id].model_copy(update=fields)

    def vertex(self, where: str, stem: str, kind: VertexKind, **fields: Any) -> str:
        """Add a vertex `where/stem` and a number; `where` is a node, or a word for what belongs to none."""
        name = f"{where}/{stem}{self.next_number(where, stem)}"
        return self._add(Vertex(id=name, kind=kind, node=where if where in self.nodes else None, **fields))

    def named_vertex(self, where: str, name: str, kind: VertexKind) -> str:
        """The vertex of that name below `where`: the one there is, or a new one. `name` is kept as it is written."""
        vertex_id = f"{where}/{clean_name(name)}"
        if vertex_id in self.vertices:
            return vertex_id
        return self._add(
            Vertex(id=vertex_id, kind=kind, node=where if where in self.nodes else None, name=name.strip())
        )

    def _add(self, vertex: Vertex) -> str:
        self._count()
        self.vertices[vertex.id] = vertex
        return vertex.id

    def host(self, node: str) -> str:
        """The vertex that stands for a whole machine, where it is not told which of its cards a cable goes into."""
        name = f"{node}/host"
        if name not in self.vertices:
            self._count()
            self.vertices[name] = Vertex(id=name, kind=VertexKind.HOST, node=node)
        return name

    def hosts_below(self, hostnames: Iterable[str], above: str, kind: LinkKind, **fields: Any) -> None:
        """`node`, `host` and `link` to `above` for each: schedulers name ten thousand machines in a line."""
        node_like = Node(id="_", hostname="_")
        host_like = Vertex(id="_", kind=VertexKind.HOST, node="_")
        link_like = Link(a="_", b=above, kind=kind, **fields)
        before = len(self.nodes) + len(self.vertices) + len(self.links)
        for hostname in hostnames:
            node = clean_name(hostname)
            host = f"{node}/host"
            if node not in self.nodes:
                self.nodes[node] = _like(node_like, id=node, hostname=hostname)
            if host not in self.vertices:
                self.vertices[host] = _like(host_like, id=host, node=node)
            key = (host, above, kind) if host <= above else (above, host, kind)
            if key not in self.links:
                self.links[key] = _like(link_like, a=host)
        self._count(len(self.nodes) + len(self.vertices) + len(self.links) - before)

    def link(self, a: str, b: str, kind: LinkKind, **fields: Any) -> None:
        """Add a link; a second one of the kind between the same ends, told from the other end, is left out."""
        key = (a, b, kind) if a <= b else (b, a, kind)
        if key not in self.links and a != b:
            self._count()
            self.links[key] = Link(a=a, b=b, kind=kind, **fields)

    def parallel_link(self, a: str, b: str, kind: LinkKind, **fields: Any) -> None:
        """Add one more cable between two ends: `count` grows and the bandwidth is that of all together."""
        key = (a, b, kind) if a <= b else (b, a, kind)
        before = self.links.get(key)
        if before is None:
            self.link(a, b, kind, count=1, **fields)
            return
        more = fields.get("bandwidth_bytes_per_second")
        total = before.bandwidth_bytes_per_second
        states = {before.state, fields.get("state", LinkState.UNKNOWN)}
        self.links[key] = before.model_copy(
            update={
                "count": (before.count or 1) + 1,
                "bandwidth_bytes_per_second": None if more is None or total is None else total + more,
                "state": before.state if len(states) == 1 else LinkState.DEGRADED,
            }
        )

    def adopt(
        self,
        devices: Iterable[Device],
        vertices: Iterable[Vertex],
        links: Iterable[Link],
        warnings: Iterable[str],
    ) -> None:
        """Take in what another module made, ids and all."""
        for device in devices:
            self._count()
            self.devices[device.id] = device
            stem = device.id.rpartition("/")[2].rstrip("0123456789")
            self.next_number(device.node, stem)
        for vertex in vertices:
            self._add(vertex)
        for link in links:
            fields = {name: getattr(link, name) for name in link.model_fields_set - {"a", "b", "kind"}}
            self.link(link.a, link.b, link.kind, **fields)
        for warning in warnings:
            self.warn(warning)

    def warn(self, kind: str, detail: str | None = None) -> None:
        """Say what was not understood; many of one kind become one warning that shows the first details."""
        details = self._warnings.setdefault(kind, [])
        if detail is not None and detail not in details:
            details.append(detail)

    def build(self) -> Topology:
        """The topology."""
        return Topology(
            name=self.name,
            provenance=self.provenance,
            sources=(self.source.name,),
            nodes=tuple(self.nodes.values()),
            devices=tuple(self.devices.values()),
            vertices=tuple(self.vertices.values()),
            links=tuple(self.links.values()),
            numa_nodes=tuple(self.numa_nodes),
            caches=tuple(self.caches),
            pci_functions=tuple(self.pci_functions),
            warnings=tuple(_worded(kind, details) for kind, details in self._warnings.items()),
        )

    def _count(self, more: int = 1) -> None:
        self._things += more
        if self._things > MOST_THINGS:
            self.source.fail(f"tells of more than {MOST_THINGS:,} things", mend="give a part of it")


def _like(model: Model, **texts: str) -> Model:
    """The model with other texts, which it takes as they are: of many alike ones only the first is validated."""
    made = model.__class__.__new__(model.__class__)
    object.__setattr__(made, "__dict__", model.__dict__ | texts)
    object.__setattr__(made, "__pydantic_fields_set__", model.__pydantic_fields_set__)
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def clean_name(name: str) -> str:
    """A name as ids may have it: no slash, no space."""
    return name if _PLAIN.match(name) else _NOT_IN_NAMES.sub("_", name.strip()) or "_"


def _worded(kind: str, details: list[str]) -> str:
    if not details:
        return kind
    more = len(details) - _SHOWN_ALIKE
    return f"{kind}: {', '.join(details[:_SHOWN_ALIKE])}{f' and {more} more' if more > 0 else ''}"


def negotiated(rate: float | None) -> dict[str, Any]:
    """A bandwidth worked out from speed and width, as fields of a link."""
    source = None if rate is None else BandwidthSource.NEGOTIATED
    return {"bandwidth_bytes_per_second": rate, "bandwidth_source": source}


def data_sheet(rate: float | None) -> dict[str, Any]:
    """A bandwidth from a data sheet, as fields of a link."""
    source = None if rate is None else BandwidthSource.DATA_SHEET
    return {"bandwidth_bytes_per_second": rate, "bandwidth_source": source}


def stated(rate: float | None) -> dict[str, Any]:
    """A bandwidth that the source itself tells, as fields of a link."""
    source = None if rate is None else BandwidthSource.STATED
    return {"bandwidth_bytes_per_second": rate, "bandwidth_source": source}
