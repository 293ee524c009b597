"""A real Prometheus scrapes the book, and answers what one would ask it."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from observatory.frames.ingest import sort_records
from observatory.frames.latency import FrameTracker
from observatory.frames.runs import parse_run
from observatory.frames.store import StreamRun
from observatory.metrics.book import MetricsBook
from observatory.metrics.exposition import accepts_openmetrics, escape
from observatory.metrics.reference import QUERIES
from observatory.model.manifest import ClockAnchor
from observatory.model.status import StoreStatus
from tests.frames.support import whole_frame
from tests.metrics.support import manifest
from tests.metrics.test_book import collected, pipeline, pool, status
from tests.peers import peer

NASTY = 'a "b" \\n # {c} ü'
RUNS = (StreamRun("ladder", 7, 2), StreamRun(NASTY, 8, 5))


class Player:
    """Two pipelines of the small ladder; each `play` is one more frame of both (13 ms, PTS counting up)."""

    def __init__(self) -> None:
        self.book = MetricsBook()
        self.frames = 0
        self._runs = []
        for run in RUNS:
            made = manifest(run, run_id=f"run-{run.id}", pipeline=run.name)
            # What happened at CLOCK_MONOTONIC 0 happened a moment ago.
            anchor = ClockAnchor(monotonic_ns=0, realtime_ns=time.time_ns() - 60 * 10**9)
            made = made.model_copy(update={"started": anchor})
            tracker = FrameTracker(parse_run(made.model_dump_json()))
            self._runs.append((run, self.book.begin(made), tracker))

    def play(self) -> None:
        self.frames += 1
        for run, metrics, tracker in self._runs:
            records = sort_records(whole_frame(run, self.frames))
            metrics.observe(records)
            metrics.observe_frames(tracker.add(records))
            metrics.dropped("decode->hd", 1)
            metrics.lost(run.name, "decode")
            metrics.collected(collected(records=4 * self.frames))
            if self.frames == 1:
                metrics.mapped("decode", "video", 0.002, 1 << 20)
        made = pool(hits=3 * self.frames, fallbacks=self.frames)
        on = pipeline("run-7", cpu_seconds=0.1 * self.frames, frames_in=2 * self.frames, pools=(made,))
        self.book.update(status(on, store=StoreStatus(disk_bytes=1, budget_bytes=2)))


class Handler(http.server.BaseHTTPRequestHandler):
    """`/metrics` as the web application would serve it."""

    player: Player
    kinds: list[str]

    def do_GET(self) -> None:
        text, kind = self.player.book.render(accepts_openmetrics(self.headers["Accept"]))
        self.kinds.append(kind)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text)
        self.player.play()  # so that something has changed at the next scrape

    def log_message(self, *_: object) -> None:
        pass


class Prometheus:
    """Its HTTP API.

    Once it has scraped enough, instant queries are about that moment: a scrape that comes too late on a busy machine
    makes every series stale until the next one.
    """

    def __init__(self, port: int, player: Player, kinds: list[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.player = player
        self.kinds = kinds
        self._moment: dict[str, str] = {}

    def has_scraped(self, times: int) -> bool:
        """Whether both streams have that many samples."""
        found = self.get("/api/v1/query", query="min(count_over_time(observatory_frames_total[1h]))")["result"]
        if not found or int(found[0]["value"][1]) < times:
            return False
        moment = found[0]["value"][0]
        if len(self.get("/api/v1/query", query="observatory_frames_total", time=moment)["result"]) < len(RUNS):
            return False  # just now stale
        self._moment = {"time": moment}
        return True

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """(Labels, value) of all series of an instant query."""
        return [
            (one["metric"], float(one["value"][1]))
            for one in self.get("/api/v1/query", query=promql, **self._moment)["result"]
        ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(what: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if what():
                return
        except OSError:
            pass  # it does not listen yet
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = peer("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    player, kinds = Player(), list[str]()
    handler = type("Bound", (Handler,), {"player": player, "kinds": kinds})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)  # one at a time: the player is one
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        "scrape_configs:\n"
        "  - job_name: observatory\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{server.server_address[1]}']}}]\n"
    )
    port, log = free_port(), folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=stream,
            stderr=stream,
            cwd=folder,
        )
    try:
        client = Prometheus(port, player, kinds)
        until(lambda: client.has_scraped(5), process, log)
        yield client
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        server.shutdown()
        server.server_close()


def test_it_asks_for_openmetrics_and_takes_all_of_it(prometheus: Prometheus) -> None:
    assert set(prometheus.kinds) == {"application/openmetrics-text; version=1.0.0; charset=utf-8"}
    assert [(labels["job"], value) for labels, value in prometheus.query("up")] == [("observatory", 1)]


def test_counts_and_quantiles(prometheus: Prometheus) -> None:
    found = {labels["stream"]: count for labels, count in prometheus.query("observatory_frames_total")}
    assert set(found) == {"ladder", NASTY}
    assert 4 <= found["ladder"] == found[NASTY] <= prometheus.player.frames
    # All frames took 13 ms, in the bucket of 10 to 15 ms: its middle is the median, by linear interpolation.
    median = "histogram_quantile(0.5, sum by (stream, le) (observatory_frame_latency_seconds_bucket))"
    answers = prometheus.query(median)
    assert {labels["stream"] for labels, _ in answers} == {"ladder", NASTY}
    assert [value for _, value in answers] == pytest.approx([0.0125, 0.0125])
    mean = 'observatory_slot_turnaround_seconds_sum{edge="hd->enc"} / observatory_slot_turnaround_seconds_count'
    assert [value for _, value in prometheus.query(mean)] == pytest.approx([0.009, 0.009])
    dropped = prometheus.query("observatory_frames_dropped_total == on (stream) group_left () observatory_frames_total")
    assert {(labels["stream"], labels["edge"]) for labels, _ in dropped} == {(r.name, "decode->hd") for r in RUNS}
    ((labels, _),) = prometheus.query("observatory_build_info")
    assert labels["version"] == "1.2.3"


@pytest.mark.parametrize("run", RUNS, ids=["plain", "nasty"])
def test_exemplars_name_the_frame(prometheus: Prometheus, run: StreamRun) -> None:
    now = time.time()
    query = 'observatory_frame_latency_seconds_bucket{stream="%s"}'
    (series,) = prometheus.get(
        "/api/v1/query_exemplars", query=query % escape(run.name), start=f"{now - 600}", end=f"{now + 60}"
    )
    assert series["seriesLabels"]["le"] == "0.015"
    assert series["seriesLabels"]["stream"] == run.name
    found = series["exemplars"]
    assert len(found) >= 3  # of several scrapes
    for exemplar in found:
        labels = exemplar["labels"]
        assert (labels["epoch"], labels["time_base"]) == (str(run.epoch), "1/25")
        assert labels["stream"] in (run.name, escape(run.name))  # Prometheus 2.42 keeps it as it is written
        assert float(exemplar["value"]) == 0.013
        # Frame N (its PTS, too) was first launched at 100 + 40 N ms, and released 13 ms later.
        elapsed = exemplar["timestamp"] - found[0]["timestamp"]
        frames = int(labels["pts"]) - int(found[0]["labels"]["pts"])
        assert elapsed == pytest.approx(0.040 * frames, abs=2e-3)
    assert [int(e["labels"]["pts"]) for e in found] == sorted({int(e["labels"]["pts"]) for e in found})


def test_every_bucket_that_counted_has_its_exemplar(prometheus: Prometheus) -> None:
    now = time.time()
    found = prometheus.get(
        "/api/v1/query_exemplars",
        query='observatory_fence_wait_seconds_bucket{stream="ladder"}',
        start=f"{now - 600}",
        end=f"{now + 60}",
    )
    assert {(s["seriesLabels"]["edge"], s["seriesLabels"]["le"]) for s in found} == {
        (edge, "0.0005") for edge in ("decode->hd", "decode->sd", "hd->enc", "enc->mux")
    }


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_the_queries_of_the_reference_have_answers(prometheus: Prometheus, title: str, query: str) -> None:
    assert prometheus.query(query), title
