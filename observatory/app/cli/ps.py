"""`observatory ps`: what is running on a state directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from observatory.app.cli.common import common_options, print_json, warn
from observatory.model.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from observatory.model.status import PipelineStatus, TelemetryStatus, WorkerStatus


@click.command(
    "ps",
    epilog="""\b
Examples:
  observatory ps                      pipelines and workers, their devices, queues
  observatory ps --json
  observatory ps --state /var/lib/observatory

Exit codes: 0 all that runs is shown, 1 something runs and does not answer (its pid is on standard error).
""",
)
@common_options
def command(state: Path, as_json: bool) -> int:
    """Show running pipelines, their worker processes and the queues between them."""
    from observatory.app.control import ask_all
    from observatory.model.status import Snapshot

    found = ask_all(state, "snapshot")
    for pid, why in found.silent.items():
        warn(f"pid {pid} does not answer ({why})")
    code = ExitCode.JOB_FAILED if found.silent else ExitCode.DONE
    snapshots = [Snapshot.model_validate(answer) for answer in found.answers]
    pipelines = [pipeline for snapshot in snapshots for pipeline in snapshot.pipelines]
    if as_json:
        platforms = [snapshot.platform.model_dump(mode="json") for snapshot in snapshots]
        documents = [p.model_dump(mode="json") for p in pipelines]
        open_ones = [s.telemetry.incidents_open if s.telemetry else None for s in snapshots]
        platforms = [one | {"incidents_open": n} for one, n in zip(platforms, open_ones, strict=True)]
        print_json({"platforms": platforms, "pipelines": documents, "silent": list(found.silent)})
        return code
    if not snapshots:
        if not found.silent:
            click.echo(f"nothing is running on {state}")
        return code
    from rich.console import Console

    console = Console()
    for snapshot in snapshots:
        if snapshot.platform.url is not None:
            console.print(f"platform at {snapshot.platform.url}, pid {snapshot.platform.pid}")
        show_incidents(console, snapshot.telemetry)
    show_shared(console, pipelines)
    for pipeline in pipelines:
        _show(console, pipeline)
    return code


def show_incidents(console: Console, telemetry: TelemetryStatus | None) -> None:
    """How many there are, where there are any."""
    if telemetry is not None and telemetry.incidents_open:
        critical = sum(incident.severity == "critical" for incident in telemetry.incidents)
        words = (
            f"{telemetry.incidents_open} incidents of the {'emulated ' if telemetry.emulated else ''}hardware are open"
        )
        console.print(
            f"{words}, {critical} critical: observatory incidents --open", style="red" if critical else "yellow"
        )


def _table(title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("pid", "operator", "op", "device (planned)", "device (real)", "state", "restarts", "frames out"):
        table.add_column(column, justify="right" if column in ("pid", "restarts", "frames out") else "left")
    return table


def _add_worker(table: Table, worker: WorkerStatus, operator: str) -> None:
    table.add_row(
        str(worker.pid),
        operator,
        worker.op,
        worker.device,
        worker.real_device,
        worker.state,
        str(worker.restarts),
        "" if worker.frames is None else str(worker.frames),
    )


def show_shared(console: Console, pipelines: Sequence[PipelineStatus]) -> None:
    """Workers that several pipelines read, once, with their names."""
    shared: dict[tuple[str, ...], dict[int, list[WorkerStatus]]] = {}
    for worker in (worker for pipeline in pipelines for worker in pipeline.workers if worker.shared_by):
        shared.setdefault(worker.shared_by, {}).setdefault(worker.pid, []).append(worker)
    for sharers, workers in shared.items():
        table = _table(f"shared by {', '.join(sharers)}")
        for said in workers.values():
            _add_worker(table, said[0], " = ".join(dict.fromkeys(worker.operator for worker in said)))
        console.print(table)
        if slowest := slowest_reader(sharers, pipelines):
            console.print(f"  {slowest}", style="dim")


def slowest_reader(sharers: Sequence[str], pipelines: Sequence[PipelineStatus]) -> str | None:
    """Which edge has most left to read, in words: under `block` the others wait for it."""
    waiting = []
    for pipeline in (pipeline for pipeline in pipelines if pipeline.name in sharers):
        made = {worker.operator for worker in pipeline.workers if worker.shared_by}
        own = [edge for edge in pipeline.edges if edge.producer in made and edge.consumer not in made]
        waiting += [(edge.queued + edge.held, pipeline.name, edge) for edge in own]
    if not waiting:
        return None
    _, name, edge = max(waiting, key=lambda one: one[0])
    return f"slowest reader: {name}, {edge.edge}: {edge.queued} queued, {edge.held} held"


def _show(console: Console, pipeline: PipelineStatus) -> None:
    running = (
        "" if pipeline.started_unix_seconds is None else f" for {time.time() - pipeline.started_unix_seconds:.0f} s"
    )
    table = _table(f"{pipeline.name}: {pipeline.state}{running if pipeline.ended_unix_seconds is None else ''}")
    for worker in pipeline.workers:
        if not worker.shared_by:
            _add_worker(table, worker, worker.operator)
    console.print(table)
    if pipeline.reason:
        console.print(f"  {pipeline.reason}", style="red")
    if pipeline.pool_resident_bytes is not None and pipeline.pool_bytes is not None:
        rate = "" if pipeline.pool_hit_rate is None else f", hit rate {pipeline.pool_hit_rate:.1%}"
        size = f"{pipeline.pool_resident_bytes / 1e6:.1f} MB resident of {pipeline.pool_bytes / 1e6:.1f} MB"
        console.print(f"  frame pools: {size}{rate}", style="dim")
    for edge in pipeline.edges:
        console.print(f"  {edge.edge}: {edge.queued} queued, {edge.held} held", style="dim")
