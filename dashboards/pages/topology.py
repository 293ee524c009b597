"""Topology: the physical graph with the operators on it, and what moving a message between devices costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, quote

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from dashboards import components, ids, numbers
from dashboards.api import Api, Document
from dashboards.browser import aria, in_browser
from dashboards.components import Component
from dashboards.errors import ApiRefused, DashboardError
from dashboards.feed import Moment
from dashboards.figures import cluster, cost, hardware, machine
from observatory.model.status import Snapshot

ALL = "all nodes"
COST_PIXELS = 640


def register(app: Dash, api: Api) -> None:
    """The page's callbacks."""

    @app.callback(
        Output(ids.TOPOLOGY_GRAPH, "children"),
        Input(ids.URL, "search"),
        Input(ids.URL, "pathname"),
        Input(ids.TOPOLOGY_VERSION, "data"),
    )
    async def draw(search: str | None, path: str | None, _version: int | None) -> Component:
        if path != "/topology":
            raise PreventUpdate
        try:
            topology = await api.topology()
        except DashboardError as error:
            return components.problem(error, title="The topology cannot be shown")
        try:
            snapshot = await api.snapshot()
        except DashboardError:
            snapshot = None  # the badge says so; the graph is still worth seeing
        return physical(topology, placement(snapshot), wanted_node(search, topology))

    @app.callback(
        Output(ids.TOPOLOGY_COST, "children"),
        Input(ids.URL, "search"),
        Input(ids.URL, "pathname"),
        Input(ids.TOPOLOGY_VERSION, "data"),
    )
    async def costs(search: str | None, path: str | None, _version: int | None) -> Component:
        if path != "/topology":
            raise PreventUpdate
        node = parse_qs((search or "").lstrip("?")).get("node", [None])[0]
        try:
            document = await api.cost("devices" if node else "auto", node)
        except ApiRefused as refusal:
            return components.problem(refusal, title="Costs cannot be predicted")
        except DashboardError as error:
            return components.problem(error, title="Costs cannot be shown")
        return matrix(document)

    in_browser(
        app,
        "showNode",
        Output(ids.URL, "search", allow_duplicate=True),
        Input(ids.TOPOLOGY_NODE, "value"),
        State(ids.URL, "search"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "costWords",
        Output(ids.COST_WORDS, "children"),
        Input(ids.COST_FIGURE, "hoverData"),
        Input(ids.COST_FIGURE, "clickData"),
        State(ids.COST_SCALE, "data"),
    )


def updates(moment: Moment) -> Iterator[tuple[str, str, int]]:
    """Which state of the links is the newest."""
    if (newest := version(moment)) is not None:
        yield ids.TOPOLOGY_VERSION, "data", newest


def version(moment: Moment) -> int | None:
    """Of the topology; None where nobody looks at the hardware."""
    telemetry = moment.snapshot.telemetry if moment.snapshot else None
    return None if telemetry is None else telemetry.topology_version


def layout(moment: Moment) -> Component:
    """The page before its answers are there."""
    return html.Div(
        [
            html.H1("Topology", className="hidden"),
            dcc.Store(id=ids.TOPOLOGY_VERSION, data=version(moment)),
            html.Div(components.loading(420), id=ids.TOPOLOGY_GRAPH, className="stack"),
            html.Div(components.loading(420), id=ids.TOPOLOGY_COST, className="stack"),
        ]
    )


def wanted_node(search: str | None, topology: Document) -> str | None:
    """The node that the address asks for, or the only one; None for all of them."""
    nodes = [node["id"] for node in topology["nodes"]]
    asked = parse_qs((search or "").lstrip("?")).get("node", [None])[0]
    return asked if asked in nodes else nodes[0] if len(nodes) == 1 else None


def placement(snapshot: Snapshot | None) -> dict[str, list[str]]:
    """Operators by planned device, of all pipelines that run; with the pipeline's name when there are several."""
    running = [p for p in (snapshot.pipelines if snapshot else ()) if p.state in ("starting", "running", "draining")]
    found: dict[str, list[str]] = {}
    for pipeline in running:
        for worker in pipeline.workers:
            name = worker.operator if len(running) == 1 else f"{pipeline.name}/{worker.operator}"
            found.setdefault(worker.device, []).append(name)
    return found


def physical(topology: Document, placed: Mapping[str, list[str]], node: str | None) -> Component:
    """What the machine is made of."""
    nodes = [n["id"] for n in topology["nodes"]]
    if not topology["devices"]:
        return components.panel("Physical graph", components.empty("This topology has no devices."))
    if node is not None:
        plan = machine.plan(topology, node)
        figure, (width, height) = machine.machine(plan, placed, node), machine.size(plan)
        links, title = plan.links, f"Node {node}"
        says = f"Node {node} with {len(plan.devices)} devices and {len(links)} links, drawn in layers"
    else:
        drawn = cluster.Plan(topology)
        figure, (width, height) = cluster.cluster(drawn, placed, ALL), cluster.size(drawn)
        links, title = drawn.links, f"{len(nodes)} nodes"
        says = f"{len(nodes)} nodes with {len(topology['devices'])} devices, and the links between them"
    choice = dmc.Select(
        id=ids.TOPOLOGY_NODE,
        data=[ALL, *nodes],
        value=node or ALL,
        searchable=True,
        allowDeselect=False,
        size="xs",
        w=170,
        **aria(label="Which node to show"),
    )
    body = [
        components.graph(ids.PHYSICAL_FIGURE, figure, says, height, width),
        legend(topology, links, placed, node),
    ]
    return html.Div(
        [
            _strip(topology, placed),
            *[components.warning(words) for words in topology.get("warnings", ())],
            components.panel(
                title,
                *body,
                note="point at a device or a link for everything known about it",
                aside=choice if len(nodes) > 1 else None,
            ),
        ],
        className="stack",
    )


def _strip(topology: Document, placed: Mapping[str, list[str]]) -> Component:
    kinds: dict[str, int] = {}
    for device in topology["devices"]:
        kinds[device["kind"]] = kinds.get(device["kind"], 0) + 1
    troubled = [link for link in topology["links"] if link.get("state") in hardware.STATES]
    unknown = sum(link.get("bandwidth_bytes_per_second") is None for link in topology["links"])
    operators = sum(len(names) for names in placed.values())
    return html.Div(
        [
            components.stat("Topology", topology.get("name") or "without a name", _provenance(topology)),
            components.stat(
                "Nodes",
                numbers.count(len(topology["nodes"])),
                f"{len(topology.get('vertices', ()))} switches and sockets",
            ),
            components.stat(
                "Devices",
                numbers.count(len(topology["devices"])),
                ", ".join(f"{n} {k}" for k, n in sorted(kinds.items())),
            ),
            components.stat(
                "Links",
                numbers.count(len(topology["links"])),
                html.Strong(f"{len(troubled)} degraded or down", className="alarming")
                if troubled
                else f"{unknown} of unknown bandwidth",
            ),
            components.stat("Operators placed", str(operators), f"on {sum(map(bool, placed.values()))} devices"),
        ],
        className="strip five",
    )


def _provenance(topology: Document) -> str:
    return {
        "description": "from a description, not measured",
        "measurement": "read from this machine",
        "emulated": "emulated",
    }.get(str(topology.get("provenance")), "of unknown origin")


def legend(topology: Document, links: list[Any], placed: Mapping[str, list[str]], node: str | None) -> Component:
    """What lines and dots mean; and operators on devices that are not here."""
    rows: list[Component] = []
    for words, same in hardware.classes(links).items():
        line = hardware.link_line(same[0])
        style = {
            "borderTopColor": line["color"],
            "borderTopStyle": {"solid": "solid", "dash": "dashed"}.get(line["dash"], "dotted"),
        }
        rows.append(html.Li([html.Span(className="key-line", style=style), f"{len(same)} × {words}"]))
    if node is None:
        kinds = {d["kind"] for d in topology["devices"]}
        for kind, colour in hardware.DEVICE_COLOURS.items():
            if kind in kinds:
                rows.append(html.Li([html.Span(className="key-dot", style={"background": colour}), kind]))
    if placed:
        rows.append(html.Li([html.Span(className="key-box"), "operators are placed here"]))
    known = {d["id"] for d in topology["devices"]}
    strangers = sorted(name for device, names in placed.items() if device not in known for name in names)
    return html.Div(
        [
            html.Ul(rows, className="legend"),
            html.P(f"Placed on devices that are not in this topology: {_some(strangers)}.", className="note")
            if strangers
            else None,
        ]
    )


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def matrix(document: Document) -> Component:
    """C_ij, and words for the cell that is pointed at."""
    labels, seconds = (
        document["labels"][: cost.LARGEST],
        [row[: cost.LARGEST] for row in document["seconds"][: cost.LARGEST]],
    )
    message = numbers.size(document["message_bytes"]) if document["message_bytes"] != 1 << 20 else "1 MiB"
    title = f"Time to move {message} between {document['level']}"
    if len(labels) < 2:
        return components.panel(title, components.empty("One device only: there is nowhere to move to."))
    found = cost.bounds(seconds)
    if found is None:
        mend = html.P("No link on any path has both a bandwidth and a latency. A topology file can say them.")
        return components.panel(title, components.empty("Nothing can be predicted here.", mend))
    unknown = sum(value is None for row in seconds for value in row)
    node = document.get("node")
    more: list[Component] = []
    if document.get("truncated"):
        more.append(
            components.warning(f"Only the first {len(labels)} are shown; choose a node above to see its devices.")
        )
    elif document["level"] == "nodes":
        links = [dcc.Link(name, href=f"/topology?node={quote(name)}") for name in labels[:16]]
        spaced = [part for link in links for part in (link, " ")]
        more.append(
            html.P(["Between the devices of one node: ", *spaced, "…" if len(labels) > 16 else ""], className="note")
        )
    height = min(COST_PIXELS, 190 + 30 * len(labels))
    says = (
        f"Heatmap of predicted times between {len(labels)} {document['level']}, from {numbers.seconds(found[0])} "
        f"to {numbers.seconds(found[1])}; {unknown} cells unknown"
    )
    key = html.Ul(
        [
            html.Li(
                [
                    html.Span(className="key-dot", style={"background": cost.UNKNOWN_COLOUR}),
                    f"unknown ({unknown} cells)",
                ]
            ),
            html.Li([html.Span(className="key-dot blank"), "the same: nothing to move"]),
        ],
        className="legend upright",
    )
    drawn = components.graph(
        ids.COST_FIGURE, cost.heatmap(labels, seconds, f"{document['level']} {node}"), says, height, 300
    )
    words = html.P("Point at a cell.", id=ids.COST_WORDS, className="words", **aria(live="polite"))
    return components.panel(
        title,
        html.Div(
            [drawn, html.Div([words, key, *more], className="beside")],
            className="cost",
            style={"--side": f"{height + 110}px", "--tall": f"{height}px"},
        ),
        dcc.Store(id=ids.COST_SCALE, data=cost.words_of_codes(*found)),
        note="predicted, row to column; colours are logarithmic",
    )
