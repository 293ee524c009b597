"""Which way an edge takes through the fabric: directions, staging, and why there is none."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane.fabric import LinkFlag
from observatory.app.links import CannotEmulate, EmulatedLinks, LinkWish, parse_wish
from observatory.model.cost import CostParameters
from observatory.model.device import Device, DeviceKind
from observatory.model.errors import ModelError
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import Node, Topology, Vertex, VertexKind
from observatory.topology.paths import PathFinder

EXACT = LinkWish(time_scale=1.0, seed=None)


def device(name: str, kind: DeviceKind) -> Device:
    return Device(id=f"n0/{name}", kind=kind, node="n0")


def link(a: str, b: str, **more: Any) -> Link:
    values: dict[str, Any] = {"bandwidth_bytes_per_second": 1e9, "latency_seconds": 1e-6} | more
    return Link(a=f"n0/{a}", b=f"n0/{b}", kind=LinkKind.PCIE, **values)


def topology(*links: Link) -> Topology:
    return Topology(
        name="bench",
        nodes=(Node(id="n0"),),
        devices=(device("cpu0", DeviceKind.CPU), device("gpu0", DeviceKind.GPU), device("gpu1", DeviceKind.GPU)),
        vertices=(Vertex(id="n0/pcie0", kind=VertexKind.PCIE_SWITCH),),
        links=links,
    )


def segments(graph: Topology, source: str, target: str) -> tuple[tuple[int, ...], ...]:
    finder = PathFinder(graph, CostParameters())
    return EmulatedLinks(graph, EXACT).route(finder, "a->b", source, target, 1000).path.segments


def test_each_direction_of_a_link_is_a_way_of_its_own() -> None:
    graph = topology(link("gpu0", "pcie0"), link("gpu1", "pcie0"))
    assert segments(graph, "n0/gpu0", "n0/gpu1") == ((0, 3),)  # a to b of the first, b to a of the second
    assert segments(graph, "n0/gpu1", "n0/gpu0") == ((2, 1),)


def test_a_frame_is_staged_in_the_memory_of_a_device_on_the_way() -> None:
    graph = topology(link("gpu0", "cpu0"), link("cpu0", "gpu1"))
    assert segments(graph, "n0/gpu0", "n0/gpu1") == ((0,), (2,))
    assert segments(graph, "n0/gpu1", "n0/gpu0") == ((3,), (1,))


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ((link("gpu0", "pcie0"),), "edge a->b cannot cross from n0/gpu0 to n0/gpu1: there is no path"),
        (
            (link("gpu0", "pcie0"), link("gpu1", "pcie0", bandwidth_bytes_per_second=None)),
            "the bandwidth of n0/gpu1--n0/pcie0:pcie is unknown",
        ),
        (
            (link("gpu0", "pcie0"), link("gpu1", "pcie0", latency_seconds=None)),
            "the latency of n0/gpu1--n0/pcie0:pcie is unknown",
        ),
        (
            (link("gpu0", "pcie0"), link("gpu1", "pcie0", state=LinkState.DOWN)),
            "link n0/gpu1--n0/pcie0:pcie is down",
        ),
    ],
)
def test_why_there_is_no_way(links: tuple[Link, ...], words: str) -> None:
    with pytest.raises(CannotEmulate, match=words) as raised:
        segments(topology(*links), "n0/gpu0", "n0/gpu1")
    assert raised.value.mend


def test_nothing_known_of_any_link() -> None:
    with pytest.raises(CannotEmulate, match="bench knows bandwidth and latency of no link"):
        EmulatedLinks(topology(link("gpu0", "pcie0", latency_seconds=None)), EXACT)


def test_a_link_of_a_changed_file() -> None:
    links = EmulatedLinks(topology(link("gpu0", "pcie0")), EXACT)
    finder = PathFinder(topology(link("gpu0", "gpu1")), CostParameters())
    with pytest.raises(CannotEmulate, match="no link 'n0/gpu0--n0/gpu1:pcie'") as raised:
        links.route(finder, "a->b", "n0/gpu0", "n0/gpu1", 1)
    assert raised.value.mend is not None
    assert "start it again" in raised.value.mend


def test_links_that_are_down_are_down_in_the_fabric_too() -> None:
    links = EmulatedLinks(topology(link("gpu0", "pcie0", state=LinkState.DOWN), link("gpu1", "pcie0")), EXACT)
    assert links.fabric.status("n0/gpu0--n0/pcie0:pcie").flag is LinkFlag.DOWN
    assert links.fabric.status("n0/gpu1--n0/pcie0:pcie").flag is LinkFlag.UP


def test_options() -> None:
    assert parse_wish(None, None) is None
    assert parse_wish("auto", "exact") == LinkWish(None, None)
    assert parse_wish("150", "7") == LinkWish(150.0, 7)
    drawn = parse_wish("auto", None)
    assert drawn is not None
    assert drawn.seed is not None
    for bad in ("0", "nan", "inf", "-3", "1e9", "x"):
        with pytest.raises(ModelError, match="no time scale"):
            parse_wish(bad, None)
    for bad in ("", "1.5", "-1", "9" * 40):
        with pytest.raises(ModelError, match="no seed"):
            parse_wish("auto", bad)
