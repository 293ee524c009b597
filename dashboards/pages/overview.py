"""Overview: the platform, its pipelines, and one of them in detail; live."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html

from dashboards import components, ids, numbers
from dashboards.browser import aria
from dashboards.components import Component
from dashboards.feed import Feed, Moment
from dashboards.pages import detail, submit
from observatory.model.status import PipelineStatus, PlatformStatus, Snapshot, TelemetryStatus

Update = tuple[str, str, Any]


def chosen(snapshot: Snapshot | None, wanted: str | None) -> PipelineStatus | None:
    """The pipeline that the reader asked for; else the first that runs; else the last that did."""
    pipelines = snapshot.pipelines if snapshot else ()
    asked = [p for p in pipelines if p.name == wanted]
    running = [p for p in pipelines if p.state in ("running", "starting", "draining")]
    return next(iter(asked or running or pipelines[-1:]), None)


def shape(moment: Moment, wanted: str | None) -> str:
    """What decides whether the detail has to be drawn again."""
    return detail.shape(chosen(moment.snapshot, wanted))


def layout(feed: Feed, moment: Moment, wanted: str | None) -> Component:
    """The page, with what is known at that moment."""
    snapshot = moment.snapshot
    pipeline = chosen(snapshot, wanted)
    return html.Div(
        [
            html.H1("Overview", className="hidden"),
            html.Div(alerts(moment), id=ids.PLATFORM_ALERTS),
            html.Div(platform(snapshot, moment.unix_seconds), id=ids.PLATFORM, className="strip"),
            components.panel(
                "Pipelines",
                html.Div(pipelines(snapshot, pipeline), id=ids.PIPELINES),
                aside=dmc.Button("Submit a pipeline", id=ids.SUBMIT_OPEN, size="xs"),
            ),
            html.Div(detail_of(feed, moment, wanted), id=ids.DETAIL),
            submit.dialogs(),
        ]
    )


def detail_of(feed: Feed, moment: Moment, wanted: str | None) -> Component:
    """The chosen pipeline in detail; nothing when there is none."""
    pipeline = chosen(moment.snapshot, wanted)
    return None if pipeline is None else detail.layout(pipeline, feed.series(pipeline), moment.unix_seconds)


def updates(feed: Feed, moment: Moment, wanted: str | None) -> Iterator[Update]:
    """What changed since the last tick, as long as the shape is the same."""
    snapshot = moment.snapshot
    pipeline = chosen(snapshot, wanted)
    yield ids.PLATFORM_ALERTS, "children", alerts(moment)
    yield ids.PLATFORM, "children", platform(snapshot, moment.unix_seconds)
    yield ids.PIPELINES, "children", pipelines(snapshot, pipeline)
    if pipeline is not None:
        yield from detail.updates(pipeline, feed.series(pipeline), moment.unix_seconds)


def alerts(moment: Moment) -> list[Component]:
    """What is wrong with the platform as a whole."""
    found: list[Component] = []
    if moment.error is not None:
        title = "The platform does not answer" if moment.snapshot is None else "The platform does not answer any more"
        found.append(components.problem(moment.error, title=title))
    if moment.snapshot is not None:
        found += _incidents(moment.snapshot.telemetry)
        found += [components.warning(words) for words in moment.snapshot.platform.warnings]
        store = moment.snapshot.store
        if store.error:
            found.append(components.warning(store.error, title="Frames are not being stored"))
        if store.records_dropped or store.events_lost:
            words = (
                f"{numbers.count(store.records_dropped)} records dropped, {numbers.count(store.events_lost)} events "
                "lost: some frames cannot be found again in full."
            )
            found.append(components.warning(words))
    return found


def _incidents(telemetry: TelemetryStatus | None) -> list[Component]:
    if telemetry is None or not telemetry.incidents_open:
        return []
    critical = sum(incident.severity == "critical" for incident in telemetry.incidents)
    many = f"{telemetry.incidents_open} incidents are" if telemetry.incidents_open > 1 else "1 incident is"
    worst = telemetry.incidents[0]
    words = f", {critical} of them critical: " if critical and telemetry.incidents_open > 1 else ": "
    return [
        components.warning(
            f"{many} open{words}{worst.words} ({worst.subject}). ",
            dcc.Link("All incidents", href="/incidents"),
            title=f"The {'emulated ' if telemetry.emulated else ''}hardware is not well",
        )
    ]


def platform(snapshot: Snapshot | None, now: float) -> list[Component]:
    """The header: host, since when, topology, pipelines, store."""
    if snapshot is None:
        return [components.stat("Platform", "unknown", "no answer yet")]
    about, store = snapshot.platform, snapshot.store
    by_state: dict[str, int] = {}
    for pipeline in snapshot.pipelines:
        by_state[pipeline.state] = by_state.get(pipeline.state, 0) + 1
    others = ", ".join(f"{many} {state}" for state, many in sorted(by_state.items()) if state != "running")
    return [
        components.stat("Host", about.host, f"version {about.version}, pid {about.pid}"),
        components.stat("Up for", numbers.span(now - about.started_unix_seconds), _since(about)),
        components.stat("Topology", about.topology, html.Span(about.state, title=f"state directory {about.state}")),
        components.stat("Running", str(by_state.get("running", 0)), others or "no other pipelines"),
        components.stat(
            "Hops recorded",
            [numbers.per_second(store.records_per_second), html.Small(" /s")],
            f"{numbers.count(store.records)} in all",
        ),
        components.stat("Frame store", numbers.size(store.disk_bytes), _budget(store.disk_bytes, store.budget_bytes)),
    ]


def _since(about: PlatformStatus) -> Component:
    began = datetime.fromtimestamp(about.started_unix_seconds)
    words = f"since {began:%d %b %H:%M:%S}"
    return f"{words}, web restarted {about.web_restarts} ×" if about.web_restarts else words


def _budget(used: int | None, budget: int | None) -> Component:
    if budget is None:
        return "no budget set"
    words = f"of {numbers.size(budget)}"
    if used is None:
        return words
    share = min(100.0, used / budget * 100) if budget else 100.0
    bar = dmc.Progress(
        value=share,
        size="sm",
        color="orange" if share > 90 else "blue",
        **aria(label=f"{share:.0f} % of the budget"),
    )
    return html.Div([words, bar])


def pipelines(snapshot: Snapshot | None, selected: PipelineStatus | None) -> Component:
    """A row per pipeline; the row's link shows it in detail."""
    if snapshot is None or not snapshot.pipelines:
        return components.empty(
            "No pipeline runs.",
            html.P(["Submit one here, or from a shell: ", components.command("observatory submit pipeline.yaml")]),
        )
    head = ("Pipeline", "State", "Frames/s", "p50", "p99", "In", "Done", "Lost", "Dropped", "Epoch")
    rows = [_row(p, selected is not None and p.name == selected.name) for p in snapshot.pipelines]
    return components.table(head, rows, "Pipelines", numeric=range(2, len(head)))


def _row(pipeline: PipelineStatus, selected: bool) -> list[Component]:
    streams = pipeline.streams
    goes_on = pipeline.state in ("running", "draining")
    rate = [s.frames_per_second for s in streams if s.frames_per_second is not None and goes_on]
    link = dcc.Link(
        pipeline.name,
        href=f"/?pipeline={quote(pipeline.name)}",
        className="selected" if selected else None,
        title="Show in detail",
    )
    return [
        link,
        components.state_badge(pipeline.state),
        numbers.per_second(sum(rate) if rate else None),
        numbers.seconds(_worst([s.recent_p50_seconds for s in streams])),
        numbers.seconds(_worst([s.recent_p99_seconds for s in streams])),
        numbers.count(sum(s.frames_in for s in streams)),
        numbers.count(sum(s.frames_done for s in streams)),
        detail.alarming(sum(s.frames_lost for s in streams)),
        detail.alarming(sum(s.frames_dropped for s in streams)),
        ", ".join(sorted({str(s.epoch) for s in streams})) or numbers.DASH,
    ]


def _worst(values: list[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)
