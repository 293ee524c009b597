"""The page is what the table says; the rules are what Prometheus takes, and fire when they should."""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from observatory.metrics.book import MetricsBook
from observatory.metrics.families import FAMILIES
from observatory.metrics.reference import ALL_FAMILIES, alert_rules, port_series, reference, series_per, series_per_edge
from tests.metrics.support import manifest, series_lines
from tests.metrics.test_book import pipeline, pool, status
from tests.peers import peer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == reference(), "run: .venv/bin/python -m observatory.metrics.reference > " + PAGE.name


def test_every_metric_that_rules_and_queries_name_exists() -> None:
    known = {family.name for family in ALL_FAMILIES}
    for histogram in (family for family in FAMILIES if family.kind == "histogram"):
        known |= {f"{histogram.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
    named = set(re.findall(r"observatory_\w+", PAGE.read_text()))
    assert len(named) > len(FAMILIES)
    assert named <= known


@pytest.mark.parametrize("openmetrics", [True, False])
def test_so_many_series_as_the_page_says(openmetrics: bool) -> None:
    book = MetricsBook()
    run = book.begin(manifest())
    run.mapped("decode", "video", 0.001, 1)
    run.mapped("hd", "decode->hd", 0.001, 1)
    run.queue_depths({f"{a}->{b}": (0, 0) for a, b in (("decode", "sd"), ("hd", "enc"), ("enc", "mux"))})
    book.update(status(pipeline(cpu_seconds=1.0, pools=(pool(),))))  # with one edge and one worker
    count = sum("process_" not in line for line in series_lines(book.render(openmetrics)[0].decode()))
    expected = (
        series_per_edge(openmetrics) * 1
        + series_per("pipeline", "stream", "edge", openmetrics=openmetrics) * 3
        + series_per("pipeline", "stream", openmetrics=openmetrics)
        + series_per("pipeline", "stream", "operator", openmetrics=openmetrics)
        + series_per("pipeline", "operator", "mapping", openmetrics=openmetrics) * 2
        + series_per("pipeline", "operator", openmetrics=openmetrics)
        + port_series(openmetrics)
        + series_per("pipeline", openmetrics=openmetrics)
        - 1  # no collector has said what is pending
        + 6  # states
        + series_per(openmetrics=openmetrics)
        - 2  # the store has said neither its size nor its budget
        + 1  # observatory_build_info
    )
    assert count == expected


def test_the_rules_are_well_formed() -> None:
    path = str(files("observatory.metrics") / "alerts.yaml")
    done = subprocess.run(
        [peer("promtool"), "check", "rules", "--lint=all", "--lint-fatal", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 rules found" in done.stdout


SICK = """
rule_files: [alerts.yaml]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {series: 'observatory_pipeline_state{instance="i",pipeline="p",state="running"}', values: '1x60'}
      - {series: 'observatory_pipeline_state{instance="i",pipeline="q",state="failed"}', values: '1x60'}
      - {series: 'observatory_pipeline_state{instance="i",pipeline="r",state="running"}', values: '1x60'}
      - {series: 'observatory_frames_total{instance="i",pipeline="p",stream="p"}', values: '900x60'}
      - {series: 'observatory_frames_total{instance="i",pipeline="r",stream="r"}', values: '0+900x60'}
      - {series: 'observatory_frame_latency_seconds_bucket{instance="i",pipeline="r",stream="r",le="1.0"}',
         values: '0+880x60'}
      - {series: 'observatory_frame_latency_seconds_bucket{instance="i",pipeline="r",stream="r",le="2.0"}',
         values: '0+900x60'}
      - {series: 'observatory_frame_latency_seconds_bucket{instance="i",pipeline="r",stream="r",le="+Inf"}',
         values: '0+900x60'}
      - {series: 'observatory_frames_dropped_total{instance="i",pipeline="r",stream="r",edge="a->b"}',
         values: '0+60x60'}
      - {series: 'observatory_frames_dropped_total{instance="i",pipeline="r",stream="r",edge="a->c"}', values: '7x60'}
      - {series: 'observatory_worker_restarts_total{instance="i",pipeline="r",operator="a"}',
         values: '0x45 1 2 3 4x20'}
      - {series: 'observatory_store_failing{instance="i"}', values: '0x60'}
      - {series: 'observatory_incidents_open{instance="i",kind="gpu_lost",severity="critical",subject="n0/gpu3"}',
         values: '_x40 1x20'}
      - {series: 'observatory_incidents_open{instance="i",kind="throttled",severity="warning",subject="n0/gpu1"}',
         values: '_x45 1x15'}
      - {series: 'observatory_receiver_state{instance="i",receiver="nvml",state="working"}', values: '0x60'}
      - {series: 'observatory_receiver_state{instance="i",receiver="nvml",state="hanging"}', values: '1x60'}
    alert_rule_test:
      - {eval_time: 25m, alertname: PipelineFailed, exp_alerts: [{
          exp_labels: {severity: page, instance: i, pipeline: q, state: failed},
          exp_annotations: {summary: "Pipeline q failed; `observatory ps` says why"}}]}
      - {eval_time: 25m, alertname: PipelineStalled, exp_alerts: [{
          exp_labels: {severity: page, instance: i, pipeline: p, state: running},
          exp_annotations: {summary: "Pipeline p runs, and no frame has come through for two minutes"}}]}
      - {eval_time: 25m, alertname: FrameLatencyHigh, exp_alerts: [{
          exp_labels: {severity: ticket, instance: i, pipeline: r, stream: r},
          exp_annotations: {summary: "1 % of the frames of r take longer than 1.55s"}}]}
      - {eval_time: 25m, alertname: FramesDropped, exp_alerts: [{
          exp_labels: {severity: ticket, instance: i, pipeline: r, edge: "a->b"},
          exp_annotations: {summary: "r drops 2 frames a second on a->b"}}]}
      - {eval_time: 20m, alertname: WorkerRestarting, exp_alerts: []}
      - {eval_time: 25m, alertname: WorkerRestarting, exp_alerts: [{
          exp_labels: {severity: page, instance: i, pipeline: r, operator: a},
          exp_annotations: {summary: "The worker of r/a keeps being started again"}}]}
      - {eval_time: 25m, alertname: FrameStoreFailing, exp_alerts: []}
      - {eval_time: 25m, alertname: HardwareIncident, exp_alerts: [{
          exp_labels: {severity: page, instance: i, kind: gpu_lost, subject: n0/gpu3},
          exp_annotations: {summary: "gpu_lost of n0/gpu3: see observatory incidents --open"}}]}
      - {eval_time: 25m, alertname: HardwareDegraded, exp_alerts: []}
      - {eval_time: 29m, alertname: HardwareDegraded, exp_alerts: [{
          exp_labels: {severity: ticket, instance: i, kind: throttled, subject: n0/gpu1},
          exp_annotations: {summary: "throttled of n0/gpu1: see observatory incidents --open"}}]}
      - {eval_time: 25m, alertname: ReceiverNotAnswering, exp_alerts: [{
          exp_labels: {severity: ticket, instance: i, receiver: nvml},
          exp_annotations: {summary: "The receiver nvml does not answer: its hardware is not looked at"}}]}
"""
"""One pipeline stalls, one failed, one is slow (880 of 900 within 1 s: p99 is 1 + 11/20 s) and drops 60 in 30 s."""


def test_the_rules_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(alert_rules())
    (tmp_path / "sick.yaml").write_text(SICK)
    assert yaml.safe_load(SICK)
    done = subprocess.run(
        [peer("promtool"), "test", "rules", str(tmp_path / "sick.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
