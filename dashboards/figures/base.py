"""What all figures have in common."""

from __future__ import annotations

from typing import Any

from dashboards.theme import FONT, LINE

Figure = dict[str, Any]


def figure(data: list[dict[str, Any]], *, keep: str, **layout: Any) -> Figure:
    """A figure. While `keep` stays the same, what the reader zoomed, moved or hid survives new data."""
    base: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": "#868e96"},
        "margin": {"l": 48, "r": 12, "t": 8, "b": 36},
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        "showlegend": False,
        "uirevision": keep,
        "autosize": True,
        "dragmode": "zoom",
    }
    return {"data": data, "layout": base | layout}


def fresh(whole: Figure) -> dict[str, Any]:
    """What of a figure changes with new values: its data, and these parts of its layout.

    The rest stays as it is in the browser: Dash keeps what the reader zoomed to in the figure's own ranges, which a
    whole new figure would overwrite.
    """
    layout = whole["layout"]
    kept = {part: layout[part] for part in ("shapes", "annotations") if part in layout}
    return {"data": whole["data"], "layout": kept, "title": layout["yaxis"].get("title")}


def axis(title: str | None = None, **more: Any) -> dict[str, Any]:
    """An axis with a title (and its unit) and a quiet grid."""
    found: dict[str, Any] = {
        "gridcolor": "rgba(128,136,148,0.2)",
        "zeroline": False,
        "linecolor": LINE,
        "ticks": "",
        "automargin": True,
    }
    if title:
        found["title"] = {"text": title, "font": {"size": 12}, "standoff": 8}
    return found | more


def hidden_axis(low: float, high: float, **more: Any) -> dict[str, Any]:
    """An axis of a drawing: nothing to read on it."""
    return {"visible": False, "range": [low, high], "fixedrange": False} | more


CONFIG: Any = {
    "displaylogo": False,
    "plotlyServerURL": "",
    "responsive": True,
    "scrollZoom": False,
    "displayModeBar": "hover",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "toImage", "sendChartToCloud"],
}
"""Of every graph. `responsive` follows the window. plotly.js would offer to upload charts to its makers: no."""
