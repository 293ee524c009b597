"""One parent's many links are one incident: a lost GPU, a lost switch, an NVLink baseboard."""

from __future__ import annotations

from observatory.anomalies.subjects import TopologySubjects
from observatory.model.device import Device, DeviceKind, Port
from observatory.model.link import Link, LinkKind
from observatory.model.observation import Address, AddressKind, Observation
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.addresses import AddressBook
from tests.anomalies.feeding import Feed


def rack() -> Topology:
    """Four GPUs, all joined by NVLink, on one PCIe switch; a card with one port of each of two machines on a leaf."""
    gpus = [f"n0/gpu{n}" for n in range(4)]
    devices = [Device(id=g, kind=DeviceKind.GPU, node="n0", pci_bus_id=f"0000:0{n}:00.0") for n, g in enumerate(gpus)]
    devices += [Device(id=f"n{n}/nic0", kind=DeviceKind.NIC, node=f"n{n}") for n in range(3)]
    links = [Link(a=g, b="n0/pcie_switch0", kind=LinkKind.PCIE) for g in gpus]
    links += [Link(a=a, b=b, kind=LinkKind.NVLINK) for a in gpus for b in gpus if a < b]
    links += [Link(a=f"n{n}/nic0", b="leaf1", kind=LinkKind.RDMA) for n in range(3)]
    return Topology(
        nodes=tuple(Node(id=f"n{n}") for n in range(3)),
        devices=tuple(devices),
        vertices=(
            Vertex(id="n0/pcie_switch0", kind=VertexKind.PCIE_SWITCH, node="n0"),
            Vertex(id="leaf1", kind=VertexKind.SWITCH),
        ),
        links=tuple(links),
    )


def feed_of_rack() -> Feed:
    topology = rack()
    return Feed(TopologySubjects(topology, AddressBook(topology)))


def link(a: str, b: str, kind: str) -> Address:
    first, second = sorted((a, b))
    return Address("n0", AddressKind.LINK, f"{first}--{second}:{kind}")


RAILS = [link(f"n{n}/nic0", "leaf1", "rdma") for n in range(3)]
OF_GPU1 = [link("n0/gpu1", f"n0/gpu{n}", "nvlink") for n in (0, 2, 3)]
NVLINKS = [link(f"n0/gpu{a}", f"n0/gpu{b}", "nvlink") for a in range(4) for b in range(a + 1, 4)]
BUS1 = Address("n0", AddressKind.PCI, "0000:01:00.0")


def test_all_links_of_a_leaf_are_one_incident_of_the_leaf() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(rail, "link.up", 1) for rail in RAILS))
    feed.look(*(feed.value(rail, "link.up", 0) for rail in RAILS))
    (incident,) = feed.open
    assert (incident.kind, incident.subject) == ("switch_lost", "leaf1")
    assert incident.affected == tuple(sorted(rail.key for rail in RAILS))
    assert {i.kind for i in feed.changed} == {"switch_lost"}  # the parts were never told apart


def test_rails_that_go_down_one_after_the_other_are_gathered() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(rail, "link.up", 1) for rail in RAILS))
    for rail in RAILS:
        feed.look(feed.value(rail, "link.up", 0))
    (incident,) = feed.open
    assert incident.kind == "switch_lost"
    states = {i.subject: i.state for i in feed.changed}
    assert states[RAILS[0].key] == "closed"


def test_two_of_three_rails_are_two_incidents() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(rail, "link.up", 1) for rail in RAILS))
    feed.look(*(feed.value(rail, "link.up", 0) for rail in RAILS[:2]))
    assert feed.kinds() == ["link_down", "link_down"]


def test_a_leaf_that_comes_back_in_part_is_not_to_blame_any_more() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(rail, "link.up", 1) for rail in RAILS))
    feed.look(*(feed.value(rail, "link.up", 0) for rail in RAILS))
    for _ in range(12):
        feed.look(*(feed.value(rail, "link.up", float(n < 2)) for n, rail in enumerate(RAILS)))
    assert [(i.kind, i.subject) for i in feed.open] == [("link_down", RAILS[2].key)]


def test_a_lost_gpu_takes_its_nvlinks_with_it() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(at, "link.width", 4) for at in NVLINKS))
    feed.look(
        feed.event(BUS1, "xid", "GPU has fallen off the bus", "79"),
        *(feed.value(at, "link.width", 0) for at in OF_GPU1),
    )
    (incident,) = feed.open
    assert (incident.kind, incident.subject) == ("gpu_lost", "n0/gpu1")
    assert incident.affected == tuple(sorted(at.key for at in OF_GPU1))


def test_nvlinks_that_were_told_before_their_gpu_was_lost_become_part_of_it() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(at, "link.width", 4) for at in NVLINKS))
    feed.look(feed.value(OF_GPU1[0], "link.width", 0))
    assert feed.kinds() == ["nvlink_down"]
    feed.look(feed.event(BUS1, "xid", "GPU has fallen off the bus", "79"))
    assert feed.kinds() == ["gpu_lost"]
    closed = [i for i in feed.changed if i.subject == OF_GPU1[0].key][-1]
    assert (closed.state, feed.open[0].id in closed.words) == ("closed", True)


def test_a_gpu_whose_nvlinks_are_all_down_is_to_blame_and_not_its_peers() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(at, "link.width", 4) for at in NVLINKS))
    feed.look(*(feed.value(at, "link.width", 0) for at in OF_GPU1))
    assert [(i.kind, i.subject) for i in feed.open] == [("nvlink_down", "n0/gpu1")]


def test_all_gpus_below_a_pcie_switch_are_lost_with_it() -> None:
    feed = feed_of_rack()
    cards = [Address("n0", AddressKind.PCI, f"0000:0{n}:00.0") for n in range(4)]
    feed.look(*(feed.value(card, "link.up", 1, "sysfs-pcie") for card in cards))
    feed.look(*(feed.value(card, "link.up", 0, "sysfs-pcie") for card in cards))
    assert [(i.kind, i.subject) for i in feed.open] == [("switch_lost", "n0/pcie_switch0")]


def test_a_narrow_bus_is_an_incident_of_the_link() -> None:
    feed = feed_of_rack()
    feed.look(feed.value(BUS1, "link.width.best", 16), feed.value(BUS1, "link.width", 8))
    (incident,) = feed.open
    assert incident.subject == "n0/gpu1--n0/pcie_switch0:pcie"
    assert incident.affected == ("n0/gpu1",)


def nvlinks_of_gpu0(feed: Feed, active: int) -> list[Observation]:
    """As NVML tells: each link, and how many to each peer are active."""
    peer = {"link.peer": "0000:01:00.0"}
    singles = [
        Observation(
            Address("n0", AddressKind.NVLINK, f"0000:00:00.0/{n}"), "link.up", n < active, feed.now_ns, "nvml", peer
        )
        for n in range(4)
    ]
    bundle = Address("n0", AddressKind.NVLINK, "0000:00:00.0/0000:01:00.0")
    return [
        *singles,
        Observation(bundle, "link.width", active, feed.now_ns, "nvml", peer),
        Observation(bundle, "link.width.best", 4, feed.now_ns, "nvml", peer),
    ]


def test_a_bundle_and_its_single_links_are_one_incident_of_the_link() -> None:
    feed = feed_of_rack()
    feed.look(*nvlinks_of_gpu0(feed, 4))
    feed.look(*nvlinks_of_gpu0(feed, 3))
    assert [(i.kind, i.subject, i.words) for i in feed.open] == [
        ("nvlink_degraded", OF_GPU1[0].key, "3 of 4 links are active")
    ]
    for _ in range(8):
        feed.look(*nvlinks_of_gpu0(feed, 4))
    assert feed.open == []


def test_the_lower_width_of_both_ends_counts() -> None:
    feed = feed_of_rack()
    feed.look(*nvlinks_of_gpu0(feed, 3))
    other = Address("n0", AddressKind.NVLINK, "0000:01:00.0/0000:00:00.0")
    feed.look(feed.value(other, "link.width", 4, link__peer="0000:00:00.0"))
    assert feed.kinds() == ["nvlink_degraded"]


def test_a_gpu_that_nvml_calls_lost_is_one_incident_with_its_xid() -> None:
    feed = feed_of_rack()
    feed.look(feed.value(BUS1, "hw.status", 1, hw__state="failed"), feed.event(BUS1, "xid", "fallen off", "79"))
    (incident,) = feed.open
    assert (incident.kind, incident.subject, incident.sources) == ("gpu_lost", "n0/gpu1", ("kmsg", "nvml"))
    assert incident.confidence > 0.95


def test_lanes_of_a_cable_are_no_lanes_of_the_bus() -> None:
    nic = Device(
        id="n0/nic0", kind=DeviceKind.NIC, node="n0", pci_bus_id="0000:41:00.0", ports=(Port(name="mlx5_0/1"),)
    )
    topology = Topology(nodes=(Node(id="n0"),), devices=(nic,))
    feed = Feed(TopologySubjects(topology, AddressBook(topology)))
    card, port = Address("n0", AddressKind.PCI, "0000:41:00.0"), Address("n0", AddressKind.PORT, "mlx5_0/1")
    for _ in range(3):
        feed.look(
            feed.value(card, "link.width.best", 16, "sysfs-pcie"), feed.value(card, "link.width", 16, "sysfs-pcie")
        )
        feed.look(feed.value(port, "link.width", 4, "infiniband"), feed.value(port, "hw.network.up", 1, "infiniband"))
    assert feed.open == []


def of_gpu1(feed: Feed, lost: bool, width: float) -> list[Observation]:
    """What NVML tells of GPU 1 and of its NVLinks: of a lost one nothing but that."""
    states = [
        feed.value(BUS1, "hw.status", float(lost), hw__state="failed"),
        feed.value(BUS1, "hw.status", float(not lost), hw__state="ok"),
    ]
    return states if lost else states + [feed.value(at, "link.width", width) for at in OF_GPU1]


def test_a_gpu_that_is_back_does_not_hide_what_breaks_later() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(at, "link.width", 4) for at in NVLINKS))
    for lost in (False, True, False, True, False):  # twice: it is held for five minutes from here
        for _ in range(8):
            feed.look(*of_gpu1(feed, lost, 4))
    assert feed.kinds() == ["gpu_lost"]
    feed.look(*of_gpu1(feed, False, 0))
    assert [(i.kind, i.subject) for i in feed.open] == [("gpu_lost", "n0/gpu1"), ("nvlink_down", "n0/gpu1")]
    for _ in range(4 * 301):
        feed.look(*of_gpu1(feed, False, 0))
    assert feed.kinds() == ["nvlink_down"]


def test_nvlinks_that_do_not_come_back_with_their_gpu_are_told_for_themselves() -> None:
    feed = feed_of_rack()
    feed.look(*(feed.value(at, "link.width", 4) for at in NVLINKS))
    feed.look(*of_gpu1(feed, True, 0), feed.value(OF_GPU1[0], "link.width", 0), feed.value(OF_GPU1[1], "link.width", 0))
    assert feed.kinds() == ["gpu_lost"]
    healthy = [at for at in OF_GPU1 if at != OF_GPU1[0]]
    for _ in range(4 * 8):
        feed.look(*of_gpu1(feed, False, 0)[:2], *(feed.value(at, "link.width", 4) for at in healthy))
    assert [(i.kind, i.subject) for i in feed.open] == [("nvlink_down", OF_GPU1[0].key)]
    assert OF_GPU1[1].key not in {i.subject for i in feed.changed}, "it came back with its GPU and was never told"


def test_an_error_of_the_bus_of_a_lost_gpu_does_not_keep_it_lost() -> None:
    feed = feed_of_rack()
    feed.look(*of_gpu1(feed, True, 0))
    feed.look(*of_gpu1(feed, True, 0), feed.event(BUS1, "aer", "fatal", "fatal"))
    assert feed.kinds() == ["gpu_lost"]
    for _ in range(4 * 8):
        feed.look(*of_gpu1(feed, False, 4))
    assert feed.open == []


def test_a_link_that_is_only_held_is_not_counted_among_what_is_down() -> None:
    feed = feed_of_rack()
    for up in (1, 0, 1, 0, 1):
        feed.look(*(feed.value(rail, "link.up", up if n == 0 else 1) for n, rail in enumerate(RAILS)))
    feed.look(*(feed.value(rail, "link.up", float(n == 0)) for n, rail in enumerate(RAILS)))
    assert feed.kinds() == ["link_down"] * 3
