"""Our own topology format: the graph as people write it, in YAML. Every field: docs/reference/topology-yaml.md."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from observatory.documents import Document, did_you_mean, read_document
from observatory.model.device import Device, DeviceKind, Engine, EngineKind, Port
from observatory.model.link import BandwidthSource, Link, LinkKind, LinkState
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.cpulist import parse_cpulist
from observatory.topology.errors import BadTopology

API_VERSION = "media.observatory/v1"
DEVICE_ID = r"^[^/\s]+/[a-z_]+[0-9]+$"


def _whole(value: object) -> object:
    """80e9 is a whole number, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(_whole)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class EngineFile(_Strict):
    """How many units, and how many sessions the vendor allows on them together."""

    count: Count = Field(ge=0)
    sessions: Count | None = Field(default=None, ge=0)


def _engine(value: object) -> object:
    return {"count": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class PortFile(_Strict):
    """Where a cable goes into a network card."""

    name: str
    link_layer: str | None = None
    bytes_per_second: float | None = Field(default=None, gt=0)
    guid: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    state: Literal["up", "degraded", "down", "unknown"] = "unknown"


class DeviceFile(_Strict):
    """One device; its node and kind are told by the id."""

    id: str = Field(pattern=DEVICE_ID)
    name: str | None = None
    numa_node: Count | None = Field(default=None, ge=0)
    pci_bus_id: str | None = None
    memory_bytes: Count | None = Field(default=None, ge=0)
    engines: dict[
        Literal["compute", "decode", "encode", "jpeg", "copy"], Annotated[EngineFile, BeforeValidator(_engine)]
    ] = Field(default_factory=dict)
    cpus: str | list[int] | None = None
    capacity_bytes: Count | None = Field(default=None, ge=0)
    pci_id: str | None = None
    os_names: list[str] = Field(default_factory=list)
    ports: list[PortFile] = Field(default_factory=list)
    rotational: bool | None = None
    virtual_functions: list[str] = Field(default_factory=list)


class VertexFile(_Strict):
    """A point where links meet that runs no operator."""

    id: str = Field(pattern=r"^\S+$")
    kind: Literal[
        "socket",
        "die",
        "numa",
        "host_bridge",
        "root_port",
        "pcie_switch",
        "pci_bridge",
        "storage_controller",
        "nvswitch",
        "switch",
        "domain",
        "host",
        "far_end",
    ]
    name: str | None = None
    pci_bus_id: str | None = None
    ports: list[str] = Field(default_factory=list)


class LinkFile(_Strict):
    """One link. What is left out is not known."""

    a: str
    b: str
    kind: Literal["pcie", "nvlink", "xgmi", "c2c", "cxl", "upi", "rdma", "ethernet", "memory", "storage", "network"]
    count: Count | None = Field(default=None, ge=1)
    width: Count | None = Field(default=None, ge=0)
    speed: str | None = None
    best_width: Count | None = Field(default=None, ge=0)
    best_speed: str | None = None
    bandwidth_bytes_per_second: float | None = Field(default=None, gt=0)
    bandwidth_source: Literal["stated", "negotiated", "data_sheet"] | None = None
    latency_seconds: float | None = Field(default=None, ge=0)
    state: Literal["up", "degraded", "down", "unknown"] = "unknown"
    utilisation: float | None = Field(default=None, ge=0, le=1)
    numa_distance: Count | None = Field(default=None, ge=0)


class NodeFile(_Strict):
    """A machine with the name it gives itself; one without is written as its id alone."""

    id: str
    hostname: str | None = None


def _node_file(value: object) -> object:
    return {"id": value} if isinstance(value, str) else value


class GraphFile(_Strict):
    """Nodes, devices, vertices and links."""

    nodes: list[Annotated[NodeFile, BeforeValidator(_node_file)]] = Field(min_length=1)
    devices: list[DeviceFile] = Field(default_factory=list)
    vertices: list[VertexFile] = Field(default_factory=list)
    links: list[LinkFile] = Field(default_factory=list)


class MetadataFile(_Strict):
    """What the topology is called, and what its numbers are."""

    name: str = Field(min_length=1)
    provenance: Literal["description", "measurement"] = "description"
    description: str | None = None
    sources: list[str] = Field(default_factory=list)  # what it was imported from


class TopologyFile(_Strict):
    """A topology file."""

    apiVersion: Literal["media.observatory/v1"]  # noqa: N815 (the file's own word)
    kind: Literal["Topology"]
    metadata: MetadataFile
    spec: GraphFile


def read_topology(path: str | Path) -> Topology:
    """The topology in the YAML file at `path`.

    Raises:
        BadTopology: the file cannot be read or understood; says file, line and, where it is known, how to mend it.
    """
    return topology_in(read_document(path, BadTopology))


def topology_in(document: Document) -> Topology:
    """The topology in a YAML document. Raises BadTopology as read_topology does."""
    if not isinstance(document.value, dict):
        document.fail("holds no topology", mend=f"a topology starts with apiVersion: {API_VERSION}, kind: Topology")
    if document.value.get("kind") == "MediaPipeline":
        document.fail("is a pipeline, not a topology", ("kind",), mend="a topology has kind: Topology")
    file = document.parse(TopologyFile)
    return _topology(document, file)


def _topology(document: Document, file: TopologyFile) -> Topology:
    graph = file.spec
    names: dict[str, int] = {}
    node_ids: dict[str, None] = {}
    nodes = tuple(
        Node(id=_node_id(document, n.id, i, node_ids), hostname=n.hostname) for i, n in enumerate(graph.nodes)
    )
    devices = tuple(_device(document, d, i, node_ids, names) for i, d in enumerate(graph.devices))
    vertices = tuple(_vertex(document, v, i, node_ids, names) for i, v in enumerate(graph.vertices))
    ids: dict[str, int] = {}
    links = tuple(_link(document, link, i, names, ids) for i, link in enumerate(graph.links))
    return Topology(
        name=file.metadata.name,
        provenance=file.metadata.provenance,
        sources=(document.file,),
        nodes=nodes,
        devices=devices,
        vertices=vertices,
        links=links,
    )


def _node_id(document: Document, name: str, index: int, before: dict[str, None]) -> str:
    at = ("spec", "nodes", index)
    if not name or "/" in name or any(c.isspace() for c in name):
        document.fail(f"{name!r} is no name for a node", at, mend="no slash and no space: n0")
    if name in before:
        document.fail(f"there are two nodes called {name!r}", at, mend="rename one")
    before[name] = None
    return name


def _claim(document: Document, name: str, at: tuple[str | int, ...], names: dict[str, int]) -> None:
    if name in names:
        document.fail(f"{name!r} is used twice, first on line {names[name]}", at, mend="every id is unique")
    names[name] = document.line_of(at)


def _device(document: Document, file: DeviceFile, index: int, nodes: Collection[str], names: dict[str, int]) -> Device:
    at = ("spec", "devices", index)
    _claim(document, file.id, (*at, "id"), names)
    node, _, rest = file.id.partition("/")
    kind = rest.rstrip("0123456789")
    if node not in nodes:
        document.fail(f"device {file.id}: there is no node {node!r}", (*at, "id"), mend=did_you_mean(node, nodes))
    kinds = [k.value for k in DeviceKind]
    if kind not in kinds:
        document.fail(f"device {file.id}: there is no kind {kind!r}", (*at, "id"), mend=did_you_mean(kind, kinds))
    cpus = file.cpus
    if isinstance(cpus, str):
        try:
            cpus = list(parse_cpulist(cpus))
        except ValueError as error:
            document.fail(f"device {file.id}: {error}", (*at, "cpus"), mend="the form is 0-3,8")
    return Device(
        id=file.id,
        kind=DeviceKind(kind),
        node=node,
        name=file.name,
        numa_node=file.numa_node,
        pci_bus_id=file.pci_bus_id,
        memory_bytes=file.memory_bytes,
        engines=tuple(
            Engine(kind=EngineKind(name), count=engine.count, sessions=engine.sessions)
            for name, engine in file.engines.items()
        ),
        cpus=None if cpus is None else tuple(cpus),
        capacity_bytes=file.capacity_bytes,
        pci_id=file.pci_id,
        os_names=tuple(file.os_names),
        ports=tuple(
            Port(
                name=p.name,
                link_layer=p.link_layer,
                bytes_per_second=p.bytes_per_second,
                guid=p.guid,
                state=LinkState(p.state),
            )
            for p in file.ports
        ),
        rotational=file.rotational,
        virtual_functions=tuple(file.virtual_functions),
    )


def _vertex(document: Document, file: VertexFile, index: int, nodes: Collection[str], names: dict[str, int]) -> Vertex:
    _claim(document, file.id, ("spec", "vertices", index, "id"), names)
    node = file.id.partition("/")[0]
    return Vertex(
        id=file.id,
        kind=VertexKind(file.kind),
        node=node if node in nodes else None,
        name=file.name,
        pci_bus_id=file.pci_bus_id,
        ports=tuple(file.ports),
    )


def _link(document: Document, file: LinkFile, index: int, names: dict[str, int], ids: dict[str, int]) -> Link:
    at = ("spec", "links", index)
    for end, name in (("a", file.a), ("b", file.b)):
        if name not in names:
            document.fail(
                f"link {file.a} -- {file.b}: there is no {name!r}", (*at, end), mend=did_you_mean(name, names)
            )
    if file.a == file.b:
        document.fail(f"link {file.a} -- {file.b} goes nowhere", at, mend="name its two ends")
    link = Link(
        a=file.a,
        b=file.b,
        kind=LinkKind(file.kind),
        count=file.count,
        width=file.width,
        speed=file.speed,
        best_width=file.best_width,
        best_speed=file.best_speed,
        bandwidth_bytes_per_second=file.bandwidth_bytes_per_second,
        bandwidth_source=None if file.bandwidth_source is None else BandwidthSource(file.bandwidth_source),
        latency_seconds=file.latency_seconds,
        state=LinkState(file.state),
        utilisation=file.utilisation,
        numa_distance=file.numa_distance,
    )
    if link.id in ids:
        words = f"a second {file.kind} link {file.a} -- {file.b}, the first on line {ids[link.id]}"
        document.fail(words, at, mend="write one link with count: 2 and the bandwidth of both together")
    ids[link.id] = document.line_of(at)
    return link
