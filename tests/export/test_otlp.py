"""Series and incidents over OTLP: through Rotel and back, and with collectors that are not there, refuse or hang."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import Gauge, NumberDataPoint, Sum

from observatory.export import otlp
from observatory.export.otlp import OtlpExport
from observatory.export.otlp_metrics import MetricsEncoder
from observatory.export.settings import OtlpSettings
from observatory.metrics.hardware import LatestValues, Series
from observatory.model.hardware_metrics import METRICS
from observatory.model.incident import Evidence, Incident, IncidentState, Severity
from observatory.model.observation import Address, AddressKind, Observation
from tests.export.collector import LATER, Sink, free_port, rotel, sink, until

GPU = Address("n0", AddressKind.PCI, "0000:3b:00.0")
ETHERNET = Address("n1", AddressKind.INTERFACE, "eth0")
SECOND = 1_000_000_000


def incident(name: str = "i1", state: IncidentState = IncidentState.OPEN) -> Incident:
    evidence = Evidence(
        at_ns=5, source="nvml", subject="n0/gpu3", words="8 of 16 lanes", metric="link.width", value=8.0, expected=16.0
    )
    return Incident(
        id=name,
        kind="pcie_downtrained",
        subject="n0/gpu3",
        severity=Severity.CRITICAL,
        state=state,
        words="PCIe link of n0/gpu3 runs at x8",
        confidence=0.75,
        sources=("nvml", "sysfs-pcie"),
        affected=("n0/nic1",),
        evidence=(evidence,),
        opened_at=1_700_000_000.5,
        closed_at=None if state is IncidentState.OPEN else 1_700_000_100.0,
        noticed_ns=7,
        mend="reseat the card",
    )


def observed() -> LatestValues:
    latest = LatestValues(resolve=lambda address: ("device", "n0/gpu3") if address == GPU else None)
    now = time.monotonic_ns()
    latest.see(
        [
            Observation(GPU, "hw.temperature", 61.5, now, "nvml", {"hw.sensor_location": "gpu"}),
            Observation(GPU, "link.width", None, now, "nvml"),
            Observation(ETHERNET, "link.io", 2**53 + 2, now, "ebpf-links", {"network.io.direction": "transmit"}),
        ]
    )
    return latest


@contextmanager
def export(
    endpoint: str, latest: LatestValues, *, interval: float = 0.05, timeout: float = 10.0, **headers: str
) -> Iterator[OtlpExport]:
    settings = OtlpSettings(endpoint, headers, interval, timeout)
    made = OtlpExport(settings, latest.series, "n0", "1.2.3")
    made.start()
    try:
        yield made
    finally:
        made.stop(LATER)


def test_what_is_sent_comes_through_a_collector(tmp_path: Path) -> None:
    with sink() as (kept, behind), rotel(behind, tmp_path) as endpoint, export(endpoint, observed()) as made:
        made.incident(incident())
        made.incident(incident(state=IncidentState.CLOSED))
        until(lambda: len(kept.records) == 2 and kept.points("link.io") != [] and kept.points("hw.temperature") != [])
        assert made.status().error is None
    check_series(kept)
    check_records(kept)


def check_series(kept: Sink) -> None:
    resource, attributes, point = kept.points("hw.temperature")[0]
    assert resource["host.name"] == "n0"
    assert resource["service.name"] == "media-observatory"
    assert resource["service.version"] == "1.2.3"
    assert attributes == {
        "hw.id": "n0/gpu3",
        "hw.name": "0000:3b:00.0",
        "hw.parent": "n0",
        "hw.type": "gpu",
        "hw.sensor_location": "gpu",
        "observatory.source": "nvml",
    }
    assert point.as_double == 61.5
    assert abs(point.time_unix_nano - time.time_ns()) < 60 * SECOND
    resource, attributes, point = kept.points("link.io")[0]
    assert resource["host.name"] == "n1"
    assert attributes["hw.id"] == "n1:interface:eth0"
    assert attributes["hw.type"] == "network"
    assert point.as_int == 2**53 + 2
    assert kept.points("link.width") == []  # not known
    (metric,) = {metric.name: metric for _, metric in kept.metrics if metric.name == "link.io"}.values()
    assert (metric.unit, metric.sum.is_monotonic) == ("By", True)


def check_records(kept: Sink) -> None:
    (resource, opened), (_, closed) = kept.records
    assert resource["host.name"] == "n0"
    assert opened.event_name == "observatory.incident.opened"
    assert (opened.severity_number, opened.severity_text) == (17, "critical")  # ERROR
    assert opened.time_unix_nano == 1_700_000_000_500_000_000
    found = {pair.key: pair.value for pair in opened.attributes}
    assert found["hw.id"].string_value == "n0/gpu3"
    assert found["incident.kind"].string_value == "pcie_downtrained"
    assert found["incident.confidence"].double_value == 0.75
    assert [one.string_value for one in found["incident.sources"].array_value.values] == ["nvml", "sysfs-pcie"]
    body = {pair.key: pair.value for pair in opened.body.kvlist_value.values}
    assert body["words"].string_value == "PCIe link of n0/gpu3 runs at x8"
    assert body["mend"].string_value == "reseat the card"
    (evidence,) = body["evidence"].array_value.values
    said = {pair.key: pair.value for pair in evidence.kvlist_value.values}
    assert said["metric"].string_value == "link.width"
    assert (said["value"].double_value, said["expected"].double_value) == (8.0, 16.0)
    assert closed.event_name == "observatory.incident.closed"
    assert closed.severity_number == 9  # INFO
    assert closed.time_unix_nano == 1_700_000_100_000_000_000


def test_headers_go_along_and_large_sets_in_pieces() -> None:
    latest = LatestValues()
    now = time.monotonic_ns()
    subjects = [Address(f"n{at % 7}", AddressKind.GPU, f"GPU-{at}") for at in range(6_000)]
    latest.see([Observation(subject, "hw.power", 300.0, now, "nvml") for subject in subjects])
    with sink() as (kept, endpoint), export(endpoint, latest, Authorization="Bearer secret") as made:
        until(lambda: made.status().points_sent >= 6_000)
    keys = {(resource["host.name"], attributes["hw.id"]) for resource, attributes, _ in kept.points("hw.power")}
    assert len(keys) == 6_000
    assert all(headers["authorization"] == "Bearer secret" for headers in kept.headers)
    assert max(kept.requests) < 4 << 20


def test_a_collector_that_is_not_there_is_said_once_and_incidents_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "_RETRY_SECONDS", 0.02)
    caplog.set_level(logging.WARNING)
    with export(f"http://127.0.0.1:{free_port()}", observed(), timeout=0.1) as made:
        made.incident(incident())
        until(lambda: made.status().failures >= 4)
        status = made.status()
        assert status.incidents_waiting == 1
        assert status.error is not None
        assert "Connection refused" in status.error
    (said,) = caplog.records
    assert said.name == "observatory.export"
    assert "Connection refused" in said.getMessage()


def test_what_waited_is_sent_when_the_collector_takes_it_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "_RETRY_SECONDS", 0.02)
    with sink() as (kept, endpoint), export(endpoint, observed(), timeout=0.1) as made:
        kept.status = 503
        made.incident(incident("a"))
        made.incident(incident("b"))
        until(lambda: made.status().failures >= 2)
        kept.status = 200
        until(lambda: made.status().incidents_sent == 2 and made.status().error is None)
        names = [next(p.value.string_value for p in r.attributes if p.key == "incident.id") for _, r in kept.records]
        assert names == ["a", "b"]
    assert "takes what is sent again" in caplog.text


def test_what_a_collector_will_never_take_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_RETRY_SECONDS", 0.02)
    with sink() as (kept, endpoint), export(endpoint, LatestValues(), interval=LATER) as made:
        kept.status, kept.words = 400, b"no such tenant"
        made.incident(incident("a"))
        until(lambda: made.status().incidents_dropped == 1)
        assert made.status().error == "answers 400 Bad Request: no such tenant"
        assert made.status().incidents_waiting == 0
        kept.status = 200
        made.incident(incident("b"))
        until(lambda: made.status().incidents_sent == 1)
        assert made.status().error is None


def test_what_a_collector_rejects_of_a_request_is_counted() -> None:
    with sink() as (kept, endpoint), export(endpoint, observed(), interval=0.01) as made:
        kept.rejects = 1
        made.incident(incident())
        until(lambda: made.status().points_rejected >= 2 and made.status().incidents_dropped == 1)
        status = made.status()
    assert status.points_sent == status.points_rejected  # one of two each time
    assert status.incidents_sent == 0
    assert status.error is None


def test_an_address_that_is_none_ends_nothing() -> None:
    with export("http://[", observed(), interval=0.01) as made:
        until(lambda: made.status().failures >= 2)
        assert made.status().error is not None


def test_the_queue_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MOST_WAITING", 3)
    made = OtlpExport(OtlpSettings(f"http://127.0.0.1:{free_port()}"), list, "n0", "1")
    for number in range(5):
        made.incident(incident(str(number)))
    status = made.status()
    assert (status.incidents_waiting, status.incidents_dropped) == (3, 2)
    assert made.stop()


def test_nobody_waits_for_a_collector_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = OtlpExport(
            OtlpSettings(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=LATER), list, "n0", "1"
        )
        made.start()
        made.incident(incident())
        connection, _ = silent.accept()  # it sends now, and waits for an answer
        with connection:
            made.incident(incident())
            assert made.status().incidents_waiting == 2
            assert made.stop(0.1) is False
        # The connection is gone, and with it the thread's reason to stay.
    assert made.stop(LATER)


def test_a_failure_of_our_own_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Sequence[Series]:
        raise ValueError("a broken source")

    with sink() as (_, endpoint):
        made = OtlpExport(OtlpSettings(endpoint, interval_seconds=0.02), broken, "n0", "1")
        made.start()
        until(lambda: made.status().failures >= 3)
        assert made.status().error == "ValueError: a broken source"
        assert made.stop(LATER)
    assert caplog.text.count("a broken source") == 1


def test_a_counter_that_is_reset_begins_anew() -> None:
    encoder = MetricsEncoder("1", lambda: 1000)

    def point(value: float, at: int) -> NumberDataPoint:
        one = Series(METRICS["link.errors"], GPU, None, (("error.type", "replay"),), "nvml", value, at)
        (resource,) = encoder.encode([one]).resource_metrics
        data = resource.scope_metrics[0].metrics[0].data
        assert isinstance(data, Sum)
        return data.data_points[0]

    points = [point(value, at) for value, at in ((5, 10), (7, 20), (1, 30), (2, 40))]
    assert [(p.start_time_unix_nano, p.time_unix_nano, p.value) for p in points] == [
        (1010, 1010, 5),
        (1010, 1020, 7),
        (1020, 1030, 1),
        (1020, 1040, 2),
    ]


def test_values_are_of_the_metrics_kind() -> None:
    node = Address("n0", AddressKind.NODE)
    attributes = (("cpu.logical_number", "3"), ("cpu.mode", "softirq"))
    all_series = [
        Series(METRICS["node.cpu.time"], node, None, attributes, "ebpf-links", 2.5, 10),
        Series(METRICS["link.width"], GPU, ("link", "l7"), (), "nvml", 8, 10),
    ]
    (resource,) = MetricsEncoder("1", lambda: 0).encode(all_series).resource_metrics
    time_, width = resource.scope_metrics[0].metrics
    assert isinstance(time_.data, Sum)
    assert isinstance(width.data, Gauge)
    assert time_.data.data_points[0].value == 2.5
    assert dict(time_.data.data_points[0].attributes or {}) == {
        "cpu.logical_number": 3,
        "cpu.mode": "softirq",
        "observatory.source": "ebpf-links",
    }
    assert (width.data.data_points[0].attributes or {})["hw.id"] == "l7"
    assert isinstance(width.data.data_points[0].value, float)
