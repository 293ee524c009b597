"""Machines that the tests emulate."""

from __future__ import annotations

from dataplane.fabric import Fabric, LinkDescription
from observatory.model.device import Device, DeviceKind, Port
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import Node, Topology, Vertex, VertexKind

NVLINK = "n0/gpu0--n0/gpu1:nvlink"


def gpu(number: int, name: str, bus_id: str | None = None) -> Device:
    return Device(
        id=f"n0/gpu{number}", kind=DeviceKind.GPU, node="n0", name=name, numa_node=number % 2, pci_bus_id=bus_id
    )


def pcie(a: str, b: str) -> Link:
    return Link(
        a=a,
        b=b,
        kind=LinkKind.PCIE,
        width=16,
        speed="16.0 GT/s",
        bandwidth_bytes_per_second=31.5e9,
        latency_seconds=1e-7,
    )


def two_gpus(name: str = "NVIDIA A100-SXM4-40GB", links: int = 12, *, with_nvlink: bool = True) -> Topology:
    """Two GPUs on a switch each, joined by NVLinks, and a RoCE card."""
    cpus = [
        Device(
            id=f"n0/cpu{n}", kind=DeviceKind.CPU, node="n0", numa_node=n, memory_bytes=64 << 30, cpus=(2 * n, 2 * n + 1)
        )
        for n in range(2)
    ]
    card = Device(
        id="n0/nic0",
        kind=DeviceKind.NIC,
        node="n0",
        name="ConnectX-6",
        numa_node=0,
        pci_bus_id="0000:41:00.0",
        os_names=("eth0", "mlx5_0"),
        ports=(Port(name="eth0", link_layer="ethernet", bytes_per_second=12.5e9, state=LinkState.UP),),
    )
    found = [
        Link(
            a=f"n0/cpu{n}",
            b=f"n0/socket{n}",
            kind=LinkKind.MEMORY,
            bandwidth_bytes_per_second=1e11,
            latency_seconds=1e-7,
        )
        for n in range(2)
    ]
    for n in range(2):
        found.append(pcie(f"n0/pcie{n}", f"n0/socket{n}"))
        found.append(pcie(f"n0/gpu{n}", f"n0/pcie{n}"))
    found.append(pcie("n0/nic0", "n0/pcie0"))
    if with_nvlink:
        found.append(
            Link(
                a="n0/gpu0",
                b="n0/gpu1",
                kind=LinkKind.NVLINK,
                count=links,
                bandwidth_bytes_per_second=links * 25e9,
                latency_seconds=2e-7,
            )
        )
    vertices = [Vertex(id=f"n0/socket{n}", kind=VertexKind.SOCKET, node="n0") for n in range(2)]
    vertices += [Vertex(id=f"n0/pcie{n}", kind=VertexKind.PCIE_SWITCH, node="n0") for n in range(2)]
    return Topology(
        name="two",
        nodes=(Node(id="n0"),),
        devices=(*cpus, gpu(0, name), gpu(1, name), card),
        vertices=tuple(vertices),
        links=tuple(found),
    )


def fabric_of(topology: Topology, *, time_scale: float | None = None) -> Fabric:
    """Its links as they are advertised."""
    described = [
        LinkDescription(link.id, link.kind.value, link.bandwidth_bytes_per_second, link.latency_seconds)
        for link in topology.links
        if link.bandwidth_bytes_per_second is not None and link.latency_seconds is not None
    ]
    return Fabric(described, time_scale=time_scale)


def move(fabric: Fabric, link: str, size: int, *, forward: bool = True) -> None:
    """Let bytes cross a link."""
    assert fabric.native.transfer([[fabric.way(link, forward=forward)]], size, 30.0) is not None
