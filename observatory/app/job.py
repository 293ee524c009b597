"""One job from placement to summary: pools, frame store, workers, collector, and what they said."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dataplane.errors import OperatorFailed, OutputFailed
from dataplane.process import NurseryProcess
from dataplane.sizing import PortPool, check_memory
from dataplane.supervisor import Notice, Supervisor
from observatory.app.assembly import StreamNumbers, build_assignments, build_manifest, size_pools
from observatory.app.summary import Latency, Loss, Output, RunSummary, StreamSummary, WorkerSummary
from observatory.app.typed import TypedPipeline
from observatory.frames.collector import Collector, CollectorSnapshot
from observatory.frames.store import FrameStore
from observatory.model.manifest import RunManifest, StreamEntry
from observatory.model.plan import DecisionRecord, Placement
from observatory.model.record import LostFrame

POLL_SECONDS = 0.1
PROGRESS_SECONDS = 0.25
LONE_SIGTERM_SECONDS = 0.3  # how much earlier than this process a worker may get a SIGTERM that is for both
DRAIN_SECONDS = 10.0  # how long a stopped job may take to finish what is in flight


@dataclass(slots=True)
class Progress:
    """Where a running job is. Rates are over the whole run so far; latencies None before the first whole frame."""

    elapsed_seconds: float
    frames_in: int
    frames_done: int
    expected_frames: int | None
    frames_per_second: float
    latency_p50_seconds: float | None
    latency_p99_seconds: float | None
    queues: dict[str, dict[str, int]]
    lost: int


@dataclass(slots=True)
class _Said:
    """What workers said, by kind."""

    lost: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    dropped: list[tuple[str, list[int]]] = field(default_factory=list)
    outputs: list[tuple[str, Output]] = field(default_factory=list)
    written: list[tuple[str, int]] = field(default_factory=list)  # edge into a sink, frames
    warnings: list[str] = field(default_factory=list)


class Job:
    """A placed pipeline and the one run of it.

    Args:
        state: the state directory; frame records go to `frames/`, worker logs to `run/<run id>/`.
        real_device: the device that all workers really run on.
        nursery: where worker processes come from.
        queue_frames: frames between two operators, beyond what they hold.
        memory_limit_bytes: what the pools may take; None: what is available.
    """

    def __init__(
        self,
        typed: TypedPipeline,
        placement: Placement,
        decision: DecisionRecord,
        *,
        state: Path,
        topology_name: str,
        real_device: str,
        nursery: NurseryProcess,
        queue_frames: int,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self.typed = typed
        self.placement = placement
        self.decision = decision
        self.state = state
        self.pools: dict[tuple[str, str], PortPool] = size_pools(typed, queue_frames)
        self.pool_bytes = check_memory(list(self.pools.values()), memory_limit_bytes)
        self._topology_name = topology_name
        self._real_device = real_device
        self._nursery = nursery
        self._interrupts = 0
        self._stopped_at: float | None = None
        self._terminated: tuple[float, str] | None = None  # when, and which worker got SIGTERM
        self._said = _Said()
        self._supervisor: Supervisor | None = None
        self.manifest: RunManifest | None = None

    def interrupt(self) -> None:
        """Stop early: the first call finishes what is in flight, the second ends everything at once."""
        self._interrupts += 1

    # -- run -----------------------------------------------------------------------------------------------------

    def run(self, on_progress: Callable[[Progress], None], on_warning: Callable[[str], None]) -> RunSummary:
        """Run to the end of the input.

        Raises:
            MediaObservatoryError: a worker failed or died, or the frame store could not be opened.
            KeyboardInterrupt: interrupted a second time, or the drain took too long.
        """
        for words in self.typed.warnings:
            self._warn(words, on_warning)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(FrameStore.open(self.state, write=True))
            self.manifest = manifest = self._begin(store)
            logs = self.state / "run" / manifest.run_id
            logs.mkdir(parents=True)
            stack.callback(_remove_if_empty, logs)
            assignments = build_assignments(self.typed, manifest, self.pools, self.placement)
            supervisor = stack.enter_context(Supervisor(assignments, logs, self._nursery))
            self._supervisor = supervisor
            supervisor.start()
            started = time.monotonic()
            startup = time.time() - _process_began()
            collector = Collector(manifest, list(supervisor.event_rings.values()), store)
            collector.start()
            try:
                self._watch(supervisor, collector, started, on_progress, on_warning)
            except OutputFailed:
                if self._interrupts and not self._frames_in(supervisor):
                    raise KeyboardInterrupt from None  # before the first frame: nothing to write is no failure then
                raise
            finally:
                ended = time.monotonic()
                supervisor.close()
                seen = collector.stop(lost=self._lost_frames(manifest))
                supervisor.close_event_rings()
            self._warn_of_losses(seen, on_warning)
            return self._summarise(manifest, seen, supervisor, startup, ended - started)

    def _begin(self, store: FrameStore) -> RunManifest:
        sources = list(self.typed.probes)
        names = [self.typed.stream_name(source) for source in sources]
        numbers = store.begin_run(names)
        by_source = {s: StreamNumbers(n.id, n.epoch) for s, n in zip(sources, numbers, strict=True)}
        manifest = build_manifest(
            self.typed, self.placement, self.decision, by_source, self._real_device, self._topology_name
        )
        store.save_manifest(manifest)
        return manifest

    def _watch(
        self,
        supervisor: Supervisor,
        collector: Collector,
        started: float,
        on_progress: Callable[[Progress], None],
        on_warning: Callable[[str], None],
    ) -> None:
        shown = 0.0
        while not supervisor.finished:
            for notice in supervisor.poll(POLL_SECONDS):
                self._note(notice, collector, on_warning)
            self._obey_interrupts(supervisor)
            self._refuse_lone_sigterm(supervisor)
            if time.monotonic() - shown >= PROGRESS_SECONDS:
                shown = time.monotonic()
                on_progress(self._progress(supervisor, collector, shown - started))

    def _obey_interrupts(self, supervisor: Supervisor) -> None:
        if self._interrupts and self._stopped_at is None:
            self._stopped_at = time.monotonic()
            supervisor.stop()
        overdue = self._stopped_at is not None and time.monotonic() - self._stopped_at > DRAIN_SECONDS
        if self._interrupts > 1 or overdue:
            raise KeyboardInterrupt

    def _refuse_lone_sigterm(self, supervisor: Supervisor) -> None:
        """SIGTERM to a worker fails the job, unless this process gets one too: then a service is being stopped."""
        if self._terminated is None or self._interrupts:
            return
        since, operator = self._terminated
        if time.monotonic() - since > LONE_SIGTERM_SECONDS:
            pid = supervisor.workers[operator].pid
            raise OperatorFailed(
                f"operator {operator} (pid {pid}) was told to end by SIGTERM",
                mend="to end the job in good order, send it to `observatory run` instead",
            )

    def _note(self, notice: Notice, collector: Collector, on_warning: Callable[[str], None]) -> None:
        message = notice.message
        match notice.kind:
            case "lost":
                self._said.lost.append((notice.operator, message))
            case "dropped":
                self._said.dropped.append((message["edge"], message["source_indices"]))
                collector.dropped(message["edge"], message["source_indices"])
            case "output":
                self._said.outputs.append((notice.operator, Output(path=message["path"], frames=message["frames"])))
                self._said.written += message["by_edge"].items()
            case "terminated":
                self._terminated = self._terminated or (time.monotonic(), notice.operator)
            case "warning":
                self._warn(f"{notice.operator}: {message['message']}", on_warning)

    def _warn(self, words: str, on_warning: Callable[[str], None]) -> None:
        self._said.warnings.append(words)
        on_warning(words)

    def _warn_of_losses(self, seen: CollectorSnapshot, on_warning: Callable[[str], None]) -> None:
        if self._said.lost:
            operator, first = self._said.lost[0]
            self._warn(f"{len(self._said.lost)} frames lost; the first: {operator}: {first['reason']}", on_warning)
        if dropped := sum(len(indices) for _, indices in self._said.dropped):
            self._warn(f"{dropped} frames dropped by the policy drop_oldest", on_warning)
        if seen.events_lost:
            self._warn(f"{seen.events_lost} events lost: some frame records are incomplete", on_warning)

    # -- what to say of it ---------------------------------------------------------------------------------------

    def workers(self) -> dict[str, Any]:
        """The running job as `observatory ps` shows it."""
        supervisor, manifest = self._supervisor, self.manifest
        if supervisor is None or manifest is None:
            return {"pipeline": self.typed.pipeline.name, "workers": []}
        published = supervisor.wiring.published()
        return {
            "pipeline": manifest.pipeline.name,
            "run_id": manifest.run_id,
            "streams": [{"stream": s.name, "epoch": s.epoch, "input": s.input} for s in manifest.streams],
            "started_unix_seconds": manifest.started.realtime_ns / 1e9,
            "workers": [
                {
                    "pid": worker.pid,
                    "operator": name,
                    "op": self.typed.operators[name].node.op,
                    "device": self.placement.devices[name],
                    "real_device": self._real_device,
                    "state": worker.state,
                    "restarts": worker.restarts,
                    "frames": published.get((name, "video")),
                }
                for name, worker in supervisor.workers.items()
            ],
            "edges": supervisor.queues(),
        }

    def _progress(self, supervisor: Supervisor, collector: Collector, elapsed: float) -> Progress:
        seen = collector.snapshot()
        expected = [probe.frames for probe in self.typed.probes.values()]
        return Progress(
            elapsed_seconds=elapsed,
            frames_in=self._frames_in(supervisor),
            frames_done=seen.frames,
            expected_frames=None if None in expected else sum(e for e in expected if e is not None),
            frames_per_second=seen.frames / elapsed if elapsed > 0 else 0.0,
            latency_p50_seconds=seen.latency_p50_seconds,
            latency_p99_seconds=seen.latency_p99_seconds,
            queues=supervisor.queues(),
            lost=len(self._said.lost) + sum(len(indices) for _, indices in self._said.dropped),
        )

    def _frames_in(self, supervisor: Supervisor) -> int:
        published = supervisor.wiring.published()
        return sum(published.get((source, "video"), 0) for source in self.typed.probes)

    def _source_of(self, edge: str) -> str:
        producer, _, _ = edge.partition("->")
        return self.typed.operators[producer].sources[0]

    def _lost_frames(self, manifest: RunManifest) -> list[tuple[StreamEntry, LostFrame]]:
        streams = {s.source_operator: s for s in manifest.streams}
        found = []
        for operator, message in self._said.lost:
            stream = streams[self.typed.operators[operator].sources[0]]
            found.append(
                (
                    stream,
                    LostFrame(
                        source_index=message["source_index"],
                        pts=message["pts"],
                        time_base=stream.time_base,
                        operator=operator,
                        reason=message["reason"],
                    ),
                )
            )
        for edge, indices in self._said.dropped:
            producer, _, _ = edge.partition("->")
            stream = streams[self._source_of(edge)]
            reason = f"dropped on {edge}: its consumer was slower (drop_oldest)"
            for index in indices:
                lost = LostFrame(source_index=index, pts=None, time_base=None, operator=producer, reason=reason)
                found.append((stream, lost))
        return found

    def _summarise(
        self,
        manifest: RunManifest,
        seen: CollectorSnapshot,
        supervisor: Supervisor,
        startup: float,
        processing: float,
    ) -> RunSummary:
        lost = self._lost_frames(manifest)
        streams = []
        for stream in manifest.streams:
            sinks = [n for n, o in self.typed.operators.items() if o.kind.sink and stream.source_operator in o.sources]
            written = [n for edge, n in self._said.written if self._source_of(edge) == stream.source_operator]
            streams.append(
                StreamSummary(
                    stream=stream.name,
                    epoch=stream.epoch,
                    input=stream.input,
                    frames_in=supervisor.workers[stream.source_operator].frames,
                    frames_out=min(written, default=0),
                    lost=tuple(
                        Loss(pts=f.pts, source_index=f.source_index, operator=f.operator, reason=f.reason)
                        for s, f in lost
                        if s is stream
                    ),
                    outputs=tuple(output for name, output in self._said.outputs if name in sinks),
                )
            )
        frames_in = sum(s.frames_in for s in streams)
        return RunSummary(
            run_id=manifest.run_id,
            decision_id=self.decision.id,
            streams=tuple(streams),
            workers=tuple(
                WorkerSummary(
                    operator=name,
                    op=self.typed.operators[name].node.op,
                    device=self.placement.devices[name],
                    frames=worker.frames,
                    cpu_seconds=worker.cpu_seconds,
                )
                for name, worker in supervisor.workers.items()
            ),
            latency_seconds=Latency(p50=seen.latency_p50_seconds, p99=seen.latency_p99_seconds),
            frames_per_second=frames_in / processing if processing > 0 and frames_in else None,
            startup_seconds=startup,
            processing_seconds=processing,
            records=seen.records,
            events_lost=seen.events_lost,
            incomplete_records=seen.incomplete_records,
            records_dropped=seen.records_dropped + seen.records_pending,
            store_error=seen.error,
            pool_bytes=self.pool_bytes,
            interrupted=self._interrupts > 0,
            warnings=tuple(self._said.warnings),
        )


def _remove_if_empty(folder: Path) -> None:
    """Workers that said nothing leave no logs, and their folder goes too."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _process_began() -> float:
    """When this process began, in seconds of the wall clock; script/run says since when it is this command."""
    began = psutil.Process().create_time()
    try:
        return max(began, float(os.environ.get("OBSERVATORY_BEGAN", "")))
    except ValueError:
        return began
