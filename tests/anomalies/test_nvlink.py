"""NVLinks that are not active or slow, of single GPUs and of bundles between two ends."""

from __future__ import annotations

import pytest

from observatory.model.observation import Address, AddressKind, Observation
from tests.anomalies.feeding import Feed, nvlink


def gpu(feed: Feed, up: str, bus: str = "0000:3b:00.0", rate: float = 25e9) -> list[Observation]:
    """One GPU; `up` has a mark for each link, + where it is active."""
    seen = []
    for number, mark in enumerate(up):
        at = nvlink(number, bus)
        seen.append(feed.value(at, "link.up", float(mark == "+"), hw__model="V100"))
        if mark == "+":
            seen.append(feed.value(at, "link.bandwidth", rate, hw__model="V100"))
    return seen


def test_links_that_were_active_are_missed_as_one_incident_of_the_gpu() -> None:
    feed = Feed()
    feed.look(*gpu(feed, "++++++"))
    (incident,) = feed.look(*gpu(feed, "+-++-+"))
    assert (incident.kind, incident.subject) == ("nvlink_degraded", "n0:pci:0000:3b:00.0")
    assert incident.words == "4 of 6 links are active"
    assert incident.affected == ("n0:nvlink:0000:3b:00.0/1", "n0:nvlink:0000:3b:00.0/4")


def test_all_links_down_is_worse_and_less_bad_again_when_one_comes_back() -> None:
    feed = Feed()
    feed.look(*gpu(feed, "++++++"))
    feed.look(*gpu(feed, "------"))
    assert feed.kinds() == ["nvlink_down"]
    feed.look(*gpu(feed, "+-----"))
    assert feed.kinds() == ["nvlink_degraded"]
    assert len({i.id for i in feed.changed}) == 1
    for _ in range(8):
        feed.look(*gpu(feed, "++++++"))
    assert feed.open == []


def test_a_first_look_compares_with_the_other_gpus_of_the_machine() -> None:
    feed = Feed()
    feed.look(*gpu(feed, "++++++"), *gpu(feed, "+++-+-", "0000:af:00.0"))
    (incident,) = feed.open
    assert incident.subject == "n0:pci:0000:af:00.0"
    assert incident.confidence < 0.7  # nobody saw these links active


def test_links_that_nobody_has_are_no_fault() -> None:
    feed = Feed()
    feed.look(*gpu(feed, "----"), *gpu(feed, "----", "0000:af:00.0"))
    assert feed.open == []


def test_one_slow_link_is_told() -> None:
    feed = Feed()
    feed.look(*gpu(feed, "++++"))
    feed.look(feed.value(nvlink(2), "link.bandwidth", 12.5e9))
    (incident,) = feed.open
    assert (incident.kind, incident.affected) == ("nvlink_degraded", ("n0:nvlink:0000:3b:00.0/2",))


@pytest.mark.parametrize(("width", "kind"), [(8, "nvlink_degraded"), (0, "nvlink_down")])
def test_a_bundle_of_the_topology_loses_links(width: float, kind: str) -> None:
    feed = Feed()
    bundle = Address("n0", AddressKind.LINK, "n0/gpu0--n0/gpu1:nvlink")
    feed.look(feed.value(bundle, "link.width.best", 16), feed.value(bundle, "link.width", 16))
    (incident,) = feed.look(feed.value(bundle, "link.width", width))
    assert incident.kind == kind
    assert incident.evidence[0].expected == 16
