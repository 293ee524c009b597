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

from observatory.app.summary import milliseconds
from observatory.model.status import PipelineStatus


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

    def update(self, status: PipelineStatus) -> None:
        """Show where the job is now."""
        if self._enabled:
            with contextlib.suppress(OSError):
                self._live.update(render(status), refresh=True)


def render(status: PipelineStatus) -> Table:
    """Two rows: the job, and the queues between its operators (queued + held frames per edge)."""
    table = Table.grid(padding=(0, 2))
    table.add_row(*_bar(status), *_numbers(status))
    outer = Table.grid()
    outer.add_row(table)
    queues = "  ".join(f"{edge.edge} {edge.queued}+{edge.held}" for edge in status.edges)
    outer.add_row(Text(f"queues (queued+held)  {queues}", style="dim", overflow="ellipsis", no_wrap=True))
    return outer


def _bar(status: PipelineStatus) -> list[Text | ProgressBar]:
    done = sum(stream.frames_done for stream in status.streams)
    expected = [stream.frames_expected for stream in status.streams]
    if not expected or None in expected:
        return [Text(f"{done} frames", style="bold")]
    total = sum(frames for frames in expected if frames is not None)
    return [ProgressBar(total=total, completed=done, width=24), Text(f"{done}/{total} frames", style="bold")]


def _numbers(status: PipelineStatus) -> list[Text]:
    rates = [s.frames_per_second for s in status.streams if s.frames_per_second is not None]
    p50 = max((s.latency_p50_seconds for s in status.streams if s.latency_p50_seconds is not None), default=None)
    p99 = max((s.latency_p99_seconds for s in status.streams if s.latency_p99_seconds is not None), default=None)
    row = [
        Text(f"{sum(rates):.1f} fps" if rates else "", style="cyan"),
        Text(f"latency p50 {milliseconds(p50)} p99 {milliseconds(p99)}"),
    ]
    if lost := sum(s.frames_lost + s.frames_dropped for s in status.streams):
        row.append(Text(f"{lost} lost", style="bold red"))
    return row
