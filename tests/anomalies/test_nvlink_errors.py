"""NVLink errors that the driver tells, and the links that go down with them: one trouble is one incident."""

from __future__ import annotations

import pytest

from observatory.model.incident import IncidentState
from observatory.model.observation import Address, AddressKind
from tests.anomalies.feeding import GPU, SECOND_NS, Feed, nvlink
from tests.anomalies.test_one_parent import BUS1, NVLINKS, OF_GPU1, feed_of_rack


def widths(feed: Feed, down: int) -> None:
    """A look at all NVLinks; the first `down` of GPU 1 have no lane."""
    dead = OF_GPU1[:down]
    feed.look(*(feed.value(at, "link.width", 0.0 if at in dead else 4.0) for at in NVLINKS))


@pytest.mark.parametrize("error_first", [True, False])
def test_an_xid_of_a_link_that_is_down_is_evidence_of_that_incident(error_first: bool) -> None:
    feed = feed_of_rack()
    widths(feed, 0)
    if not error_first:
        widths(feed, 1)
    feed.look(feed.event(BUS1, "xid", "NVRM: Xid 74", "74"))
    widths(feed, 1)
    (incident,) = feed.open
    assert (incident.kind, incident.subject) == ("nvlink_down", OF_GPU1[0].key)
    assert "Xid 74: an NVLink error" in [e.words for e in incident.evidence]
    assert incident.sources == ("kmsg", "nvml")
    assert "n0/gpu1" in incident.affected
    for _ in range(8):
        widths(feed, 0)
    assert feed.open == []


def test_an_xid_in_the_look_in_which_the_link_goes_down_is_never_told_alone() -> None:
    feed = feed_of_rack()
    widths(feed, 0)
    feed.look(feed.event(BUS1, "xid", "NVRM: Xid 74", "74"), feed.value(OF_GPU1[0], "link.width", 0))
    assert {i.kind for i in feed.changed} == {"nvlink_down"}


def test_an_xid_alone_is_an_incident_of_its_own() -> None:
    feed = feed_of_rack()
    widths(feed, 0)
    feed.look(feed.event(BUS1, "xid", "NVRM: Xid 74", "74"))
    widths(feed, 0)
    assert [(i.kind, i.subject) for i in feed.open] == [("nvlink_errors", "n0/gpu1")]


def test_an_xid_of_long_before_is_not_part_of_it() -> None:
    feed = feed_of_rack()
    widths(feed, 0)
    feed.look(feed.event(BUS1, "xid", "NVRM: Xid 74", "74"), step_ns=30 * SECOND_NS)
    widths(feed, 1)
    assert feed.kinds() == ["nvlink_down", "nvlink_errors"]


def test_an_xid_of_another_gpu_is_not_part_of_it() -> None:
    feed = feed_of_rack()
    widths(feed, 0)
    other = next(n for n in range(4) if f"n0/gpu{n}" not in OF_GPU1[0].key)
    widths(feed, 1)
    feed.look(feed.event(Address("n0", AddressKind.PCI, f"0000:0{other}:00.0"), "xid", "NVRM: Xid 74", "74"))
    assert [i.subject for i in feed.open if i.kind == "nvlink_errors"] == [f"n0/gpu{other}"]


def test_the_error_that_was_told_before_is_closed_as_a_part() -> None:
    feed = feed_of_rack()
    widths(feed, 0)
    feed.look(feed.event(BUS1, "xid", "NVRM: Xid 74", "74"))
    widths(feed, 1)
    told = [i for i in feed.changed if i.kind == "nvlink_errors"][-1]
    assert told.state is IncidentState.CLOSED
    assert feed.open[0].id in told.words


def test_an_error_of_a_link_of_a_lost_gpu_does_not_keep_it_lost() -> None:
    feed = Feed()
    feed.look(feed.event(GPU, "xid", "NVRM: GPU has fallen off the bus.", "79"))
    feed.look(feed.event(nvlink(1), "nvlink", "NVLink 1: error"))
    assert feed.kinds() == ["gpu_lost"]
    for _ in range(4):
        feed.look(feed.value(GPU, "hw.temperature", 40), step_ns=SECOND_NS)
    assert feed.open == []
