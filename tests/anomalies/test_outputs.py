"""Incidents as JSON, OpenTelemetry log records and Prometheus samples; and the table of kinds."""

from __future__ import annotations

import json
from pathlib import Path

from observatory.anomalies.kinds import KINDS, kind_named
from observatory.anomalies.outputs import (
    IncidentCounts,
    confidence_samples,
    incidents_document,
    log_record,
    open_samples,
    opened_samples,
)
from observatory.anomalies.reference import reference
from tests.anomalies.feeding import GPU, PORT, Feed


def feed_with_troubles() -> Feed:
    feed = Feed()
    feed.look(feed.value(GPU, "link.width.best", 16), feed.value(GPU, "link.width", 8))
    feed.look(feed.value(PORT, "hw.network.up", 1), feed.event(GPU, "xid", "NVRM: Xid", "119"))
    feed.look(feed.value(PORT, "hw.network.up", 0))
    return feed


def test_the_document_is_json_and_counts_what_is_open() -> None:
    document = json.loads(json.dumps(incidents_document(feed_with_troubles().open), allow_nan=False))
    assert document["open"] == {"info": 0, "warning": 1, "critical": 2}
    assert [i["kind"] for i in document["incidents"]] == ["link_down", "xid", "pcie_downtrained"]
    assert document["incidents"][2]["evidence"][0]["expected"] == 16


def test_a_log_record_has_names_of_opentelemetry() -> None:
    feed = feed_with_troubles()
    xid = next(i for i in feed.open if i.kind == "xid")
    record = log_record(xid, observed_unix_ns=5)
    assert (record.event_name, record.severity_number, record.severity_text) == ("hw.incident", 17, "ERROR")
    assert record.attributes["hw.id"] == "n0:pci:0000:3b:00.0"
    assert record.attributes["hw.state"] == "failed"
    assert record.attributes["incident.mend"] == "reset the GPU"
    assert all(isinstance(v, str | int | float | list) for v in record.attributes.values())
    assert "Xid 119" in record.body


def test_a_closed_incident_is_a_record_that_says_ok() -> None:
    feed = feed_with_troubles()
    for _ in range(10):
        feed.look(feed.value(PORT, "hw.network.up", 1))
    closed = [i for i in feed.changed if i.state == "closed" and i.kind == "link_down"][-1]
    record = log_record(closed, observed_unix_ns=5)
    assert record.attributes["hw.state"] == "ok"
    assert record.time_unix_ns == int((closed.closed_at or 0) * 1e9)


def test_samples_for_prometheus() -> None:
    feed, counts = feed_with_troubles(), IncidentCounts()
    counts.note(feed.changed)
    counts.note(feed.changed)
    assert (("xid", "n0:pci:0000:3b:00.0", "critical"), 1.0) in open_samples(feed.open)
    assert dict(confidence_samples(feed.open))["xid", "n0:pci:0000:3b:00.0"] < 1
    assert opened_samples(counts) == [
        (("link_down", "critical"), 1.0), (("pcie_downtrained", "warning"), 1.0), (("xid", "critical"), 1.0),
    ]  # fmt: skip


def test_every_kind_says_what_it_means_and_what_to_do() -> None:
    for name, kind in KINDS.items():
        assert kind_named(name) is kind
        assert kind.meaning.endswith(".")
        assert kind.mend
        assert kind.hold_seconds > 0


def test_the_reference_is_up_to_date() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "incident-kinds.md"
    assert page.read_text() == reference(), "run: python -m observatory.anomalies.reference > " + page.name
