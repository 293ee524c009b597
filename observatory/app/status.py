"""A running job as others see it: frames, rates, latencies, workers, queues."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

import psutil

from dataplane.guest import Guest
from dataplane.process import WorkerProcess
from dataplane.sizing import PortPool
from dataplane.supervisor import Supervisor
from observatory.app.accounts import Accounts
from observatory.app.placing import Placed
from observatory.app.pool_status import pool_fields
from observatory.app.typed import TypedPipeline
from observatory.frames.collected import CollectorSnapshot
from observatory.model.manifest import RunManifest
from observatory.model.status import EdgeStatus, PipelineState, PipelineStatus, StreamStatus, WorkerStatus

RATE_SECONDS = 3.0  # rates are over the last so many seconds


class StatusMaker:
    """Makes one status after the other; remembers enough to tell rates."""

    def __init__(
        self,
        typed: TypedPipeline,
        placed: Placed,
        pools: Mapping[tuple[str, str], PortPool],
        pool_bytes: int,
        shared: Mapping[str, Guest] | None = None,
    ) -> None:
        self._shared = dict(shared or {})
        self._typed = typed
        self._placed = placed
        self._pools = pools
        self._pool_bytes = pool_bytes
        self._began = time.time()
        self._published: Mapping[tuple[str, str], int] = {}
        self._seen: dict[str, deque[tuple[float, int]]] = {name: deque() for name in typed.probes}
        self._processes: dict[int, psutil.Process] = {}

    def waiting(self) -> PipelineStatus:
        """Before any worker runs."""
        return PipelineStatus(
            name=self._typed.pipeline.name,
            state="starting",
            submitted_unix_seconds=self._began,
            decision_id=self._placed.decision.id,
            deadline_seconds=self._typed.pipeline.qos.deadline_seconds,
            pool_bytes=self._pool_bytes,
            outputs=output_paths(self._typed),
        )

    def make(
        self,
        state: PipelineState,
        manifest: RunManifest,
        supervisor: Supervisor,
        seen: CollectorSnapshot,
        accounts: Accounts,
    ) -> PipelineStatus:
        """The job as it is now."""
        # What is closed says nothing any more.
        self._published = published = {**self._published, **supervisor.wiring.published()}
        streams = self._streams(manifest, supervisor, published, seen, accounts, state)
        rates = {
            entry.source_operator: stream.frames_per_second
            for entry, stream in zip(manifest.streams, streams, strict=True)
        }
        return self.waiting().model_copy(
            update={
                "state": state,
                "run_id": manifest.run_id,
                "started_unix_seconds": manifest.started.realtime_ns / 1e9,
                "streams": streams,
                "workers": self._workers(supervisor, published),
                "pool_bytes": self._pool_bytes + sum(guest.pool_bytes for guest in set(self._shared.values())),
                "edges": self._edges(supervisor, rates),
                **pool_fields(accounts.pools, ended=state == "ended"),
                "warnings": tuple(accounts.warnings),
            }
        )

    def _streams(
        self,
        manifest: RunManifest,
        supervisor: Supervisor,
        published: Mapping[tuple[str, str], int],
        seen: CollectorSnapshot,
        accounts: Accounts,
        state: PipelineState,
    ) -> tuple[StreamStatus, ...]:
        found = []
        collected = {stream.id: stream for stream in seen.streams}
        for entry in manifest.streams:
            source = entry.source_operator
            account, told = accounts.streams[source], collected[entry.id]
            worker = supervisor.workers.get(source)
            frames = published.get((source, "video"), 0)
            if worker is not None and worker.state == "done":
                frames = worker.frames
            found.append(
                StreamStatus(
                    stream=entry.name,
                    epoch=told.epoch,
                    input=entry.input,
                    live=self._typed.probes[source].live,
                    state="ended" if state == "ended" else "waiting" if account.waiting else "running",
                    frames_expected=self._typed.probes[source].frames,
                    frames_in=frames,
                    frames_done=told.frames,
                    frames_lost=account.lost,
                    frames_dropped=account.dropped,
                    frames_per_second=self._rate(source, frames),
                    latency_p50_seconds=told.latency_p50_seconds,
                    latency_p99_seconds=told.latency_p99_seconds,
                    latency_max_seconds=told.latency_max_seconds,
                    recent_p50_seconds=told.recent_p50_seconds,
                    recent_p99_seconds=told.recent_p99_seconds,
                )
            )
        return tuple(found)

    def _rate(self, source: str, frames: int) -> float | None:
        now, seen = time.monotonic(), self._seen[source]
        seen.append((now, frames))
        while len(seen) > 2 and now - seen[1][0] >= RATE_SECONDS:
            seen.popleft()
        then, before = seen[0]
        return (frames - before) / (now - then) if now > then else None

    def _workers(self, supervisor: Supervisor, published: Mapping[tuple[str, str], int]) -> tuple[WorkerStatus, ...]:
        found = []
        own = [(name, worker, ()) for name, worker in supervisor.workers.items()]
        for name, worker, sharers in [*self._shared_workers(), *own]:
            cpu_seconds, memory_bytes = self._usage(worker.pid)
            found.append(
                WorkerStatus(
                    pid=worker.pid,
                    operator=name,
                    op=self._typed.operators[name].node.op,
                    device=self._placed.placement.devices[name],
                    real_device=self._placed.real_device,
                    state=worker.state,
                    restarts=worker.restarts,
                    frames=published.get((name, "video")),
                    cpu_seconds=cpu_seconds if worker.cpu_seconds is None else worker.cpu_seconds,
                    memory_bytes=memory_bytes,
                    shared_by=sharers,
                )
            )
        return tuple(found)

    def _shared_workers(self) -> list[tuple[str, WorkerProcess, tuple[str, ...]]]:
        """Of operators that others read too, while this job does; with the names of all that do, if several."""
        found = []
        for guest in dict.fromkeys(self._shared.values()):
            if not guest.gone:
                sharers = guest.sharers if len(guest.sharers) > 1 else ()
                found += [(name, worker, sharers) for name, worker in guest.workers().items()]
        return found

    def _usage(self, pid: int) -> tuple[float | None, int | None]:
        """CPU time and resident memory of a worker; None once it is gone."""
        try:
            process = self._processes.setdefault(pid, psutil.Process(pid))
            with process.oneshot():
                times = process.cpu_times()
                return times.user + times.system, process.memory_info().rss
        except psutil.Error:
            return None, None

    def _edges(self, supervisor: Supervisor, rates: Mapping[str, float | None]) -> tuple[EdgeStatus, ...]:
        queues = supervisor.queues()
        found = []
        for edge in self._typed.edges:
            name = edge.name if edge.port == "video" else f"{edge.name}:{edge.port}"
            if (queue := queues.get(name)) is None:
                continue
            rate = rates.get(self._typed.operators[edge.producer].sources[0])
            found.append(
                EdgeStatus(
                    edge=name,
                    producer=edge.producer,
                    consumer=edge.consumer,
                    queued=queue["queued"],
                    held=queue["held"],
                    depth=self._depth(edge.producer, edge.port),
                    bytes_per_second=None if rate is None else rate * edge.bytes_per_frame,
                )
            )
        return tuple(found)

    def _depth(self, operator: str, port: str) -> int | None:
        if (guest := self._shared.get(operator)) is not None:
            return guest.slots(operator, port)
        return max((size.slot_count for size in self._pools[operator, port].sizes), default=None)


def output_paths(typed: TypedPipeline) -> tuple[str, ...]:
    """The files and folders that a pipeline's sinks write."""
    sinks = (o.params for o in typed.operators.values() if o.kind.sink)
    paths = (getattr(p, "path", None) or getattr(p, "folder", None) for p in sinks)
    return tuple(str(path) for path in paths if path)
