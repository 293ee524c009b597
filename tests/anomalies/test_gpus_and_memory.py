"""Clocks that are held back, memory that tasks wait for, hardware that says that it failed."""

from __future__ import annotations

import pytest

from observatory.model.observation import Address, AddressKind
from tests.anomalies.feeding import GPU, NODE, Feed


@pytest.mark.parametrize(
    "reason", ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "thermal"]
)
def test_heat_and_power_brakes_are_troubles(reason: str) -> None:
    feed = Feed()
    feed.look(feed.value(GPU, "gpu.throttled", 1, reason=reason))
    assert feed.kinds() == ["gpu_throttled"]
    for _ in range(12):
        feed.look(feed.value(GPU, "gpu.throttled", 0, reason=reason))
    assert feed.open == []


@pytest.mark.parametrize("reason", ["gpu_idle", "applications_clocks_setting", "sync_boost", "sw_power_cap"])
def test_reasons_that_are_no_troubles(reason: str) -> None:
    feed = Feed()
    for _ in range(5):
        feed.look(feed.value(GPU, "gpu.throttled", 1, reason=reason))
    assert feed.open == []


def test_a_clock_lock_is_seen_under_load_only() -> None:
    def clocks(feed: Feed, busy: float, *megahertz: float) -> list[str]:
        for clock in megahertz:
            feed.look(
                feed.value(GPU, "gpu.clock", clock * 1e6, gpu__clock__domain="sm"),
                feed.value(GPU, "hw.gpu.utilization", busy, hw__gpu__task="general"),
            )
        return feed.kinds()

    feed = Feed()
    assert clocks(feed, 0.9, 1980, 1980, 1965) == []
    assert clocks(feed, 0.0, 345, 345, 345) == []
    assert clocks(feed, 0.9, 900) == []
    assert clocks(feed, 0.9, 900) == ["gpu_throttled"]
    assert feed.open[0].confidence < 0.7
    assert clocks(feed, 0.9, *[1980] * 12) == []


def test_reasons_that_end_in_one_look() -> None:
    feed = Feed()
    for engaged in (1, 0):
        feed.look(
            feed.value(GPU, "gpu.throttled", engaged, reason="hw_slowdown"),
            feed.value(GPU, "gpu.throttled", engaged, reason="hw_thermal"),
        )
    for _ in range(12):
        feed.look(feed.value(GPU, "gpu.throttled", 0, reason="hw_slowdown"))
    assert feed.open == []


def pressure(feed: Feed, share: float, **more: str) -> None:
    feed.look(
        feed.value(NODE, "node.pressure", share, "pressure", resource="memory", scope="full", window="10", **more)
    )


def test_memory_pressure_has_hysteresis() -> None:
    feed = Feed()
    pressure(feed, 0.09)
    assert feed.open == []
    pressure(feed, 0.12)
    assert feed.kinds() == ["memory_pressure"]
    for _ in range(40):
        pressure(feed, 0.07)  # between the two limits
    assert feed.kinds() == ["memory_pressure"]
    for _ in range(24):
        pressure(feed, 0.0)
    assert feed.open == []


def test_pressure_of_one_control_group_or_of_processors_is_none_of_the_machine() -> None:
    feed = Feed()
    pressure(feed, 0.9, cgroup="/video")
    feed.look(feed.value(NODE, "node.pressure", 0.9, "pressure", resource="cpu", scope="full", window="10"))
    feed.look(feed.value(NODE, "node.pressure", 0.9, "pressure", resource="memory", scope="some", window="10"))
    assert feed.open == []


def test_pages_from_the_wrong_numa_node() -> None:
    numa = Address("n0", AddressKind.NUMA, "0")
    feed = Feed()
    for number in range(4):
        feed.look(feed.value(numa, "numa.allocations", number * 100_000, "numa", numa__kind="miss"))
    assert feed.kinds() == ["numa_misplaced"]


def test_a_part_that_says_that_it_failed_and_is_replaced() -> None:
    fans = Address("n0", AddressKind.DEVICE, "n0/fans")
    feed = Feed()
    feed.look(feed.value(fans, "hw.status", 1, "ibswinfo", hw__state="failed"))
    assert feed.kinds() == ["component_failed"]
    for _ in range(6):
        feed.look(feed.value(fans, "hw.status", 0, "ibswinfo", hw__state="failed"))
    assert feed.open == []


def test_a_gpu_that_its_library_calls_lost() -> None:
    feed = Feed()
    gpu = Address("n0", AddressKind.GPU, "GPU-1")
    feed.look(feed.value(gpu, "hw.status", 1, hw__state="failed"))
    assert feed.kinds() == ["gpu_lost"]
