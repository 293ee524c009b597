"""Incidents: what is wrong with the hardware, the evidence for it, and how the receivers fare that tell; live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from dash import Dash, Input, Output, dcc, html
from dash.exceptions import PreventUpdate

from dashboards import components, ids, numbers
from dashboards.api import Api, Document
from dashboards.components import Component
from dashboards.errors import DashboardError
from dashboards.feed import Moment
from observatory.model.incident import Evidence, Incident
from observatory.model.status import ReceiverBrief, TelemetryStatus

Update = tuple[str, str, Any]
MOST_EVIDENCE = 6


def register(app: Dash, api: Api) -> None:
    """The page's callback: those that are over, which do not change under the reader."""

    @app.callback(Output(ids.INCIDENTS_OVER, "children"), Input(ids.URL, "pathname"))
    async def over(path: str | None) -> Component:
        if path != "/incidents":
            raise PreventUpdate
        try:
            found = await api.incidents("closed")
        except DashboardError as error:
            return components.problem(error, title="Incidents that are over cannot be shown")
        return ended(found["incidents"])


def layout(moment: Moment) -> Component:
    """The page, with what is known at that moment."""
    telemetry = moment.snapshot.telemetry if moment.snapshot else None
    now = moment.unix_seconds
    return html.Div(
        [
            html.H1("Incidents", className="hidden"),
            html.Div(strip(telemetry), id=ids.INCIDENTS_STRIP, className="strip four"),
            components.panel("Open", html.Div(open_ones(telemetry, now), id=ids.INCIDENTS_OPEN)),
            components.panel(
                "Receivers",
                html.Div(receivers(telemetry), id=ids.RECEIVERS),
                note="what they see makes the topology and the incidents",
            ),
            components.panel("Over", html.Div(components.loading(80), id=ids.INCIDENTS_OVER), note="the latest first"),
        ],
        className="stack",
    )


def updates(moment: Moment) -> Iterator[Update]:
    """What may have changed since the last tick."""
    telemetry = moment.snapshot.telemetry if moment.snapshot else None
    yield ids.INCIDENTS_STRIP, "children", strip(telemetry)
    yield ids.INCIDENTS_OPEN, "children", open_ones(telemetry, moment.unix_seconds)
    yield ids.RECEIVERS, "children", receivers(telemetry)


def strip(telemetry: TelemetryStatus | None) -> list[Component]:
    """How many, how bad, and who tells."""
    if telemetry is None:
        return [components.stat("Incidents", "unknown", "no receivers run on this platform")]
    critical = sum(incident.severity == "critical" for incident in telemetry.incidents)
    working = sum(one.state == "working" and not one.stale for one in telemetry.receivers)
    silent = [one.name for one in telemetry.receivers if one.state in ("failing", "hanging")]
    return [
        components.stat(
            "Open incidents",
            numbers.count(telemetry.incidents_open),
            html.Strong(f"{critical} critical", className="alarming") if critical else "none of them critical",
        ),
        components.stat(
            "Receivers at work",
            f"{working} of {len(telemetry.receivers)}",
            html.Strong(f"not answering: {', '.join(silent)}", className="alarming") if silent else _others(telemetry),
        ),
        components.stat("Changes of the topology", numbers.count(telemetry.topology_version), "since the start"),
        components.stat(
            "Machine",
            "emulated" if telemetry.emulated else "real",
            "made up: change it by topology set" if telemetry.emulated else "read from this machine",
        ),
    ]


def _others(telemetry: TelemetryStatus) -> str:
    without = sum(one.state == "unavailable" for one in telemetry.receivers)
    return f"{without} find nothing to look at" if without else "none is failing"


def open_ones(telemetry: TelemetryStatus | None, now: float) -> Component:
    """A row per open incident, the worst first, with its evidence below."""
    if telemetry is None:
        return components.empty("No receivers run, so nothing would be noticed.")
    if not telemetry.incidents:
        if not any(one.state == "working" for one in telemetry.receivers):
            return components.empty("No receiver works, so nothing would be noticed.")
        return components.empty("Nothing is wrong with the hardware, as far as the receivers can see.")
    left_out = telemetry.incidents_open - len(telemetry.incidents)
    more = [components.warning(f"{left_out} more are open and not shown.")] if left_out > 0 else []
    return html.Div([*[_incident(incident, now) for incident in telemetry.incidents], *more], className="incidents")


def _incident(incident: Incident, now: float) -> Component:
    since = datetime.fromtimestamp(incident.opened_at)
    facts = [
        html.Span(["on ", dcc.Link(incident.subject, href=_where(incident.subject))]),
        html.Span(f"for {numbers.span(now - incident.opened_at)}", title=f"since {since:%d %b %H:%M:%S}"),
        html.Span(f"confidence {incident.confidence:.0%}"),
        html.Span(f"told by {', '.join(incident.sources)}"),
    ]
    if incident.well_since is not None:
        facts.append(html.Span(f"well again for {numbers.span(now - incident.well_since)}, watched on"))
    if incident.flaps:
        facts.append(html.Span(f"came back {incident.flaps} ×"))
    evidence = incident.evidence[-MOST_EVIDENCE:]
    return html.Article(
        [
            html.Div(
                [components.state_badge(incident.severity), html.Strong(incident.words), html.Code(incident.kind)],
                className="incident-head",
            ),
            html.Div(facts, className="facts"),
            html.Ul([html.Li(_evidence(one)) for one in evidence], className="evidence"),
            html.P(_affected(incident.affected), className="note") if incident.affected else None,
            html.P([html.Strong("Mend: "), incident.mend]) if incident.mend else None,
        ],
        className="incident",
    )


def _where(subject: str) -> str:
    """The page of the node that has it: a device (`n0/gpu3`), or a link (`leaf0--n0/nic0:rdma`); else of all nodes."""
    node = next((end.partition("/")[0].partition(":")[0] for end in subject.split("--") if "/" in end), "")
    return f"/topology?node={quote(node)}" if node else "/topology"


def _evidence(evidence: Evidence) -> list[Component]:
    where = f" ({evidence.subject}, {evidence.source})"
    return [evidence.words, html.Span(where, className="note")]


def _affected(affected: Sequence[str], most: int = 8) -> str:
    more = f" and {len(affected) - most} more" if len(affected) > most else ""
    return f"Suffers too: {', '.join(affected[:most])}{more}"


def receivers(telemetry: TelemetryStatus | None) -> Component:
    """A row per receiver."""
    if telemetry is None or not telemetry.receivers:
        return components.empty("No receivers run on this platform.")
    head = ("Receiver", "State", "Last seen", "Every", "Polls", "Failures", "Values", "Events", "Dropped", "CPU/poll")
    rows = [_receiver(one) for one in telemetry.receivers]
    return components.table(head, rows, "Receivers", numeric=range(2, len(head)))


def _receiver(one: ReceiverBrief) -> list[Component]:
    state: Component = components.state_badge("stale" if one.stale and one.state == "working" else one.state)
    if one.reason:
        words = [state, html.Div(one.reason, className="note")]
        state = html.Div([*words, html.Div(f"Mend: {one.mend}", className="note")] if one.mend else words)
    return [
        one.name,
        state,
        numbers.seconds(one.age_seconds),
        _period(one),
        numbers.count(one.polls),
        numbers.count(one.failures),
        numbers.count(one.observations),
        numbers.count(one.events),
        numbers.count(one.dropped),
        numbers.seconds(one.cpu_seconds / one.polls) if one.polls else numbers.DASH,
    ]


def _period(one: ReceiverBrief) -> str:
    if one.period_seconds is not None:
        return numbers.seconds(one.period_seconds)
    return "as it comes" if one.state == "working" else numbers.DASH


def ended(incidents: Sequence[Document]) -> Component:
    """A row per incident that is over."""
    if not incidents:
        return components.empty("None so far.")
    head = ("What", "Where", "Severity", "Began", "Took", "Came back", "Confidence")
    rows = [
        [
            one["words"],
            one["subject"],
            components.state_badge(one["severity"]),
            f"{datetime.fromtimestamp(one['opened_at']):%d %b %H:%M:%S}",
            numbers.span(one["closed_at"] - one["opened_at"] if one["closed_at"] else None, numbers.DASH),
            numbers.count(one["flaps"]),
            f"{one['confidence']:.0%}",
        ]
        for one in incidents
    ]
    return components.table(head, rows, "Incidents that are over", numeric=range(3, len(head)))
