"""Frames: find one by its stream and PTS, and see where its time went; the latest and the slowest."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

import dash_ag_grid as dag  # type: ignore[import-untyped]
import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import Dash, Input, Output, State, html
from dash.exceptions import PreventUpdate

from dashboards import components, ids
from dashboards.api import Api, Document
from dashboards.browser import aria, in_browser
from dashboards.components import Component
from dashboards.errors import ApiRefused, DashboardError
from dashboards.pages import frame

GRID_THEME = (
    "themeQuartz.withParams({backgroundColor: 'var(--surface)', foregroundColor: 'var(--ink)', fontSize: 13.5, "
    "borderColor: 'var(--line)', headerBackgroundColor: 'var(--surface)', headerTextColor: 'var(--faint-ink)', "
    "fontFamily: 'inherit', accentColor: 'var(--accent)', wrapperBorderRadius: 6, headerFontWeight: 500, "
    "browserColorScheme: 'inherit'})"
)
MILLISECONDS = "params.value == null ? '–' : d3.format(',.2f')(params.value)"
LATEST, SLOWEST = "latest", "slowest"
COLUMNS = (
    {
        "field": "pts",
        "headerName": "PTS",
        "type": "rightAligned",
        "width": 120,
        "cellClass": "ag-right-aligned-cell link-cell",
    },
    {"field": "source_index", "headerName": "Index", "type": "rightAligned", "width": 92},
    {"field": "epoch", "headerName": "Epoch", "type": "rightAligned", "width": 84},
    {"field": "state", "headerName": "State", "width": 112},
    {
        "field": "milliseconds",
        "headerName": "End to end, ms",
        "type": "rightAligned",
        "width": 152,
        "valueFormatter": {"function": MILLISECONDS},
    },
    {"field": "began", "headerName": "Began", "width": 128},
    {"field": "hops", "headerName": "Hops", "type": "rightAligned", "width": 84},
    {"field": "remark", "headerName": "Remark", "flex": 1, "minWidth": 160},
)


def layout() -> Component:
    """The page before its answers are there."""
    return html.Div(
        [
            html.H1("Frames", className="hidden"),
            components.panel("Find a frame", _form()),
            html.Section(
                components.loading(120),
                id=ids.FRAME,
                className="panel",
                **aria(label="The frame", live="polite"),
            ),
            components.panel(
                "Frames",
                html.Div(components.loading(120), id=ids.FRAMES_LIST),
                note="choose one to see its waterfall",
                aside=html.Div(
                    [
                        dmc.SegmentedControl(
                            id=ids.FRAMES_WHICH,
                            value=LATEST,
                            data=[{"value": LATEST, "label": "Latest"}, {"value": SLOWEST, "label": "Slowest"}],
                            size="xs",
                        ),
                        dmc.Button("Refresh", id=ids.FRAMES_REFRESH, size="xs", variant="default"),
                    ],
                    className="controls",
                ),
            ),
        ]
    )


def _form() -> Component:
    return html.Div(
        [
            dmc.Select(id=ids.FIND_STREAM, label="Stream", data=[], searchable=True, allowDeselect=False, w=220),
            dmc.TextInput(
                id=ids.FIND_PTS, label="PTS", placeholder="e.g. 120", inputProps={"inputMode": "numeric"}, w=150
            ),
            dmc.TextInput(id=ids.FIND_TIME_BASE, label="Time base", placeholder="the stream's", w=130),
            dmc.TextInput(id=ids.FIND_EPOCH, label="Epoch", placeholder="newest", w=100),
            dmc.Button("Find", id=ids.FIND_GO),
        ],
        className="form",
        role="search",
    )


def register(app: Dash, api: Api) -> None:
    """The page's callbacks."""

    @app.callback(
        Output(ids.FIND_STREAM, "data"),
        Output(ids.FIND_STREAM, "value"),
        Output(ids.FIND_PTS, "value"),
        Output(ids.FIND_TIME_BASE, "value"),
        Output(ids.FIND_EPOCH, "value"),
        Output(ids.FRAME, "children"),
        Input(ids.URL, "search"),
        Input(ids.URL, "pathname"),
        State(ids.FIND_STREAM, "value"),
    )
    async def look_up(search: str | None, path: str | None, chosen: str | None) -> tuple[Any, ...]:
        if path != "/frames":
            raise PreventUpdate
        which = asked(search)
        try:
            streams = [entry["stream"] for entry in await api.streams()]
        except DashboardError as error:
            return [], None, "", "", "", components.problem(error, title="Frames cannot be looked up")
        stream = which.get("stream") or chosen or (streams[0] if streams else None)
        if stream is not None and stream not in streams:
            streams = [*streams, stream]
        shown = await _frame(api, which, bool(streams))
        return streams, stream, which.get("pts", ""), which.get("time_base", ""), which.get("epoch", ""), shown

    @app.callback(
        Output(ids.FRAMES_LIST, "children"),
        Input(ids.FIND_STREAM, "value"),
        Input(ids.FRAMES_WHICH, "value"),
        Input(ids.FRAMES_REFRESH, "n_clicks"),
        State(ids.FIND_STREAM, "data"),
    )
    async def listed(stream: str | None, which: str, _clicks: int | None, known: list[str] | None) -> Component:
        if not known:
            return _no_frames()
        try:
            document = await (api.slowest(stream) if which == SLOWEST else api.frames(stream))
        except DashboardError as error:
            return components.problem(error, title="Frames cannot be listed")
        return grid(document, f"{stream} {which}")

    in_browser(
        app,
        "findFrame",
        Output(ids.URL, "search", allow_duplicate=True),
        Input(ids.FIND_GO, "n_clicks"),
        Input(ids.FIND_PTS, "n_submit"),
        Input(ids.FIND_TIME_BASE, "n_submit"),
        Input(ids.FIND_EPOCH, "n_submit"),
        State(ids.FIND_STREAM, "value"),
        State(ids.FIND_PTS, "value"),
        State(ids.FIND_TIME_BASE, "value"),
        State(ids.FIND_EPOCH, "value"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "addressOf",
        Output(ids.FRAME_COPY, "content"),
        Input(ids.URL, "href"),
    )
    in_browser(
        app,
        "openFrame",
        Output(ids.URL, "search", allow_duplicate=True),
        Input(ids.FRAMES_GRID, "selectedRows"),
        prevent_initial_call=True,
    )


def asked(search: str | None) -> dict[str, str]:
    """What a deep link says."""
    query = parse_qs((search or "").lstrip("?"))
    return {name: query[name][0].strip() for name in frame.SEARCHED if query.get(name)}


async def _frame(api: Api, which: dict[str, str], any_streams: bool) -> Component:
    if "pts" not in which and "source_index" not in which:
        if not any_streams:
            return _no_frames()
        return components.empty(
            "No frame chosen yet.", html.P("Give a PTS above, or choose a frame of the list below.")
        )
    try:
        return frame.found(await api.find(**which))
    except ApiRefused as refusal:
        return frame.not_found(refusal, which.get("stream"), which.get("epoch"))
    except DashboardError as error:
        return components.problem(error, title="The frame cannot be looked up")


def _no_frames() -> Component:
    return components.empty(
        "No frames yet.",
        html.P(["They are recorded while a pipeline runs: ", components.command("observatory submit pipeline.yaml")]),
    )


def grid(document: Document, keep: str) -> Component:
    """The list. Lost frames stand in it too, without a record of their own."""
    rows = [_row(entry) for entry in document["frames"]]
    there = {row["source_index"] for row in rows}
    rows += [_lost_row(entry) for entry in document.get("lost") or () if entry.get("source_index") not in there]
    if not rows:
        return _no_frames()
    return dag.AgGrid(
        id=ids.FRAMES_GRID,
        columnDefs=list(COLUMNS),
        rowData=rows,
        getRowId="params.data.key",
        defaultColDef={"sortable": True, "resizable": True, "suppressMovable": True},
        dashGridOptions={
            "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
            "rowHeight": 34,
            "headerHeight": 36,
            "suppressCellFocus": False,
            "theme": {"function": GRID_THEME},
        },
        style={"height": f"{min(520, 60 + 34 * len(rows))}px"},
    )


def _row(entry: Document) -> dict[str, Any]:
    seconds = entry.get("end_to_end_seconds")
    began = entry.get("began_unix_seconds")
    lost = entry.get("lost") or ()
    missing = entry.get("missing") or ()
    remark = lost[0]["reason"] if lost else f"{len(missing)} hops not recorded (yet)" if missing else ""
    return {
        "key": f"{entry['epoch']}-{entry['source_index']}",
        "pts": entry.get("pts"),
        "source_index": entry["source_index"],
        "epoch": entry["epoch"],
        "state": entry["state"],
        "milliseconds": None if seconds is None else round(seconds * 1e3, 2),
        "began": None if began is None else datetime.fromtimestamp(began).strftime("%H:%M:%S.%f")[:-3],
        "hops": entry.get("hop_count"),
        "remark": remark,
        "search": frame.link_of(entry).partition("/frames")[2],
    }


def _lost_row(entry: Document) -> dict[str, Any]:
    base = entry.get("time_base")
    index = entry.get("source_index")
    return {
        "key": f"lost-{index}-{entry.get('pts')}",
        "pts": entry.get("pts"),
        "source_index": index,
        "epoch": entry.get("epoch"),
        "state": "lost",
        "remark": f"{entry.get('reason')} ({entry.get('operator')})",
        "search": None,
        "time_base": f"{base['num']}/{base['den']}" if isinstance(base, dict) else base,
    }
