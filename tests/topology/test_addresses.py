"""Addresses as receivers write them, and what of a topology they mean."""

from __future__ import annotations

import pytest

from observatory.anomalies.subjects import TopologySubjects
from observatory.model.device import Device, DeviceKind, Port
from observatory.model.hardware import PciFunction
from observatory.model.link import Link, LinkKind
from observatory.model.observation import Address, AddressKind
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.addresses import PEER, AddressBook, PlaceKind, parse_bus_id, pci_address
from observatory.topology.importers.recognise import read_file
from tests.topology.sysfs_trees import DATA


def gpu(number: int, bus_id: str, node: str = "n0") -> Device:
    return Device(id=f"{node}/gpu{number}", kind=DeviceKind.GPU, node=node, pci_bus_id=bus_id)


TOPOLOGY = Topology(
    nodes=(Node(id="n0", hostname="dgx-1"), Node(id="n1")),
    devices=(
        Device(id="n0/cpu0", kind=DeviceKind.CPU, node="n0", numa_node=0),
        Device(id="n0/cpu1", kind=DeviceKind.CPU, node="n0", numa_node=1),
        gpu(0, "0000:3b:00.0"),
        gpu(1, "0000:5e:00.0"),
        gpu(2, "10000:01:00.0"),
        Device(
            id="n0/nic0",
            kind=DeviceKind.NIC,
            node="n0",
            pci_bus_id="0000:0c:00.0",
            os_names=("mlx5_0", "eth2"),
            ports=(Port(name="mlx5_0/1"),),
            virtual_functions=("0000:0c:00.2",),
        ),
        Device(id="n0/cxl_memory0", kind=DeviceKind.CXL_MEMORY, node="n0", numa_node=2, os_names=("mem0",)),
        gpu(0, "0000:3b:00.0", "n1"),
    ),
    vertices=(
        Vertex(id="n0/socket0", kind=VertexKind.SOCKET, node="n0"),
        Vertex(id="n0/socket1", kind=VertexKind.SOCKET, node="n0"),
        Vertex(
            id="n0/pcie0", kind=VertexKind.PCIE_SWITCH, node="n0", pci_bus_id="0000:3a:00.0", ports=("0000:39:08.0",)
        ),
        Vertex(id="n0/nvswitch0", kind=VertexKind.NVSWITCH, node="n0", pci_bus_id="0000:c5:00.0"),
        Vertex(id="leaf0", kind=VertexKind.SWITCH),
    ),
    links=(
        Link(a="n0/cpu0", b="n0/socket0", kind=LinkKind.MEMORY),
        Link(a="n0/cpu1", b="n0/socket1", kind=LinkKind.MEMORY),
        Link(a="n0/socket0", b="n0/pcie0", kind=LinkKind.PCIE),
        Link(a="n0/gpu0", b="n0/pcie0", kind=LinkKind.PCIE),
        Link(a="n0/pcie0", b="n0/nic0", kind=LinkKind.PCIE),
        Link(a="n0/gpu1", b="n0/socket1", kind=LinkKind.PCIE),
        Link(a="n0/gpu0", b="n0/gpu1", kind=LinkKind.NVLINK),
        Link(a="n0/gpu0", b="n0/nvswitch0", kind=LinkKind.NVLINK),
        Link(a="n0/nic0", b="leaf0", kind=LinkKind.RDMA),
        Link(a="n0/cxl_memory0", b="n0/socket0", kind=LinkKind.CXL),
    ),
)
BOOK = AddressBook(TOPOLOGY)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("0000:3b:00.0", (0, 0x3B, 0, 0)),
        ("00000000:3B:00.0", (0, 0x3B, 0, 0)),
        ("3b:00.1", (0, 0x3B, 0, 1)),
        ("10000:e1:1f.7", (0x10000, 0xE1, 31, 7)),
        ("0000:3B:00", (0, 0x3B, 0, 0)),
        ("0000:3b:20.0", None),
        ("0000:3b:00.8", None),
        ("GPU-3b", None),
        ("", None),
    ],
)
def test_bus_ids(text: str, parsed: tuple[int, int, int, int] | None) -> None:
    assert parse_bus_id(text) == parsed


def test_one_spelling() -> None:
    assert pci_address("n0", "00000000:3B:00.0").key == "0000:3b:00.0"
    assert pci_address("n0", "00010000:01:00.0").key == "00010000:01:00.0"


@pytest.mark.parametrize(
    ("kind", "key", "place"),
    [
        (AddressKind.PCI, "00000000:3B:00.0", "n0/gpu0"),
        (AddressKind.PCI, "00010000:01:00.0", "n0/gpu2"),
        (AddressKind.PCI, "0000:39:08.0", "n0/pcie0"),
        (AddressKind.PCI, "0000:0c:00.2", "n0/nic0"),
        (AddressKind.PCI, "0000:77:00.0", None),
        (AddressKind.PORT, "mlx5_0/1", "n0/nic0"),
        (AddressKind.PORT, "mlx5_9/1", None),
        (AddressKind.INTERFACE, "eth2", "n0/nic0"),
        (AddressKind.NUMA, "1", "n0/cpu1"),
        (AddressKind.NUMA, "2", "n0/cxl_memory0"),
        (AddressKind.CPU, "1", "n0/socket1"),
        (AddressKind.MEMORY, "mem0", "n0/cxl_memory0"),
        (AddressKind.MEMORY, "mc0/csrow1", None),
        (AddressKind.DEVICE, "n1/gpu0", "n1/gpu0"),
        (AddressKind.DEVICE, "leaf0", "leaf0"),
        (AddressKind.GPU, "GPU-8c0d", None),
        (AddressKind.NODE, "", "n0"),
        (AddressKind.LINK, "leaf0--n0/nic0:rdma", "leaf0--n0/nic0:rdma"),
        (AddressKind.LINK, "leaf0--n0/nic1:rdma", None),
    ],
)
def test_places(kind: AddressKind, key: str, place: str | None) -> None:
    for node in ("n0", "dgx-1"):
        found = BOOK.place(Address(node, kind, key))
        assert (None if found is None else found.id) == place
    assert BOOK.place(Address("n9", AddressKind.PCI, key)) is None


@pytest.mark.parametrize(
    ("kind", "key", "peer", "link"),
    [
        (AddressKind.PCI, "0000:3b:00.0", None, "n0/gpu0--n0/pcie0:pcie"),
        (AddressKind.PCI, "0000:3a:00.0", None, "n0/pcie0--n0/socket0:pcie"),
        (AddressKind.PCI, "0000:0c:00.0", None, "n0/nic0--n0/pcie0:pcie"),
        (AddressKind.MEMORY, "mem0", None, "n0/cxl_memory0--n0/socket0:cxl"),
        (AddressKind.PORT, "mlx5_0/1", None, "leaf0--n0/nic0:rdma"),
        (AddressKind.NVLINK, "0000:5e:00.0/3", None, "n0/gpu0--n0/gpu1:nvlink"),
        (AddressKind.NVLINK, "0000:3b:00.0/3", None, None),  # one of two: not told which
        (AddressKind.NVLINK, "0000:3b:00.0/3", "00000000:C5:00.0", "n0/gpu0--n0/nvswitch0:nvlink"),
        (AddressKind.NVLINK, "0000:3b:00.0/3", "0000:5e:00.0", "n0/gpu0--n0/gpu1:nvlink"),
        (AddressKind.NVLINK, "0000:3b:00.0/3", "0000:ff:00.0", None),
        (AddressKind.PCI, "0000:39:08.0", None, None),  # leads down from the switch: not what its uplink is about
        (AddressKind.CPU, "0", None, None),
        (AddressKind.NODE, "", None, None),
    ],
)
def test_links(kind: AddressKind, key: str, peer: str | None, link: str | None) -> None:
    assert BOOK.link(Address("n0", kind, key), {} if peer is None else {PEER: peer}) == link


def test_names_of_two_things_mean_neither() -> None:
    twice = TOPOLOGY.model_copy(update={"devices": (*TOPOLOGY.devices, gpu(3, "0000:3B:00.0"))})
    assert AddressBook(twice).place(Address("n0", AddressKind.PCI, "0000:3b:00.0")) is None
    assert AddressBook(twice).place(Address("n1", AddressKind.PCI, "0000:3b:00.0")) is not None
    book = AddressBook(TOPOLOGY)
    uuid = Address("n0", AddressKind.GPU, "GPU-0000")
    book.learn(uuid, "n0/gpu0")
    assert book.place(uuid) == (PlaceKind.DEVICE, "n0/gpu0")
    book.learn(uuid, "n0/gpu1")
    assert book.place(uuid) is None


def test_a_port_that_leads_down_is_about_the_link_below_it() -> None:
    functions = (
        PciFunction(node="n0", bus_id="0000:39:08.0", parent="0000:3a:00.0", shown_as="n0/pcie0"),
        PciFunction(node="n0", bus_id="0000:3b:00.0", parent="0000:39:08.0", shown_as="n0/gpu0"),
    )
    book = AddressBook(TOPOLOGY.model_copy(update={"pci_functions": functions}))
    port = Address("n0", AddressKind.PCI, "0000:39:08.0")
    assert book.link(port) == "n0/gpu0--n0/pcie0:pcie"
    assert book.leads_down(port)
    assert not book.leads_down(Address("n0", AddressKind.PCI, "0000:3a:00.0"))
    subjects = TopologySubjects(TOPOLOGY, BOOK)
    assert subjects.name(port) == "n0/pcie0:0000:39:08.0", "without a word of what is below it stands for itself"
    assert subjects.link(subjects.name(Address("n0", AddressKind.PCI, "0000:3a:00.0"))) == "n0/pcie0--n0/socket0:pcie"


def test_every_function_of_a_recorded_machine() -> None:
    """NVIDIA's DGX-2, as hwloc wrote it: sixteen GPUs, each with its own link up."""
    path = DATA / "hwloc" / "xml_nvidiaDGX2.xml"
    if not path.exists():
        pytest.skip("../shared/data is not there")
    topology = read_file(str(path))
    book = AddressBook(topology)
    node = topology.nodes[0].id
    links = set()
    for device in topology.devices_of(DeviceKind.GPU):
        assert device.pci_bus_id is not None
        address = Address(node, AddressKind.PCI, f"0000{device.pci_bus_id.upper()}")
        assert book.place(address) == (PlaceKind.DEVICE, device.id)
        links.add(book.link(address))
    assert None not in links
    assert len(links) == 16
