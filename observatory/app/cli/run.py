"""`observatory run`: a pipeline over shared memory, to the end of its input."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from observatory.app.cli.common import common_options, link_options, print_error, print_json
from observatory.app.units import parse_size
from observatory.model.errors import ExitCode, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataplane.process import NurseryProcess
    from observatory.app.gateways import Gateways
    from observatory.app.job import Job
    from observatory.app.summary import RunSummary
    from observatory.app.typed import TypedPipeline


@dataclass(frozen=True, slots=True)
class _Request:
    """The command's options, as click calls them."""

    pipeline: Path | None
    inputs: tuple[str, ...]
    topology: str | None
    emulate_links: str | None
    link_seed: str | None
    frames: int | None
    queue_frames: int
    memory_limit: str | None
    quiet: bool
    state: Path


@click.command(
    "run",
    epilog="""\b
Examples:
  observatory run                                        the shipped ABR ladder on 300 frames of testsrc2
  observatory run --input film.mp4                       the same on your video
  observatory run ladder.yaml --input film.mp4 --json    your pipeline; the summary as JSON
  observatory run ladder.yaml --input cam=a.mp4 --input film=b.mp4      two sources, by operator name
  observatory run --topology real                        place on this machine instead of the shipped 8-GPU node
  observatory run --topology two-socket-8gpu --emulate-links     frames take as long as that node's links, scaled

Exit codes: 0 done (lost frames are listed), 1 the job failed, 2 bad usage or input, 130 interrupted.
Ctrl-C once finishes what is in flight, so that the outputs play; twice ends at once.
""",
)
@click.argument("pipeline", required=False, type=click.Path(path_type=Path))
@click.option("--input", "inputs", multiple=True, metavar="[OPERATOR=]FILE", help="Video to read; repeatable.")
@click.option("--topology", metavar="FILE|real", help="Where to place operators. Default: a shipped 8-GPU node.")
@link_options
@click.option("--frames", type=click.IntRange(min=1), help="Stop after that many frames of each source.")
@click.option(
    "--queue-frames",
    type=click.IntRange(min=1, max=256),
    default=8,
    show_default=True,
    help="Frames between two operators, beyond what they hold.",
)
@click.option("--memory-limit", metavar="SIZE", help="What the frame pools may take, e.g. 800M. Default: what is free.")
@click.option("--quiet", "-q", is_flag=True, help="No progress line and no summary; warnings and errors only.")
@common_options
def command(as_json: bool, **options: Any) -> int:
    """Run PIPELINE (a Media Pipeline Spec; default: the shipped ABR ladder) until its input ends."""
    from dataplane.process import NurseryProcess
    from observatory.app.resources import allow_more_files

    request = _Request(**options)
    allow_more_files()
    # First of all, so that it imports what workers need while we read the pipeline and open its inputs.
    with NurseryProcess() as nursery:
        summary = _run(request, nursery)
    if as_json:
        print_json(summary)
    elif not request.quiet:
        from rich.console import Console

        from observatory.app.summary import print_summary

        print_summary(Console(), summary)
    if summary.store_error is not None:
        words = f"{summary.records_dropped} frame records could not be stored: {summary.store_error}"
        print_error(ModelError(words, mend="the outputs are whole; make room for --state and run again"), as_json=False)
        return ExitCode.JOB_FAILED
    return ExitCode.INTERRUPTED if summary.interrupted else ExitCode.DONE


def _run(request: _Request, nursery: NurseryProcess) -> RunSummary:
    from rich.console import Console

    from observatory.app.control import ControlServer, Handler
    from observatory.app.gateways import Gateways
    from observatory.app.job import Job
    from observatory.app.links import EmulatedLinks, parse_wish
    from observatory.app.placing import place_pipeline
    from observatory.app.progress import ProgressLine
    from observatory.app.resources import process_began
    from observatory.app.snapshots import snapshot_of_job

    limit = parse_size(request.memory_limit)
    wish = parse_wish(request.emulate_links, request.link_seed)
    with contextlib.ExitStack() as stack:
        gateways = stack.enter_context(Gateways())
        typed = load_typed(request.pipeline, request.inputs, request.frames, gateways)
        placed = place_pipeline(typed, request.topology, request.state)
        job = Job(
            typed,
            placed,
            state=request.state,
            nursery=nursery,
            queue_frames=request.queue_frames,
            memory_limit_bytes=limit,
            began_unix_seconds=process_began(),
            links=None if wish is None else EmulatedLinks(placed.topology, wish),
        )
        handlers: dict[str, Handler] = {
            "snapshot": lambda *_: snapshot_of_job(job).model_dump(mode="json"),
            "move": lambda arguments, _: dict(job.move(arguments["operator"])),
        }
        server = ControlServer(request.state, handlers)
        stack.callback(server.close)
        with _interruptible(job), ProgressLine(Console(stderr=True), enabled=not request.quiet) as line:
            return job.run(line.update, line.warn)


def load_typed(pipeline: Path | None, inputs: tuple[str, ...], frames: int | None, gateways: Gateways) -> TypedPipeline:
    """Read and type a pipeline; the shipped ABR ladder when none is named. Raises MediaObservatoryError."""
    from observatory.app.typed import source_requests, type_pipeline
    from scheduler.specs.read import read_spec

    if pipeline is None:
        with as_file(files("observatory.app") / "pipelines" / "abr-ladder.yaml") as shipped:
            graph, source = read_spec(shipped)
    else:
        graph, source = read_spec(pipeline)
    with gateways.explaining():
        return type_pipeline(graph, gateways.lead(graph, source_requests(graph, inputs, frames)), source)


@contextlib.contextmanager
def _interruptible(job: Job) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end the job gracefully; a second one ends it at once."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        job.interrupt()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
