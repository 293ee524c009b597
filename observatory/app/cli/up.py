"""`observatory up`: the live platform."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from observatory.app.cli.common import common_options, link_options, print_json

if TYPE_CHECKING:
    from observatory.app.launch import Setup
    from observatory.app.submission import Submission


@dataclass(frozen=True, slots=True)
class _Request:
    """The command's options, as click calls them; None where the configuration or a default decides."""

    pipelines: tuple[Path, ...]
    no_sharing: bool
    inputs: tuple[str, ...]
    topology: str | None
    emulate_links: str | None
    link_seed: str | None
    frames: int | None
    realtime: bool | None
    duration: float | None
    stay: bool
    no_pipeline: bool
    no_web: bool
    host: str | None
    port: int | None
    queue_frames: int | None
    memory_limit: str | None
    config: Path | None
    quiet: bool
    state: Path


@click.command(
    "up",
    epilog="""\b
Examples:
  observatory up                                     the shipped ladder on a test picture, live, until Ctrl-C
  observatory up --input film.mp4                    the same on your video, until it ends
  observatory up ladder.yaml --input cam=rtp://0.0.0.0:5004
  observatory up hls.yaml archive.yaml --input film.mp4    two pipelines, which decode the film once
  observatory up --no-pipeline --port 0              an empty platform; `observatory submit` fills it
  observatory up --config observatory.toml           pipelines, retention and more from one file; SIGHUP reloads it
  observatory up --duration 60 --json                for a minute; then what became of it, as JSON

Exit codes: 0 done, 1 a pipeline failed, 2 bad usage or input (also: port in use, a platform runs there already),
130 Ctrl-C. Ctrl-C once finishes what is in flight, twice ends at once. SIGTERM ends it in good order, with code 0.
""",
)
@click.argument("pipelines", metavar="[PIPELINE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--input", "inputs", multiple=True, metavar="[OPERATOR=]FILE", help="Video to read; repeatable.")
@click.option("--topology", metavar="FILE|real", help="Where to place operators. Default: a shipped 8-GPU node.")
@link_options
@click.option("--frames", type=click.IntRange(min=1), help="Stop after that many frames of each source.")
@click.option("--realtime/--no-realtime", default=None, help="Read files at their own pace, not as fast as possible.")
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="End after that time.")
@click.option("--stay", is_flag=True, help="Go on when no pipeline runs any more.")
@click.option("--no-pipeline", is_flag=True, help="Start with none, and stay.")
@click.option("--no-web", is_flag=True, help="No pages, no HTTP API, no metrics.")
@click.option("--host", help="Address to serve pages at. Default: 127.0.0.1, this machine only.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to serve pages at; 0: a free one. Default: 8050.")
@click.option(
    "--queue-frames", type=click.IntRange(1, 256), help="Frames between two operators, beyond what they hold."
)
@click.option("--memory-limit", metavar="SIZE", help="What the pools of one pipeline may take, e.g. 800M.")
@click.option("--no-sharing", is_flag=True, help="Run everything once per pipeline, also what several have in common.")
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file. Default: see `config show`.")
@click.option("--quiet", "-q", is_flag=True, help="No table and no events; warnings and errors only.")
@common_options
@click.pass_context
def command(context: click.Context, /, as_json: bool, **given: Any) -> int:
    """Run PIPELINE live, with pages, metrics and a control socket; more pipelines may come and go.

    What several have in common from their inputs on (the decoder of one film, say) runs once for all of them.
    Without PIPELINE: those of the configuration, else a shipped ladder.
    """
    from dataplane.process import NurseryProcess
    from observatory.app.launch import launch
    from observatory.app.resources import allow_more_files

    request = _Request(**given)
    allow_more_files()
    # First of all, so that it imports what workers need while we read the pipelines and open their inputs.
    with NurseryProcess() as nursery:
        code, document = launch(_setup(request, _options(context, request)), nursery)
    if as_json:
        print_json(document)
    return code


def _setup(request: _Request, options: dict[str, tuple[str, Any]]) -> Setup:
    """Command line, environment, file and defaults together. Raises MediaObservatoryError."""
    from observatory.app.config.changes import ConfigWatch
    from observatory.app.config.load import load_config
    from observatory.app.launch import Setup
    from observatory.app.links import parse_wish

    config = load_config(request.config, options=options)
    submissions = _submissions(request, bool(config.pipelines))
    return Setup(
        watch=ConfigWatch(config, request.config, options),
        submissions=submissions,
        stay=request.stay or request.no_pipeline or submissions is None,
        duration_seconds=request.duration,
        web=not request.no_web,
        quiet=request.quiet,
        links=parse_wish(request.emulate_links, request.link_seed),
    )


def _options(context: click.Context, request: _Request) -> dict[str, tuple[str, Any]]:
    """What was given on the command line in place of what the configuration says."""
    given: dict[str, tuple[str, Any]] = {
        "platform.host": ("--host", request.host),
        "platform.port": ("--port", request.port),
        "platform.topology": ("--topology", request.topology),
        "platform.queue_frames": ("--queue-frames", request.queue_frames),
        "platform.memory_limit": ("--memory-limit", request.memory_limit),
        "platform.share_prefixes": ("--no-sharing", False if request.no_sharing else None),
    }
    if context.get_parameter_source("state") is ParameterSource.COMMANDLINE:
        given["platform.state"] = ("--state", request.state)
    return {key: value for key, value in given.items() if value[1] is not None}


def _submissions(request: _Request, configured: bool) -> tuple[Submission, ...] | None:
    """The first pipelines; None: those of the configuration. Raises MediaObservatoryError."""
    from observatory.app.submission import shipped, submission_of

    wishes = {"frames": request.frames, "realtime": request.realtime}
    if request.no_pipeline:
        if request.pipelines or request.inputs:
            raise click.UsageError("--no-pipeline takes no PIPELINE and no --input")
        return ()
    if request.pipelines:
        return tuple(submission_of(path, request.inputs).model_copy(update=wishes) for path in request.pipelines)
    if configured and not request.inputs:
        return None
    return (shipped(request.inputs, Path.cwd()).model_copy(update=wishes),)
