"""`observatory move`: let another process go on with an operator's work, while frames flow."""

from __future__ import annotations

from pathlib import Path

import click

from observatory.app.cli.common import common_options, print_json

MOVE_SECONDS = 90.0


@click.command(
    "move",
    epilog="""\b
Examples:
  observatory move enc-hd
  observatory move live-hls/decode --json

The new process is started and warmed beside the old one, which then hands over at a frame: none is lost or doubled.
Exit codes: 0 moved, 1 it stays where it is (why is said), 2 no such operator runs.
""",
)
@click.argument("operator", metavar="[PIPELINE/]OPERATOR")
@common_options
def command(operator: str, state: Path, as_json: bool) -> None:
    """Let a new process take over the work of OPERATOR from the one that has it."""
    from observatory.app.control import ControlClient, sockets
    from observatory.app.moving import find_pipeline

    pipeline, _, name = operator.rpartition("/")
    path, pipeline = find_pipeline(sockets(state), pipeline or None, name)
    client = ControlClient(path)
    try:
        moved = client.ask("move", {"pipeline": pipeline, "operator": name}, MOVE_SECONDS)
    finally:
        client.close()
    if as_json:
        print_json({"pipeline": pipeline, "operator": name, **moved})
        return
    click.echo(
        f"{pipeline}/{name}: pid {moved['pid']} took over from pid {moved['old_pid']}, warmed in "
        f"{moved['warming_seconds'] * 1000:.0f} ms, cut over in {moved['cut_over_seconds'] * 1000:.1f} ms"
    )
