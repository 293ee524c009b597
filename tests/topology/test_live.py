"""The live graph: what observations make of links, and what they leave alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observatory.model.cost import CostParameters
from observatory.model.device import Device, DeviceKind, Port
from observatory.model.link import BandwidthSource, Link, LinkKind, LinkState
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.addresses import PEER
from observatory.topology.cluster_costs import ClusterCosts
from observatory.topology.graph import TopologyGraph
from observatory.topology.live import LiveTopology
from observatory.topology.load import load_topology

SECOND = 10**9
GPU, SWITCH, CARD = "0000:3b:00.0", "0000:c5:00.0", "0000:0c:00.0"


def described() -> Topology:
    return Topology(
        nodes=(Node(id="n0"),),
        devices=(
            Device(id="n0/cpu0", kind=DeviceKind.CPU, node="n0"),
            Device(id="n0/gpu0", kind=DeviceKind.GPU, node="n0", pci_bus_id=GPU),
            Device(id="n0/gpu1", kind=DeviceKind.GPU, node="n0", pci_bus_id="0000:3c:00.0"),
            Device(
                id="n0/nic0", kind=DeviceKind.NIC, node="n0", pci_bus_id=CARD, os_names=("eth0",),
                ports=(Port(name="mlx5_0/1"),),
            ),
        ),
        vertices=(
            Vertex(id="n0/socket0", kind=VertexKind.SOCKET, node="n0"),
            Vertex(id="n0/nvswitch0", kind=VertexKind.NVSWITCH, node="n0", pci_bus_id=SWITCH),
            Vertex(id="leaf0", kind=VertexKind.SWITCH),
        ),
        links=(
            Link(a="n0/gpu0", b="n0/socket0", kind=LinkKind.PCIE, width=16, speed="32.0 GT/s", best_width=16,
                 best_speed="32.0 GT/s", bandwidth_bytes_per_second=63.015e9, latency_seconds=1e-7),
            Link(a="n0/nic0", b="n0/socket0", kind=LinkKind.PCIE, bandwidth_bytes_per_second=31.5e9),
            Link(a="n0/gpu0", b="n0/nvswitch0", kind=LinkKind.NVLINK, count=18, bandwidth_bytes_per_second=450e9),
            Link(a="n0/gpu0", b="n0/gpu1", kind=LinkKind.NVLINK, count=4),
            Link(a="n0/nic0", b="leaf0", kind=LinkKind.ETHERNET, bandwidth_bytes_per_second=12.5e9,
                 latency_seconds=5e-7),
        ),
    )  # fmt: skip


PCIE, CARD_PCIE, NVLINK, PEERS, WIRE = range(5)


def seen(
    kind: AddressKind, key: str, metric: str, value: float | None, at: float = 1, **attributes: str
) -> Observation:
    names = {name.replace("__", "."): text for name, text in attributes.items()}
    return Observation(Address("n0", kind, key), metric, value, int(at * SECOND), "test", names)


def pci(metric: str, value: float | None, at: float = 1, key: str = GPU, **attributes: str) -> Observation:
    return seen(AddressKind.PCI, key, metric, value, at, **attributes)


def nvlink(number: int, metric: str, value: float, key: str = GPU, peer: str = SWITCH) -> Observation:
    return Observation(
        Address("n0", AddressKind.NVLINK, f"{key}/{number}"), metric, value, SECOND, "test", {PEER: peer}
    )


def now(live: LiveTopology, number: int) -> Link:
    return live.snapshot().links[number]


def test_a_narrower_pcie_link() -> None:
    live = LiveTopology(described())
    at_best = [pci("link.width", 16), pci("link.speed", 32e9)]
    first = live.apply(at_best)  # it was not told that it is up
    again = live.apply(at_best)
    assert (first, again, live.version, now(live, PCIE).state) == (True, False, 1, LinkState.UP)
    before = live.version
    live.apply([pci("link.width", 8, at=2)])
    link = now(live, PCIE)
    assert (link.width, link.state, link.bandwidth_source) == (8, LinkState.DEGRADED, BandwidthSource.NEGOTIATED)
    # 32 GT/s x 8 lanes x 128/130 / 8 bits
    assert link.bandwidth_bytes_per_second == pytest.approx(31.508e9, rel=1e-4)
    changes = {c.name: (c.before, c.after) for c in live.changes(before)}
    assert changes["width"] == (16.0, 8.0)
    assert changes["state"][1] == "degraded"
    assert {c.link for c in live.changes(before)} == {"n0/gpu0--n0/socket0:pcie"}
    assert not live.changes(live.version)
    live.apply([pci("link.width", 16, at=3)])
    assert now(live, PCIE).state is LinkState.UP


def test_a_gpu_at_rest_is_slow_and_not_degraded() -> None:
    live = LiveTopology(described())
    live.apply([pci("link.speed", 2.5e9)])
    link = now(live, PCIE)
    assert (link.speed, link.state) == ("2.5 GT/s", LinkState.UP)
    assert link.bandwidth_bytes_per_second == pytest.approx(63.015e9, rel=1e-4)
    # Under load, 16 GT/s is all that there is: 31.5 GB/s.
    live.apply([pci("link.speed", 16e9, 2), pci("link.throughput", 9e9, 2, network__io__direction="receive")])
    live.apply([pci("link.speed", 16e9, 3)])
    assert now(live, PCIE).state is LinkState.DEGRADED
    assert now(live, PCIE).bandwidth_bytes_per_second == pytest.approx(31.508e9, rel=1e-4)
    assert now(live, PCIE).utilisation == pytest.approx(9 / 31.508, rel=1e-3)
    # At rest again it is known to have no more than that.
    live.apply([pci("link.speed", 2.5e9, 4), pci("link.throughput", 0, 4, network__io__direction="receive")])
    assert now(live, PCIE).bandwidth_bytes_per_second == pytest.approx(31.508e9, rel=1e-4)


def test_another_card_that_is_slow_is_degraded() -> None:
    live = LiveTopology(described())
    told = {"link.speed": 8e9, "link.speed.best": 16e9, "link.width": 16, "link.width.best": 16}
    live.apply([pci(metric, value, key=CARD) for metric, value in told.items()])
    link = now(live, CARD_PCIE)
    assert (link.speed, link.best_speed, link.state) == ("8.0 GT/s", "16.0 GT/s", LinkState.DEGRADED)
    assert link.bandwidth_bytes_per_second == pytest.approx(15.754e9, rel=1e-4)


def test_nvlinks_that_fall_out() -> None:
    live = LiveTopology(described())
    live.apply([nvlink(n, "link.up", 1) for n in range(18)])
    assert (now(live, NVLINK).width, now(live, NVLINK).bandwidth_bytes_per_second) == (18, 450e9)
    live.apply([nvlink(17, "link.up", 0), nvlink(3, "link.up", 0)])
    assert (now(live, NVLINK).width, now(live, NVLINK).state) == (16, LinkState.DEGRADED)
    assert now(live, NVLINK).bandwidth_bytes_per_second == pytest.approx(400e9)
    live.apply([nvlink(n, "link.bandwidth", 26.562e9) for n in range(18)])
    assert now(live, NVLINK).bandwidth_bytes_per_second == pytest.approx(16 * 25e9)
    live.apply([nvlink(n, "link.up", 0) for n in range(18)])
    assert now(live, NVLINK).state is LinkState.DOWN
    assert not live.arrays().up[NVLINK]


def test_widths_by_peer_are_summed_where_one_vertex_stands_for_all_switches() -> None:
    live = LiveTopology(load_topology())
    gpu, first = "0000:1b:00.0", live.graph.topology
    placed = tuple(d.model_copy(update={"pci_bus_id": gpu}) if d.id == "n0/gpu0" else d for d in first.devices)
    live = LiveTopology(first.model_copy(update={"devices": placed}))
    for at, widths in ((1, (5, 5, 4, 4)), (2, (5, 5, 4, 3))):
        live.apply(
            [
                Observation(
                    Address("n0", AddressKind.NVLINK, f"{gpu}/0000:0{n}:00.0"), metric, value, at * SECOND, "nvml",
                    {PEER: f"0000:0{n}:00.0"},
                )
                for n, width in enumerate(widths)
                for metric, value in (("link.width", width), ("link.width.best", (5, 5, 4, 4)[n]))
            ]
        )  # fmt: skip
        link = next(x for x in live.snapshot().links if x.id == "n0/gpu0--n0/nvswitch0:nvlink")
        assert (link.width, link.best_width) == (sum(widths), 18)
        assert link.state is (LinkState.UP if at == 1 else LinkState.DEGRADED)
        assert link.bandwidth_bytes_per_second == pytest.approx(25e9 * sum(widths))


def test_both_ends_of_nvlinks_between_gpus_are_one_edge() -> None:
    live = LiveTopology(described())
    live.apply([nvlink(n, "link.up", 1, peer="0000:3c:00.0") for n in range(4)])
    live.apply([nvlink(n, "link.up", int(n != 9), key="0000:3c:00.0", peer=GPU) for n in range(8, 12)])
    assert (now(live, PEERS).width, now(live, PEERS).state) == (3, LinkState.DEGRADED)
    assert now(live, PEERS).bandwidth_bytes_per_second is None  # unknown before, unknown now
    both = [
        Observation(
            Address("n0", AddressKind.NVLINK, f"{GPU}/{n}"), "link.throughput", 5e9, SECOND, "test",
            {PEER: SWITCH, "network.io.direction": "transmit"},
        )
        for n in range(2)
    ]  # fmt: skip
    live.apply(both)
    assert now(live, NVLINK).utilisation == pytest.approx(10 / 450)


def test_a_cable() -> None:
    live = LiveTopology(described())
    live.apply([seen(AddressKind.PORT, "mlx5_0/1", "hw.network.bandwidth.limit", 5e9)])
    assert (now(live, WIRE).bandwidth_bytes_per_second, now(live, WIRE).state) == (5e9, LinkState.DEGRADED)
    live.apply([seen(AddressKind.INTERFACE, "eth0", "hw.network.up", 0)])
    assert (now(live, WIRE).bandwidth_bytes_per_second, now(live, WIRE).state) == (5e9, LinkState.DOWN)
    live.apply([seen(AddressKind.INTERFACE, "eth0", "hw.network.up", 1)])
    live.apply([seen(AddressKind.PORT, "mlx5_0/1", "hw.network.bandwidth.limit", 12.5e9)])
    assert now(live, WIRE).state is LinkState.UP
    for second, total in enumerate((0, 10e9, 12.5e9)):
        live.apply(
            [seen(AddressKind.INTERFACE, "eth0", "link.io", total, second + 1, network__io__direction="transmit")]
        )
    assert now(live, WIRE).utilisation == pytest.approx(0.2)
    live.apply([seen(AddressKind.INTERFACE, "eth0", "link.io", 5, 4, network__io__direction="transmit")])
    assert now(live, WIRE).utilisation == pytest.approx(0.2)  # a reset is no rate
    live.apply([seen(AddressKind.INTERFACE, "eth0", "link.latency", 9e-6, link__latency__quantile="0.99")])
    assert now(live, WIRE).latency_seconds == 5e-7
    live.apply([seen(AddressKind.INTERFACE, "eth0", "link.latency", 8e-6, link__latency__quantile="0.5")])
    assert now(live, WIRE).latency_seconds == 8e-6


def test_errors_are_counted_over_resets() -> None:
    live = LiveTopology(described())
    for second, total in enumerate((100, 103, 2, 4), 1):
        live.apply([pci("link.errors", total, second, error__type="bad_tlp")])
        live.apply([pci("link.errors", 7, second, error__type="bad_dllp")])
    assert live.links.errors[PCIE] == 5
    assert live.version == 0


def test_the_last_good_value_holds() -> None:
    live = LiveTopology(described())
    live.apply([pci("link.width", 8)])
    for nothing in (None, float("nan"), 9223372036854775794, -1):
        assert not live.apply([pci("link.width", nothing, 100)])
    assert now(live, PCIE).width == 8
    link = now(live, PCIE).id
    assert live.age_seconds(link, 4 * SECOND) == 3
    assert live.confidence(link, 4 * SECOND) == 1
    assert live.confidence(link, 11 * SECOND) == pytest.approx(0.5)
    assert live.confidence(link, 16 * SECOND) == pytest.approx(0.25)
    assert live.age_seconds(now(live, WIRE).id, SECOND) is None
    assert live.confidence(now(live, WIRE).id, SECOND) is None


def test_strangers_and_events_change_nothing() -> None:
    live = LiveTopology(described())
    stranger = pci("link.width", 4, key="0000:ff:00.0")
    event = HardwareEvent(Address("n0", AddressKind.PCI, GPU), "xid", "Xid 79", SECOND, "kmsg", "79")
    assert not live.apply([stranger, stranger, event, pci("hw.temperature", 90)])
    assert live.unplaced[stranger.subject] == 2
    assert live.snapshot() is live.graph.topology


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_costs_of_updates_are_those_of_the_snapshot(seed: int) -> None:
    """Whatever is observed: kept costs equal those of the snapshot built anew."""
    rng = random.Random(seed)
    topology = load_topology()
    live = LiveTopology(topology)
    costs = ClusterCosts(live.graph, CostParameters(), message_bytes=2.0**20)
    metrics = {"link.width": (1, 4, 8, 16), "link.speed": (2.5e9, 16e9, 32e9), "link.up": (0, 1),
               "link.bandwidth": (1e9, 5e10), "link.latency": (1e-7, 1e-5)}  # fmt: skip
    for step in range(rng.randint(1, 5)):
        batch = []
        for link in rng.sample(topology.links, rng.randint(1, len(topology.links))):
            metric = rng.choice(list(metrics))
            value = rng.choice(metrics[metric])
            batch.append(seen(AddressKind.LINK, link.id, metric, value, step + 1))
        live.apply(batch)
        costs.take(live.arrays())
        anew = ClusterCosts(live.snapshot(), CostParameters(), message_bytes=2.0**20)
        np.testing.assert_array_equal(costs.within("n0"), anew.within("n0"))
        np.testing.assert_array_equal(
            TopologyGraph(live.snapshot()).arrays().bandwidth_bytes_per_second,
            live.arrays().bandwidth_bytes_per_second,
        )


def status(state: str, value: float, source: str = "nvml", kind: AddressKind = AddressKind.PCI) -> Observation:
    key = GPU if kind is AddressKind.PCI else "n0/nic0"
    return Observation(Address("n0", kind, key), "hw.status", value, SECOND, source, {"hw.state": state})


def test_a_lost_gpu_takes_its_links_down_until_it_is_well_again() -> None:
    live = LiveTopology(described())
    mine, others = [PCIE, NVLINK, PEERS], [CARD_PCIE, WIRE]
    assert not live.apply([status("ok", 1), status("failed", 0)])  # a state of a device is no state of its links
    assert live.apply([status("ok", 0), status("failed", 1)])
    assert [now(live, n).state for n in mine] == [LinkState.DOWN] * 3
    assert not live.arrays().up[mine].any()
    assert [now(live, n).state for n in others] == [LinkState.UNKNOWN] * 2
    costs = ClusterCosts(live.snapshot(), CostParameters(), message_bytes=1)
    assert np.isnan(costs.row("n0/gpu0", ["n0/gpu1", "n0/nic0"])).all()
    live.apply([status("ok", 1), status("failed", 0)])
    assert LinkState.DOWN not in [now(live, n).state for n in mine]
    assert live.arrays().up.all()


def test_what_one_source_says_of_a_device_another_does_not_take_back() -> None:
    live = LiveTopology(described())
    live.apply([status("failed", 1), status("lost", 1, "redfish"), status("ok", 1)])
    assert now(live, PCIE).state is LinkState.DOWN
    live.apply([status("lost", 0, "redfish")])
    assert now(live, PCIE).state is not LinkState.DOWN


def test_a_line_of_one_event_takes_no_link_down() -> None:
    live = LiveTopology(described())
    said = HardwareEvent(
        Address("n0", AddressKind.PCI, GPU), "gpu_lost", "has fallen off the bus", SECOND, "kernel-log"
    )
    assert not live.apply([said])
    assert live.snapshot() == described()


def test_both_devices_of_a_link_must_be_well() -> None:
    live = LiveTopology(described())
    other = Observation(
        Address("n0", AddressKind.PCI, "0000:3c:00.0"), "hw.status", 1, SECOND, "nvml", {"hw.state": "failed"}
    )
    live.apply([status("failed", 1), other])
    live.apply([status("ok", 1)])
    assert (now(live, PEERS).state, now(live, PCIE).state) == (LinkState.DOWN, LinkState.UNKNOWN)


@pytest.mark.parametrize(("told", "data"), [(26.562e9, 25e9), (25.781e9, 25e9), (53.125e9, 50e9), (25e9, 25e9)])
def test_the_bandwidth_of_nvlinks_is_that_of_data(told: float, data: float) -> None:
    live = LiveTopology(described())
    live.apply([nvlink(n, "link.bandwidth", told) for n in range(18)])
    assert now(live, NVLINK).bandwidth_bytes_per_second == 18 * data
