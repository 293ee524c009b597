"""Costs of clusters: against every simple path, and what updates make of them against what is built anew."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observatory.model.cost import CostParameters
from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology._cost import Costs
from observatory.topology.cluster_costs import ClusterCosts, representatives
from observatory.topology.errors import NoSuchVertex
from observatory.topology.graph import TopologyGraph
from observatory.topology.paths import PathFinder
from tests.topology.random_clusters import changed, cluster, least_seconds, parameters


def every_pair(costs: ClusterCosts, topology: Topology) -> list[float | None]:
    names = [d.id for d in topology.devices]
    return [None if np.isnan(s) else float(s) for name in names for s in costs.row(name, names)]


def same(found: list[float | None], expected: list[float | None]) -> bool:
    return found == [None if e is None else pytest.approx(e, rel=1e-12, abs=0.0) for e in expected]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 1e3, 1e5, 2.0**20]))
def test_no_simple_path_is_faster(seed: int, message_bytes: float) -> None:
    rng = random.Random(seed)
    topology, prices = cluster(rng), parameters(rng)
    names = [d.id for d in topology.devices]
    expected = [least_seconds(topology, prices, a, b, message_bytes) for a in names for b in names]
    finder = PathFinder(topology, prices)
    found = [finder.best(a, b, message_bytes).seconds for a in names for b in names]
    assert same(found, expected)
    assert same(every_pair(ClusterCosts(topology, prices, message_bytes=message_bytes), topology), expected)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_updates_give_what_a_new_build_gives(seed: int) -> None:
    rng = random.Random(seed)
    topology, prices = cluster(rng), parameters(rng)
    kept = ClusterCosts(topology, prices, message_bytes=2.0**20)
    for _ in range(rng.randint(1, 4)):
        share = rng.choice([0.1, 0.5, 1.0])
        links = tuple(changed(rng, link) if rng.random() < share else link for link in topology.links)
        topology = topology.model_copy(update={"links": links})
        kept.take(TopologyGraph(topology).arrays())
        built = ClusterCosts(topology, prices, message_bytes=2.0**20)
        for node in rng.sample(kept.nodes, len(kept.nodes)):
            np.testing.assert_array_equal(kept.within(node), built.within(node))
        for number, node in rng.sample(list(enumerate(kept.nodes)), rng.randint(0, len(kept.nodes))):
            np.testing.assert_array_equal(kept.between(node), built.between_nodes()[number])
        if rng.random() < 0.3:
            continue  # rows stay stale over the next update
        np.testing.assert_array_equal(kept.between_nodes(), built.between_nodes())
        assert every_pair(kept, topology) == every_pair(built, topology)
        finder = PathFinder(topology, prices)
        stand_for = representatives(topology)
        for i, a in enumerate(kept.nodes):
            for j, b in enumerate(kept.nodes):
                expected = finder.best(stand_for[a], stand_for[b], 2.0**20).seconds
                assert kept.between_nodes()[i, j] == pytest.approx(
                    np.nan if expected is None else expected, rel=1e-12, nan_ok=True
                )


def two_nodes() -> Topology:
    """Two nodes of one CPU, two GPUs on a PCIe switch, and a card; the cards meet at a switch."""
    devices, vertices, links = [], [Vertex(id="leaf", kind=VertexKind.SWITCH)], []
    for node in ("n0", "n1"):
        devices += [
            Device(id=f"{node}/{name}", kind=kind, node=node)
            for name, kind in (
                ("cpu0", DeviceKind.CPU),
                ("gpu0", DeviceKind.GPU),
                ("gpu1", DeviceKind.GPU),
                ("nic0", DeviceKind.NIC),
            )
        ]
        vertices.append(Vertex(id=f"{node}/pcie0", kind=VertexKind.PCIE_SWITCH, node=node))
        links += [
            Link(a=f"{node}/{name}", b=f"{node}/pcie0", kind=LinkKind.PCIE, bandwidth_bytes_per_second=32e9,
                 latency_seconds=1e-7)
            for name in ("cpu0", "gpu0", "gpu1", "nic0")
        ]  # fmt: skip
        links.append(
            Link(a=f"{node}/nic0", b="leaf", kind=LinkKind.RDMA, bandwidth_bytes_per_second=25e9, latency_seconds=1e-6)
        )
    return Topology(nodes=(Node(id="n0"), Node(id="n1")), devices=tuple(devices), vertices=tuple(vertices),
                    links=tuple(links))  # fmt: skip


def test_two_nodes_by_hand() -> None:
    costs = ClusterCosts(two_nodes(), CostParameters(), message_bytes=1e6)
    assert costs.devices_of("n1") == ("n1/cpu0", "n1/gpu0", "n1/gpu1", "n1/nic0")
    inside = 2e-7 + 1e6 / 32e9
    assert costs.within("n0")[1].tolist() == pytest.approx([inside, 0, inside, inside])
    # Two PCIe links to the card on each side, two cables between.
    across = 4e-7 + 2e-6 + 1e6 / 25e9
    assert costs.between_nodes() == pytest.approx(np.array([[0, across], [across, 0]]))
    assert costs.row("n0/gpu0", ["n1/gpu1", "n1/nic0"]).tolist() == pytest.approx([across, across - 2e-7])
    with pytest.raises(NoSuchVertex):
        costs.within("n2")
    with pytest.raises(NoSuchVertex):
        costs.row("n0/pcie0", ["n0/gpu0"])


def test_a_change_refreshes_only_what_depends_on_it() -> None:
    topology = two_nodes()
    costs = ClusterCosts(topology, CostParameters(), message_bytes=1e6)
    assert (costs.refresh(), costs.refresh_between()) == (2, 2)
    arrays = TopologyGraph(topology).arrays()
    assert (costs.take(arrays), costs.refresh(), costs.refresh_between()) == (0, 0, 0)
    arrays.bandwidth_bytes_per_second[1] /= 2  # n0/gpu0 is on no way between the CPUs
    assert (costs.take(arrays), costs.refresh(), costs.refresh_between()) == (1, 1, 0)
    arrays.bandwidth_bytes_per_second[0] /= 2
    assert (costs.take(arrays), costs.refresh(), costs.refresh_between()) == (1, 1, 1)
    slower = 1e6 / 16e9 + 4e-7 + 2e-6
    assert costs.between_nodes()[1, 0] == pytest.approx(slower)
    arrays.up[4] = False  # n0's cable
    assert (costs.take(arrays), costs.refresh_between()) == (1, 1)
    assert np.isnan(costs.between_nodes()[0, 1])
    assert costs.within("n0")[0, 3] == pytest.approx(2e-7 + 1e6 / 16e9)


def test_a_machine_in_between_passes_nothing_on() -> None:
    topology = two_nodes()
    third = topology.model_copy(
        update={
            "nodes": (*topology.nodes, Node(id="n2")),
            "devices": (*topology.devices, Device(id="n2/cpu0", kind=DeviceKind.CPU, node="n2")),
            "links": (
                *(link for link in topology.links if link.b != "leaf"),
                *(
                    Link(a=f"{node}/nic0", b="n2/cpu0", kind=LinkKind.RDMA, bandwidth_bytes_per_second=25e9,
                         latency_seconds=1e-6)
                    for node in ("n0", "n1")
                ),
            ),
        }
    )  # fmt: skip
    costs = ClusterCosts(third, CostParameters(), message_bytes=1e6)
    assert np.isnan(costs.between_nodes()[0, 1])
    assert costs.between_nodes()[0, 2] == pytest.approx(2e-7 + 1e-6 + 1e6 / 25e9)
    assert PathFinder(third, CostParameters()).best("n0/gpu0", "n1/gpu0", 1e6).seconds is None


def test_gpus_of_a_rack_meet_outside_of_their_machines() -> None:
    """An NVSwitch that no machine owns: the way between two GPUs of one machine leads out and back."""
    nodes = ("n0", "n1")
    topology = Topology(
        nodes=tuple(Node(id=n) for n in nodes),
        devices=tuple(Device(id=f"{n}/gpu{i}", kind=DeviceKind.GPU, node=n) for n in nodes for i in range(2)),
        vertices=(Vertex(id="rack", kind=VertexKind.NVSWITCH),),
        links=tuple(
            Link(a=f"{n}/gpu{i}", b="rack", kind=LinkKind.NVLINK, bandwidth_bytes_per_second=9e11, latency_seconds=1e-7)
            for n in nodes
            for i in range(2)
        ),
    )
    costs = ClusterCosts(topology, CostParameters(), message_bytes=9e6)
    assert costs.within("n0")[0, 1] == pytest.approx(2e-7 + 1e-5)
    assert costs.row("n0/gpu0", ["n1/gpu1"])[0] == pytest.approx(2e-7 + 1e-5)
    arrays = TopologyGraph(topology).arrays()
    arrays.bandwidth_bytes_per_second[1] /= 2
    costs.take(arrays)
    assert costs.within("n0")[0, 1] == pytest.approx(2e-7 + 2e-5)


def test_columns_that_do_not_fit_are_refused() -> None:
    none, flags = np.zeros(0, np.int32), np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match="no such region"):
        Costs(1, 1, np.array([1], np.int32), flags, flags, none, none, np.array([0], np.int32), 1.0, 0.0)
    a = np.array([3], np.int32)
    with pytest.raises(ValueError, match="no such vertex"):
        Costs(1, 1, np.array([0], np.int32), flags, flags, a, a, np.array([0], np.int32), 1.0, 0.0)
    costs = Costs(1, 1, np.array([0], np.int32), flags, flags, none, none, np.array([0], np.int32), 1.0, 0.0)
    with pytest.raises(ValueError, match="one value for each link"):
        costs.update(np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="no such device"):
        costs.row(0, np.array([1], np.int32))
