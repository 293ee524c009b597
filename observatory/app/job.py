"""One job from placement to summary: pools, frame store, workers, collector, and what they said."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataplane.errors import OperatorFailed, OutputFailed, Stopped
from dataplane.guest import Guest
from dataplane.notices import Notice
from dataplane.pool import Policy
from dataplane.process import NurseryProcess
from dataplane.sizing import PortPool, check_memory
from dataplane.supervisor import Supervisor
from observatory.app.accounts import Accounts
from observatory.app.assembly import StreamNumbers, build_assignments, build_manifest, size_pools
from observatory.app.compacting import Compaction, carry_out
from observatory.app.epochs import Epochs
from observatory.app.gateways import Gateways
from observatory.app.links import EmulatedLinks
from observatory.app.moves import Moves
from observatory.app.placing import Placed
from observatory.app.status import StatusMaker
from observatory.app.summary import LinksSummary, RunSummary, links_summary, summarise
from observatory.app.typed import TypedPipeline
from observatory.frames.collected import CollectorSnapshot
from observatory.frames.collector import Collector, EventSource
from observatory.frames.store import FrameStore
from observatory.model.manifest import RunManifest
from observatory.model.status import PipelineState, PipelineStatus

if TYPE_CHECKING:
    from observatory.metrics.book import MetricsBook
    from observatory.metrics.run import RunMetrics

POLL_SECONDS = 0.1
STATUS_SECONDS = 0.25
LONE_SIGTERM_SECONDS = 0.3  # how much earlier than this process a worker may get a SIGTERM that is for both
DRAIN_SECONDS = 30.0  # how long a stopped job may take to finish what is in flight


class EndedBeforeItBegan(KeyboardInterrupt):
    """Interrupted before the first frame: nothing is lost, and nothing was written."""


class Job:
    """A placed pipeline and the one run of it. `run` is for one thread; everything else any thread may call.

    Args:
        state: the state directory; frame records go to `frames/`, worker logs to `run/<run id>/`.
        nursery: where worker processes come from.
        queue_frames: frames between two operators, beyond what they hold.
        memory_limit_bytes: what the pools may take; None: what is available.
        metrics: where to count what happens, if anywhere.
        gateways: what some of the sources are received through; the job closes them at its end.
        began_unix_seconds: since when its start-up counts; None: since now.
        links: what edges between different devices cross; None: all operators share a memory.
        pool_policy: when pools give idle memory back; None: never.
        shared: by operator that the job shares with others and does not run itself, its place among them. The job
            leaves them at its end.

    Raises:
        NotEnoughMemory: the pools need more than that.
        CannotEmulate: an edge has no path through the links.
    """

    def __init__(
        self,
        typed: TypedPipeline,
        placed: Placed,
        *,
        state: Path,
        nursery: NurseryProcess,
        queue_frames: int,
        memory_limit_bytes: int | None = None,
        metrics: MetricsBook | None = None,
        gateways: Gateways | None = None,
        began_unix_seconds: float | None = None,
        links: EmulatedLinks | None = None,
        pool_policy: Policy | None = None,
        shared: Mapping[str, Guest] | None = None,
    ) -> None:
        self.typed = typed
        self.placed = placed
        self.state = state
        self.links = links
        self.routes = {} if links is None else links.routes(typed, placed)
        self.shared = dict(shared or {})
        every = size_pools(typed, queue_frames)
        self.pools: dict[tuple[str, str], PortPool] = {k: pool for k, pool in every.items() if k[0] not in self.shared}
        self.pool_bytes = check_memory(list(self.pools.values()), memory_limit_bytes)
        self._began_unix_seconds = time.time() if began_unix_seconds is None else began_unix_seconds
        self._nursery = nursery
        self._book = metrics
        self._gateways = Gateways() if gateways is None else gateways
        self._counts: RunMetrics | None = None
        self._interrupts = 0
        self._moves = Moves()
        self._pool_policy = pool_policy
        self._stopped_at: float | None = None
        self._terminated: tuple[float, str] | None = None  # when, and which worker got SIGTERM
        self.collected: CollectorSnapshot | None = None  # what the collector last said
        self._status_maker = StatusMaker(typed, placed, self.pools, self.pool_bytes, self.shared)
        self._status = self._status_maker.waiting()

    def interrupt(self, *, at_once: bool = False) -> None:
        """Stop early: the first call finishes what is in flight; the second, or `at_once`, ends everything at once."""
        self._interrupts += 2 if at_once else 1

    @property
    def _guests(self) -> list[Guest]:
        return list(dict.fromkeys(self.shared.values()))

    def leave_shared(self) -> None:
        """Leave the operators shared with others, where the job will not do it itself: it never ran."""
        for guest in self._guests:
            guest.leave()

    def move(self, operator: str) -> Mapping[str, Any]:
        """Let another process go on with the work of an operator; returns when it does. Raises CannotMigrate."""
        return self._moves.ask(operator)

    @property
    def status(self) -> PipelineStatus:
        """The job as it was less than half a second ago."""
        return self._status

    # -- run -----------------------------------------------------------------------------------------------------

    def run(self, on_status: Callable[[PipelineStatus], None], on_warning: Callable[[str], None]) -> RunSummary:
        """Run to the end of the input.

        Raises:
            MediaObservatoryError: a worker failed or died, or the frame store could not be opened.
            KeyboardInterrupt: interrupted a second time, or the drain took too long.
        """
        accounts = Accounts(self.typed, on_warning)
        for words in self.typed.warnings:
            accounts.warn(words)
        with contextlib.ExitStack() as stack:
            stack.callback(self._gateways.close)
            stack.callback(self.leave_shared)
            store = stack.enter_context(FrameStore.open(self.state, write=True))
            manifest = self._begin(store)
            logs = self.state / "run" / manifest.run_id
            logs.mkdir(parents=True)
            stack.callback(_remove_if_empty, logs)
            self._label_shared(manifest)
            assignments = build_assignments(
                self.typed, manifest, self.pools, self.placed.placement, self.routes, without=self.shared
            )
            compaction = Compaction(assignments, self._pool_policy)
            fabric = None if self.links is None else self.links.fabric
            supervisor = stack.enter_context(Supervisor(assignments, logs, self._nursery, fabric, hosts=self.shared))
            try:
                supervisor.start(cancelled=lambda: self._interrupts > 0)
            except Stopped:
                if not self._interrupts:
                    raise
                raise KeyboardInterrupt from None  # nothing is in flight yet
            started = time.monotonic()
            startup = time.time() - self._began_unix_seconds
            collector = self._collector(manifest, supervisor, store, stack)
            epochs = Epochs(store, manifest, collector, supervisor.answer_epoch)
            for guest in self._guests:  # in which epoch a source is already, before its first records
                for notice in guest.take_notices():
                    self._note(notice, collector, manifest, accounts, epochs)
            collector.start()
            try:
                self._watch(supervisor, collector, manifest, accounts, epochs, compaction, on_status)
            except OutputFailed:
                if self._interrupts and not self._frames_in(supervisor):
                    raise EndedBeforeItBegan from None  # nothing to write is no failure then
                raise
            finally:
                ended = time.monotonic()
                self._moves.close()
                shared_frames = {name: guest.frames(name) for name, guest in self.shared.items()}
                shared_workers = {n: worker for guest in self._guests for n, worker in guest.workers().items()}
                pool_bytes = self.pool_bytes + sum(guest.pool_bytes for guest in self._guests)
                supervisor.close()
                self.collected = seen = collector.stop(lost=accounts.take_lost(manifest))
                self._count(seen)
                self._status = self._status_maker.make("ended", manifest, supervisor, seen, accounts)
                supervisor.close_event_rings()
            accounts.warn_of_losses(seen.events_lost)
            return summarise(
                self.typed,
                self.placed,
                manifest,
                shared_workers | supervisor.workers,
                shared_frames,
                seen,
                accounts,
                startup_seconds=startup,
                processing_seconds=ended - started,
                pool_bytes=pool_bytes,
                interrupted=self._interrupts > 0,
                links=self._links_summary(),
            )

    def _label_shared(self, manifest: RunManifest) -> None:
        """Tell who runs the shared operators how this run numbers what it is told of them."""
        ports = {(port.operator, port.port): number for number, port in enumerate(manifest.ports)}
        hops = {hop.edge.name: number for number, hop in enumerate(manifest.hops)}
        device = manifest.hops[0].producer_real_device if manifest.hops else 0
        for guest in self._guests:
            stream = next(s for s in manifest.streams if self.shared.get(s.source_operator) is guest)
            guest.label(stream.id, stream.epoch, device, ports, hops)
            guest.cancelled = lambda: self._interrupts > 0

    def _links_summary(self) -> LinksSummary | None:
        return None if self.links is None else links_summary(self.links.fabric, self.routes)

    def _begin(self, store: FrameStore) -> RunManifest:
        sources = list(self.typed.probes)
        names = [self.typed.stream_name(source) for source in sources]
        numbers = store.begin_run(names)
        by_source = {s: StreamNumbers(n.id, n.epoch) for s, n in zip(sources, numbers, strict=True)}
        emulation = self.links.emulation if self.links is not None and self.routes else None
        manifest = build_manifest(self.typed, self.placed, by_source, self.routes, emulation)
        store.save_manifest(manifest)
        return manifest

    def _collector(
        self, manifest: RunManifest, supervisor: Supervisor, store: FrameStore, stack: contextlib.ExitStack
    ) -> Collector:
        rings: list[EventSource] = [*supervisor.event_rings.values(), *(guest.events for guest in self._guests)]
        crossing = [bool(hop.links) for hop in manifest.hops]
        if self._book is None:
            return Collector(manifest, rings, store, expect_link=crossing)
        self._counts = counts = self._book.begin(manifest)
        stack.callback(self._book.end, manifest.run_id)
        return Collector(
            manifest,
            rings,
            store,
            expect_link=crossing,
            observers=[counts.observe],
            frame_observers=[counts.observe_frames],
        )

    def _count(self, seen: CollectorSnapshot) -> None:
        if self._counts is not None:
            self._counts.collected(seen)

    def _watch(
        self,
        supervisor: Supervisor,
        collector: Collector,
        manifest: RunManifest,
        accounts: Accounts,
        epochs: Epochs,
        compaction: Compaction,
        on_status: Callable[[PipelineStatus], None],
    ) -> None:
        shown = 0.0
        while not supervisor.finished:
            for notice in supervisor.poll(POLL_SECONDS):
                self._note(notice, collector, manifest, accounts, epochs)
                if notice.kind == "pool" and notice.operator not in self.shared:
                    port = notice.message["port"]
                    wish = compaction.note(notice.operator, port, accounts.pools[notice.operator, port])
                    if wish is not None and carry_out(wish, supervisor):
                        accounts.warn(f"frame pools: {wish.words}")
            collector.lost(accounts.take_lost(manifest))
            self._moves.begin(supervisor)
            self._obey_interrupts(supervisor)
            self._refuse_lone_sigterm(supervisor)
            if time.monotonic() - shown >= STATUS_SECONDS:
                shown = time.monotonic()
                state: PipelineState = "running" if self._stopped_at is None else "draining"
                self.collected = collector.snapshot()
                self._count(self.collected)
                self._status = self._status_maker.make(state, manifest, supervisor, self.collected, accounts)
                on_status(self._status)

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
            pid = self._pid_of(supervisor, operator)
            raise OperatorFailed(
                f"operator {operator} (pid {pid}) was told to end by SIGTERM",
                mend="end jobs in good order: Ctrl-C to `observatory run`, or `observatory remove`",
            )

    def _pid_of(self, supervisor: Supervisor, operator: str) -> int:
        if (guest := self.shared.get(operator)) is not None:
            return guest.workers()[operator].pid
        return supervisor.workers[operator].pid

    def _note(
        self, notice: Notice, collector: Collector, manifest: RunManifest, accounts: Accounts, epochs: Epochs
    ) -> None:
        message = notice.message
        match notice.kind:
            case "lost":
                stream = accounts.lost(notice.operator, message, manifest)
                if self._counts is not None:
                    self._counts.lost(stream, notice.operator)
            case "source":
                accounts.streams[notice.operator].waiting = message["waiting"]
            case "dropped":
                edge, indices = message["edge"], message["source_indices"]
                accounts.dropped(edge, indices)
                collector.dropped(edge, indices)
                if self._counts is not None:
                    self._counts.dropped(edge, len(indices))
            case "events":
                collector.add_ring(message["ring"])
            case "events_end":
                collector.remove_ring(message["ring"])
                message["ring"].close()
            case "migrated" | "stayed":
                self._moves.note(notice)
            case "perished":
                accounts.perished(message["edge"], message["source_indices"])
                collector.dropped(message["edge"], message["source_indices"])
            case "died":
                accounts.warn(f"operator {notice.operator} (pid {message['pid']}) {message['how']}")
            case "succeeded":
                accounts.warn(
                    f"operator {notice.operator}: another process (pid {message['pid']}) went on with its work "
                    f"{message['seconds'] * 1000:.0f} ms later"
                )
            case "epoch":
                collector.lost(accounts.take_lost(manifest))  # what was lost before is of the epoch before
                begun = epochs.begin(notice.operator, message)
                accounts.epoch(notice.operator, begun.entry)
                if begun.warning is not None:
                    accounts.warn(begun.warning)
            case "output":
                accounts.output(notice.operator, message)
            case "mapped" if self._counts is not None:
                what = message.get("port") or message["edge"]
                self._counts.mapped(notice.operator, what, message["seconds"], message["bytes"])
            case "pool":
                accounts.pool(notice.operator, message)
            case "terminated":
                self._terminated = self._terminated or (time.monotonic(), notice.operator)
            case "warning":
                accounts.warn(f"{notice.operator}: {message['message']}")

    def _frames_in(self, supervisor: Supervisor) -> int:
        published = supervisor.wiring.published()
        return sum(published.get((source, "video"), 0) for source in self.typed.probes)


def _remove_if_empty(folder: Path) -> None:
    """Workers that said nothing leave no logs, and their folder goes too."""
    with contextlib.suppress(OSError):
        folder.rmdir()
