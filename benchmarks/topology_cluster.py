"""A cluster of eight-GPU machines on a rail-optimised network: what the figures of the topology are measured on.

    machine   2 CPUs on sockets, 4 PCIe switches, each with 2 GPUs and 2 cards, an NVSwitch, 2 video accelerators
    network   32 machines share 8 leaf switches, one for each pair of GPU and card (NVIDIA, DGX SuperPOD reference
              architecture, "scalable unit"); every leaf has a cable to each of 32 spines

20 devices, 33 links inside and 8 to the outside each. Latencies and rates are those of the shipped description; the
network's are made up.
"""

from __future__ import annotations

from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Node, Topology, Vertex, VertexKind

DEVICES = 20  # of a machine
UNIT = 32  # machines below the same leaf switches
RAILS = 8
SPINES = 32

_MEMORY = (LinkKind.MEMORY, 281.6e9, 117.4e-9)
_UPI = (LinkKind.UPI, 144e9, 66.9e-9)
_SLOT = (LinkKind.PCIE, 63.015e9, 115e-9)
_UPLINK = (LinkKind.PCIE, 63.015e9, 275e-9)
_NVLINK = (LinkKind.NVLINK, 450e9, 193e-9)
_CABLE = (LinkKind.RDMA, 50e9, 500e-9)


def cluster(machines: int) -> Topology:
    """The cluster."""
    devices: list[Device] = []
    vertices: list[Vertex] = []
    links: list[Link] = []
    for number in range(machines):
        _machine(f"n{number}", number // UNIT, devices, vertices, links)
    units = -(-machines // UNIT)
    spines = [f"spine{i}" for i in range(SPINES)]
    leaves = [f"leaf{unit}.{rail}" for unit in range(units) for rail in range(RAILS)]
    vertices += [Vertex(id=name, kind=VertexKind.SWITCH) for name in (*spines, *leaves)]
    links += [_link(leaf, spine, _CABLE) for leaf in leaves for spine in spines]
    return Topology(
        name=f"{machines} machines",
        provenance="description",
        nodes=tuple(Node(id=f"n{number}") for number in range(machines)),
        devices=tuple(devices),
        vertices=tuple(vertices),
        links=tuple(links),
    )


def _machine(n: str, unit: int, devices: list[Device], vertices: list[Vertex], links: list[Link]) -> None:
    def device(kind: DeviceKind, number: int) -> str:
        name = f"{n}/{kind}{number}"
        devices.append(Device(id=name, kind=kind, node=n, numa_node=None))
        return name

    def vertex(kind: VertexKind, name: str) -> str:
        vertices.append(Vertex(id=f"{n}/{name}", kind=kind, node=n))
        return f"{n}/{name}"

    sockets = [vertex(VertexKind.SOCKET, f"socket{i}") for i in range(2)]
    switches = [vertex(VertexKind.PCIE_SWITCH, f"pcie{i}") for i in range(4)]
    fabric = vertex(VertexKind.NVSWITCH, "nvswitch0")
    links.append(_link(sockets[0], sockets[1], _UPI))
    for i, socket in enumerate(sockets):
        links.append(_link(device(DeviceKind.CPU, i), socket, _MEMORY))
        links.append(_link(device(DeviceKind.VPU, i), switches[2 * i], _SLOT))
    links += [_link(switch, sockets[i // 2], _UPLINK) for i, switch in enumerate(switches)]
    for i in range(8):
        gpu = device(DeviceKind.GPU, i)
        links += [_link(gpu, switches[i // 2], _SLOT), _link(gpu, fabric, _NVLINK)]
    for i in range(RAILS):
        card = device(DeviceKind.NIC, i)
        links += [_link(card, switches[i // 2], _SLOT), _link(card, f"leaf{unit}.{i}", _CABLE)]


def _link(a: str, b: str, like: tuple[LinkKind, float, float]) -> Link:
    kind, bandwidth, latency = like
    return Link(a=a, b=b, kind=kind, bandwidth_bytes_per_second=bandwidth, latency_seconds=latency)
