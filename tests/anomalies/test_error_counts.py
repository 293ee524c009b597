"""Error counters that grow: surges, storms, losses; and resets, wraps and sentinels that are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized

import pytest

from observatory.anomalies.detectors.error_counts import ErrorCounts
from observatory.anomalies.error_types import ErrorFamily, family_of
from observatory.anomalies.subjects import PlainSubjects
from observatory.model.observation import Address, AddressKind
from tests.anomalies.feeding import GPU, PORT, Feed, nvlink

MEMORY = Address("n0", AddressKind.MEMORY, "mem0")


class Bundle(PlainSubjects):
    """All NVLinks are one link of the topology."""

    def name(self, address: Address, attributes: Mapping[str, str] | None = None) -> str:
        return "n0/gpu0--n0/nvswitch0:nvlink" if address.kind is AddressKind.NVLINK else str(address)


def packet_windows(feed: Feed) -> Iterable[Sized]:
    (detector,) = (one for one in feed.watch._detectors if isinstance(one, ErrorCounts))
    return detector._packet_windows.values()


def grow(feed: Feed, subject: Address, name: str, *values: float | None, metric: str = "hw.errors") -> None:
    for value in values:
        feed.look(feed.value(subject, metric, value, error__type=name))


@pytest.mark.parametrize(
    ("subject", "metric", "name", "by", "kind"),
    [
        (GPU, "hw.errors", "ecc_uncorrected", 1, "ecc_uncorrectable"),
        (GPU, "hw.errors", "ecc_corrected", 50, "ecc_surge"),
        (GPU, "link.errors", "aer_corrected", 100, "aer_storm"),
        (GPU, "link.errors", "aer_fatal", 1, "aer_fatal"),
        (MEMORY, "hw.errors", "corrected", 40, "memory_error_surge"),
        (MEMORY, "hw.errors", "uncorrected", 1, "memory_poison"),
        (PORT, "link.errors", "out_of_sequence", 100, "rdma_loss"),
        (PORT, "link.errors", "local_ack_timeout_err", 100, "rdma_loss"),
        (PORT, "link.errors", "symbol", 100, "port_errors"),
    ],
)
def test_growth_is_an_incident_and_a_first_look_is_none(
    subject: Address, metric: str, name: str, by: float, kind: str
) -> None:
    feed = Feed()
    grow(feed, subject, name, 1_000_000, metric=metric)
    assert feed.open == []
    grow(feed, subject, name, 1_000_000 + by, metric=metric)
    assert feed.kinds() == [kind]


@pytest.mark.parametrize(
    "values",
    [
        (5, 5, 5, 5),
        (1_000_000, 0, 0, 0),  # a reset
        (1_000_000, 3, 3, 3),
        (5, 9223372036854775794, 5, 5),  # NVML's blank value
        (5, -1, 5, 5),
        (5, None, 5, 5),
        (5, 10**15, 5, 5),  # a misreading
        (5, 18446744073709551615, 5),
    ],
)
def test_what_looks_like_growth_and_is_none(values: tuple[float | None, ...]) -> None:
    feed = Feed()
    grow(feed, GPU, "ecc_uncorrected", *values)
    assert feed.kinds() == []


def test_a_counter_that_wraps_goes_on() -> None:
    feed = Feed()
    grow(feed, GPU, "aer_corrected", 2.0**32 - 10, 90, metric="link.errors")
    (incident,) = feed.open
    assert incident.words.startswith("100 errors in 60 s")


def test_loss_is_judged_against_the_packets() -> None:
    def errors_of(packets: float) -> list[str]:
        feed = Feed()
        for number in range(2):
            feed.look(
                feed.value(PORT, "link.errors", number * 20, error__type="out_of_sequence"),
                feed.value(PORT, "hw.network.packets", number * packets, network__io__direction="receive"),
            )
        return feed.kinds()

    assert errors_of(1e4) == ["rdma_loss"]  # 0.2 %
    assert errors_of(1e9) == []  # 2e-8


def test_loss_is_over_ten_seconds_after_the_counters_are_flat() -> None:
    feed = Feed()
    grow(feed, PORT, "out_of_sequence", 0, 100, metric="link.errors")
    grow(feed, PORT, "out_of_sequence", *[100.0] * 39, metric="link.errors")  # 9.75 s
    assert feed.kinds() == ["rdma_loss"]
    grow(feed, PORT, "out_of_sequence", *[100.0] * 6, metric="link.errors")
    assert feed.open == []


def test_a_root_port_counts_once_more_what_a_device_reports() -> None:
    feed = Feed()
    grow(feed, GPU, "aer_root_corrected", 0, 1000, metric="link.errors")
    assert feed.open == []


def test_corrected_errors_in_a_log_are_counted() -> None:
    feed = Feed()
    feed.look(*(feed.event(GPU, "aer", "RxErr", "corrected", report="device") for _ in range(59)))
    assert feed.open == []
    feed.look(*(feed.event(GPU, "aer", "RxErr", "corrected", report="device") for _ in range(2)))
    assert feed.kinds() == ["aer_storm"]


@pytest.mark.parametrize(
    ("metric", "name", "kind", "family"),
    [
        ("link.errors", "packet_seq_err", AddressKind.PORT, ErrorFamily.RDMA_LOSS),
        ("link.errors", "rnr_nak_retry", AddressKind.PORT, ErrorFamily.OTHER),  # a slow consumer
        ("link.errors", "out_of_buffer", AddressKind.PORT, ErrorFamily.OTHER),
        ("link.errors", "BadTLP", AddressKind.PCI, ErrorFamily.AER_CORRECTABLE),
        ("link.errors", "aer_nonfatal", AddressKind.PCI, ErrorFamily.AER_NONFATAL),
        ("link.errors", "crc", AddressKind.NVLINK, ErrorFamily.NVLINK_ERROR),
        ("link.errors", "recovery", AddressKind.NVLINK, ErrorFamily.NVLINK_FATAL),
        ("hw.errors", "ce_count", AddressKind.MEMORY, ErrorFamily.MEMORY_CORRECTABLE),
        ("hw.errors", "poison", AddressKind.MEMORY, ErrorFamily.MEMORY_UNCORRECTABLE),
    ],
)
def test_names_of_errors(metric: str, name: str, kind: AddressKind, family: ErrorFamily) -> None:
    assert family_of(metric, name, kind) is family


def test_links_of_one_bundle_have_counters_of_their_own() -> None:
    """A GPU's eighteen NVLinks are one link of the topology; old counts that differ are no growth."""
    feed = Feed(Bundle())
    for _ in range(40):
        links = [nvlink(number) for number in range(3)]
        values = zip(links, (12.0, 0.0, 3.0), strict=True)
        assert (
            feed.look(*(feed.value(link, "link.errors", count, error__type="replay") for link, count in values)) == []
        )


def test_packets_are_remembered_for_the_window_only() -> None:
    feed = Feed()
    for look in range(2000):
        feed.look(feed.value(PORT, "hw.network.packets", look * 1e6, "infiniband", network__io__direction="transmit"))
    assert max(map(len, packet_windows(feed))) <= 41, "ten seconds at four looks a second"


def test_a_nonfatal_error_is_a_warning() -> None:
    feed = Feed()
    feed.look(feed.value(GPU, "link.errors", 0, "sysfs-pcie", error__type="aer_nonfatal"))
    (found,) = feed.look(feed.value(GPU, "link.errors", 1, "sysfs-pcie", error__type="aer_nonfatal"))
    assert (found.kind, found.severity) == ("aer_fatal", "warning")
