"""A frame's life drawn in the terminal: one row per hop in the order of the DAG, time from left to right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from observatory.frames.views import Frame, Hop

WIDE = 110
"""From so many columns on, a hop's devices and bytes stand beside its bar; below, on a line of their own."""
LONGEST_NAME = 30
SMALLEST_BAR = 16


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a hop's time: how it is drawn (with and without UTF-8), between which events it lies."""

    name: str
    meaning: str
    glyph: str
    ascii: str
    style: str
    begin: str
    end: str


PHASES = (
    Phase("allocate", "slot held, not started", "░", ".", "bright_black", "DMA_BUF_ALLOC", "PRODUCER_KERNEL_LAUNCH"),
    Phase("produce", "producer works", "█", "#", "green", "PRODUCER_KERNEL_LAUNCH", "FENCE_SIGNAL"),
    Phase("wait", "ready, not yet taken", "─", "-", "yellow", "FENCE_SIGNAL", "CONSUMER_KERNEL_LAUNCH"),
    Phase("link", "on the link", "═", "=", "magenta", "LINK_START", "LINK_END"),
    Phase("consume", "consumer works", "▓", "%", "cyan", "CONSUMER_KERNEL_LAUNCH", "SLOT_RELEASE"),
)
UNKNOWN = ("?", "red")


def draw(console: Console, frame: Frame) -> None:
    """Print a frame: what it is, its hops over time, a legend, and where the time went."""
    unicode = console.encoding.lower().startswith("utf")
    console.print(_title(frame, unicode), soft_wrap=True)
    for loss in frame.lost:
        console.print(Text(f"lost in {loss['operator']}: {loss['reason']}", style="red"), soft_wrap=True)
    times = [ns for hop in frame.hops for ns in hop.events.values() if ns is not None]
    console.print()
    if not frame.hops:
        console.print(Text("no hop of this frame was recorded", style="bright_black"))
        return
    start = min(times, default=0)
    span = max(max(times, default=0) - start, 1)
    _Chart(console, frame, start, span, unicode).print()
    console.print()
    console.print(_legend(frame, unicode), soft_wrap=True)
    if (words := _where_the_time_went(frame, unicode)) is not None:
        console.print(words, soft_wrap=True)


class _Chart:
    """The rows and the axis; columns are laid out for the console's width."""

    def __init__(self, console: Console, frame: Frame, start: int, span: int, unicode: bool) -> None:
        self.console, self.frame, self.start, self.span, self.unicode = console, frame, start, span, unicode
        names = [self.arrow(hop.edge) for hop in frame.hops] + [self.arrow(edge) for edge in frame.missing]
        self.name_width = min(max((cell_len(n) for n in names), default=0), LONGEST_NAME)
        self.total_width = max(len(_ms(_total(hop))) for hop in frame.hops) if frame.hops else 1
        self.wide = console.width >= WIDE
        self.place_width = max((cell_len(self.place(hop)) for hop in frame.hops), default=0) if self.wide else 0
        self.bytes_width = max((len(_bytes(hop.bytes)) for hop in frame.hops), default=0) if self.wide else 0
        taken = self.name_width + self.total_width + len(" ms") + 4
        if self.wide:
            taken += self.place_width + self.bytes_width + 4
        self.bar_width = max(SMALLEST_BAR, min(console.width, 200) - taken)

    def print(self) -> None:
        step, unit = _ticks(self.span, self.bar_width)
        left = self.name_width + 2 + (self.place_width + self.bytes_width + 4 if self.wide else 0)
        labels, ruler = self._axis(step, unit)
        self._line(Text(" " * left + labels, style="bright_black"))
        self._line(Text(" " * left + ruler, style="bright_black"))
        for hop in self.frame.hops:
            self._row(hop)
        for edge in self.frame.missing:
            name = self._name(edge, "bright_black")
            self._line(name.append(" " * (left - self.name_width - 2)).append("no record", "bright_black"))

    def arrow(self, edge: str) -> str:
        return edge.replace("->", "→") if self.unicode else edge

    def place(self, hop: Hop) -> str:
        """`n0/gpu0 → n0/gpu1`, with the real device when it is another."""
        arrow = "→" if self.unicode else "->"
        ends = [hop.producer_device or "?", hop.consumer_device or "?"]
        planned = ends[0] if ends[0] == ends[1] else f"{ends[0]} {arrow} {ends[1]}"
        if _common_real(self.frame) is not None:
            return planned
        real = [hop.producer_real_device or "?", hop.consumer_real_device or "?"]
        if real == ends:
            return planned
        return f"{planned} (on {real[0] if real[0] == real[1] else f'{real[0]} {arrow} {real[1]}'})"

    def _row(self, hop: Hop) -> None:
        line = self._name(hop.edge, "bold")
        if self.wide:
            line.append(_fit(self.place(hop), self.place_width)).append("  ")
            line.append(_bytes(hop.bytes).rjust(self.bytes_width), "bright_black").append("  ")
        line.append_text(self._bar(hop)).append("  ")
        line.append(_ms(_total(hop)).rjust(self.total_width)).append(" ms", "bright_black")
        self._line(line)
        if not self.wide:
            self._line(Text(f"  {self.place(hop)}, {_bytes(hop.bytes)}", style="bright_black"))

    def _name(self, edge: str, style: str) -> Text:
        return Text().append(_fit(self.arrow(edge), self.name_width), style).append("  ")

    def _line(self, text: Text) -> None:
        text.rstrip()
        self.console.print(text, no_wrap=True, overflow="crop", crop=True)

    def _bar(self, hop: Hop) -> Text:
        """One cell per glyph. Work and waits shorter than a cell get one too, if a neighbour can spare it."""
        cells: list[tuple[str, str]] = [(" ", "")] * self.bar_width
        least = self.span / self.bar_width / 2
        for begin, end, phase in sorted(_stretches(hop), key=lambda s: (s[1] - s[0] < least, s[0] - s[1])):
            first = min(self._cell(begin), self.bar_width - 1)
            last = max(first + 1, self._cell(end))
            short = end - begin < least
            if short and (phase.name == "allocate" or (cells[first][0] != " " and cells.count(cells[first]) < 2)):
                continue
            cells[first:last] = [(phase.glyph if self.unicode else phase.ascii, phase.style)] * (last - first)
        self._mark_unknown(hop, cells)
        text = Text()
        for glyph, style in cells:
            text.append(glyph, style)
        return text

    def _mark_unknown(self, hop: Hop, cells: list[tuple[str, str]]) -> None:
        """Say where the record breaks off: a frame taken away, or an event that never came."""
        known = [ns for ns in hop.events.values() if ns is not None]
        words = "dropped" if hop.dropped else "?" if hop.events.get("SLOT_RELEASE") is None or not known else ""
        at = self._cell(max(known, default=self.start))
        if known and not hop.dropped:
            for phase in PHASES:
                begin, end = hop.events.get(phase.begin), hop.events.get(phase.end)
                if phase.name != "link" and begin is None and end is not None:
                    before = max(0, self._cell(end) - 1)
                    if cells[before][0] == " ":
                        cells[before] = UNKNOWN
        room = self.bar_width - at
        if words and len(words) > room:
            at = max(0, self.bar_width - len(words))
        for offset, letter in enumerate(words[: self.bar_width]):
            cells[at + offset] = (letter, UNKNOWN[1])

    def _cell(self, ns: int) -> int:
        """The border between cells that is nearest to that time."""
        return min(max(round((ns - self.start) / self.span * self.bar_width), 0), self.bar_width)

    def _axis(self, step: float, unit: str) -> tuple[str, str]:
        """Labels and the ruler under them. `step` is in ms."""
        mark, dash = ("┬", "─") if self.unicode else ("+", "-")
        ruler, labels = [dash] * self.bar_width, [" "] * (self.bar_width + self.total_width + 5)
        count = int(self.span / 1e6 / step + 1e-9)
        for number in range(count + 1):
            at = int(number * step * 1e6 / self.span * self.bar_width)
            if at >= self.bar_width:
                break
            ruler[at] = mark
            text = f"{number * step:g}" if number else f"0 {unit}"
            if all(c == " " for c in labels[at : at + len(text) + 1]):
                labels[at : at + len(text)] = text
        return "".join(labels).rstrip(), "".join(ruler)


def _title(frame: Frame, unicode: bool) -> Text:
    """Two lines: which frame and how long; then what else there is to know."""
    gap = "   "
    title = Text().append(frame.stream, "bold").append(gap)
    base = f" at {frame.time_base}" if frame.time_base else ""
    title.append("PTS unknown" if frame.pts is None else f"PTS {frame.pts}{base}")
    if frame.end_to_end_seconds is not None:
        title.append(gap).append(f"{_ms(frame.end_to_end_seconds * 1e9)} ms", "bold cyan")
        title.append(" end to end")
    if frame.state != "complete":
        title.append(gap).append(frame.state, "yellow" if frame.state == "partial" else "red")
    why = "" if frame.epoch_reason is None else f" ({frame.epoch_reason})"
    parts = [f"source index {frame.source_index}", f"epoch {frame.epoch}{why}"]
    if frame.pts_offset:
        parts.append(f"PTS {frame.pts_offset:+} in the job")
    if frame.began_unix_seconds is not None:
        parts.append(datetime.fromtimestamp(frame.began_unix_seconds).isoformat(" ", "milliseconds"))
    real = _common_real(frame)
    planned = {d for hop in frame.hops for d in (hop.producer_device, hop.consumer_device)}
    if real is not None and planned != {real}:
        parts.append(f"really on {real}")
    return title.append("\n" + (" · " if unicode else ", ").join(parts), "bright_black")


def _common_real(frame: Frame) -> str | None:
    """The one device that everything really ran on, or None when there are several."""
    real = {d for hop in frame.hops for d in (hop.producer_real_device, hop.consumer_real_device)}
    return next(iter(real)) if len(real) == 1 else None


def _legend(frame: Frame, unicode: bool) -> Text:
    text = Text()
    drawn = {phase.name for hop in frame.hops for _, _, phase in _stretches(hop)}
    for phase in PHASES:
        if phase.name in drawn or phase.name != "link":
            scale = next((hop.link["time_scale"] for hop in frame.hops if hop.link), None)
            emulated = f" (emulated, x{scale:g})" if phase.name == "link" and scale is not None else ""
            text.append((phase.glyph if unicode else phase.ascii) * 2, phase.style)
            text.append(f" {phase.name}{emulated}   ")
    if any(
        ns is None
        for hop in frame.hops
        if not hop.dropped
        for kind, ns in hop.events.items()
        if not kind.startswith("LINK_")
    ):
        text.append(*UNKNOWN).append(" not recorded")
    text.rstrip()
    return text


def _where_the_time_went(frame: Frame, unicode: bool) -> Text | None:
    """The longest stretch of work and of waiting, in words."""
    stretches = [(end - begin, phase.name, hop) for hop in frame.hops for begin, end, phase in _stretches(hop)]
    work = max((s for s in stretches if s[1] in ("produce", "consume")), key=lambda s: s[0], default=None)
    wait = max((s for s in stretches if s[1] == "wait"), key=lambda s: s[0], default=None)
    text = Text(style="bright_black")
    if work is not None:
        producer, _, consumer = work[2].edge.partition("->")
        text.append(f"longest work: {producer if work[1] == 'produce' else consumer}, {_ms(work[0])} ms")
    if wait is not None and wait[0] > 0:
        edge = wait[2].edge.replace("->", "→") if unicode else wait[2].edge
        text.append("; " if work else "").append(f"longest wait: {edge}, {_ms(wait[0])} ms")
    return text if text.plain else None


def _stretches(hop: Hop) -> list[tuple[int, int, Phase]]:
    """The phases of a hop whose beginning and end are known (ns)."""
    found = []
    for phase in PHASES:
        begin, end = hop.events.get(phase.begin), hop.events.get(phase.end)
        if begin is not None and end is not None and end >= begin:
            found.append((begin, end, phase))
    return found


def _total(hop: Hop) -> float | None:
    """Nanoseconds from a hop's first to its last event, None when either end is not known."""
    begin = hop.events.get("DMA_BUF_ALLOC")
    if begin is None:
        begin = hop.events.get("PRODUCER_KERNEL_LAUNCH")
    end = hop.events.get("SLOT_RELEASE")
    return None if begin is None or end is None else end - begin


def _ms(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return "?"
    value = nanoseconds / 1e6
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _bytes(count: int | None) -> str:
    if count is None:
        return "? B"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _fit(text: str, width: int) -> str:
    """`text` in exactly `width` cells: padded, or cut in the middle."""
    if cell_len(text) > width:
        keep = width - 1
        text = text[: (keep + 1) // 2] + "…" + text[len(text) - keep // 2 :]
    return text + " " * (width - cell_len(text))


def _ticks(span_ns: int, width: int) -> tuple[float, str]:
    """A round step (ms) that leaves room for its labels, and the unit's name."""
    span = span_ns / 1e6
    wanted = span / max(2, width // 10)
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= wanted * (1 - 1e-9))
    return step, "ms"


def bars(values: Sequence[float | None], width: int, unicode: bool = True) -> list[str]:
    """One bar per value, relative to the largest; for tables."""
    largest = max((v for v in values if v is not None), default=0) or 1
    full, eighths = ("█", " ▏▎▍▌▋▊▉") if unicode else ("#", "        ")
    found = []
    for value in values:
        whole, part = divmod(int((value or 0) / largest * width * 8), 8)
        found.append((full * whole + eighths[part]).strip() if value else "")
    return found
