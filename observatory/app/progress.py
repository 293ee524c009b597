"""The progress line of a running job: frames, rate, latency, queue depths."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from observatory.app.job import Progress
from observatory.app.summary import milliseconds


class ProgressLine:
    """Shows progress on a terminal, updated in place; silent when standard error is no terminal.

    A terminal that goes away in the middle is no reason for the job to fail.
    """

    def __init__(self, console: Console, *, enabled: bool) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True, auto_refresh=False)
        self._enabled = enabled and console.is_terminal
        self._console = console

    def __enter__(self) -> Self:
        if self._enabled:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            with contextlib.suppress(OSError):
                self._live.stop()

    def warn(self, message: str) -> None:
        """Print a warning above the line, on standard error."""
        with contextlib.suppress(OSError):
            self._console.print(Text.assemble(("warning: ", "bold yellow"), message), soft_wrap=True)

    def update(self, progress: Progress) -> None:
        """Show where the job is now."""
        if self._enabled:
            with contextlib.suppress(OSError):
                self._live.update(render(progress), refresh=True)


def render(progress: Progress) -> Table:
    """Two rows: the job, and the queues between its operators (queued + held frames per edge)."""
    table = Table.grid(padding=(0, 2))
    done = f"{progress.frames_done}"
    if progress.expected_frames:
        done += f"/{progress.expected_frames}"
    row: list[Text | ProgressBar] = []
    if progress.expected_frames:
        row.append(ProgressBar(total=progress.expected_frames, completed=progress.frames_done, width=24))
    row += [
        Text(f"{done} frames", style="bold"),
        Text(f"{progress.frames_per_second:.1f} fps", style="cyan"),
        Text(
            f"latency p50 {milliseconds(progress.latency_p50_seconds)} p99 {milliseconds(progress.latency_p99_seconds)}"
        ),
    ]
    if progress.lost:
        row.append(Text(f"{progress.lost} lost", style="bold red"))
    table.add_row(*row)
    outer = Table.grid()
    outer.add_row(table)
    queues = "  ".join(f"{edge} {q['queued']}+{q['held']}" for edge, q in progress.queues.items())
    outer.add_row(Text(f"queues (queued+held)  {queues}", style="dim", overflow="ellipsis", no_wrap=True))
    return outer
