"""What `observatory up` shows on standard error: events as lines, and on a terminal one table of all pipelines."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from observatory.app.summary import milliseconds
from observatory.model.status import PipelineStatus, Snapshot

STYLES = {"running": "green", "starting": "cyan", "draining": "cyan", "failed": "bold red"}


class Board:
    """Lines and a live table. A terminal that goes away is no reason for the platform to end."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._lock = threading.Lock()
        self._live: Live | None = None
        if console.is_terminal and not quiet:
            self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()

    def event(self, name: str, words: str, bad: bool = False) -> None:
        """One line: when, which pipeline, what happened. Quiet platforms only say what is bad."""
        if self._quiet and not bad:
            return
        line = Text.assemble(
            (time.strftime("%H:%M:%S "), "dim"), (f"{name}: ", "bold"), (words, "yellow" if bad else "")
        )
        with self._lock, contextlib.suppress(OSError):
            self._console.print(line, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Bring the table up to date."""
        if self._live is not None:
            with self._lock, contextlib.suppress(OSError):
                self._live.update(table_of(snapshot), refresh=True)


def table_of(snapshot: Snapshot) -> Table:
    """One row per pipeline."""
    table = Table(box=None, padding=(0, 2, 0, 0), title=snapshot.platform.url, title_justify="left", title_style="cyan")
    for column in ("pipeline", "state", "frames", "fps", "latency p50", "p99", "lost", "queued"):
        table.add_column(column, justify="left" if column in ("pipeline", "state") else "right")
    for pipeline in snapshot.pipelines:
        table.add_row(*_row(pipeline))
    return table


def _row(pipeline: PipelineStatus) -> list[Text | str]:
    streams = pipeline.streams
    rates = [s.frames_per_second for s in streams if s.frames_per_second is not None]
    p50 = max((s.recent_p50_seconds for s in streams if s.recent_p50_seconds is not None), default=None)
    p99 = max((s.recent_p99_seconds for s in streams if s.recent_p99_seconds is not None), default=None)
    lost = sum(s.frames_lost + s.frames_dropped for s in streams)
    return [
        pipeline.name,
        Text(pipeline.state, style=STYLES.get(pipeline.state, "dim")),
        str(sum(s.frames_done for s in streams)),
        f"{sum(rates):.1f}" if rates and pipeline.state == "running" else "",
        milliseconds(p50) if p50 is not None else "",
        milliseconds(p99) if p99 is not None else "",
        Text(str(lost), style="bold red" if lost else "dim"),
        str(sum(edge.queued for edge in pipeline.edges)),
    ]
