"""One pipeline in detail: rates, latencies, queues, streams, workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html

from dashboards import components, ids, numbers
from dashboards.browser import aria
from dashboards.components import Component
from dashboards.feed import Series
from dashboards.figures import queues, rates
from dashboards.figures.base import fresh
from observatory.model.status import PipelineStatus, StreamStatus, WorkerStatus

CHART_PIXELS = 220


def shape(pipeline: PipelineStatus | None) -> str:
    """What of a pipeline needs the whole detail to be drawn again when it changes."""
    if pipeline is None:
        return ""
    edges = ",".join(edge.edge for edge in pipeline.edges)
    streams = ",".join(stream.stream for stream in pipeline.streams)
    return f"{pipeline.name}|{pipeline.run_id}|{streams}|{edges}|{len(pipeline.workers)}"


def layout(pipeline: PipelineStatus, series: Mapping[str, Series], now: float) -> Component:
    """Everything about one pipeline."""
    width, height = queues.size(pipeline)
    name = pipeline.name
    charts = [
        components.panel(
            "Frame rate",
            components.graph(
                ids.RATE_FIGURE,
                _rate(pipeline, series, now),
                f"Frame rate of {name} in frames per second",
                CHART_PIXELS,
            ),
            note="frames per second, last 5 minutes",
        ),
        components.panel(
            "Latency",
            components.graph(
                ids.LATENCY_FIGURE, _latency(pipeline, series, now), f"Latency of {name} in milliseconds", CHART_PIXELS
            ),
            note="first launch to last release, last 5 minutes",
        ),
    ]
    drawn: Component = components.graph(
        ids.QUEUE_FIGURE,
        queues.queues(pipeline),
        f"Operators of {name} and the fill of the queues between them",
        height,
        width,
    )
    if not pipeline.edges:
        drawn = components.empty("No edges yet: the workers are starting.")
    return html.Div(
        [
            html.Div(
                [
                    html.Div(id=ids.DETAIL_HEAD, children=head(pipeline, now)),
                    dmc.Button(
                        "Remove", id=ids.REMOVE_OPEN, variant="default", size="xs", **aria(label=f"Remove {name}")
                    ),
                ],
                className="detail-head",
            ),
            html.Div(charts, className="two-columns"),
            components.panel(
                "Queues", drawn, note="frames queued and held on each edge / slots of its port", name="queues"
            ),
            components.panel("Streams", html.Div(streams(pipeline), id=ids.STREAMS_TABLE)),
            components.panel(
                "Workers",
                html.Div(workers(pipeline), id=ids.WORKERS_TABLE),
                note="one process per operator",
            ),
            dcc.Store(id=ids.DETAIL_NAME, data=name),
        ]
    )


def updates(pipeline: PipelineStatus, series: Mapping[str, Series], now: float) -> Iterator[tuple[str, str, Any]]:
    """What changes while the shape stays: (component, property, value); `fresh` amends a figure."""
    yield ids.DETAIL_HEAD, "children", head(pipeline, now)
    yield ids.RATE_FIGURE, "fresh", fresh(_rate(pipeline, series, now))
    yield ids.LATENCY_FIGURE, "fresh", fresh(_latency(pipeline, series, now))
    if pipeline.edges:
        yield ids.QUEUE_FIGURE, "fresh", fresh(queues.queues(pipeline))
    yield ids.STREAMS_TABLE, "children", streams(pipeline)
    yield ids.WORKERS_TABLE, "children", workers(pipeline)


def head(pipeline: PipelineStatus, now: float) -> Component:
    """Name, state, times; why it failed; warnings; outputs."""
    parts = [f"run {pipeline.run_id}" if pipeline.run_id else None, _times(pipeline, now)]
    if pipeline.decision_id:
        parts.append(f"decision {pipeline.decision_id}")
    if pipeline.pool_bytes is not None:
        parts.append(f"{numbers.size(pipeline.pool_bytes)} of frame pools")
    found: list[Component] = [
        html.Div([html.H2(pipeline.name), components.state_badge(pipeline.state)], className="name-and-state"),
        html.P(" · ".join(part for part in parts if part), className="note"),
    ]
    if pipeline.outputs:
        found.append(html.P(["Writes ", *_joined(html.Code(path) for path in pipeline.outputs)], className="note"))
    if pipeline.reason:
        found.append(dmc.Alert(pipeline.reason, title="It failed", color="red", variant="light", className="problem"))
    if pipeline.warnings:
        found.append(components.warning(html.Ul([html.Li(words) for words in pipeline.warnings])))
    return html.Div(found)


def _times(pipeline: PipelineStatus, now: float) -> str:
    if pipeline.started_unix_seconds is None:
        return f"submitted {numbers.span(now - pipeline.submitted_unix_seconds)} ago"
    began = datetime.fromtimestamp(pipeline.started_unix_seconds).strftime("%H:%M:%S")
    if pipeline.ended_unix_seconds is not None:
        return f"began {began}, ran {numbers.span(pipeline.ended_unix_seconds - pipeline.started_unix_seconds)}"
    return f"running for {numbers.span(now - pipeline.started_unix_seconds)}, since {began}"


def streams(pipeline: PipelineStatus) -> Component:
    """A row per stream."""
    if not pipeline.streams:
        return components.empty("No stream yet: the source is being opened.")
    head_cells = (
        "Stream", "State", "Input", "Epoch", "Frames/s", "p50", "p99", "Slowest", "In", "Done", "Lost", "Dropped"
    )  # fmt: skip
    return components.table(
        head_cells, [_stream_row(s) for s in pipeline.streams], "Streams", numeric=range(3, len(head_cells))
    )


def _stream_row(stream: StreamStatus) -> list[Component]:
    return [
        dcc.Link(stream.stream, href=f"/frames?stream={stream.stream}", title="Frames of this stream"),
        html.Span([components.state_badge(stream.state), " live" if stream.live else ""]),
        html.Code(stream.input),
        str(stream.epoch),
        numbers.per_second(stream.frames_per_second),
        numbers.seconds(stream.recent_p50_seconds),
        numbers.seconds(stream.recent_p99_seconds),
        numbers.seconds(stream.latency_max_seconds),
        numbers.count(stream.frames_in),
        numbers.count(stream.frames_done),
        alarming(stream.frames_lost),
        alarming(stream.frames_dropped),
    ]


def alarming(count: int) -> Component:
    """A count that should be 0."""
    return html.Strong(numbers.count(count), className="alarming") if count else "0"


def workers(pipeline: PipelineStatus) -> Component:
    """A row per worker process."""
    if not pipeline.workers:
        return components.empty("No worker runs.")
    head_cells = ("Operator", "State", "Planned on", "Runs on", "PID", "Restarts", "Frames", "CPU time", "Memory")
    return components.table(
        head_cells, [_worker_row(w) for w in pipeline.workers], "Workers", numeric=range(4, len(head_cells))
    )


def _worker_row(worker: WorkerStatus) -> list[Component]:
    return [
        html.Span([html.Strong(worker.operator), html.Span(f" {worker.op}{_sharers(worker)}", className="note")]),
        components.state_badge(worker.state),
        html.Code(worker.device),
        html.Code(worker.real_device),
        str(worker.pid),
        alarming(worker.restarts),
        numbers.count(worker.frames),
        _cpu_time(worker.cpu_seconds),
        numbers.size(worker.memory_bytes),
    ]


def _sharers(worker: WorkerStatus) -> str:
    return f", shared by {', '.join(worker.shared_by)}" if worker.shared_by else ""


def _cpu_time(value: float | None) -> str:
    return numbers.DASH if value is None else f"{value:.1f} s"


def _rate(pipeline: PipelineStatus, series: Mapping[str, Series], now: float) -> dict[str, Any]:
    return rates.frame_rate(series, now, _keep(pipeline))


def _latency(pipeline: PipelineStatus, series: Mapping[str, Series], now: float) -> dict[str, Any]:
    return rates.latency(series, now, _keep(pipeline), pipeline.deadline_seconds)


def _keep(pipeline: PipelineStatus) -> str:
    return f"{pipeline.name} {pipeline.run_id}"


def _joined(parts: Iterator[Component]) -> list[Component]:
    found: list[Component] = []
    for part in parts:
        found += [", ", part] if found else [part]
    return found
