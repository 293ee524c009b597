"""Telemetry that is silent or lies: values are held, nothing is concluded from them."""

from __future__ import annotations

import pytest

from observatory.anomalies import watch
from observatory.model.observation import Address, AddressKind
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
    for _ in range(20):
        feed.wait(0.5)
    assert [(i.kind, i.subject) for i in feed.open] == [("node_silent", "n0:node")]


@pytest.mark.parametrize("pause_seconds", [2.5, 25.0, 3600.0])
def test_a_watch_that_was_paused_itself_blames_nobody(pause_seconds: float) -> None:
    feed = Feed()

    def look() -> None:
        feed.look(feed.value(GPU, "link.width", 16))
        feed.look(feed.value(PORT, "hw.network.up", 1, "infiniband"))

    for _ in range(8):
        look()
    feed.wait(pause_seconds)
    feed.wait(0.5)  # receivers take a moment
    for _ in range(8):
        look()
    assert feed.changed == []
    for _ in range(20):
        feed.wait(0.5)
    assert [i.kind for i in feed.open] == ["node_silent"]  # who stays away afterwards is still told


def test_a_source_that_was_silent_before_the_watch_was_paused_stays_so() -> None:
    feed = Feed()
    for _ in range(4):
        feed.look(feed.value(GPU, "link.width", 16), feed.value(PORT, "hw.network.up", 1, "infiniband"))
    for _ in range(20):
        feed.look(feed.value(PORT, "hw.network.up", 1, "infiniband"))
    feed.wait(25)
    feed.look(feed.value(PORT, "hw.network.up", 1, "infiniband"))
    assert [(i.kind, i.subject) for i in feed.open] == [("telemetry_lost", "n0:nvml")]


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


def test_a_source_that_makes_up_hardware_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_SUBJECTS", 10)
    feed = Feed()
    feed.look(feed.value(GPU, "link.width.best", 16))
    feed.look(*(feed.value(Address("n0", AddressKind.PCI, str(n)), "link.width", 8) for n in range(50)))
    feed.look(feed.value(GPU, "link.width", 8))
    assert feed.kinds() == ["pcie_downtrained"]
    assert feed.watch.unheard_count == 41


def test_thousands_of_ports_that_go_down_at_once_are_told_in_one_look() -> None:
    feed = Feed()
    ports = [Address("n0", AddressKind.PORT, f"mlx5_{n}/1") for n in range(2000)]
    feed.look(*(feed.value(port, "hw.network.up", 1) for port in ports))
    assert len(feed.look(*(feed.value(port, "hw.network.up", 0) for port in ports))) == 2000
