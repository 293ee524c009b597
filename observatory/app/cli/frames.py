"""`observatory frames`: find a frame again by its PTS, and see what it went through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from observatory.app.cli.common import common_options, print_json
from observatory.app.time_base import parse_time_base
from observatory.frames import lookup
from observatory.frames.store import FrameStore

if TYPE_CHECKING:
    from rich.console import Console

    from observatory.frames.summary import StreamStats
    from observatory.frames.views import Frame


EPOCHS_SHOWN = 10


class TimeBaseType(click.ParamType[Any]):
    """`1/12800`: seconds per tick as a fraction."""

    name = "N/D"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """(numerator, denominator), both positive and below 2**32."""
        if isinstance(value, tuple):
            return value
        try:
            return parse_time_base(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _which(function: Any) -> Any:
    """`--stream` and `--epoch`."""
    function = click.option(
        "--epoch", type=click.IntRange(1), help="Only this epoch; default: all of the newest run with frames."
    )(function)
    return click.option("--stream", help="The stream's name; may be left out when there is only one.")(function)


@click.group()
def command() -> None:
    """Find frames again by their PTS and see where their time went.

    A frame keeps its source index over all hops; its PTS may change on the way. Look-ups go by PTS in any time base, or
    by source index, and show the newest run unless told otherwise. Every run begins an epoch of its streams, and so
    does every discontinuity of a source while it runs; PTS are the source's own, in every epoch.

    \b
    Examples:
      observatory frames find --pts 1024
      observatory frames slowest --count 5
      observatory frames stats --json
    """


@command.command("find")
@_which
@click.option("--pts", type=int, help="Presentation time, in ticks of the time base.")
@click.option("--time-base", type=TimeBaseType(), help="Seconds per tick; default: the source stream's.")
@click.option("--source-index", type=click.IntRange(0), help="Number of the frame at its source, instead of --pts.")
@click.option("--events", is_flag=True, help="Also list every event with its time.")
@common_options
def find(
    stream: str | None,
    epoch: int | None,
    pts: int | None,
    time_base: tuple[int, int] | None,
    source_index: int | None,
    events: bool,
    state: Path,
    as_json: bool,
) -> None:
    """Show one frame over all its hops.

    Exit code 1 when there is no such frame; the nearest are named then, and why it was lost if it was.

    \b
    Examples:
      observatory frames find --pts 1024
      observatory frames find --stream abr-ladder --pts 512 --time-base 1/12800
      observatory frames find --stream abr-ladder --epoch 2 --source-index 17 --json
    """
    if (pts is None) == (source_index is None):
        raise click.UsageError("name the frame with either --pts or --source-index")
    if time_base is not None and pts is None:
        raise click.UsageError("--time-base goes with --pts")
    with FrameStore.open(state) as store:
        if pts is not None:
            frame = lookup.find(store, pts, stream=stream, time_base=time_base, epoch=epoch)
        else:
            frame = lookup.find_source_index(store, source_index or 0, stream=stream, epoch=epoch)
    if as_json:
        print_json(frame.as_dict())
        return
    from observatory.app.cli.waterfall import draw

    console = _console()
    draw(console, frame)
    if events:
        _print_events(console, frame)


@command.command("list")
@_which
@click.option("--from", "first", type=click.IntRange(0), metavar="INDEX", help="First source index.")
@click.option("--to", "last", type=click.IntRange(0), metavar="INDEX", help="Last source index.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="At most so many frames.")
@common_options
def list_(
    stream: str | None,
    epoch: int | None,
    first: int | None,
    last: int | None,
    limit: int,
    state: Path,
    as_json: bool,
) -> None:
    """List frames by source index: the latest, or those from --from on.

    \b
    Examples:
      observatory frames list
      observatory frames list --stream abr-ladder --from 100 --to 120
      observatory frames list --epoch 1 --limit 1000 --json
    """
    with FrameStore.open(state) as store:
        frames = lookup.list_frames(store, stream=stream, epoch=epoch, first=first, last=last, limit=limit)
        lost = lookup.lost_frames(store, stream=stream, epoch=epoch, limit=limit)
        epochs = lookup.list_epochs(store, stream=stream)
    if as_json:
        print_json({"frames": [frame.as_row() for frame in frames], "lost": lost, "epochs": epochs})
        return
    console = _console()
    _print_frames(console, frames)
    if len(epochs) > 1:
        _print_epochs(console, epochs)
    if lost:
        console.print(f"\nlost ({len(lost)}{' or more' if len(lost) == limit else ''}):")
        for entry in lost[:10]:
            pts = "PTS unknown" if entry["pts"] is None else f"PTS {entry['pts']}"
            console.print(f"  {pts}: {entry['reason']} ({entry['operator']})", soft_wrap=True)


@command.command("slowest")
@_which
@click.option("--count", type=click.IntRange(1), default=10, show_default=True, help="How many frames.")
@common_options
def slowest(stream: str | None, epoch: int | None, count: int, state: Path, as_json: bool) -> None:
    """List the frames that took longest, from first launch to last release.

    \b
    Examples:
      observatory frames slowest
      observatory frames slowest --stream abr-ladder --count 3 --json
    """
    from observatory.frames import summary

    with FrameStore.open(state) as store:
        frames = summary.slowest(store, count, stream=stream, epoch=epoch)
    if as_json:
        print_json({"frames": [frame.as_row() for frame in frames]})
        return
    _print_frames(_console(), frames)


@command.command("stats")
@_which
@common_options
def stats(stream: str | None, epoch: int | None, state: Path, as_json: bool) -> None:
    """Show where the time goes, hop by hop: medians and 99th percentiles over a whole run.

    \b
    Examples:
      observatory frames stats
      observatory frames stats --stream abr-ladder --epoch 1 --json
    """
    from observatory.frames import summary

    with FrameStore.open(state) as store:
        found = summary.stats(store, stream=stream, epoch=epoch)
    if as_json:
        print_json({"streams": [entry.as_dict() for entry in found]})
        return
    console = _console()
    for number, entry in enumerate(found):
        if number:
            console.print()
        _print_stats(console, entry)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False)


def _print_frames(console: Console, frames: list[Frame]) -> None:
    from rich.table import Table

    from observatory.app.cli.waterfall import bars

    if not frames:
        console.print("no frames")
        return
    bases = {frame.time_base for frame in frames if frame.time_base}
    base = f" ({next(iter(bases))})" if len(bases) == 1 else ""
    unicode = console.encoding.lower().startswith("utf")
    several = len({frame.epoch for frame in frames}) > 1
    console.print(frames[0].stream + ("" if several else f", epoch {frames[0].epoch}") + "\n", style="bold")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")
    if several:
        table.add_column("epoch", justify="right")
    table.add_column("index", justify="right")
    table.add_column(f"PTS{base}", justify="right")
    table.add_column("hops", justify="right")
    table.add_column("state")
    table.add_column("end to end", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    drawn = bars([frame.end_to_end_seconds for frame in frames], max(8, min(40, console.width - 60)), unicode)
    styles = {"complete": "green", "partial": "yellow"}
    from rich.text import Text

    for frame, bar in zip(frames, drawn, strict=True):
        table.add_row(
            *([str(frame.epoch)] if several else []),
            str(frame.source_index),
            "unknown" if frame.pts is None else str(frame.pts),
            f"{len(frame.hops)}/{len(frame.hops) + len(frame.missing)}",
            Text(frame.state, style=styles.get(frame.state, "red")),
            _milliseconds(frame.end_to_end_seconds) + " ms",
            Text(bar, style="cyan"),
        )
    console.print(table)


def _print_epochs(console: Console, epochs: list[dict[str, Any]]) -> None:
    from datetime import datetime

    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")
    table.add_column("epoch", justify="right")
    table.add_column("began", no_wrap=True)
    table.add_column("frames", justify="right")
    table.add_column("why")
    for entry in epochs[-EPOCHS_SHOWN:]:
        table.add_row(
            str(entry["epoch"]),
            datetime.fromtimestamp(entry["began_unix_seconds"]).isoformat(" ", "seconds"),
            "unknown" if entry["frames"] is None else str(entry["frames"]),
            Text(entry["reason"] or "a run began"),
        )
    console.print()
    console.print(table)


def _print_events(console: Console, frame: Frame) -> None:
    """Every event of every hop, in milliseconds since the frame's first."""
    times = [ns for hop in frame.hops for ns in hop.events.values() if ns is not None]
    start = min(times, default=0)
    for hop in frame.hops:
        console.print(f"\n{hop.edge}", style="bold", end="")
        pts = "unknown" if hop.pts is None else f"{hop.pts} at {hop.time_base}"
        slot = "unknown" if hop.slot is None else f"{hop.slot >> 16}:{hop.slot & 0xFFFF}"
        console.print(f"  PTS {pts}, slot {slot}", style="bright_black", soft_wrap=True)
        for kind, ns in hop.events.items():
            if ns is not None or not kind.startswith("LINK_"):
                since = None if ns is None else (ns - start) / 1e9
                emulated = f"  {hop.link['label']}" if hop.link and kind.startswith("LINK_") else ""
                console.print(f"  {kind:<24} {_milliseconds(since):>9} ms{emulated}")


def _print_stats(console: Console, entry: StreamStats) -> None:
    from rich.table import Table

    from observatory.frames.summary import PHASES

    counts = entry.counters
    end = entry.end_to_end
    console.print(f"{entry.stream}, epoch {entry.epoch}" + _others(entry.epochs - 1), style="bold")
    console.print(
        f"{entry.frames} frames, {entry.lost} lost, {entry.records} records; "
        f"end to end p50 {_milliseconds(end['p50_seconds'])} ms, p99 {_milliseconds(end['p99_seconds'])} ms, "
        f"max {_milliseconds(end['max_seconds'])} ms",
        soft_wrap=True,
    )
    if counts is None or not counts.finished:
        console.print("the run has not said that it finished: it goes on, or it was killed", style="yellow")
    if counts is not None and (counts.events_lost or counts.unmatched or counts.records_dropped):
        console.print(
            f"{counts.events_lost} events lost, {counts.unmatched} unmatched, {counts.records_dropped} records dropped",
            style="yellow",
        )
    console.print()
    unicode = console.encoding.lower().startswith("utf")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")
    table.add_column("hop", no_wrap=True)
    table.add_column("frames", justify="right")
    shown = [name for name in PHASES if any(hop.phases[name]["count"] for hop in entry.hops)]
    for name in shown:
        table.add_column(name.replace("_", "\n").replace("slot\nturnaround", "slot\nin use"), justify="right")
    for hop in entry.hops:
        cells = [
            "\n".join(_milliseconds(hop.phases[n][q]) for q in ("p50_seconds", "p99_seconds"))
            if hop.phases[n]["count"]
            else ""
            for n in shown
        ]
        arrow = hop.edge.replace("->", "→") if unicode else hop.edge
        problems = [f"{n} {w}" for n, w in ((hop.dropped, "dropped"), (hop.incomplete, "incomplete")) if n]
        table.add_row("\n".join([arrow, *problems]), str(hop.records), *cells)
    console.print(table)
    console.print("\nmilliseconds; above the median, below the 99th percentile", style="bright_black")
    links = next((hop.link for hop in entry.hops if hop.link), None)
    if links is not None:
        console.print(
            f"link: emulated, {links['time_scale']:g} times slower than described; the waits behind it are so too",
            style="bright_black",
            soft_wrap=True,
        )


def _others(count: int) -> str:
    return "" if not count else f" and {count} before it in the same run"


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    value = seconds * 1e3
    return f"{value:.{3 if value < 1 else 2 if value < 100 else 1 if value < 1000 else 0}f}"
