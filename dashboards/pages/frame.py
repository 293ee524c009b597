"""One frame: what it is, its waterfall, its hops as a table; or what is nearest when there is none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html

from dashboards import components, ids, numbers
from dashboards.api import Document
from dashboards.components import Component
from dashboards.errors import ApiRefused
from dashboards.figures import waterfall

SEARCHED = ("stream", "pts", "time_base", "epoch", "source_index")
"""Parameters of a deep link, as the API's look-up has them."""


def link(**which: Any) -> str:
    """The address of a frame: `/frames?stream=S&pts=N&epoch=E`."""
    return "/frames?" + urlencode({name: which[name] for name in SEARCHED if which.get(name) is not None})


def link_of(frame: Mapping[str, Any]) -> str:
    """The address of a frame of a list: by PTS, or by source index where the PTS is not known."""
    which = {"stream": frame["stream"], "epoch": frame["epoch"]}
    if frame.get("pts") is None:
        return link(**which, source_index=frame["source_index"])
    return link(**which, pts=frame["pts"], time_base=frame.get("time_base"))


def found(frame: Document) -> Component:
    """The frame and everything recorded about it."""
    head = [
        html.Div(
            [
                html.H2([frame["stream"], html.Span(f"  {_pts(frame)}", className="pts")]),
                components.state_badge(frame["state"]),
                dcc.Clipboard(id=ids.FRAME_COPY, title="Copy the address of this frame", className="copy"),
            ],
            className="name-and-state",
        ),
        html.P(" · ".join(_facts(frame)), className="note"),
        *[
            components.warning(f"Lost in {lost['operator']}: {lost['reason']}")
            for lost in frame.get("lost") or ()
        ],
    ]  # fmt: skip
    if not frame["hops"]:
        return html.Div([*head, components.empty("No hop of this frame was recorded.")])
    took = numbers.seconds(frame["end_to_end_seconds"], "unknown time")
    says = f"Waterfall of {len(frame['hops'])} hops, {took} end to end"
    return html.Div(
        [
            *head,
            html.P(_where_time_went(frame), className="verdict"),
            _key(frame),
            components.graph(ids.WATERFALL, waterfall.waterfall(frame), says, waterfall.size(frame), 560),
            html.Details([html.Summary("Hops in figures"), _hops(frame)]),
        ]
    )


def not_found(error: ApiRefused, stream: str | None, epoch: str | None) -> Component:
    """What the API said, and the nearest frames as links."""
    nearest = [
        html.Li(dcc.Link(_pts(near), href=_near_link(near, stream, epoch))) for near in error.nearest
    ]  # fmt: skip
    parts: list[Component] = [components.problem(error, title="No such frame" if error.status == 404 else None)]
    if error.lost:
        entries = error.lost if isinstance(error.lost, list) else [error.lost]
        parts += [components.warning(f"It was lost in {e.get('operator')}: {e.get('reason')}") for e in entries]
    if nearest:
        parts.append(html.Div([html.P("The nearest frames:"), html.Ul(nearest)], className="nearest"))
    return html.Div(parts)


def _near_link(near: Mapping[str, Any], stream: str | None, epoch: str | None) -> str:
    if near.get("pts") is None:
        return link(stream=stream, epoch=epoch, source_index=near.get("source_index"))
    return link(stream=stream, epoch=epoch, pts=near["pts"], time_base=near.get("time_base"))


def _pts(frame: Mapping[str, Any]) -> str:
    if frame.get("pts") is None:
        return f"source index {frame.get('source_index')}, PTS unknown"
    return f"PTS {frame['pts']}" + (f" at {frame['time_base']}" if frame.get("time_base") else "")


def _facts(frame: Document) -> list[str]:
    facts = [f"source index {frame['source_index']}", f"epoch {frame['epoch']}"]
    if frame.get("began_unix_seconds") is not None:
        facts.append(datetime.fromtimestamp(frame["began_unix_seconds"]).isoformat(" ", "milliseconds"))
    real = {d for hop in frame["hops"] for d in (hop["producer_real_device"], hop["consumer_real_device"])}
    if len(real) == 1 and (only := real.pop()):
        facts.append(f"ran on {only}")
    return facts


def _key(frame: Document) -> Component:
    drawn = [p for p in waterfall.PHASES if any(waterfall.stretch(hop, p) for hop in frame["hops"])]
    rows = [
        html.Li([html.Span(className="key-dot", style={"background": p.colour}), f"{p.name}: {p.meaning}"])
        for p in drawn
    ]
    ready = html.Li([html.Span(className="key-tick", style={"background": waterfall.READY}), "consumer ready"])
    return html.Ul([*rows, ready], className="legend")


def _where_time_went(frame: Document) -> list[Component]:
    parts: list[Component] = [
        html.Strong(numbers.seconds(frame["end_to_end_seconds"], "Unknown time")),
        " end to end, first launch to last release.",
    ]
    if (work := waterfall.longest(frame, ("produce", "consume"))) is not None:
        ns, phase, hop = work
        producer, _, consumer = hop["edge"].partition("->")
        parts.append(
            f" Longest work: {producer if phase.name == 'produce' else consumer}, {waterfall.milliseconds(ns)} ms."
        )
    if (wait := waterfall.longest(frame, ("wait",))) is not None and wait[0] > 0:
        parts.append(f" Longest wait: {waterfall.arrow(wait[2]['edge'])}, {waterfall.milliseconds(wait[0])} ms.")
    return parts


def _hops(frame: Document) -> Component:
    shown = [p for p in waterfall.PHASES if any(waterfall.stretch(hop, p) for hop in frame["hops"])]
    head = ["Hop", "Planned on", "Runs on", "PTS", "Bytes", "Slot", *[f"{p.name}, ms" for p in shown]]
    rows = []
    for hop in frame["hops"]:
        spans = [waterfall.stretch(hop, phase) for phase in shown]
        rows.append(
            [
                waterfall.arrow(hop["edge"]) + (" (dropped)" if hop.get("dropped") else ""),
                _places(hop["producer_device"], hop["consumer_device"]),
                _places(hop["producer_real_device"], hop["consumer_real_device"]),
                numbers.DASH if hop.get("pts") is None else f"{hop['pts']} at {hop.get('time_base')}",
                numbers.size(hop.get("bytes")),
                numbers.DASH if hop.get("slot") is None else f"{hop['slot'] >> 16}:{hop['slot'] & 0xFFFF}",
                *[numbers.DASH if s is None else waterfall.milliseconds(s[1] - s[0]) for s in spans],
            ]
        )
    return components.table(head, rows, "Hops of this frame", numeric=range(4, len(head)))


def _places(a: str | None, b: str | None) -> Component:
    return html.Code(a or "?") if a == b else html.Span([html.Code(a or "?"), " → ", html.Code(b or "?")])
