"""Events that are incidents by themselves, and the tables of NVIDIA's error numbers."""

from __future__ import annotations

import pytest

from observatory.anomalies.kinds import KINDS
from observatory.anomalies.sxid import sxid_of
from observatory.anomalies.xid import XIDS, xid_of
from observatory.model.observation import Address, AddressKind
from tests.anomalies.feeding import GPU, NODE, SECOND_NS, Feed

SWITCH = Address("n0", AddressKind.PCI, "0000:86:00.0")


@pytest.mark.parametrize(
    ("code", "kind", "severity"),
    [
        ("79", "gpu_lost", "critical"),
        ("48", "ecc_uncorrectable", "critical"),
        ("94", "ecc_uncorrectable", "warning"),  # contained: one application
        ("95", "ecc_uncorrectable", "critical"),
        ("63", "row_remap_pending", "warning"),
        ("64", "row_remap_failed", "critical"),
        ("74", "nvlink_errors", "critical"),
        ("119", "xid", "critical"),
        ("13", "xid", "info"),  # the application's
        ("31", "xid", "info"),
        ("68", "xid", "warning"),  # a video decoder
        ("4711", "xid", "warning"),  # nobody knows it
        (None, "xid", "warning"),
    ],
)
def test_xids(code: str | None, kind: str, severity: str) -> None:
    feed = Feed()
    (incident,) = feed.look(feed.event(GPU, "xid", "NVRM: Xid ...", code))
    assert (incident.kind, incident.severity) == (kind, severity)
    assert incident.confidence < 1


def test_the_xid_table_is_whole() -> None:
    assert all(xid.kind in KINDS and xid.meaning and xid.mend for xid in XIDS.values())
    assert len(XIDS) > 100
    assert "catalog" in xid_of("9999999999999").mend


@pytest.mark.parametrize(
    ("code", "said", "severity"),
    [
        ("20034", None, "critical"),
        ("20001", None, "warning"),
        ("12028", None, "critical"),
        ("12028", "non-fatal", "warning"),  # the line's own word rules
        ("11001", "Fatal", "critical"),
        ("99999", None, "warning"),
        ("junk", None, "warning"),
    ],
)
def test_sxids(code: str, said: str | None, severity: str) -> None:
    assert sxid_of(code, said).severity == severity


def test_an_event_is_over_after_ten_minutes_without_it() -> None:
    feed = Feed()
    feed.look(feed.event(GPU, "xid", "NVRM: Xid ...", "119"))
    feed.wait(300)
    feed.look(feed.event(GPU, "xid", "NVRM: Xid ...", "119"))
    feed.wait(500)
    (incident,) = feed.open
    assert incident.flaps == 1
    feed.wait(101)
    assert feed.open == []


def test_a_lost_gpu_stays_lost_until_it_gives_values_again() -> None:
    feed = Feed()
    feed.look(feed.event(GPU, "xid", "NVRM: GPU has fallen off the bus.", "79"))
    feed.wait(3600)
    assert feed.kinds() == ["gpu_lost"]
    for _ in range(3):
        feed.look(feed.value(GPU, "hw.temperature", 40), step_ns=SECOND_NS)
    assert feed.open == []


@pytest.mark.parametrize(
    ("kind", "code", "found"),
    [
        ("gpu_lost", None, "gpu_lost"),
        ("panic", None, "kernel_panic"),
        ("aer", "fatal", "aer_fatal"),
        ("dpc", None, "aer_fatal"),
        ("edac", "ue", "memory_poison"),
        ("mce", "uncorrected", "processor_error"),
        ("mce", "corrected", "processor_corrected"),
        ("memory_failure", "failed", "memory_poison"),
        ("thermal", None, "processor_throttled"),
        ("rdma", "health", "rdma_card"),
        ("gpu_driver", "peermem", "driver_error"),
        ("inforom", None, "inforom_corrupted"),
    ],
)
def test_what_the_kernel_says(kind: str, code: str | None, found: str) -> None:
    feed = Feed()
    feed.look(feed.event(GPU if kind == "gpu_lost" else NODE, kind, "words of the kernel", code))
    assert feed.kinds() == [found]


def test_events_that_tell_of_no_trouble() -> None:
    feed = Feed()
    for kind, code in (("pcie_link", "limited"), ("pcie_link", "up"), ("interface", "up"), ("firmware", "info")):
        feed.look(feed.event(NODE, kind, "words", code))
    feed.look(feed.event(NODE, "never_heard_of", "words"))
    assert feed.open == []


def test_a_switch_error_names_the_switch() -> None:
    feed = Feed()
    (incident,) = feed.look(feed.event(SWITCH, "sxid", "detected NVSwitch", "12028", severity="non-fatal"))
    assert (incident.kind, incident.subject, incident.severity) == ("sxid", "n0:pci:0000:86:00.0", "warning")


def test_equal_words_of_one_source_are_one_line_of_evidence_with_a_count() -> None:
    feed = Feed()
    for code in ("31", "31", "13", "31"):
        feed.look(feed.event(GPU, "xid", "NVRM: Xid ...", code))
    (incident,) = feed.open
    assert [e.words for e in incident.evidence] == [
        "Xid 31: a page fault of GPU memory (x3)",
        "Xid 13: an exception of the graphics or compute engine",
    ]


@pytest.mark.parametrize(
    "text", ["NVML: GPU 3 (GPU-bd0b1c2d) is lost", "NVRM: GPU at PCI:0000:3b:00: fallen off the bus"]
)
def test_a_lost_gpu_is_told_in_plain_words(text: str) -> None:
    feed = Feed()
    (incident,) = feed.look(feed.event(GPU, "gpu_lost", text))
    assert incident.words == ("the GPU has fallen off the bus" if "bus" in text else "the GPU is lost")


@pytest.mark.parametrize(
    ("codes", "headline"),
    [
        (("119", "13", "31"), "119"),  # critical, then two that are information
        (("13", "119", "109"), "119"),  # of two that are as bad the first: what comes after it follows from it
        (("31", "68", "13"), "68"),
    ],
)
def test_of_several_xids_the_worst_is_the_headline(codes: tuple[str, ...], headline: str) -> None:
    feed = Feed()
    for code in codes:
        feed.look(feed.event(GPU, "xid", "NVRM: Xid ...", code), step_ns=5 * SECOND_NS)
    (incident,) = feed.open
    assert incident.words.startswith(f"Xid {headline}:")
    assert incident.severity == xid_of(headline).severity
    assert len(incident.evidence) == len(codes)


def test_of_several_xids_of_one_look_the_worst_is_the_headline() -> None:
    feed = Feed()
    feed.look(*(feed.event(GPU, "xid", "NVRM: Xid ...", code) for code in ("31", "119", "109", "13")))
    assert feed.open[0].words.startswith("Xid 119:")
