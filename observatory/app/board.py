"""What `observatory up` shows on standard error: events as lines, and on a terminal one table of all pipelines."""

from __future__ import annotations

import contextlib
import os
import queue
import select
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

MOST_WAITING = 1000  # lines that nobody has read yet
TABLE_SECONDS = 0.2
LAST_WORDS_SECONDS = 1.0  # how long the end waits for lines to be written
STYLES = {"running": "green", "starting": "cyan", "draining": "cyan", "failed": "bold red"}


class _Terminal(Console):
    """A console whose reader may leave: then it says nothing any more, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Nobody reads it: what is still to be written, at the end of the interpreter too, goes nowhere."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


class Board:
    """Lines and a live table, written by a thread of their own: nobody waits for who does not read standard error.

    What cannot be written in time is left out, and counted.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._console = _Terminal(stderr=True)
        self._quiet = quiet
        self._closing = threading.Event()
        self._lines: queue.Queue[Text | None] = queue.Queue(MOST_WAITING)
        self._left_out = 0
        self._snapshot: Snapshot | None = None
        self._live: Live | None = None
        if self._console.is_terminal and not quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._thread = threading.Thread(target=self._write, name="board", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join()

    def event(self, name: str, words: str, bad: bool = False) -> None:
        """One line: when, which pipeline, what happened. Quiet platforms only say what is bad. Never waits."""
        if self._quiet and not bad:
            return
        when, style = time.strftime("%H:%M:%S "), "yellow" if bad else ""
        try:
            self._lines.put_nowait(Text.assemble((when, "dim"), (f"{name}: ", "bold"), (words, style)))
        except queue.Full:
            self._left_out += 1

    def show(self, snapshot: Snapshot) -> None:
        """Bring the table up to date, soon."""
        self._snapshot = snapshot

    # -- the writing thread --------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._live is not None:
            self._live.start()
        while self._reader_takes():
            try:
                line = self._lines.get(timeout=TABLE_SECONDS)
            except queue.Empty:
                self._draw()
                continue
            if line is None:
                break
            self._print(line)
        if self._live is not None and self._reader_takes():
            with contextlib.suppress(OSError):
                self._live.stop()

    def _reader_takes(self) -> bool:
        """Wait until a line can be written without waiting for a reader; False: it is the end, and nobody reads.

        A pipe that poll calls writable takes 4096 bytes (pipe(7)). A thread that waited in a write would hold a lock
        that the end of the interpreter needs.
        """
        try:
            descriptor = self._console.file.fileno()
        except (OSError, ValueError):
            return True  # none: what is written goes nowhere
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        deadline: float | None = None
        while not poll.poll(TABLE_SECONDS * 1000):
            if self._closing.is_set():
                deadline = deadline or time.monotonic() + LAST_WORDS_SECONDS
                if time.monotonic() > deadline:
                    return False
        return True

    def _print(self, line: Text) -> None:
        left_out, self._left_out = self._left_out, 0
        with contextlib.suppress(OSError):
            if left_out:
                self._console.print(f"({left_out} events were left out: nobody read them in time)")
            self._console.print(line, soft_wrap=True)

    def _draw(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if self._live is not None and snapshot is not None:
            with contextlib.suppress(OSError):
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
