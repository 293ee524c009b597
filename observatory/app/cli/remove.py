"""`observatory remove`: end one pipeline of a running platform."""

from __future__ import annotations

from pathlib import Path

import click

from observatory.app.cli.common import common_options, print_json

REMOVE_SECONDS = 60.0


@click.command(
    "remove",
    epilog="""\b
Examples:
  observatory remove abr-ladder
  observatory remove abr-ladder --json

What is in flight is finished and the outputs play. Exit codes: 0 removed, 2 there is no such pipeline.
""",
)
@click.argument("name")
@common_options
def command(name: str, state: Path, as_json: bool) -> None:
    """End the pipeline NAME in good order; the others go on."""
    from observatory.app.control import ControlClient
    from observatory.app.state_lock import platform_socket

    status = ControlClient(platform_socket(state)).ask("remove", {"name": name}, REMOVE_SECONDS)
    if as_json:
        print_json(status)
        return
    frames = sum(stream["frames_done"] for stream in status["streams"])
    click.echo(f"{name} removed after {frames} frames")
