"""Several files about the same machines as one topology; what they say differently is told with both names."""

from __future__ import annotations

from pathlib import Path

import pytest

from observatory.model.device import Device, DeviceKind, Port
from observatory.model.link import BandwidthSource, Link, LinkKind
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.importers.recognise import read_file
from observatory.topology.load import import_topologies
from observatory.topology.merge.topologies import merge_topologies
from tests.topology.sysfs_trees import DATA

FIXTURES = Path(__file__).parent / "fixtures"


def contradictions(topology: Topology) -> list[str]:
    return [w for w in topology.warnings if w.startswith("contradiction")]


def machine(
    source: str,
    *devices: Device,
    hostname: str | None = None,
    links: tuple[Link, ...] = (),
    vertices: tuple[Vertex, ...] = (),
) -> Topology:
    node = devices[0].node if devices else "n0"
    return Topology(
        sources=(source,),
        nodes=(Node(id=node, hostname=hostname),),
        devices=devices,
        vertices=vertices,
        links=links,
    )


def gpu(number: int, node: str = "n0", **fields: object) -> Device:
    return Device.model_validate({"id": f"{node}/gpu{number}", "kind": "gpu", "node": node, **fields})


def test_one_file_stays_as_it_is() -> None:
    one = read_file(str(FIXTURES / "nccl.xml"))
    assert merge_topologies([one]) is one


def test_a_machine_from_three_tools(tmp_path: Path) -> None:
    """NCCL knows buses and switches, nvidia-smi which rate a link has, hwloc's kind of file the memory."""
    links = "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18))
    (tmp_path / "nvlink").write_text(
        "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n{links}" for n in range(2))
    )
    rows = "GPU0\t X \tNV8\t0-7\t0\nGPU1\tNV8\t X \t0-7\t0\n"
    (tmp_path / "matrix").write_text(f"\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n{rows}")
    names = [str(FIXTURES / "nccl.xml"), str(tmp_path / "nvlink"), str(tmp_path / "matrix")]
    merged = import_topologies(names)
    assert [n.id for n in merged.nodes] == ["n0"]
    assert len(merged.devices_of(DeviceKind.GPU)) == 2
    first = merged.device("n0/gpu0")
    assert first is not None
    assert (first.pci_bus_id, first.numa_node, first.name) == ("0000:0c:00.0", 0, "H100")
    nvlinks = [x for x in merged.links if x.kind is LinkKind.NVLINK]
    rates = {tuple(sorted((x.a, x.b))): x.bandwidth_bytes_per_second for x in nvlinks}
    assert rates == {
        ("n0/gpu0", "n0/gpu1"): pytest.approx(8 * 25e9),
        ("n0/gpu0", "n0/nvswitch0"): pytest.approx(10 * 25e9),
        ("n0/gpu1", "n0/nvswitch0"): pytest.approx(10 * 25e9),
    }
    assert {x.bandwidth_source for x in nvlinks} == {BandwidthSource.STATED}
    assert not [v for v in merged.vertices if v.kind is VertexKind.FAR_END]
    assert merged.sources == tuple(names)
    # The matrix tells of 8 links to the other GPU, and of no switch: 8 in all, where the others say 18.
    told = contradictions(merged)
    assert any("n0/gpu0 number of nvlink links: 18 by" in w and names[0] in w and names[2] in w for w in told)


def test_contradictions_name_both_sources() -> None:
    a = machine("a.xml", gpu(0, pci_bus_id="0000:1d:00.0", numa_node=0, memory_bytes=80 * 10**9))
    b = machine("b.txt", gpu(3, pci_bus_id="00000000:1D:00.0", numa_node=1, memory_bytes=81 * 10**9))
    merged = merge_topologies([a, b])
    assert [d.id for d in merged.devices] == ["n0/gpu0"]
    assert merged.devices[0].numa_node == 0  # the first word stands
    assert contradictions(merged) == ["contradiction: n0/gpu0 numa_node: 0 by a.xml, 1 by b.txt"]


def test_another_number_of_gpus() -> None:
    a = machine("a", gpu(0), gpu(1))
    b = machine("b", gpu(0), gpu(1), gpu(2))
    merged = merge_topologies([a, b])
    assert len(merged.devices) == 3
    assert contradictions(merged) == ["contradiction: n0 number of GPUs: 2 by a, 3 by b"]


def test_links_of_another_width() -> None:
    def linked(source: str, width: int, count: int) -> Topology:
        card, other = gpu(0, pci_bus_id="0000:01:00.0"), gpu(1, pci_bus_id="0000:02:00.0")
        switch = Vertex(id="n0/pcie0", kind=VertexKind.PCIE_SWITCH, node="n0", pci_bus_id="0000:00:01.0")
        links = (
            Link(a=card.id, b=switch.id, kind=LinkKind.PCIE, width=width, speed="16.0 GT/s"),
            Link(a=card.id, b=other.id, kind=LinkKind.NVLINK, count=count),
        )
        return machine(source, card, other, links=links, vertices=(switch,))

    merged = merge_topologies([linked("a", 16, 4), linked("b", 8, 3)])
    told = contradictions(merged)
    assert "contradiction: the link of n0/gpu0 width: 16 by a, 8 by b" in told
    assert "contradiction: n0/gpu0 -- n0/gpu1 (nvlink) count: 4 by a, 3 by b" in told
    assert len(merged.links) == 2


def test_machines_by_host_name() -> None:
    merged = merge_topologies(
        [
            machine("a", gpu(0, "gpu1"), hostname="gpu1"),
            machine("b", gpu(0, "gpu1.example.org", numa_node=1), hostname="gpu1.example.org"),
            machine("c", gpu(0, "gpu2"), hostname="gpu2"),
        ]
    )
    assert {n.id: n.hostname for n in merged.nodes} == {"gpu1": "gpu1", "gpu2": "gpu2"}
    assert [d.numa_node for d in merged.devices] == [1, None]


def test_machines_by_guid() -> None:
    def card(node: str, **fields: object) -> Device:
        port = Port(name="x", guid="946dae030050709a")
        return Device(id=f"{node}/nic0", kind=DeviceKind.NIC, node=node, ports=(port,)).model_copy(update=fields)

    merged = merge_topologies([machine("a", card("n0", numa_node=1)), machine("b", card("host9"), hostname="host9")])
    assert [n.id for n in merged.nodes] == ["host9"]
    assert [(d.id, d.numa_node) for d in merged.devices] == [("host9/nic0", 1)]


def test_machines_with_other_buses_are_others() -> None:
    a = machine("a", gpu(0, pci_bus_id="0000:01:00.0"))
    b = machine("b", gpu(0, pci_bus_id="0000:02:00.0"))
    merged = merge_topologies([a, b])
    assert [n.id for n in merged.nodes] == ["n0", "n1"]
    assert [d.id for d in merged.devices] == ["n0/gpu0", "n1/gpu0"]
    assert any("taken for another machine" in w for w in merged.warnings)


def test_a_matrix_beside_a_cluster_is_ambiguous() -> None:
    nodes = [machine("a", gpu(0, name), hostname=name) for name in ("h1", "h2")]
    merged = merge_topologies([*nodes, machine("matrix", gpu(0))])
    assert len(merged.nodes) == 3
    assert any("does not tell which of 2 machines" in w for w in merged.warnings)


def test_cables_are_better_than_membership() -> None:
    """Slurm says that a host is below a switch; ibnetdiscover which card, and how fast."""
    merged = import_topologies([FIXTURES / "ibnetdiscover_p.txt", FIXTURES / "kubernetes.yaml"])
    assert [n.id for n in merged.nodes] == ["gpu1", "gpu2"]
    assert len(merged.devices_of(DeviceKind.NIC)) == 2
    assert len(merged.devices_of(DeviceKind.GPU)) == 4


def test_the_same_twice_is_the_same() -> None:
    for name in ("nccl.xml", "hwloc_v2.xml", "nvidia_smi_topo.txt", "ibnetdiscover_p.txt", "slurm.conf", "amd_smi.txt"):
        one = read_file(str(FIXTURES / name))
        merged = merge_topologies([one, one])
        assert merged.devices == one.devices, name
        assert set(merged.links) == set(one.links), name
        assert merged.vertices == one.vertices, name
        assert contradictions(merged) == []


def test_files_of_one_real_machine() -> None:
    """The same node twice, once as a container sees it: nothing new, and nothing contradicts."""
    names = [DATA / f"nccl-topo/oci_H100-topology{kind}.xml" for kind in ("", "-kubernetes")]
    if not names[0].exists():
        pytest.skip("../shared/data is not there")
    merged = import_topologies([str(n) for n in names])
    assert len(merged.nodes) == 1
    assert len(merged.devices_of(DeviceKind.GPU)) == 8
    assert len([x for x in merged.links if x.kind is LinkKind.NVLINK]) == 32


def test_many_machines(tmp_path: Path) -> None:
    """Ten thousand machines of two files, one with their racks, are as many."""
    (tmp_path / "tree").write_text("SwitchName=root Nodes=n[0-9999]\n")
    (tmp_path / "blocks").write_text("BlockName=b Nodes=n[0-9999]\n")
    merged = import_topologies([tmp_path / "tree", tmp_path / "blocks"])
    assert len(merged.nodes) == 10_000
    assert len(merged.vertices) == 10_002
    assert len(merged.links) == 20_000
