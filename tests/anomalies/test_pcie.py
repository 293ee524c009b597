"""PCI Express links below their best: under load, with hysteresis, and never for an idle GPU that saves power."""

from __future__ import annotations

from observatory.model.observation import Observation
from tests.anomalies.feeding import DISK, GPU, Feed, opened

GEN1, GEN4 = 2.5e9, 16e9


def gpu(feed: Feed, *, width: float = 16, speed: float = GEN4, busy: float = 0.9) -> list[Observation]:
    return [
        feed.value(GPU, "hw.gpu.utilization", busy, hw__gpu__task="general"),
        feed.value(GPU, "link.width.best", 16),
        feed.value(GPU, "link.speed.best", GEN4),
        feed.value(GPU, "link.width", width),
        feed.value(GPU, "link.speed", speed),
    ]


def test_an_idle_gpu_at_2_5_gigatransfers_is_well() -> None:
    feed = Feed()
    for _ in range(20):
        feed.look(*gpu(feed, speed=GEN1, busy=0.0))
    assert feed.open == []


def test_a_slow_link_under_load_is_told_after_the_second_look() -> None:
    feed = Feed()
    feed.look(*gpu(feed))
    assert feed.look(*gpu(feed, speed=GEN1)) == []
    (incident,) = feed.look(*gpu(feed, speed=GEN1))
    assert (incident.kind, incident.subject) == ("pcie_downtrained", "n0:pci:0000:3b:00.0")
    assert incident.words == "the link runs at 2.5 of 16 GT/s under load"
    assert (incident.evidence[0].value, incident.evidence[0].expected) == (GEN1, GEN4)
    assert incident.confidence < 1


def test_a_link_that_slowed_down_while_idle_is_told_when_the_load_begins() -> None:
    """Though nothing is told of its speed again, which did not change."""
    feed = Feed()
    feed.look(*gpu(feed, speed=GEN1, busy=0.0))
    for busy in (0.0, 0.5, 0.9):
        feed.look(feed.value(GPU, "hw.gpu.utilization", busy, hw__gpu__task="general"))
    assert feed.kinds() == ["pcie_downtrained"]


def test_a_best_that_is_told_later_counts() -> None:
    feed = Feed()
    feed.look(feed.value(DISK, "link.width", 2))
    feed.look(feed.value(DISK, "link.width.best", 4))
    assert feed.kinds() == ["pcie_downtrained"]


def test_a_link_that_wakes_up_is_well() -> None:
    feed = Feed()
    feed.look(*gpu(feed, speed=GEN1, busy=0.0))
    feed.look(*gpu(feed, speed=GEN1))
    for _ in range(5):
        feed.look(*gpu(feed))
    assert feed.changed == []


def test_a_slow_link_stays_told_when_the_load_ends_and_is_over_at_full_speed() -> None:
    feed = Feed()
    for _ in range(3):
        feed.look(*gpu(feed, speed=GEN1))
    for _ in range(30):
        feed.look(*gpu(feed, speed=GEN1, busy=0.0))
    assert feed.kinds() == ["pcie_downtrained"]
    for _ in range(8):
        feed.look(*gpu(feed))
    assert feed.open == []


def test_a_narrow_link_is_told_at_once_x16_to_x8() -> None:
    feed = Feed()
    feed.look(*gpu(feed))
    (incident,) = feed.look(*gpu(feed, width=8))
    assert incident.words == "the link runs at x8 of x16"


def test_a_narrow_link_at_full_speed_is_told_of_an_idle_gpu_too() -> None:
    feed = Feed()
    assert opened(feed.look(*gpu(feed, width=8, busy=0.0))) == [("pcie_downtrained", "n0:pci:0000:3b:00.0")]


def test_a_narrow_and_slow_link_of_an_idle_gpu_may_save_power() -> None:
    feed = Feed()
    for _ in range(10):
        feed.look(*gpu(feed, width=8, speed=GEN1, busy=0.0))
    assert feed.open == []


def test_a_disk_of_whose_load_nothing_is_told_is_judged_by_its_width() -> None:
    feed = Feed()
    feed.look(feed.value(DISK, "link.width.best", 4), feed.value(DISK, "link.width", 2))
    assert feed.kinds() == ["pcie_downtrained"]


def test_bytes_that_cross_the_link_are_load() -> None:
    feed = Feed()
    for number in range(4):
        feed.look(
            feed.value(DISK, "link.io", number * 1e9, "sysfs", network__io__direction="receive"),
            feed.value(DISK, "link.speed.best", GEN4, "sysfs"),
            feed.value(DISK, "link.speed", 8e9, "sysfs"),
        )
    assert feed.kinds() == ["pcie_downtrained"]


def test_an_empty_slot_and_a_dead_card_are_no_matter_of_width() -> None:
    feed = Feed()
    feed.look(feed.value(DISK, "link.width.best", 4), feed.value(DISK, "link.width", 0))
    feed.look(feed.value(DISK, "link.width", None))
    assert feed.open == []


def test_a_second_source_makes_it_surer_and_a_contradiction_less_sure() -> None:
    alone = Feed()
    alone.look(alone.value(GPU, "link.width.best", 16), alone.value(GPU, "link.width", 8))
    both = Feed()
    both.look(
        both.value(GPU, "link.width.best", 16),
        both.value(GPU, "link.width", 8),
        both.value(GPU, "link.width", 8, "sysfs-pcie"),
    )
    against = Feed()
    against.look(
        against.value(GPU, "link.width.best", 16),
        against.value(GPU, "link.width", 16, "sysfs-pcie"),
        against.value(GPU, "link.width", 8),
    )
    against_later = Feed()
    against_later.look(against_later.value(GPU, "link.width.best", 16), against_later.value(GPU, "link.width", 8))
    against_later.look(against_later.value(GPU, "link.width", 16, "sysfs-pcie"))
    assert against_later.open[0].confidence == against.open[0].confidence
    sure = [feed.open[0].confidence for feed in (against, alone, both)]
    assert sure == sorted(sure)
    assert len(set(sure)) == 3
    assert both.open[0].sources == ("nvml", "sysfs-pcie")
    assert sure[-1] < 1
