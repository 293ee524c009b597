"""Best paths: by hand, against all simple paths of small graphs, and that unknown is never zero."""

from __future__ import annotations

import random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observatory.model.cost import CostParameters, LinkCoefficients, transfer_seconds
from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.cost_matrix import MESSAGE_BYTES, CostMatrix
from observatory.topology.domains import Domains
from observatory.topology.errors import NoSuchVertex, TopologyError
from observatory.topology.graph import FORWARDING_DEVICES, TopologyGraph
from observatory.topology.load import load_topology
from observatory.topology.paths import PathFinder

DATA_SHEET = CostParameters()


def machine(devices: list[str], vertices: list[tuple[str, VertexKind]], links: list[Link]) -> Topology:
    return Topology(
        nodes=(Node(id="n0"),),
        devices=tuple(
            Device(id=d, kind=DeviceKind(d.partition("/")[2].rstrip("0123456789")), node="n0") for d in devices
        ),
        vertices=tuple(Vertex(id=v, kind=kind, node="n0") for v, kind in vertices),
        links=tuple(links),
    )


def link(
    a: str,
    b: str,
    bandwidth: float | None,
    latency: float | None,
    kind: LinkKind = LinkKind.PCIE,
    state: LinkState = LinkState.UNKNOWN,
) -> Link:
    return Link(a=a, b=b, kind=kind, bandwidth_bytes_per_second=bandwidth, latency_seconds=latency, state=state)


def test_payload_decides_between_a_short_and_a_wide_path() -> None:
    """Direct: 1 GB/s, 1 us. Through a switch: 10 GB/s, 2 x 5 us. They break even at 9 us / (1 - 0.1) ns = 10 kB."""
    topology = machine(
        ["n0/gpu0", "n0/gpu1"],
        [("sw", VertexKind.NVSWITCH)],
        [
            link("n0/gpu0", "n0/gpu1", 1e9, 1e-6),
            link("n0/gpu0", "sw", 1e10, 5e-6, LinkKind.NVLINK),
            link("n0/gpu1", "sw", 1e10, 5e-6, LinkKind.NVLINK),
        ],
    )
    finder = PathFinder(topology, DATA_SHEET)
    small, large = finder.best("n0/gpu0", "n0/gpu1", 9_000), finder.best("n0/gpu0", "n0/gpu1", 11_000)
    assert (len(small.links), len(large.links)) == (1, 2)
    assert small.seconds == pytest.approx(1e-6 + 9e-6)
    assert large.seconds == pytest.approx(10e-6 + 1.1e-6)
    dear = CostParameters(by_kind={LinkKind.NVLINK: LinkCoefficients(alpha=10)})
    assert len(PathFinder(topology, dear).best("n0/gpu0", "n0/gpu1", 11_000).links) == 1


def test_gpus_do_not_forward_and_cpus_do() -> None:
    links = [link("n0/gpu0", "n0/gpu1", 1e9, 1e-6), link("n0/gpu1", "n0/gpu2", 1e9, 1e-6)]
    finder = PathFinder(machine(["n0/gpu0", "n0/gpu1", "n0/gpu2"], [], links), DATA_SHEET)
    found = finder.best("n0/gpu0", "n0/gpu2", 1)
    assert (found.links, found.seconds) == ((), None)
    assert found.reason == "there is no path from n0/gpu0 to n0/gpu2"
    hosted = [link("n0/gpu0", "n0/cpu0", 1e9, 1e-6), link("n0/cpu0", "n0/gpu2", 1e9, 1e-6)]
    finder = PathFinder(machine(["n0/gpu0", "n0/cpu0", "n0/gpu2"], [], hosted), DATA_SHEET)
    assert finder.best("n0/gpu0", "n0/gpu2", 0).seconds == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "lacks"), [(None, 1e-6, "bandwidth"), (1e9, None, "latency"), (None, None, "bandwidth")]
)
def test_an_unknown_link_is_never_free(bandwidth: float | None, latency: float | None, lacks: str) -> None:
    links = [link("n0/gpu0", "sw", 1e9, 1e-6), link("sw", "n0/gpu1", bandwidth, latency)]
    topology = machine(["n0/gpu0", "n0/gpu1"], [("sw", VertexKind.PCIE_SWITCH)], links)
    found = PathFinder(topology, DATA_SHEET).best("n0/gpu0", "n0/gpu1", 100)
    assert (found.seconds, len(found.links)) == (None, 2)
    assert found.reason == f"the {lacks} of n0/gpu1--sw:pcie is unknown"
    assert CostMatrix(topology, DATA_SHEET).dense(["n0/gpu0", "n0/gpu1"]) == [[0.0, None], [None, 0.0]]
    known = topology.model_copy(update={"links": (*links, link("n0/gpu0", "n0/gpu1", 1e3, 1.0, LinkKind.NVLINK))})
    assert PathFinder(known, DATA_SHEET).best("n0/gpu0", "n0/gpu1", 100).seconds == pytest.approx(1.1)


def test_a_link_that_is_down_carries_nothing() -> None:
    links = [link("n0/gpu0", "n0/gpu1", 1e9, 1e-6, LinkKind.NVLINK, state=LinkState.DOWN)]
    finder = PathFinder(machine(["n0/gpu0", "n0/gpu1"], [], links), DATA_SHEET)
    assert finder.best("n0/gpu0", "n0/gpu1", 1).seconds is None


def test_the_device_itself_and_strangers() -> None:
    finder = PathFinder(machine(["n0/gpu0"], [], []), DATA_SHEET)
    assert finder.best("n0/gpu0", "n0/gpu0", 10**9).seconds == 0.0
    with pytest.raises(NoSuchVertex) as caught:
        finder.best("n0/gpu0", "n0/gpu", 1)
    assert caught.value.mend == "did you mean n0/gpu0?"


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1e8))
def test_no_simple_path_is_faster(seed: int, payload: float) -> None:
    rng = random.Random(seed)
    devices = [f"n0/{rng.choice(['cpu', 'gpu'])}{i}" for i in range(4)]
    vertices = [(f"v{i}", VertexKind.SWITCH) for i in range(3)]
    names = devices + [v for v, _ in vertices]
    links = {}
    for _ in range(rng.randint(4, 12)):
        a, b = rng.sample(names, 2)
        made = link(a, b, rng.choice([1e8, 1e9, 1e10, 2e10]), rng.choice([0.0, 1e-7, 1e-6, 1e-5]))
        links[made.id] = made
    topology = machine(devices, vertices, list(links.values()))
    graph = TopologyGraph(topology)
    network = graph.to_networkx()
    forwards = {d.id for d in topology.devices if d.kind in FORWARDING_DEVICES} | {v for v, _ in vertices}
    finder = PathFinder(graph, DATA_SHEET)
    for source in devices:
        for target in devices:
            if source == target:
                continue
            allowed = [n for n in names if n in forwards or n in (source, target)]
            inside: nx.Graph[Any] = nx.Graph(network.subgraph(allowed))
            ways = [
                transfer_seconds([inside.edges[e]["link"] for e in nx.utils.pairwise(way)], payload, DATA_SHEET)
                for way in nx.all_simple_paths(inside, source, target)
            ]
            found = finder.best(source, target, payload)
            if ways:
                assert found.seconds == pytest.approx(min(ways), rel=1e-12)
            else:
                assert found.seconds is None


def test_the_eight_gpu_node_by_hand() -> None:
    matrix = CostMatrix(load_topology(), DATA_SHEET)
    assert matrix.seconds("n0/gpu0", "n0/gpu7") == pytest.approx(MESSAGE_BYTES / 450e9 + 2 * 193e-9)
    assert matrix.seconds("n0/gpu0", "n0/cpu0") == pytest.approx(MESSAGE_BYTES / 63.015e9 + (115 + 275 + 117.4) * 1e-9)
    across = (115 + 275 + 66.9 + 117.4) * 1e-9
    assert matrix.seconds("n0/gpu0", "n0/cpu1") == pytest.approx(MESSAGE_BYTES / 63.015e9 + across)
    assert matrix.seconds("n0/vpu0", "n0/gpu2") == pytest.approx(MESSAGE_BYTES / 31.508e9 + 2 * 115e-9)
    kinds = [lk.kind for lk in matrix.path("n0/gpu0", "n0/vpu1").links]
    assert kinds == [LinkKind.PCIE, LinkKind.PCIE, LinkKind.UPI, LinkKind.PCIE, LinkKind.PCIE]
    ids = [d.id for d in load_topology().devices]
    dense = matrix.as_dict(ids)["seconds"]
    assert all(dense[i][i] == 0.0 for i in range(len(ids)))
    assert np.array(dense) == pytest.approx(np.array(dense).T)
    with pytest.raises(TopologyError, match="513 devices is too large"):
        matrix.dense(["n0/gpu0"] * 513)


def test_arrays_keep_unknown_as_nan() -> None:
    topology = machine(["n0/gpu0", "n0/gpu1"], [], [link("n0/gpu0", "n0/gpu1", None, 1e-6)])
    columns = TopologyGraph(topology).arrays()
    assert np.isnan(columns.bandwidth_bytes_per_second[0])
    assert (columns.latency_seconds[0], columns.a[0], columns.b[0], columns.up[0]) == (1e-6, 0, 1, True)


def test_domains_without_switches_and_with_cxl() -> None:
    topology = machine(
        ["n0/gpu0", "n0/gpu1", "n0/gpu2", "n0/cpu0", "n0/cxl_memory0"],
        [],
        [
            link("n0/gpu0", "n0/gpu1", 1e9, 1e-6, LinkKind.NVLINK),
            link("n0/cpu0", "n0/cxl_memory0", 1e9, 1e-6, LinkKind.CXL),
        ],
    )
    topology = topology.model_copy(
        update={
            "devices": tuple(d.model_copy(update={"numa_node": 0}) for d in topology.devices[:4]) + topology.devices[4:]
        }
    )
    domains = Domains(topology)
    assert [domains.of(f"n0/gpu{i}", "NVLink_Domain") for i in range(3)] == ["n0/gpu0", "n0/gpu0", None]
    assert domains.of("n0/cpu0", "CXL_Memory_Node") == "n0/cxl_memory0"
    assert domains.of("n0/gpu2", "CXL_Memory_Node") == "n0/cxl_memory0"  # same NUMA node as that CPU
    assert domains.of("n0/cpu0", "Socket") is None
