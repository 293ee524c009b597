"""One frame's life as a waterfall: a lane per hop in the order of the DAG, its phases over time.

Phases lie between two events of a hop's record (docs/reference/frame-records.md); one whose beginning or end is not
known is not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboards import numbers
from dashboards.figures.base import Figure, axis, figure
from dashboards.theme import BAD

Document = Mapping[str, Any]
LANE_PIXELS = 34
READY = "#7b6fd0"


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a hop's time."""

    name: str
    meaning: str
    begin: str
    end: str
    colour: str
    height: float = 0.62


PHASES = (
    Phase("allocate", "the slot is held, work has not begun", "DMA_BUF_ALLOC", "PRODUCER_KERNEL_LAUNCH", "#8b929c"),
    Phase("produce", "the producer works", "PRODUCER_KERNEL_LAUNCH", "FENCE_SIGNAL", "#009e73"),
    Phase("wait", "published, not yet taken", "FENCE_SIGNAL", "CONSUMER_KERNEL_LAUNCH", "#e69f00", 0.26),
    Phase("link", "on the link", "LINK_START", "LINK_END", "#cc79a7", 0.4),
    Phase("consume", "the consumer works, or holds the frame", "CONSUMER_KERNEL_LAUNCH", "SLOT_RELEASE", "#56a8e0"),
)


def stretch(hop: Document, phase: Phase) -> tuple[int, int] | None:
    """Beginning and end of a phase in ns; None when either is not known."""
    begin, end = hop["events"].get(phase.begin), hop["events"].get(phase.end)
    return None if begin is None or end is None or end < begin else (begin, end)


def start_ns(frame: Document) -> int:
    """The first event of the frame; 0 when there is none. When a consumer became ready is no event of the frame."""
    known = [
        ns
        for hop in frame["hops"]
        for kind, ns in hop["events"].items()
        if ns is not None and kind != "CONSUMER_WAIT_FENCE"
    ]
    return min(known, default=0)


def size(frame: Document) -> int:
    """Height in pixels."""
    return 62 + LANE_PIXELS * (len(frame["hops"]) + len(frame.get("missing") or ()))


def waterfall(frame: Document) -> Figure:
    """The figure. Times are in ms from the frame's first event; pointing at a bar shows the wall clock too."""
    start = start_ns(frame)
    lanes = [arrow(hop["edge"]) for hop in frame["hops"]] + [arrow(edge) for edge in frame.get("missing") or ()]
    traces = [_bars(frame, phase, start) for phase in PHASES]
    traces = [trace for trace in traces if trace["y"]]
    traces.append(_ready(frame, start))
    return figure(
        [trace for trace in traces if trace["y"]],
        keep=f"{frame['stream']} {frame['epoch']} {frame['source_index']}",
        barmode="overlay",
        bargap=0,
        xaxis=axis("ms from the frame's first event", rangemode="nonnegative", ticksuffix=""),
        yaxis=axis(
            type="category", categoryorder="array", categoryarray=lanes, autorange="reversed", showgrid=False,
            range=[-0.5, len(lanes) - 0.5], fixedrange=True,
        ),
        annotations=_remarks(frame, start),
        margin={"l": 8, "r": 64, "t": 8, "b": 44},
        hovermode="closest",
    )  # fmt: skip


def arrow(edge: str) -> str:
    """`decode → scale` of `decode->scale`."""
    return edge.replace("->", " → ")


def milliseconds(ns: float) -> str:
    """Nanoseconds as ms with as many digits as say something."""
    value = ns / 1e6
    return (
        f"{value:,.0f}"
        if value >= 1000
        else f"{value:.1f}"
        if value >= 100
        else f"{value:.2f}"
        if value >= 0.1
        else f"{value:.4f}"
    )


def _bars(frame: Document, phase: Phase, start: int) -> dict[str, Any]:
    lanes, lengths, bases, words = [], [], [], []
    for hop in frame["hops"]:
        if (found := stretch(hop, phase)) is not None:
            begin, end = found
            lanes.append(arrow(hop["edge"]))
            lengths.append((end - begin) / 1e6)
            bases.append((begin - start) / 1e6)
            words.append(_words(frame, hop, phase, begin, end, start))
    return {
        "type": "bar",
        "orientation": "h",
        "name": phase.name,
        "y": lanes,
        "x": lengths,
        "base": bases,
        "width": phase.height,
        "marker": {"color": phase.colour, "line": {"width": 1, "color": phase.colour}},
        "hovertext": words,
        "hoverinfo": "text",
    }


def _words(frame: Document, hop: Document, phase: Phase, begin: int, end: int, start: int) -> str:
    who = hop["edge"].partition("->")[0 if phase.name in ("allocate", "produce") else 2]
    lines = [
        f"<b>{arrow(hop['edge'])}</b>",
        f"{phase.name}: <b>{milliseconds(end - begin)} ms</b> ({phase.meaning})",
        f"from {milliseconds(begin - start)} to {milliseconds(end - start)} ms",
        f"{_clock(frame, begin, start)} – {_clock(frame, end, start)}",
        f"CLOCK_MONOTONIC {begin:,} – {end:,} ns",
        f"operator {who}, {numbers.size(hop.get('bytes'), 'unknown size')}",
    ]
    return "<br>".join(line for line in lines if line)


def _clock(frame: Document, ns: int, start: int) -> str:
    began = frame.get("began_unix_seconds")
    if began is None:
        return "wall clock unknown"
    return datetime.fromtimestamp(began + (ns - start) / 1e9).strftime("%H:%M:%S.%f")[:-2]


def _ready(frame: Document, start: int) -> dict[str, Any]:
    """When each consumer became ready for this frame, if that was after the frame began: it waited for the fence."""
    lanes, at, words = [], [], []
    for hop in frame["hops"]:
        ready, signal = hop["events"].get("CONSUMER_WAIT_FENCE"), hop["events"].get("FENCE_SIGNAL")
        if ready is None or ready < start:
            continue
        lanes.append(arrow(hop["edge"]))
        at.append((ready - start) / 1e6)
        waited = (
            f", waited {milliseconds(signal - ready)} ms for the fence" if signal is not None and signal > ready else ""
        )
        words.append(f"<b>{arrow(hop['edge'])}</b><br>consumer ready at {milliseconds(ready - start)} ms{waited}")
    return {
        "type": "scatter", "mode": "markers", "name": "consumer ready", "x": at, "y": lanes,
        "marker": {"symbol": "line-ns", "size": 18, "line": {"width": 2, "color": READY}},
        "hovertext": words, "hoverinfo": "text",
    }  # fmt: skip


def _remarks(frame: Document, start: int) -> list[dict[str, Any]]:
    """What each lane took in all; where a record breaks off; edges without a record."""
    found = []
    for hop in frame["hops"]:
        known = [ns for kind, ns in hop["events"].items() if ns is not None and kind != "CONSUMER_WAIT_FENCE"]
        first, last = min(known, default=start), max(known, default=start)
        text = f"{milliseconds(last - first)} ms"
        if hop.get("dropped"):
            text = "dropped here"
        elif hop.get("incomplete") or hop["events"].get("SLOT_RELEASE") is None:
            text = "? not recorded further"
        bad = not text.endswith(" ms")
        found.append(_remark(arrow(hop["edge"]), (last - start) / 1e6, text, bad))
    found += [_remark(arrow(edge), 0.0, "no record", False) for edge in frame.get("missing") or ()]
    return found


def _remark(lane: str, at: float, text: str, bad: bool) -> dict[str, Any]:
    return {
        "x": at, "y": lane, "text": f"<b>{text}</b>" if bad else text, "xanchor": "left", "xshift": 5,
        "showarrow": False, "font": {"size": 11, "color": BAD if bad else "#868e96"},
    }  # fmt: skip


def longest(frame: Document, names: Sequence[str]) -> tuple[int, Phase, Document] | None:
    """The longest stretch among these phases: (ns, phase, hop)."""
    found = [
        (span[1] - span[0], phase, hop)
        for hop in frame["hops"]
        for phase in PHASES
        if phase.name in names and (span := stretch(hop, phase)) is not None
    ]
    return max(found, key=lambda entry: entry[0], default=None)
