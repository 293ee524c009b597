"""`observatory submit`: one more pipeline for a running platform."""

from __future__ import annotations

from pathlib import Path

import click

from observatory.app.cli.common import common_options, print_json

SUBMIT_SECONDS = 120.0  # opening a live input may take a while


@click.command(
    "submit",
    epilog="""\b
Examples:
  observatory submit ladder.yaml --input film.mp4
  observatory submit ladder.yaml --input cam=rtp://0.0.0.0:5004 --name studio-2
  observatory submit hls.yaml archive.yaml --input film.mp4    together: the film is decoded once for both
  observatory submit ladder.yaml --json

Relative paths, in the file too, are taken from the folder that you are in. Exit codes: 0 it runs, 1 it failed,
2 it was refused (with file, line and mend), 130 Ctrl-C; the platform goes on either way. Ctrl-C while inputs are being
opened takes the submission back; a pipeline that has begun stays.
""",
)
@click.argument("pipelines", metavar="PIPELINE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--input", "inputs", multiple=True, metavar="[OPERATOR=]FILE", help="Video to read; repeatable.")
@click.option("--name", help="Call the pipeline so, instead of what its file says.")
@click.option("--frames", type=click.IntRange(min=1), help="Stop after that many frames of each source.")
@click.option("--realtime/--no-realtime", default=None, help="Read files at their own pace, not as fast as possible.")
@click.option("--no-sharing", is_flag=True, help="Share nothing with other pipelines.")
@common_options
def command(
    pipelines: tuple[Path, ...],
    inputs: tuple[str, ...],
    name: str | None,
    frames: int | None,
    realtime: bool | None,
    no_sharing: bool,
    state: Path,
    as_json: bool,
) -> None:
    """Start PIPELINE on the platform that runs on this state directory (`observatory up`).

    Several are started together. A pipeline whose live input is read already reads along.
    """
    from observatory.app.control import ControlClient
    from observatory.app.state_lock import platform_socket
    from observatory.app.submission import submission_of

    if name is not None and len(pipelines) > 1:
        raise click.UsageError("--name is for one PIPELINE")
    client = ControlClient(platform_socket(state))
    share = False if no_sharing else None
    submissions = [
        submission_of(path, inputs, name=name, frames=frames, realtime=realtime, share=share).model_dump()
        for path in pipelines
    ]
    if len(submissions) == 1:
        document = client.ask("submit", submissions[0], SUBMIT_SECONDS)
        started = [document]
    else:
        document = client.ask("submit_together", {"submissions": submissions}, SUBMIT_SECONDS)
        started = document["pipelines"]
    if as_json:
        print_json(document)
        return
    for status in started:
        click.echo(f"{status['name']} {status['state']}: {len(status['workers'])} workers")
