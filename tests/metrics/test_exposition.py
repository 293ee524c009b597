"""Both text formats against their oracles: prometheus-client's parsers and promtool."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from observatory.frames.ingest import sort_records
from observatory.frames.latency import FrameTracker
from observatory.frames.runs import parse_run
from observatory.frames.store import StreamRun
from observatory.metrics.book import MetricsBook
from observatory.metrics.exposition import accepts_openmetrics
from observatory.metrics.families import FAMILIES, SLOT_TURNAROUND
from observatory.metrics.histograms import MARK_DTYPE, Histograms, render_family
from observatory.model.status import StoreStatus
from tests.frames.support import whole_frame
from tests.metrics.support import RUN, manifest, scrape
from tests.metrics.test_book import collected, pipeline, pool, status
from tests.peers import peer

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
PROMETHEUS_ACCEPT = (  # what Prometheus 2.42 sends
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def full_book() -> MetricsBook:
    """A book in which every family has a series."""
    book = MetricsBook()
    run = book.begin(manifest())
    records = sort_records(whole_frame(RUN, 1))
    run.observe(records)
    run.observe_frames(FrameTracker(parse_run(manifest().model_dump_json())).add(records))
    run.mapped("decode", "video", 0.002, 1 << 20)
    run.collected(collected(records=4))
    store = StoreStatus(disk_bytes=1, budget_bytes=2)
    book.update(status(pipeline(restarts=1, cpu_seconds=0.25, pools=(pool(),)), store=store))
    return book


@pytest.mark.parametrize("openmetrics", [True, False])
def test_every_family_of_the_table_is_there_as_it_says(openmetrics: bool) -> None:
    book = full_book()
    seen = scrape(book, openmetrics=openmetrics)
    ours = {name: kind for name, kind in seen.kinds.items() if name.startswith("observatory_")}
    if openmetrics:
        assert ours == {family.base: family.kind for family in FAMILIES}
    else:  # its parser calls a counter by its base, too
        kinds = {"info": "gauge"}
        names = {f.name if f.kind == "info" else f.base: kinds.get(f.kind, f.kind) for f in FAMILIES}
        assert ours == names
    for family in FAMILIES:
        suffix = "_count" if family.kind == "histogram" else ""
        for labels in seen.named(family.name + suffix):
            assert {name for name, _ in labels} == set(family.labels)
    text, kind = book.render(openmetrics)
    if openmetrics:
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert text.endswith(b"\n# EOF\n")
        assert text.count(b"# EOF") == 1
    else:
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        assert seen.exemplars == {}
        assert not any("_created" in name for name, _ in seen.values)


def test_both_formats_say_the_same() -> None:
    book = full_book()
    new, old = scrape(book), scrape(book, openmetrics=False)
    assert new.exemplars
    moves = ("process_", "_created")
    ours = {key: value for key, value in new.values.items() if not any(part in key[0] for part in moves)}
    assert ours == {key: value for key, value in old.values.items() if not any(part in key[0] for part in moves)}


@pytest.mark.parametrize("book", [MetricsBook(), full_book()], ids=["empty", "full"])
def test_promtool_has_nothing_to_say(book: MetricsBook) -> None:
    done = subprocess.run(
        [peer("promtool"), "check", "metrics"], input=book.render(False)[0], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_promtool_would_say_something() -> None:
    text = full_book().render(False)[0].replace(b"_seconds", b"_milliseconds")
    done = subprocess.run([peer("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)
    assert done.returncode != 0
    assert b"observatory_frame_latency_milliseconds" in done.stdout + done.stderr


@settings(deadline=None)
@given(st.tuples(NAMES, NAMES, NAMES), NAMES)
def test_any_name_comes_out_as_it_went_in(values: tuple[str, str, str], stream: str) -> None:
    rows = Histograms(SLOT_TURNAROUND)
    # The parser of exemplars, not that of labels, stumbles over an escaped quote; Prometheus reads it: test_prometheus.
    stream = stream.replace('"', "'")
    row = rows.row(values, stream, 1.0)
    cells = rows.count(np.array([row]), np.array([7_000_000]))
    rows.mark(cells, np.array([(7_000_000, 5 * 10**9, 1, 1, 2, 1, 25)], MARK_DTYPE))
    labels = dict(zip(SLOT_TURNAROUND.labels, values, strict=True))
    for parse, openmetrics in ((parse_openmetrics, True), (parse_classic, False)):
        text = render_family(SLOT_TURNAROUND, [rows.snapshot()], openmetrics)
        (family,) = parse(text + "# EOF\n")
        assert len(family.samples) == 23 + 2 + openmetrics
        for sample in family.samples:
            assert {name: value for name, value in sample.labels.items() if name != "le"} == labels
            wanted = sample.labels.get("le") == "0.01" and openmetrics
            expected = {"stream": stream, "epoch": "2", "pts": "1", "time_base": "1/25"} if wanted else None
            assert (sample.exemplar.labels if sample.exemplar else None) == expected


@pytest.mark.parametrize("nasty", ['a"b', "a\\", "a\\nb", "a\nb", "%d%s%%", "ü→🎞", "{le=}", " # {} 1", ""])
def test_names_that_mean_something_to_a_parser(nasty: str) -> None:
    stream = nasty.replace('"', "'")
    run = StreamRun(stream, 7, 2)
    book = MetricsBook()
    book.begin(manifest(run, pipeline=nasty)).observe(sort_records(whole_frame(run, 1)))
    for openmetrics in (True, False):
        seen = scrape(book, openmetrics=openmetrics)
        assert seen("observatory_hop_records_total", pipeline=nasty, stream=stream, edge="hd->enc") == 1
    done = subprocess.run(
        [peer("promtool"), "check", "metrics"], input=book.render(False)[0], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("length", [1, 98, 99, 100, 300])
def test_an_exemplar_has_at_most_128_characters(length: int) -> None:
    """Epoch 2, pts 1, time_base 1/25: 5+1 + 3+1 + 9+4 = 23 characters; stream is 6 more and its name."""
    stream = "ü" * length  # characters, not bytes
    run = StreamRun(stream, 7, 2)
    book = MetricsBook()
    book.begin(manifest(run)).observe(sort_records(whole_frame(run, 1)))
    seen = scrape(book)  # whose parser refuses more
    labels = {"pipeline": "ladder", "stream": stream, "edge": "decode->hd"}
    found = seen.exemplar("observatory_slot_turnaround_seconds_bucket", le="0.01", **labels).labels
    assert found["pts"] == "1"
    assert ("stream" in found) == (23 + 6 + length <= 128)


def test_openmetrics_is_for_who_asks_for_it() -> None:
    assert accepts_openmetrics(PROMETHEUS_ACCEPT)
    assert accepts_openmetrics("application/openmetrics-text")
    assert not accepts_openmetrics(None)
    assert not accepts_openmetrics("*/*")
    assert not accepts_openmetrics("text/html,application/xhtml+xml,*/*;q=0.8")
    assert not accepts_openmetrics("text/plain;version=0.0.4")
