"""What pipelines of a platform have in common runs once: planned before they start, joined by those that come later.

Pipelines that are started together share their common prefix: everybody gets every frame. A live source is run apart
from its pipeline from the beginning, because its frames are gone in any case for who comes later: such a pipeline may
join while it runs, and begins with the frame at which it was let in. Nobody joins a file in the middle.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dataplane.errors import CannotJoin
from dataplane.guest import Guest
from dataplane.process import NurseryProcess
from dataplane.provider import Provider
from dataplane.sizing import PortPool, check_memory
from observatory.app.assembly import build_shared_assignments, held_by, size_shared_pools
from observatory.app.gateways import Gateways
from observatory.app.links import EmulatedLinks
from observatory.app.placing import Placed
from observatory.app.prefixes import Member, SourceKey, common_prefix, sources_by_key
from observatory.app.submission import KnownInput
from observatory.app.typed import TypedPipeline

LATE_HELD_FRAMES = 8  # what a pipeline that joins a live source later may hold, if those at the start hold less
END_SECONDS = 10.0


@dataclass(slots=True)
class Newcomer:
    """A pipeline that is about to start. What it shares is filled in by `Sharing.plan`.

    Args:
        willing: whether it shares anything.
        counted_on: its inputs that were not opened for it, because something that runs reads them.
        shared: by its operators that it does not run itself, its place among those who share them.
    """

    typed: TypedPipeline
    gateways: Gateways
    willing: bool
    counted_on: frozenset[SourceKey] = frozenset()
    shared: dict[str, Guest] = field(default_factory=dict)
    _placed: Placed | None = None

    @property
    def name(self) -> str:
        """Of the pipeline."""
        return self.typed.pipeline.name

    @property
    def placed(self) -> Placed:
        """Where its operators are; to be set before anything is planned."""
        assert self._placed is not None
        return self._placed

    @placed.setter
    def placed(self, placed: Placed) -> None:
        self._placed = placed

    def known(self, key: SourceKey) -> KnownInput | None:
        """Its input of that key, for others that are started together with it."""
        source = sources_by_key(self.typed).get(key) if self.willing else None
        return None if source is None else KnownInput(self.typed.requests[source], self.typed.probes[source])

    def warn(self, words: str) -> None:
        """Say something along with what reading its file had to say."""
        self.typed = replace(self.typed, notes=(*self.typed.notes, words))

    def run_elsewhere(self, devices: Mapping[str, str]) -> None:
        """These operators are on the devices on which those who share them have them."""
        placement = self.placed.placement
        moved = placement.model_copy(update={"devices": {**placement.devices, **devices}})
        self.placed = replace(self.placed, placement=moved)


@dataclass(frozen=True, slots=True, eq=False)
class SharedSource:
    """A source, and what is below it, that runs for several pipelines. Names are those of the first of them."""

    key: SourceKey
    source: str
    typed: TypedPipeline
    devices: Mapping[str, str]
    pools: Mapping[tuple[str, str], PortPool]
    held_frames: int  # that one reader of the source may hold
    provider: Provider
    gateways: Gateways
    logs: Path

    @property
    def open_to_others(self) -> bool:
        """Whether others may join later."""
        return _may_be_joined(self.typed, self.source)

    @property
    def known(self) -> KnownInput:
        """Its input, for who wants to read it too."""
        return KnownInput(self.typed.requests[self.source], self.typed.probes[self.source])

    def join(self, newcomer: Newcomer, source: str) -> Guest:
        """A place for one more pipeline. Raises CannotJoin."""
        if newcomer.typed.operators[source].outputs != self.typed.operators[self.source].outputs:
            raise CannotJoin("its input is not what it was when it was opened")
        edges = [edge for edge in newcomer.typed.edges if edge.producer == source]
        for edge in edges:
            if edge.format.kind != "video":
                raise CannotJoin("who joins later gets no sound: what describes it was said at the beginning")
            held = held_by(newcomer.typed, edge)
            if held > self.held_frames:
                words = f"{edge.consumer} holds {held} frames, the pool has room for {self.held_frames}"
                raise CannotJoin(words)
        ports = [(self.source, edge.port) for edge in edges]
        return self.provider.invite(newcomer.name, {source: self.source}, ports)


class Sharing:
    """What is shared on a platform. One thread at a time plans; everything else any thread may call."""

    def __init__(self, state: Path, nursery: NurseryProcess, links: EmulatedLinks | None) -> None:
        self._state = state
        self._nursery = nursery
        self._links = links
        self._lock = threading.Lock()
        self._running: list[SharedSource] = []
        self._planned: list[SharedSource] = []

    def known(self, key: SourceKey) -> KnownInput | None:
        """A live input that is read already, and may be joined."""
        with self._lock:
            return next((shared.known for shared in self._running if shared.key == key and shared.open_to_others), None)

    @contextlib.contextmanager
    def plan(
        self, newcomers: Sequence[Newcomer], queue_frames: int, memory_limit_bytes: int | None, *, join: bool
    ) -> Iterator[None]:
        """Find out what the pipelines share with each other and with those that run, before they are started.

        What is shared begins when this is left, and waits for them. On an exception nothing of it is left.
        `join`: whether they may join what runs.

        Raises:
            CannotJoin: a pipeline counted on an input that is open already and cannot read it.
            NotEnoughMemory: the pools of what is shared need more than there is.
        """
        try:
            for key, members in _by_source(newcomers).items():
                if join and self._join(key, members):
                    continue
                if any(key in newcomer.counted_on for newcomer, _ in members):
                    raise CannotJoin("it has just ended")
                self._share(key, members, queue_frames, memory_limit_bytes)
            yield
            with self._lock:
                self._running += self._planned
            for shared in self._planned:
                shared.provider.start()
        except BaseException:
            for newcomer in newcomers:
                for guest in newcomer.shared.values():
                    guest.leave()
            for shared in self._planned:
                shared.provider.give_up()
            raise
        finally:
            self._planned = []

    def _join(self, key: SourceKey, members: Sequence[tuple[Newcomer, str]]) -> bool:
        """Whether they read what runs already."""
        with self._lock:
            found = next((shared for shared in self._running if shared.key == key and shared.open_to_others), None)
        if found is None:
            return False
        for newcomer, source in members:
            newcomer.shared[source] = found.join(newcomer, source)
            newcomer.run_elsewhere({source: found.devices[found.source]})
        return True

    def _share(
        self,
        key: SourceKey,
        members: Sequence[tuple[Newcomer, str]],
        queue_frames: int,
        memory_limit_bytes: int | None,
    ) -> None:
        """Let what they have in common run apart from them, if they are several or others may join later."""
        first, source = members[0]
        live = _may_be_joined(first.typed, source)
        if len(members) == 1 and not live:
            return
        named = common_prefix([Member(newcomer.typed, own) for newcomer, own in members])
        readers = [(newcomer.typed, names) for (newcomer, _), names in zip(members, named, strict=True)]
        pools = size_shared_pools(readers, queue_frames, LATE_HELD_FRAMES if live else 0)
        check_memory(list(pools.values()), memory_limit_bytes)
        routes = {} if self._links is None else self._links.routes(first.typed, first.placed)
        logs = self._state / "run" / f"shared-{uuid.uuid4().hex[:8]}"
        logs.mkdir(parents=True)
        assignments = build_shared_assignments(first.typed, list(named[0]), pools, first.placed.placement, routes)
        fabric = None if self._links is None else self._links.fabric
        provider = Provider(assignments, logs, self._nursery, fabric, on_end=self._ended)
        shared = SharedSource(
            key=key,
            source=source,
            typed=first.typed,
            devices={name: first.placed.placement.devices[name] for name in named[0]},
            pools=pools,
            held_frames=max(held_by(t, e) for t, names in readers for e in t.edges if names.get(e.producer) == source),
            provider=provider,
            gateways=first.gateways.hand_over(source),
            logs=logs,
        )
        if live:
            shared = replace(shared, held_frames=max(shared.held_frames, LATE_HELD_FRAMES))
        self._planned.append(shared)
        for (newcomer, _), names in zip(members, named, strict=True):
            guest = provider.invite(newcomer.name, names)
            newcomer.shared.update(dict.fromkeys(names, guest))
            newcomer.run_elsewhere({own: shared.devices[theirs] for own, theirs in names.items()})

    def _ended(self, provider: Provider) -> None:
        """In the provider's thread, or in that which gave it up."""
        with self._lock:
            over = [s for s in (*self._running, *self._planned) if s.provider is provider]
            self._running = [shared for shared in self._running if shared.provider is not provider]
        for shared in over:
            shared.gateways.close()
            with contextlib.suppress(OSError):
                shared.logs.rmdir()

    def settle(self) -> None:
        """Wait until what nobody reads any more has ended, and given back its ports, memory and processes."""
        with self._lock:
            running = list(self._running)
        for shared in running:
            if not shared.provider.guest_names:
                shared.provider.join(END_SECONDS)


def _may_be_joined(typed: TypedPipeline, source: str) -> bool:
    """Whether who comes later loses nothing that it could have: of a source that is live and counts no frames."""
    return typed.probes[source].live and typed.probes[source].frames is None


def _by_source(newcomers: Sequence[Newcomer]) -> dict[SourceKey, list[tuple[Newcomer, str]]]:
    """The willing ones and their sources, those together that are the same."""
    found: dict[SourceKey, list[tuple[Newcomer, str]]] = {}
    for newcomer in newcomers:
        if newcomer.willing:
            for key, source in sources_by_key(newcomer.typed).items():
                found.setdefault(key, []).append((newcomer, source))
    return found
