"""`observatory topology watch`: links as they are now, and what changes, until interrupted."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from observatory.app.cli.common import common_options, warn
from observatory.app.cli.topology_diff import change_document, change_words
from observatory.app.units import rate_text, seconds_text
from observatory.model.errors import ExitCode, ModelError
from observatory.model.link import Link, LinkState

if TYPE_CHECKING:
    from rich.console import Console, Group

    from observatory.app.topology_views import View
    from observatory.model.topology import Topology

_SHORTEST_SECONDS = 0.05
_CHANGES_SHOWN = 8
_BAR = 10  # characters of a full one
_BARS = "in use, with bars"
_SHORTEST_NAME = 16
_STYLES = {LinkState.DOWN: "red", LinkState.DEGRADED: "yellow", LinkState.UP: "green", LinkState.UNKNOWN: "dim"}
_WORST_FIRST = (LinkState.DOWN, LinkState.DEGRADED, LinkState.UP, LinkState.UNKNOWN)


@click.command("watch")
@click.option(
    "--topology",
    metavar="FILE|NAME|real|live",
    help="Read this again and again. Default: the platform that runs on --state, else this machine.",
)
@click.option("--interval", type=float, default=1.0, show_default=True, metavar="S", help="Seconds between two looks.")
@click.option("--duration", type=float, metavar="S", help="End after so many seconds. Default: when interrupted.")
@common_options
def watch(topology: str | None, interval: float, duration: float | None, state: Path, as_json: bool) -> int:
    """Watch links and devices: in a terminal a table that stays up to date, worst links first, else a line per change.

    A running platform tells what its receivers see; without one this machine's description is read again and again.

    With --json every change is one line, a JSON object: at, kind (appeared, gone, changed), what, id, name, before,
    after.

    \b
    Examples:
      observatory topology watch
      observatory topology watch --interval 0.25
      observatory topology watch --duration 3600 --json >> changes.jsonl
    """
    from observatory.app.topology_views import views_of_readings

    if not interval >= _SHORTEST_SECONDS or (duration is not None and not duration >= 0):
        raise ModelError("that is no time to wait", mend=f"--interval from {_SHORTEST_SECONDS} s, --duration from 0")
    try:
        _show(views_of_readings(_reading(topology, state), interval, duration), as_json)
    except KeyboardInterrupt:  # how a watch ends: nothing to tell of
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _show(views: Iterable[View], as_json: bool) -> None:
    if as_json:
        _print_lines(views)
        return
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        _draw(console, views)
    else:
        _print_words(views)


def _reading(topology: str | None, state: Path) -> Callable[[], Topology]:
    from observatory.app.errors import NotRunning
    from observatory.app.topology_views import LIVE, chosen_topology, platform_reading
    from observatory.topology.load import REAL, load_topology

    if topology == LIVE:
        return platform_reading(state)
    if topology is not None:
        return lambda: chosen_topology(topology, state)
    try:
        return platform_reading(state)
    except NotRunning as nobody:
        if _was_given("state"):
            warn(f"{nobody.message}: this machine is watched instead")
        return lambda: load_topology(REAL)


def _was_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def _print_lines(views: Iterable[View]) -> None:
    for view in views:
        for change in view.changes:
            click.echo(json.dumps({"at": view.at, **change_document(change)}, allow_nan=False))
        sys.stdout.flush()


def _print_words(views: Iterable[View]) -> None:
    for number, view in enumerate(views):
        if number == 0:
            click.echo(f"watching {view.topology.name or 'a topology'}: {len(view.topology.links)} links")
        for change in view.changes:
            click.echo(f"{clock(view.at)} {change_words(change)}")
        sys.stdout.flush()


def _draw(console: Console, views: Iterable[View]) -> None:
    from rich.live import Live

    log: deque[str] = deque(maxlen=_CHANGES_SHOWN)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        for view in views:
            log.extend(f"{clock(view.at)} {change_words(change)}" for change in view.changes)
            live.update(picture(view, tuple(log), console.height, console.width), refresh=True)


def picture(view: View, log: tuple[str, ...], height: int, width: int) -> Group:
    """A table of as many links as fit, worst first, then the last changes. One machine's name is left out.

    Where `width` is too small for all, bars go first, then what matters less; numbers are shown whole or not at all.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    room = max(3, height - len(log) - 5)
    nodes = view.topology.nodes
    prefix = f"{nodes[0].id}/" if len(nodes) == 1 else ""
    links = sorted(view.topology.links, key=lambda link: _WORST_FIRST.index(link.state))
    rows = [_cells(link, prefix) for link in links[:room]]
    columns, gap = _columns_that_fit(rows, width)
    title = f"{view.topology.name or 'topology'} at {clock(view.at)}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, gap, 0, 0))
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in ("width", "bandwidth", "latency") else "left"
        table.add_column("in use" if name == _BARS else name, justify=justify, no_wrap=True)
    taken = sum(_wide(rows, name) + gap for name in columns[1:]) + gap
    for link, row in zip(links, rows, strict=False):
        row["link"] = _shortened(row["link"], max(_SHORTEST_NAME, width - taken))
        styles = {"state": _STYLES[link.state]}
        table.add_row(*(Text(row[name], style=styles.get(name, "")) for name in columns))
    below = [Text(f"and {len(links) - room} more links", style="dim")] if len(links) > room else []
    return Group(table, *below, Text(""), *(Text(line) for line in log))


def _cells(link: Link, prefix: str) -> dict[str, str]:
    """What every column may say of a link. What a link carried before it went down is no rate that it has."""
    share = link.utilisation
    full = 0 if share is None else round(share * _BAR)
    percent = "" if share is None else f"{share:4.0%}"
    down = link.state is LinkState.DOWN
    return {
        "link": "--".join(end.removeprefix(prefix) for end in link.id.split("--")),
        "state": "" if link.state is LinkState.UNKNOWN else link.state.value,
        "width": _width(link),
        "speed": link.speed or "",
        "bandwidth": "" if down else rate_text(link.bandwidth_bytes_per_second),
        "in use": percent,
        _BARS: percent and f"{'#' * full}{'.' * (_BAR - full)} {percent}",
        "latency": seconds_text(link.latency_seconds),
    }


def _columns_that_fit(rows: list[dict[str, str]], width: int) -> tuple[list[str], int]:
    """The most columns that `width` has room for, and the spaces behind each."""
    columns = ["link", "state", "width", "speed", "bandwidth", _BARS, "latency"]
    if not any(row[_BARS] for row in rows):
        columns.remove(_BARS)
    narrower = [(columns, 2)]
    columns = ["in use" if name == _BARS else name for name in columns]
    narrower += [(columns, 2), (columns, 1)]
    for name in ("speed", "latency", "width"):
        columns = [other for other in columns if other != name]
        narrower.append((columns, 1))
    fits = (x for x in narrower if sum(_wide(rows, name) + x[1] for name in x[0]) <= width)
    return next(fits, narrower[-1])


def _wide(rows: list[dict[str, str]], name: str) -> int:
    return max([len("in use" if name == _BARS else name), *(len(row[name]) for row in rows)])


def _shortened(name: str, most: int) -> str:
    """With its middle left out where it has more than so many characters: the ends tell links apart."""
    if len(name) <= most:
        return name
    head = (most - 1) // 2
    return f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"


def clock(at: float) -> str:
    """`14:03:07`, this machine's time."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _width(link: Link) -> str:
    if link.width is None:
        return "" if link.count is None else f"x{link.count}"
    best = "" if link.best_width in (None, link.width) else f" of {link.best_width}"
    return f"x{link.width}{best}"
