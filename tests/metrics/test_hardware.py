"""Hardware series and incidents in both text formats, read by prometheus-client's parsers and promtool."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from observatory.export.status import OtlpStatus
from observatory.metrics import hardware
from observatory.metrics.book import MetricsBook
from observatory.metrics.hardware import FORGET_PERIODS, LatestValues
from observatory.metrics.hardware_names import families, label_name, prometheus_name
from observatory.metrics.incidents import IncidentSeries
from observatory.metrics.otlp import OtlpSeries
from observatory.metrics.receivers import ReceiverSeries
from observatory.model.hardware_metrics import METRICS, Instrument
from observatory.model.incident import Incident, IncidentState, Severity
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation
from observatory.receivers.status import ReceiverState, Tally
from tests.metrics.support import scrape, series_lines
from tests.peers import peer

SECOND = 1_000_000_000
GPU = Address("n0", AddressKind.PCI, "0000:3b:00.0")


class Clock:
    """CLOCK_MONOTONIC as a test moves it."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def latest(clock: Clock) -> LatestValues:
    return LatestValues(stale_seconds=60, clock_ns=clock)


def seen(metric: str, value: float | None, at: int, subject: Address = GPU, **attributes: str) -> Observation:
    named = {name.replace("__", "."): word for name, word in attributes.items()}
    return Observation(subject, metric, value, at, "nvml", named)


def book_of(latest: LatestValues) -> MetricsBook:
    book = MetricsBook()
    book.add(latest.render)
    return book


def everything(clock: Clock) -> Iterator[Observation]:
    """One value of every metric."""
    for number, metric in enumerate(METRICS.values()):
        attributes = {name: f"value-{at}" for at, name in enumerate(metric.attributes)}
        yield Observation(GPU, metric.name, number + 0.25, clock.now, "nvml", attributes)


def incident(
    name: str, kind: str = "pcie_downtrained", state: IncidentState = IncidentState.OPEN, subject: str = "n0/gpu3"
) -> Incident:
    return Incident(
        id=name,
        kind=kind,
        subject=subject,
        severity=Severity.WARNING,
        state=state,
        words="x8 of x16",
        confidence=0.8,
        sources=("nvml",),
        evidence=(),
        opened_at=1.0,
        noticed_ns=1,
    )


@pytest.mark.parametrize(
    ("metric", "name"),
    [  # as the rules of OpenTelemetry make them; the last but two of ours
        ("hw.temperature", "hw_temperature_celsius"),
        ("hw.power", "hw_power_watts"),
        ("hw.energy", "hw_energy_joules_total"),
        ("hw.errors", "hw_errors_total"),
        ("hw.status", "hw_status_ratio"),
        ("hw.gpu.utilization", "hw_gpu_utilization_ratio"),
        ("hw.gpu.memory.usage", "hw_gpu_memory_usage_bytes"),
        ("hw.gpu.io", "hw_gpu_io_bytes_total"),
        ("hw.network.bandwidth.limit", "hw_network_bandwidth_limit_bytes_per_second"),
        ("hw.network.packets", "hw_network_packets_total"),
        ("link.width", "link_width_lanes"),
        ("link.speed", "link_speed_transfers_per_second"),
        ("link.latency", "link_latency_seconds"),
        ("node.cpu.time", "node_cpu_time_seconds_total"),
        ("gpu.clock", "gpu_clock_hertz"),
    ],
)
def test_names_are_those_of_the_convention(metric: str, name: str) -> None:
    assert prometheus_name(METRICS[metric]) == name


def test_every_metric_has_a_name_of_its_own() -> None:
    assert len({family.name for family in families()}) == len(METRICS)


@pytest.mark.parametrize("openmetrics", [True, False])
def test_every_metric_is_shown_with_its_labels(latest: LatestValues, clock: Clock, openmetrics: bool) -> None:
    latest.see(everything(clock))
    found = scrape(book_of(latest), openmetrics=openmetrics)
    for number, metric in enumerate(METRICS.values()):
        labels = {label_name(name): f"value-{at}" for at, name in enumerate(metric.attributes)}
        assert found(prometheus_name(metric), node="n0", pci=GPU.key, source="nvml", **labels) == number + 0.25
        base = prometheus_name(metric).removesuffix("_total")
        assert found.kinds[base] == ("counter" if metric.instrument is Instrument.COUNTER else "gauge")


def test_promtool_has_nothing_to_say(latest: LatestValues, clock: Clock) -> None:
    latest.see(everything(clock))
    book = book_of(latest)
    series = IncidentSeries()
    series.see(incident("a"))
    book.add(series.render)
    book.add(ReceiverSeries(lambda: [Tally(last_good_ns=1).snapshot("nvml", 2, 1.0, 1.0)]).render)
    done = subprocess.run(
        [peer("promtool"), "check", "metrics"], input=book.render(False)[0], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_is_not_known_has_no_series(latest: LatestValues, clock: Clock) -> None:
    power = {"node": "n0", "pci": GPU.key, "source": "nvml"}
    latest.see([seen("hw.power", 0.0, clock.now)])
    assert scrape(book_of(latest))("hw_power_watts", **power) == 0
    for unknown in (None, float("nan"), float("inf")):
        latest.see([seen("hw.power", unknown, clock.now)])
        assert "hw_power" not in latest.render(True)
        assert latest.series() == []
        latest.see([seen("hw.power", 300, clock.now)])
        assert scrape(book_of(latest))("hw_power_watts", **power) == 300


def test_values_of_a_source_that_fell_silent_go_and_come_back(latest: LatestValues, clock: Clock) -> None:
    other = Address("n0", AddressKind.PCI, "0000:af:00.0")
    latest.see([seen("hw.power", 1, clock.now), seen("hw.power", 2, clock.now, other)])
    clock.now += 61 * SECOND
    latest.see([seen("hw.power", 3, clock.now, other)])
    assert [one.value for one in latest.series()] == [3]
    assert len(scrape(book_of(latest)).named("hw_power_watts")) == 1
    clock.now += (FORGET_PERIODS * 60 + 1) * SECOND
    latest.see([seen("hw.power", 4, clock.now, other)])
    assert [one.value for one in latest.series()] == [4]
    latest.see([seen("hw.power", 5, clock.now), seen("hw.power", 6, clock.now, other)])
    assert [one.value for one in latest.series()] == [6, 5]


def test_attributes_in_another_order_are_the_same_series(latest: LatestValues, clock: Clock) -> None:
    attributes = {"resource": "cpu", "scope": "some", "window": "10"}
    for order in (attributes, dict(reversed(attributes.items()))):
        latest.see([Observation(Address("n0", AddressKind.NODE), "node.pressure", len(order), clock.now, "psi", order)])
    (one,) = latest.series()
    assert one.attributes == (("resource", "cpu"), ("scope", "some"), ("window", "10"))
    expected = {"node": "n0", "resource": "cpu", "scope": "some", "window": "10", "source": "psi"}
    assert scrape(book_of(latest))("node_pressure_ratio", **expected) == 3


def test_two_sources_are_two_series(latest: LatestValues, clock: Clock) -> None:
    for source, value in (("nvml", 50), ("dcgm", 51)):
        latest.see([Observation(GPU, "hw.power", value, clock.now, source)])
    found = scrape(book_of(latest))
    assert found("hw_power_watts", node="n0", pci=GPU.key, source="nvml") == 50
    assert found("hw_power_watts", node="n0", pci=GPU.key, source="dcgm") == 51


def test_the_topology_names_what_addresses_mean(latest: LatestValues, clock: Clock) -> None:
    latest.see([seen("link.width", 8, clock.now)])
    latest.resolve_with(lambda address: ("device", "n0/gpu3") if address == GPU else None)
    latest.see([seen("link.width", 16, clock.now, Address("n0", AddressKind.PCI, "0000:00:00.0"))])
    found = scrape(book_of(latest))
    assert found("link_width_lanes", node="n0", pci=GPU.key, device="n0/gpu3", source="nvml") == 8
    assert found("link_width_lanes", node="n0", pci="0000:00:00.0", source="nvml") == 16
    assert [one.place for one in latest.series()] == [("device", "n0/gpu3"), None]


def test_what_is_not_ours_is_refused(latest: LatestValues, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "MAX_SERIES", 2)
    event = HardwareEvent(GPU, "xid", "GPU has fallen off the bus", clock.now, "kmsg", "79")
    latest.see([event, seen("no.such.metric", 1, clock.now)])
    latest.see([seen("hw.power", at, clock.now, Address("n0", AddressKind.GPU, f"GPU-{at}")) for at in range(4)])
    assert len(latest.series()) == 2
    assert latest.refused == 3


@settings(deadline=None, max_examples=50)
@given(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.dictionaries(st.sampled_from(["hw.state", "reason"]), st.text(st.characters(codec="utf-8"), max_size=20)),
)
def test_any_name_and_value_comes_out_as_it_went_in(key: str, value: float, attributes: dict[str, str]) -> None:
    latest = LatestValues()
    latest.see([Observation(Address("n", AddressKind.GPU, key), "hw.power", value, 2**62, "s", attributes)])
    for parse, openmetrics in ((parse_openmetrics, True), (parse_classic, False)):
        (family,) = parse(latest.render(openmetrics) + "# EOF\n")
        (sample,) = family.samples
        named = {name.replace(".", "_"): word for name, word in attributes.items()}
        assert sample.labels == {"node": "n", "gpu": key, "source": "s", **named}
        assert sample.value == value


def test_threads_may_see_and_render_at_once(clock: Clock) -> None:
    latest = LatestValues(stale_seconds=1e9, clock_ns=clock)
    failures: list[BaseException] = []

    def see(number: int) -> None:
        try:
            for turn in range(30):
                subjects = [Address(f"n{number}", AddressKind.GPU, f"{at}") for at in range(turn * 10)]
                latest.see([seen("hw.power", turn, clock.now, subject) for subject in subjects])
                series_lines(latest.render(True))
                latest.series()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=see, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(latest.series()) == 4 * 290


@pytest.mark.parametrize("openmetrics", [True, False])
def test_receivers_are_shown_as_they_fare(openmetrics: bool) -> None:
    tally = Tally(state=ReceiverState.FAILING, polls=7, failures=2, seconds=0.5, refused=Counter({"negative": 3}))
    statuses = [tally.snapshot("nvml", 5 * SECOND, 1.0, 1.0)]
    book = MetricsBook()
    book.add(ReceiverSeries(lambda: statuses).render)
    found = scrape(book, openmetrics=openmetrics)
    assert found("observatory_receiver_state", receiver="nvml", state="failing") == 1
    assert found("observatory_receiver_state", receiver="nvml", state="working") == 0
    assert found("observatory_receiver_stale", receiver="nvml") == 1
    assert found.named("observatory_receiver_age_seconds") == {}  # it has seen nothing yet
    assert found("observatory_receiver_polls_total", receiver="nvml") == 7
    assert found("observatory_receiver_failures_total", receiver="nvml") == 2
    assert found("observatory_receiver_poll_seconds_total", receiver="nvml") == 0.5
    assert found("observatory_receiver_refused_total", receiver="nvml", reason="negative") == 3
    tally.last_good_ns = 4 * SECOND
    statuses[0] = tally.snapshot("nvml", 5 * SECOND, 1.0, 1.0)
    assert scrape(book)("observatory_receiver_age_seconds", receiver="nvml") == 1
    book = MetricsBook()
    book.add(ReceiverSeries(lambda: ()).render)
    assert "receiver" not in book.render(openmetrics)[0].decode()


@pytest.mark.parametrize("openmetrics", [True, False])
def test_the_export_is_shown_as_it_stands(openmetrics: bool) -> None:
    book = MetricsBook()
    status = OtlpStatus(points_sent=7, incidents_waiting=2, exports=4, failures=3, error="Connection refused")
    book.add(OtlpSeries(lambda: status).render)
    found = scrape(book, openmetrics=openmetrics)
    assert found("observatory_otlp_failing") == 1
    assert found("observatory_otlp_points_total") == 7
    assert found("observatory_otlp_incidents_waiting") == 2
    assert (found("observatory_otlp_requests_total"), found("observatory_otlp_failures_total")) == (4, 3)
    done = subprocess.run(
        [peer("promtool"), "check", "metrics"], input=book.render(False)[0], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_incidents_are_open_until_they_are_closed() -> None:
    book, series = MetricsBook(), IncidentSeries(clock=lambda: 7.0)
    book.add(series.render)
    labels = {"kind": "pcie_downtrained", "severity": "warning"}
    assert scrape(book).named("observatory_incidents_open") == {}
    for name in ("a", "b", "a"):  # `a` has changed
        series.see(incident(name))
    found = scrape(book)
    assert found("observatory_incidents_open", subject="n0/gpu3", **labels) == 2
    assert found("observatory_incidents_total", **labels) == 2
    assert found("observatory_incidents_created", **labels) == 7
    for name in ("a", "b", "never-opened"):
        series.see(incident(name, state=IncidentState.CLOSED))
    found = scrape(book)
    assert found.named("observatory_incidents_open") == {}
    assert found("observatory_incidents_total", **labels) == 2
