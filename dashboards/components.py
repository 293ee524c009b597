"""Pieces that pages are put together from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html

from dashboards.browser import aria
from dashboards.errors import DashboardError
from dashboards.figures.base import CONFIG, Figure
from dashboards.theme import STATE_TONES

Component = Any
"""A Dash component; the libraries' own types do not say more."""


def panel(
    title: str, *children: Component, note: Component = None, aside: Component = None, name: str = ""
) -> Component:
    """A titled box. `note` stands small beside the title, `aside` at the right."""
    head = html.Div(
        [html.Div([html.H2(title), html.Span(note, className="note")] if note else html.H2(title)), aside],
        className="panel-head",
    )
    return html.Section([head, *children], className=f"panel {name}".strip(), **aria(label=title))


def graph(component_id: str, figure: Figure, says: str, height: int, least_width: int | None = None) -> Component:
    """A figure with words for who cannot see it; scrolls sideways where the window is narrower than `least_width`."""
    style = {"height": f"{height}px", "minWidth": f"{least_width}px" if least_width else "0"}
    drawn = dcc.Graph(id=component_id, figure=figure, config=CONFIG, style=style)
    return html.Div(drawn, className="graph", role="img", tabIndex=0 if least_width else None, **aria(label=says))


def stat(label: str, value: Component, more: Component = None, name: str = "") -> Component:
    """One figure with its name above and a remark below."""
    return html.Div(
        [
            html.Div(label, className="stat-label"),
            html.Div(value, className="stat-value"),
            html.Div(more, className="stat-more") if more is not None else None,
        ],
        className=f"stat {name}".strip(),
    )


def state_badge(state: str) -> Component:
    """A state in words, and a dot in its colour."""
    tone: dict[str, Any] = {"data-tone": STATE_TONES.get(state, "quiet")}
    return html.Span(state, className="state", **tone)


def empty(title: str, *more: Component) -> Component:
    """Nothing to show, and what to do about it."""
    return html.Div([html.P(title, className="empty-title"), *more], className="empty", role="status")


def problem(error: DashboardError, title: str | None = None) -> Component:
    """An error with its place and its mend."""
    where = f"{error.file}:{error.line}" if error.file and error.line else error.file
    body = [
        html.Code(where, className="where") if where else None,
        html.P(error.message, className="message"),
        html.P([html.Strong("Mend: "), error.mend]) if error.mend else None,
    ]
    return dmc.Alert(
        [part for part in body if part is not None], title=title, color="red", variant="light", className="problem"
    )


def warning(*words: Component, title: str | None = None) -> Component:
    """Something that the reader should know."""
    return dmc.Alert(list(words), title=title, color="yellow", variant="light", className="problem")


def command(words: str) -> Component:
    """A command line to type."""
    return html.Code(words, className="command")


def table(
    head: Sequence[Component], rows: Sequence[Sequence[Component]], says: str, numeric: Sequence[int] = ()
) -> Component:
    """A table that scrolls sideways where there is no room. Columns in `numeric` are set flush right."""
    right = set(numeric)

    def cells(tag: Any, row: Sequence[Component], **more: Any) -> list[Component]:
        return [tag(cell, className="number" if i in right else None, **more) for i, cell in enumerate(row)]

    return html.Div(
        html.Table(
            [
                html.Thead(html.Tr(cells(html.Th, head, scope="col"))),
                html.Tbody([html.Tr(cells(html.Td, row)) for row in rows]),
            ],
            **aria(label=says),
        ),
        className="table",
        tabIndex=0,
    )


def loading(height: int = 160) -> Component:
    """Where something is on its way."""
    return html.Div(
        [dmc.Loader(size="sm"), html.Span("Loading")], className="loading", style={"minHeight": f"{height}px"}
    )
