"""Incidents as JSON, and the table of kinds."""

from __future__ import annotations

import json
from pathlib import Path

from observatory.anomalies.kinds import KINDS, kind_named
from observatory.anomalies.outputs import incidents_document
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


def test_every_kind_says_what_it_means_and_what_to_do() -> None:
    for name, kind in KINDS.items():
        assert kind_named(name) is kind
        assert kind.meaning.endswith(".")
        assert kind.mend
        assert kind.hold_seconds > 0


def test_the_reference_is_up_to_date() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "incident-kinds.md"
    assert page.read_text() == reference(), "run: python -m observatory.anomalies.reference > " + page.name
