"""Telemetry that is silent or lies: values are held, nothing is concluded from them."""

from __future__ import annotations

import pytest

from tests.anomalies.feeding import GPU, PORT, Feed


def test_a_silent_source_is_told_and_its_incidents_are_held_with_less_confidence() -> None:
    feed = Feed()
    for _ in range(4):
        feed.look(
            feed.value(GPU, "link.width.best", 16),
            feed.value(GPU, "link.width", 8),
            feed.value(PORT, "hw.network.up", 1, "infiniband"),
        )
    sure = next(i.confidence for i in feed.open if i.kind == "pcie_downtrained")
    for _ in range(40):
        feed.look(feed.value(PORT, "hw.network.up", 1, "infiniband"))
    held = next(i for i in feed.open if i.kind == "pcie_downtrained")
    assert held.confidence == pytest.approx(sure / 2)
    lost = next(i for i in feed.open if i.kind == "telemetry_lost")
    assert (lost.subject, lost.severity) == ("n0:nvml", "info")
    for _ in range(12):
        feed.look(feed.value(GPU, "link.width", 8), feed.value(PORT, "hw.network.up", 1, "infiniband"))
    assert [i.kind for i in feed.open] == ["pcie_downtrained"]
    assert feed.open[0].confidence == pytest.approx(sure)


def test_a_silent_machine_is_one_incident() -> None:
    feed = Feed()
    for _ in range(4):
        feed.look(feed.value(GPU, "link.width", 16), feed.value(PORT, "hw.network.up", 1, "infiniband"))
    feed.wait(10)
    assert [(i.kind, i.subject) for i in feed.open] == [("node_silent", "n0:node")]


def test_a_slow_source_is_not_silent() -> None:
    feed = Feed()
    for _ in range(6):
        feed.look(feed.value(GPU, "hw.temperature", 40, "redfish"), step_ns=30_000_000_000)
        feed.wait(20)
    assert feed.open == []


@pytest.mark.parametrize("value", [None, 9223372036854775794, 2147483632.0, float("nan"), 4294967295.0])
def test_blank_values_are_unknown_and_no_lies(value: float | None) -> None:
    feed = Feed()
    for _ in range(10):
        feed.look(feed.value(GPU, "link.width.best", 16), feed.value(GPU, "link.width", value))
    assert feed.open == []


@pytest.mark.parametrize(
    ("metric", "value"), [("link.width", -8), ("hw.gpu.utilization", 35), ("hw.temperature", -400), ("hw.power", 1e9)]
)
def test_values_that_cannot_be_are_told_when_they_come_often(metric: str, value: float) -> None:
    feed = Feed()
    feed.look(feed.value(GPU, metric, value))
    feed.look(feed.value(GPU, metric, value))
    assert feed.open == []
    feed.look(feed.value(GPU, metric, value))
    assert [(i.kind, i.severity) for i in feed.open] == [("telemetry_unreliable", "info")]


def test_an_event_source_may_be_silent() -> None:
    feed = Feed()
    feed.look(feed.event(GPU, "xid", "NVRM: Xid ...", "13"))
    feed.wait(60)
    assert [i.kind for i in feed.open] == ["xid"]
