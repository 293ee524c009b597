"""`observatory topology watch`: links as they are now, and what changes, until interrupted."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from observatory.app.cli.common import common_options
from observatory.app.cli.topology_diff import change_document, change_words
from observatory.app.units import rate_text, seconds_text
from observatory.model.errors import ModelError
from observatory.model.link import Link, LinkState

if TYPE_CHECKING:
    from rich.console import Console, Group

    from observatory.app.topology_views import View
    from observatory.model.topology import Topology

_SHORTEST_SECONDS = 0.05
_CHANGES_SHOWN = 8
_BAR = 10  # characters of a full one
_STYLES = {LinkState.DOWN: "red", LinkState.DEGRADED: "yellow", LinkState.UP: "green", LinkState.UNKNOWN: "dim"}
_WORST_FIRST = (LinkState.DOWN, LinkState.DEGRADED, LinkState.UP, LinkState.UNKNOWN)


@click.command("watch")
@click.option(
    "--topology",
    metavar="FILE|NAME|real",
    help="Read this again and again. Default: the platform that runs on --state, else this machine.",
)
@click.option("--interval", type=float, default=1.0, show_default=True, metavar="S", help="Seconds between two looks.")
@click.option("--duration", type=float, metavar="S", help="End after so many seconds. Default: when interrupted.")
@common_options
def watch(topology: str | None, interval: float, duration: float | None, state: Path, as_json: bool) -> None:
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
    views = views_of_readings(_reading(topology, state), interval, duration)
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
    from observatory.app.topology_views import platform_reading
    from observatory.topology.load import REAL, load_topology

    if topology is None:
        try:
            return platform_reading(state)
        except NotRunning:
            topology = REAL
    return lambda: load_topology(topology)


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
            live.update(picture(view, tuple(log), console.height), refresh=True)


def picture(view: View, log: tuple[str, ...], height: int) -> Group:
    """A table of as many links as fit, worst first, then the last changes. One machine's name is left out."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = f"{view.topology.name or 'topology'} at {clock(view.at)}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    in_use = any(link.utilisation is not None for link in view.topology.links)
    for heading in ("link", "state", "width", "speed", "bandwidth", *(["in use"] if in_use else []), "latency"):
        numbers = heading in ("width", "bandwidth", "latency")
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=True)
    room = max(3, height - len(log) - 5)
    nodes = view.topology.nodes
    prefix = f"{nodes[0].id}/" if len(nodes) == 1 else ""
    links = sorted(view.topology.links, key=lambda link: _WORST_FIRST.index(link.state))
    for link in links[:room]:
        state = "" if link.state is LinkState.UNKNOWN else link.state.value
        table.add_row(
            Text("--".join(end.removeprefix(prefix) for end in link.id.split("--"))),
            Text(state, style=_STYLES[link.state]),
            _width(link),
            link.speed or "",
            rate_text(link.bandwidth_bytes_per_second),
            *([_use(link)] if in_use else []),
            seconds_text(link.latency_seconds),
        )
    below = [Text(f"and {len(links) - room} more links", style="dim")] if len(links) > room else []
    return Group(table, *below, Text(""), *(Text(line) for line in log))


def clock(at: float) -> str:
    """`14:03:07`, this machine's time."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _width(link: Link) -> str:
    if link.width is None:
        return "" if link.count is None else f"x{link.count}"
    best = "" if link.best_width in (None, link.width) else f" of {link.best_width}"
    return f"x{link.width}{best}"


def _use(link: Link) -> str:
    if link.utilisation is None:
        return ""
    full = round(link.utilisation * _BAR)
    return f"{'#' * full}{'.' * (_BAR - full)} {link.utilisation:4.0%}"
