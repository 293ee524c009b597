"""Cards with several ports of which the topology knows one cable: what is told of one port is not said of the other."""

from __future__ import annotations

import pytest

from observatory.anomalies.subjects import TopologySubjects
from observatory.model.device import Device, DeviceKind, Port
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.observation import Address, AddressKind
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.addresses import AddressBook
from tests.anomalies.feeding import Feed

CABLE = "leaf0--n0/nic0:rdma"
FIRST, SECOND = (Address("n0", AddressKind.PORT, f"mlx4_0/{n}") for n in (1, 2))


def card(first: LinkState, second: LinkState) -> Topology:
    """One card with two ports, and one cable to a leaf."""
    ports = (Port(name="mlx4_0/1", state=first), Port(name="mlx4_0/2", state=second))
    return Topology(
        nodes=(Node(id="n0"),),
        devices=(Device(id="n0/nic0", kind=DeviceKind.NIC, node="n0", os_names=("mlx4_0", "ib0"), ports=ports),),
        vertices=(Vertex(id="leaf0", kind=VertexKind.SWITCH),),
        links=(Link(a="leaf0", b="n0/nic0", kind=LinkKind.RDMA),),
    )


@pytest.mark.parametrize(
    ("first", "second", "links"),
    [
        (LinkState.UP, LinkState.DOWN, [CABLE, None]),
        (LinkState.UNKNOWN, LinkState.UP, [None, CABLE]),
        (LinkState.UP, LinkState.UP, [None, None]),
        (LinkState.UNKNOWN, LinkState.UNKNOWN, [None, None]),
    ],
)
def test_the_port_that_is_up_is_the_one_at_the_cable(
    first: LinkState, second: LinkState, links: list[str | None]
) -> None:
    book = AddressBook(card(first, second))
    assert [book.link(port) for port in (FIRST, SECOND)] == links
    assert book.link(Address("n0", AddressKind.INTERFACE, "ib0")) is None, "not told of which port it is"


@pytest.mark.parametrize("second", [LinkState.UP, LinkState.DOWN, LinkState.UNKNOWN])
def test_an_unused_port_beside_a_used_one_is_no_fault(second: LinkState) -> None:
    topology = card(LinkState.UP, second)
    feed = Feed(TopologySubjects(topology, AddressBook(topology)))
    for _ in range(40):
        for port, up, errors in ((FIRST, 1, 0), (SECOND, 0, 40)):
            feed.look(
                feed.value(port, "hw.network.up", up, "infiniband"),
                feed.value(port, "link.errors", errors, "infiniband", error__type="symbol"),
            )
    assert feed.changed == []


def test_a_port_that_goes_down_is_told_under_its_own_name() -> None:
    topology = card(LinkState.UP, LinkState.UP)
    feed = Feed(TopologySubjects(topology, AddressBook(topology)))
    feed.look(*(feed.value(port, "hw.network.up", 1, "infiniband") for port in (FIRST, SECOND)))
    feed.look(*(feed.value(port, "hw.network.up", port is FIRST, "infiniband") for port in (FIRST, SECOND)))
    assert [(i.kind, i.subject) for i in feed.open] == [("link_down", "n0/nic0:mlx4_0/2")]


def test_two_names_of_one_cable_of_which_one_was_never_up() -> None:
    nic = Device(id="n0/nic0", kind=DeviceKind.NIC, node="n0", os_names=("eth0", "eth1"))
    topology = card(LinkState.UP, LinkState.UP).model_copy(update={"devices": (nic,)})
    feed = Feed(TopologySubjects(topology, AddressBook(topology)))
    for _ in range(4):
        for name, up in (("eth0", 1), ("eth1", 0)):
            feed.look(feed.value(Address("n0", AddressKind.INTERFACE, name), "hw.network.up", up, "interfaces"))
    assert feed.changed == []
