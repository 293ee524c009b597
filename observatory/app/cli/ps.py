"""`observatory ps`: what is running on a state directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from observatory.app.cli.common import common_options, print_json


@click.command(
    "ps",
    epilog="""\b
Examples:
  observatory ps                      pipelines and workers, their devices, queues
  observatory ps --json
  observatory ps --state /var/lib/observatory
""",
)
@common_options
def command(state: Path, as_json: bool) -> None:
    """Show running pipelines, their worker processes and the queues between them."""
    from observatory.app.control import ask_all

    jobs = ask_all(state, "ps")
    if as_json:
        print_json({"jobs": jobs})
        return
    if not jobs:
        click.echo(f"nothing is running on {state}")
        return
    from rich.console import Console

    console = Console()
    for job in jobs:
        _show(console, job)


def _show(console: Any, job: dict[str, Any]) -> None:
    from rich.table import Table

    running = f"for {time.time() - job['started_unix_seconds']:.0f} s" if "started_unix_seconds" in job else "starting"
    table = Table(title=f"{job['pipeline']}, {running}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("pid", "operator", "op", "device (planned)", "device (real)", "state", "restarts", "frames out"):
        table.add_column(column, justify="right" if column in ("pid", "restarts", "frames out") else "left")
    for worker in job["workers"]:
        frames = "" if worker["frames"] is None else str(worker["frames"])
        table.add_row(
            *(str(worker[k]) for k in ("pid", "operator", "op", "device", "real_device", "state", "restarts")), frames
        )
    console.print(table)
    for edge, queue in job.get("edges", {}).items():
        console.print(f"  {edge}: {queue['queued']} queued, {queue['held']} held", style="dim")
