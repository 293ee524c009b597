"""Small clusters drawn at random, and what moving a message over them costs by trying every simple path."""

from __future__ import annotations

import random
from collections.abc import Iterator

from observatory.model.cost import CostParameters, LinkCoefficients
from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import Node, Topology, Vertex, VertexKind

KINDS = (LinkKind.PCIE, LinkKind.NVLINK, LinkKind.RDMA)


def cluster(rng: random.Random) -> Topology:
    """Up to three nodes of CPUs, GPUs and cards around switches, switches outside, and links between any two."""
    nodes = [f"n{i}" for i in range(rng.randint(1, 3))]
    devices, vertices = [], []
    for node in nodes:
        for number in range(rng.randint(1, 4)):
            kind = rng.choice([DeviceKind.CPU, DeviceKind.GPU, DeviceKind.NIC])
            devices.append(Device(id=f"{node}/{kind}{number}", kind=kind, node=node))
        vertices += [
            Vertex(id=f"{node}/v{i}", kind=VertexKind.PCIE_SWITCH, node=node) for i in range(rng.randint(0, 2))
        ]
    vertices += [Vertex(id=f"s{i}", kind=VertexKind.SWITCH) for i in range(rng.randint(0, 2))]
    names = [d.id for d in devices] + [v.id for v in vertices]
    links: dict[str, Link] = {}
    if len(names) > 1:
        for _ in range(rng.randint(len(names) - 1, 2 * len(names))):
            a, b = rng.sample(names, 2)
            near = [n for n in names if n != a and n.partition("/")[0] == a.partition("/")[0]]
            if near and rng.random() < 0.6:
                b = rng.choice(near)
            link = changed(rng, Link(a=a, b=b, kind=rng.choice(KINDS)))
            links[link.id] = link
    return Topology(
        nodes=tuple(Node(id=n) for n in nodes),
        devices=tuple(devices),
        vertices=tuple(vertices),
        links=tuple(links.values()),
    )


def changed(rng: random.Random, link: Link) -> Link:
    """The link with other values; now and then down or not known."""
    return link.model_copy(
        update={
            "bandwidth_bytes_per_second": rng.choice([None, 1e8, 1e9, 1e9, 1e10, 2e10]),
            "latency_seconds": rng.choice([0.0, 1e-7, 1e-6, 1e-5, 1e-4] + [None] * (rng.random() < 0.2)),
            "state": LinkState.DOWN if rng.random() < 0.1 else LinkState.UP,
        }
    )


def parameters(rng: random.Random) -> CostParameters:
    """Coefficients of every kind, the data sheet's in half of the cases."""
    if rng.random() < 0.5:
        return CostParameters()
    drawn = {k: LinkCoefficients(alpha=rng.choice([0.5, 1, 3]), beta=rng.choice([0.5, 1, 1.5, 20])) for k in LinkKind}
    return CostParameters(by_kind=drawn, software_seconds_per_message=rng.choice([0.0, 5e-6]))


def least_seconds(
    topology: Topology, costs: CostParameters, source: str, target: str, message_bytes: float
) -> float | None:
    """Over every simple path that data may take; None where there is none that can be predicted."""
    if source == target:
        return 0.0
    ways = (cost(way, costs, message_bytes) for way in simple_ways(topology, source, target) if usable(way))
    return min(ways, default=None)


def cost(way: list[Link], costs: CostParameters, message_bytes: float) -> float:
    """The formula, written out."""
    latency = sum(costs.of(link.kind).alpha * (link.latency_seconds or 0.0) for link in way)
    longest = max(costs.of(link.kind).beta * message_bytes / (link.bandwidth_bytes_per_second or 1) for link in way)
    return costs.software_seconds_per_message + latency + longest


def usable(way: list[Link]) -> bool:
    """Whether nothing on it is down or unknown."""
    return all(
        link.state is not LinkState.DOWN
        and link.latency_seconds is not None
        and link.bandwidth_bytes_per_second is not None
        for link in way
    )


def simple_ways(topology: Topology, source: str, target: str) -> Iterator[list[Link]]:
    """Every way without a vertex twice, of those that data may take."""
    homes = {d.id: d.node for d in topology.devices} | {v.id: v.node for v in topology.vertices}
    kinds = {d.id: d.kind for d in topology.devices}

    def walk(here: str, seen: tuple[str, ...], way: list[Link]) -> Iterator[list[Link]]:
        if here == target:
            if allowed(way, seen, homes, kinds):
                yield way
            return
        for link in topology.links:
            if here in (link.a, link.b):
                other = link.b if link.a == here else link.a
                if other not in seen:
                    yield from walk(other, (*seen, other), [*way, link])

    yield from walk(source, (source,), [])


def allowed(
    way: list[Link], stops: tuple[str, ...], homes: dict[str, str | None], kinds: dict[str, DeviceKind]
) -> bool:
    """First links inside a node, then links outside, then links inside a node; and what each stop passes on."""
    inner = [homes[link.a] is not None and homes[link.a] == homes[link.b] for link in way]
    pattern = "".join("i" if i else "o" for i in inner)
    if "i" in pattern.strip("i"):
        return False
    stays = homes[stops[0]] == homes[stops[-1]]
    cards = {name for name, kind in kinds.items() if kind is DeviceKind.NIC}
    if stays and any(not i and {link.a, link.b} & cards for i, link in zip(inner, way, strict=True)):
        return False
    for before, after, stop in zip(inner, inner[1:], stops[1:-1], strict=False):
        if not before and not after and homes[stop] is not None:
            return False  # a machine in between
        card = kinds.get(stop) is DeviceKind.NIC and before != after and not stays
        if stop in kinds and kinds[stop] is not DeviceKind.CPU and not card:
            return False
    return True
