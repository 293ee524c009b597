"""The live platform: several pipelines at once, what they say of themselves, and an orderly end.

One process owns it: it supervises the workers of every pipeline (forked by one nursery), stores their frame records,
answers the control socket, and keeps a web process running. Whatever goes wrong in one pipeline ends that pipeline.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataplane.errors import CannotJoin, Stopped
from dataplane.operators.base import Operator, Parameters, Probe, SourceRequest
from dataplane.pool import Policy
from dataplane.probing import probe_apart
from dataplane.process import NurseryProcess
from observatory.app.control import CallerGone, Handler
from observatory.app.errors import EndedAtOnce, NoSuchPipeline, NotEmulated, ShuttingDown, StillRunning
from observatory.app.gateways import Gateways
from observatory.app.job import Job
from observatory.app.keeping import Keeping
from observatory.app.links import EmulatedLinks, LinkWish
from observatory.app.managed import ManagedPipeline
from observatory.app.packed import pack
from observatory.app.placing import place_pipeline
from observatory.app.prefixes import SourceKey
from observatory.app.sharing import Newcomer, Sharing
from observatory.app.snapshots import store_status
from observatory.app.submission import (
    KnownInput,
    Submission,
    read_submission,
    submission_from,
    submissions_from,
)
from observatory.app.taken import refuse_taken
from observatory.metrics.book import MetricsBook
from observatory.model.errors import MediaObservatoryError
from observatory.model.status import PipelineStatus, PlatformStatus, Snapshot
from observatory.model.topology import Topology
from observatory.topology.load import DEFAULT, load_topology

if TYPE_CHECKING:
    from observatory.app.hardware import Hardware

BEGIN_SECONDS = 60.0  # how long a submission waits for its workers
END_SECONDS = 35.0  # how long a removal waits for the pipeline to finish what is in flight
AT_ONCE_SECONDS = 10.0  # and then for it to end without
MOST_ENDED = 50  # pipelines that have ended and are still shown


@dataclass(frozen=True, slots=True)
class PlatformOptions:
    """How a platform places and runs what it is given."""

    state: Path
    topology: str | None = None
    queue_frames: int = 8
    memory_limit_bytes: int | None = None
    links: LinkWish | None = None
    pool_policy: Policy | None = None
    share_prefixes: bool = True


class Platform:
    """All pipelines of one state directory. Any thread may call anything.

    Args:
        on_event: called with (pipeline name, what happened, whether it is bad), from any thread.
    """

    def __init__(
        self, options: PlatformOptions, nursery: NurseryProcess, on_event: Callable[[str, str, bool], None]
    ) -> None:
        self.options = options
        self.url: str | None = None
        self.config_file: str | None = None
        self.web_restarts: Callable[[], int] = lambda: 0
        self.keeping: Keeping | None = None
        self.more_warnings: Callable[[], list[str]] = lambda: []
        self.told_to_end: Callable[[], bool] = lambda: False  # looked at while an input is being opened
        self.metrics = MetricsBook()
        self._nursery = nursery
        self._on_event = on_event
        self._started = time.time()
        self._version = version("media-observatory")  # once: it is read from the disk
        self._lock = threading.Lock()  # the table of pipelines
        self._admission = threading.Lock()  # one submission at a time: they share memory and names
        self._pipelines: dict[str, ManagedPipeline] = {}
        self._ending = False
        self.topology: Topology = load_topology(options.topology)
        self.links = None if options.links is None else EmulatedLinks(self.topology, options.links)
        self.hardware: Hardware | None = None
        self._sharing = Sharing(options.state, nursery, self.links)

    # -- pipelines -----------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, cancelled: Callable[[], bool] = lambda: False) -> ManagedPipeline:
        """Start a pipeline and wait until its workers run; `cancelled` is looked at while its inputs are opened.

        Raises:
            ShuttingDown: the platform ends.
            Stopped: cancelled.
            MediaObservatoryError: it cannot be read, opened, placed, fitted into memory or started; or its name is
                taken. Nothing of it is left then, and the others go on.
        """
        return self.submit_together([submission], cancelled)[0]

    def submit_together(
        self, submissions: Sequence[Submission], cancelled: Callable[[], bool] = lambda: False
    ) -> list[ManagedPipeline]:
        """Start several pipelines: what they have in common from their inputs on runs once for all of them.

        Raises as `submit` does. None is started when one of them cannot be; when one fails while it starts, the others
        go on.
        """
        self._refuse_when_ending()
        try:
            pipelines = self._start(submissions, cancelled)
        except CannotJoin as error:
            instead = f"it could not read along an input that is open already ({error}), and opened it once more"
            try:
                pipelines = self._start(submissions, cancelled, instead)
            except MediaObservatoryError as failed:
                failed.message = f"{failed.message}; it could not read along what is open already: {error}"
                raise
        for pipeline in pipelines:
            try:
                pipeline.wait_until_begun(BEGIN_SECONDS)
            except MediaObservatoryError:
                self._forget(pipeline)  # whoever submitted it hears why; there is nothing to show
                raise
        return pipelines

    def _start(
        self, submissions: Sequence[Submission], cancelled: Callable[[], bool], instead: str | None = None
    ) -> list[ManagedPipeline]:
        """Read all and start all of them. `instead`: why they do not join what runs.

        Raises:
            CannotJoin: one of them counted on an input that is open already.
        """
        self._sharing.settle()
        read: list[Newcomer] = []
        with contextlib.ExitStack() as until_started:
            for submission in submissions:
                gateways = Gateways()
                until_started.callback(gateways.close)
                read.append(self._read(submission, gateways, cancelled, read, join=instead is None))
            if instead is not None:
                for newcomer in read:
                    newcomer.warn(instead)
            with self._admission:
                if cancelled():
                    raise Stopped("taken back before it began")
                pipelines = self._admit(read, join=instead is None)
            until_started.pop_all()  # they are the jobs' now
        return pipelines

    def _admit(self, newcomers: Sequence[Newcomer], *, join: bool) -> list[ManagedPipeline]:
        """Start pipelines unless something that runs, or one of the others, stands in the way of one."""
        running = [pipeline.job.typed for pipeline in self.pipelines if pipeline.running]
        for number, newcomer in enumerate(newcomers):
            refuse_taken(newcomer.typed, running, [other.typed for other in newcomers[:number]])
            newcomer.placed = place_pipeline(newcomer.typed, self.options.topology, self.options.state)
        options = self.options
        with self._sharing.plan(newcomers, options.queue_frames, options.memory_limit_bytes, join=join):
            pipelines = [self._managed(newcomer) for newcomer in newcomers]
            with self._lock:
                self._refuse_when_ending()
                for pipeline in pipelines:
                    self._pipelines.pop(pipeline.name, None)  # one that has ended
                    self._pipelines[pipeline.name] = pipeline
                self._forget_oldest()
        for pipeline in pipelines:
            try:
                pipeline.start()
            except BaseException:
                pipeline.job.leave_shared()
                raise
        return pipelines

    def _managed(self, newcomer: Newcomer) -> ManagedPipeline:
        job = Job(
            newcomer.typed,
            newcomer.placed,
            state=self.options.state,
            nursery=self._nursery,
            queue_frames=self.options.queue_frames,
            memory_limit_bytes=self.options.memory_limit_bytes,
            metrics=self.metrics,
            gateways=newcomer.gateways,
            links=self.links,
            pool_policy=self.options.pool_policy,
            shared=newcomer.shared,
        )
        return ManagedPipeline(job, self._changed, lambda p, words: self._on_event(p.name, words, True))

    def _read(
        self,
        submission: Submission,
        gateways: Gateways,
        cancelled: Callable[[], bool],
        others: Sequence[Newcomer],
        *,
        join: bool,
    ) -> Newcomer:
        """Read one; an input that is open already, for one of the `others` or something that runs, is not opened."""
        willing = self.options.share_prefixes if submission.share is None else submission.share

        def probe(kind: type[Operator], params: Parameters, request: SourceRequest) -> Probe:
            """In a process of its own: what an input does to it, it does to no running pipeline."""
            said = params.model_dump(mode="json", exclude_unset=True)
            return probe_apart(self._nursery, kind.op, said, request, lambda: self._over() or cancelled())

        counted_on: set[SourceKey] = set()

        def known(key: SourceKey) -> KnownInput | None:
            if not willing:
                return None
            if join and (found := self._sharing.known(key)) is not None:
                counted_on.add(key)
                return found
            return next((one for other in others if (one := other.known(key))), None)

        try:
            typed = read_submission(submission, probe, gateways, known)
            return Newcomer(typed, gateways, willing, frozenset(counted_on))
        except Stopped:
            self._refuse_when_ending()
            raise

    def _over(self) -> bool:
        return self._ending or self.told_to_end()

    def remove(self, name: str) -> ManagedPipeline:
        """End a pipeline in good order, wait for it, and show it no longer.

        Raises:
            NoSuchPipeline: there is none of that name.
            EndedAtOnce: it did not finish in time; its unfinished outputs are lost.
            StillRunning: it did not even end when it was told to at once.
        """
        pipeline = self._find(name)
        ended_before = not pipeline.running
        pipeline.stop()
        if not pipeline.join(END_SECONDS):
            pipeline.stop(at_once=True)
            if not pipeline.join(AT_ONCE_SECONDS):
                raise StillRunning(f"pipeline {name!r} does not end", mend="see its workers: observatory ps")
        self._forget(pipeline)
        if isinstance(pipeline.error, EndedAtOnce) and not ended_before:
            raise pipeline.error
        return pipeline

    def _forget(self, pipeline: ManagedPipeline) -> None:
        with self._lock:
            if self._pipelines.get(pipeline.name) is pipeline:
                del self._pipelines[pipeline.name]

    def _find(self, name: str) -> ManagedPipeline:
        with self._lock:
            found = self._pipelines.get(name)
            if found is None:
                known = ", ".join(self._pipelines) or "none"
                raise NoSuchPipeline(f"no pipeline is called {name!r}", mend=f"there is: {known}")
            return found

    def _refuse_when_ending(self) -> None:
        if self._over():
            raise ShuttingDown("the platform is about to end and takes no pipelines any more")

    def _forget_oldest(self) -> None:
        ended = [name for name, pipeline in self._pipelines.items() if not pipeline.running]
        for name in ended[: max(0, len(ended) - MOST_ENDED)]:
            del self._pipelines[name]

    def _changed(self, pipeline: ManagedPipeline) -> None:
        status = pipeline.status
        match status.state:
            case "failed":
                mend = pipeline.error.mend if pipeline.error else None
                self._on_event(pipeline.name, f"failed: {status.reason}" + (f" ({mend})" if mend else ""), True)
            case "ended" | "removed":
                frames = sum(s.frames_done for s in status.streams)
                lost = sum(s.frames_lost + s.frames_dropped for s in status.streams)
                self._on_event(pipeline.name, f"{status.state} after {frames} frames, {lost} lost or dropped", False)
            case _:
                self._on_event(pipeline.name, f"running, {len(status.workers)} workers", False)

    # -- the whole -----------------------------------------------------------------------------------------------

    @property
    def pipelines(self) -> list[ManagedPipeline]:
        """Those that run, and those that have ended lately."""
        with self._lock:
            return list(self._pipelines.values())

    @property
    def busy(self) -> bool:
        """Whether a pipeline runs."""
        return any(pipeline.running for pipeline in self.pipelines)

    def stop(self, *, at_once: bool = False) -> None:
        """End every pipeline, in good order or at once, and take none any more. Does not wait."""
        with self._lock:
            self._ending = True
        for pipeline in self.pipelines:
            if pipeline.running:
                pipeline.stop(at_once=at_once)

    def close(self) -> None:
        """Wait for what pipelines have shared; they have ended before."""
        self._sharing.settle()

    def snapshot(self) -> Snapshot:
        """Everything at this moment."""
        pipelines = self.pipelines
        return Snapshot(
            unix_seconds=time.time(),
            platform=PlatformStatus(
                version=self._version,
                host=socket.gethostname(),
                pid=os.getpid(),
                state=str(self.options.state),
                url=self.url,
                topology=self.topology.name or self.options.topology or DEFAULT,
                config_file=self.config_file,
                started_unix_seconds=self._started,
                web_restarts=self.web_restarts(),
                warnings=tuple(self._warnings()),
            ),
            pipelines=tuple(pipeline.status for pipeline in pipelines),
            store=store_status(
                self.options.state,
                [p.job.collected for p in pipelines if p.job.collected is not None],
                self.keeping.status if self.keeping else None,
            ),
            telemetry=self.hardware.telemetry.status() if self.hardware else None,
        )

    def look_at(self, hardware: Hardware) -> None:
        """From here on say what is seen of the hardware."""
        self.hardware = hardware
        self.topology = hardware.topology
        self.metrics.add(hardware.render)

    def topology_now(self) -> Topology:
        """The topology with what is known of its links at this moment."""
        return self.hardware.telemetry.topology() if self.hardware else self.topology

    def _warnings(self) -> list[str]:
        """What somebody should know who looks at the platform."""
        kept = self.keeping.status if self.keeping else None
        found = [words for words in (kept.warning, kept.error) if words] if kept else []
        return [*self.more_warnings(), *found]

    # -- what the control socket offers --------------------------------------------------------------------------

    def commands(self) -> dict[str, Handler]:
        """Handlers by name of command."""
        return {
            "snapshot": lambda *_: self.snapshot().model_dump(mode="json"),
            "topology": lambda *_: self.topology_now().model_dump(mode="json"),
            "metrics": self._on_metrics,
            "submit": self._on_submit,
            "submit_together": self._on_submit_together,
            "remove": self._on_remove,
            "move": self._on_move,
            "set_part": self._on_set_part,
        }

    def _on_metrics(self, arguments: dict[str, Any], _: CallerGone) -> dict[str, str]:
        self.metrics.update(self.snapshot())
        text, content_type = self.metrics.render(bool(arguments.get("openmetrics")))
        return {"gzip": pack(text), "content_type": content_type}

    def _on_submit(self, arguments: dict[str, Any], caller_gone: CallerGone) -> dict[str, Any]:
        return _document(self.submit(submission_from(arguments), caller_gone).status)

    def _on_submit_together(self, arguments: dict[str, Any], caller_gone: CallerGone) -> dict[str, Any]:
        submissions = submissions_from(arguments)
        return {"pipelines": [_document(p.status) for p in self.submit_together(submissions, caller_gone)]}

    def _on_move(self, arguments: dict[str, Any], _: CallerGone) -> dict[str, Any]:
        return dict(self._find(str(arguments.get("pipeline"))).job.move(str(arguments.get("operator"))))

    def _on_set_part(self, arguments: dict[str, Any], _: CallerGone) -> dict[str, Any]:
        changes = arguments.get("changes")
        if not isinstance(changes, dict) or not all(isinstance(text, str) for text in changes.values()):
            raise NotEmulated("changes must be texts by name", mend='"changes": {"width": "8"}')
        if self.hardware is None:
            raise NotEmulated("the platform does not look at its hardware", mend="set telemetry.enabled = true")
        return self.hardware.change(str(arguments.get("target")), changes)

    def _on_remove(self, arguments: dict[str, Any], _: CallerGone) -> dict[str, Any]:
        name = arguments.get("name")
        if not isinstance(name, str):
            raise NoSuchPipeline("name is missing" if name is None else "name must be text", mend='add "name": "..."')
        return _document(self.remove(name).status)


def _document(status: PipelineStatus) -> dict[str, Any]:
    document: dict[str, Any] = status.model_dump(mode="json")
    return document
