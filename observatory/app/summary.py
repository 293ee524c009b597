"""What a run came to: the document of `observatory run --json`, and the same for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from observatory.app.units import bytes_text

if TYPE_CHECKING:
    from dataplane.fabric import Fabric
    from dataplane.process import WorkerProcess
    from observatory.app.accounts import Accounts
    from observatory.app.links import EdgeRoute
    from observatory.app.placing import Placed
    from observatory.app.typed import TypedPipeline
    from observatory.frames.collected import CollectorSnapshot
    from observatory.model.manifest import RunManifest, StreamEntry

LOST_SHOWN = 5


class Output(BaseModel):
    """One finished file."""

    model_config = ConfigDict(frozen=True)

    path: str
    frames: int


class Loss(BaseModel):
    """One frame that did not come through."""

    model_config = ConfigDict(frozen=True)

    pts: int | None
    source_index: int | None
    operator: str
    reason: str


class StreamSummary(BaseModel):
    """One source and what became of it.

    `epoch` is the newest of the run; each of its `discontinuities` began one. `lost` lists the first of `frames_lost`,
    by the source's own PTS; the frame store has them all.
    """

    model_config = ConfigDict(frozen=True)

    stream: str
    epoch: int
    discontinuities: int
    input: str
    frames_in: int
    frames_out: int
    frames_lost: int
    lost: tuple[Loss, ...]
    outputs: tuple[Output, ...]


class Latency(BaseModel):
    """First launch to last release; None before any frame is complete."""

    model_config = ConfigDict(frozen=True)

    p50: float | None
    p99: float | None


class WorkerSummary(BaseModel):
    """One worker. `cpu_seconds` is user and system time of its whole process, start-up included."""

    model_config = ConfigDict(frozen=True)

    operator: str
    op: str
    device: str
    frames: int
    cpu_seconds: float | None


class LinkTraffic(BaseModel):
    """What crossed one emulated link, both directions together.

    `queued_seconds`: how much longer transfers took for want of bandwidth that others had, or while it was down.
    """

    model_config = ConfigDict(frozen=True)

    link: str
    bytes: int
    transfers: int
    queued_seconds: float


class EdgePath(BaseModel):
    """The emulated links that an edge crosses, in order."""

    model_config = ConfigDict(frozen=True)

    edge: str
    links: tuple[str, ...]


class LinksSummary(BaseModel):
    """Emulated links: their times are of no machine that exists.

    Everything took `time_scale` times as long as on the links described; `seed` is what their true
    properties were drawn from (None: they did what is advertised). `traffic` is all that crossed since the fabric was
    made: on a platform, of all its pipelines.
    """

    model_config = ConfigDict(frozen=True)

    label: Literal["emulated"] = "emulated"
    time_scale: float
    seed: int | None
    edges: tuple[EdgePath, ...]
    traffic: tuple[LinkTraffic, ...]


class RunSummary(BaseModel):
    """A whole run.

    `frames_per_second` counts from the start signal to the last worker's end, `startup_seconds` from the start of this
    process to the start signal. `store_error` says why frame records could not be stored, `records_dropped` how many
    were not; the outputs are whole all the same. `links` is None unless they were emulated.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    decision_id: str
    streams: tuple[StreamSummary, ...]
    workers: tuple[WorkerSummary, ...]
    latency_seconds: Latency
    frames_per_second: float | None
    startup_seconds: float
    processing_seconds: float
    records: int
    events_lost: int
    incomplete_records: int
    records_dropped: int
    store_error: str | None
    pool_bytes: int
    interrupted: bool
    warnings: tuple[str, ...]
    links: LinksSummary | None = None


def summarise(
    typed: TypedPipeline,
    placed: Placed,
    manifest: RunManifest,
    workers: Mapping[str, WorkerProcess],
    shared_frames: Mapping[str, int],
    seen: CollectorSnapshot,
    accounts: Accounts,
    *,
    startup_seconds: float,
    processing_seconds: float,
    pool_bytes: int,
    interrupted: bool,
    links: LinksSummary | None = None,
) -> RunSummary:
    """What a run came to, once its workers are gone and its records stored.

    `shared_frames`: by operator shared with others, the frames that were for this run; its worker may go on.
    """
    newest = {stream.id: stream.epoch for stream in seen.streams}
    frames = {name: worker.frames for name, worker in workers.items()} | dict(shared_frames)
    streams = tuple(_stream(typed, entry, newest[entry.id], frames, accounts) for entry in manifest.streams)
    frames_in = sum(stream.frames_in for stream in streams)
    return RunSummary(
        run_id=manifest.run_id,
        decision_id=placed.decision.id,
        streams=streams,
        workers=tuple(
            WorkerSummary(
                operator=name,
                op=typed.operators[name].node.op,
                device=placed.placement.devices[name],
                frames=worker.frames,
                cpu_seconds=worker.cpu_seconds,
            )
            for name, worker in workers.items()
        ),
        latency_seconds=Latency(p50=seen.latency_p50_seconds, p99=seen.latency_p99_seconds),
        frames_per_second=frames_in / processing_seconds if processing_seconds > 0 and frames_in else None,
        startup_seconds=startup_seconds,
        processing_seconds=processing_seconds,
        records=seen.records,
        events_lost=seen.events_lost,
        incomplete_records=seen.incomplete_records,
        records_dropped=seen.records_dropped + seen.records_pending,
        store_error=seen.error,
        pool_bytes=pool_bytes,
        interrupted=interrupted,
        warnings=tuple(accounts.warnings),
        links=links,
    )


def links_summary(fabric: Fabric, routes: Mapping[str, EdgeRoute]) -> LinksSummary:
    """What crossed the links of a fabric, and which edges did."""
    traffic = []
    for link in dict.fromkeys(name for route in routes.values() for name in route.links):
        ways = fabric.traffic(link)
        traffic.append(
            LinkTraffic(
                link=link,
                bytes=sum(way.bytes for way in ways),
                transfers=sum(way.transfers for way in ways),
                queued_seconds=sum(way.queued_seconds for way in ways),
            )
        )
    return LinksSummary(
        time_scale=fabric.time_scale,
        seed=fabric.seed,
        edges=tuple(EdgePath(edge=edge, links=route.links) for edge, route in routes.items()),
        traffic=tuple(traffic),
    )


def _stream(
    typed: TypedPipeline, entry: StreamEntry, epoch: int, frames: Mapping[str, int], accounts: Accounts
) -> StreamSummary:
    source = entry.source_operator
    account = accounts.streams[source]
    sinks = [name for name, o in typed.operators.items() if o.kind.sink and source in o.sources]
    return StreamSummary(
        stream=entry.name,
        epoch=epoch,
        discontinuities=account.epochs,
        input=entry.input,
        frames_in=frames[source],
        frames_out=accounts.frames_written(source),
        frames_lost=account.lost + account.dropped,
        lost=tuple(account.listed),
        outputs=tuple(output for name, output in accounts.outputs if name in sinks),
    )


def print_summary(console: Console, summary: RunSummary) -> None:
    """The summary as a person reads it."""
    for stream in summary.streams:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        table.add_row("stream", Text(f"{stream.stream}, epoch {stream.epoch}", style="bold"))
        table.add_row("input", stream.input)
        table.add_row("frames", f"{stream.frames_in} in, {stream.frames_out} out, {stream.frames_lost} lost")
        for output in stream.outputs:
            table.add_row("output", f"{output.path} ({output.frames} frames)")
        for loss in stream.lost[:LOST_SHOWN]:
            where = "PTS unknown" if loss.pts is None else f"PTS {loss.pts}"
            table.add_row("lost", f"{where}: {loss.reason} ({loss.operator})")
        if stream.frames_lost > LOST_SHOWN:
            table.add_row("", f"and {stream.frames_lost - LOST_SHOWN} more; all with --json")
        console.print(table)
    latency = summary.latency_seconds
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("latency", f"p50 {milliseconds(latency.p50)}, p99 {milliseconds(latency.p99)}")
    rate = "unknown" if summary.frames_per_second is None else f"{summary.frames_per_second:.1f} frames/s"
    table.add_row("speed", f"{rate} over {summary.processing_seconds:.2f} s (start-up {summary.startup_seconds:.2f} s)")
    table.add_row("records", f"{summary.records} hops stored, {summary.events_lost} events lost")
    if summary.links is not None:
        _add_links(table, summary.links)
    console.print(table)


def _add_links(table: Table, links: LinksSummary) -> None:
    truth = "as advertised" if links.seed is None else f"seed {links.seed}"
    crossing = f"{len(links.edges)} edges cross {len(links.traffic)} links" if links.edges else "no edge crosses any"
    table.add_row("links", f"emulated, time scale {links.time_scale:g}, {truth}: {crossing}")
    for each in links.traffic:
        queued = f", {milliseconds(each.queued_seconds)} queued" if each.queued_seconds >= 5e-5 else ""
        table.add_row("", f"{each.link}: {bytes_text(each.bytes)} in {each.transfers} transfers{queued}")


def milliseconds(seconds: float | None) -> str:
    """A latency for people; what is unknown is called so."""
    return "unknown" if seconds is None else f"{seconds * 1e3:.1f} ms"
