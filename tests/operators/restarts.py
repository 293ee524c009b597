"""Operators that die, at every place where it matters, and their successors.

A `Mortal` bench counts whatever its operator does that others can see: taking a slot, publishing, acknowledging,
reporting, each before and after it has its effect. At the point it was told, the operator is not called again, as after
SIGKILL: nothing is flushed, aborted or released. Its successor gets what a new worker gets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import JsonValue

from dataplane._ring import Descriptor, ReadLease, WriteLease
from dataplane.operators.base import Loss, Operator, Published, Resume, SourceRequest, Write
from dataplane.operators.handover import resume_as_json, resume_from_json
from observatory.model.media import PayloadKind, PortFormat
from tests.operators.harness import Bench, Payload


class Killed(BaseException):
    """The operator's process would be gone by now."""


class Points:
    """Counts places to die at, and dies at one of them."""

    def __init__(self, last: int | None = None) -> None:
        self.passed = 0
        self._last = last

    def __call__(self) -> None:
        if self.passed == self._last:
            raise Killed
        self.passed += 1

    @contextmanager
    def around(self) -> Iterator[None]:
        """Before and after."""
        self()
        yield
        self()


class _Lease:
    """A lease of either kind whose end is a place to die at."""

    def __init__(self, lease: Any, points: Points) -> None:
        self.real = lease
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def publish(self, descriptor: Descriptor, size: int) -> int:
        with self._points.around():
            return cast(int, self.real.publish(descriptor, size))

    def release(self) -> None:
        with self._points.around():
            self.real.release()

    def __enter__(self) -> _Lease:
        self.real.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.real.__exit__(*exc)


@dataclass
class Mortal(Bench):
    """A bench whose operator dies at one of its points."""

    points: Points = field(default_factory=Points)

    def acquire(self, payload_bytes: int, port: str = "video") -> WriteLease:
        self.points()
        return cast(WriteLease, _Lease(super().acquire(payload_bytes, port), self.points))

    def publish_together(self, writes: Sequence[Write]) -> int:
        with self.points.around():
            return super().publish_together([Write(cast(_Lease, w.lease).real, *w[1:]) for w in writes])

    def checkpoint(self, state: Mapping[str, JsonValue]) -> None:
        with self.points.around():
            super().checkpoint(state)

    def lost(self, source_index: int | None, pts: int | None, reason: str) -> None:
        with self.points.around():
            super().lost(source_index, pts, reason)

    def begin_epoch(self, reason: str, pts_offset: int) -> int:
        with self.points.around():
            return super().begin_epoch(reason, pts_offset)

    def handed(self, lease: ReadLease) -> ReadLease:
        return cast(ReadLease, _Lease(lease, self.points))


@dataclass
class Account:
    """All that the instances of an operator did, one after the other."""

    made: dict[str, list[Payload]] = field(default_factory=dict)
    lost: list[Loss] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    points: int = 0  # places to die at, of the last instance
    lives: int = 0
    begun: list[int] = field(default_factory=list)  # how many payloads of "video" were there as each began
    epochs: list[tuple[str, int]] = field(default_factory=list)

    def frames(self) -> list[Payload]:
        """The video on port "video", without parameters."""
        return [p for p in self.made.get("video", []) if p.kind != PayloadKind.CODEC_PARAMETERS]


@dataclass(frozen=True)
class Move:
    """Instead of dying, an instance finishes what it has begun after so many payloads, or steps of a source."""

    after: int
    flushed: bool = True  # or dropped then: both cuts are possible


@dataclass
class Lives:
    """An operator with its input, and how often it dies."""

    kind: type[Operator]
    params: Mapping[str, Any] = field(default_factory=dict)
    form: PortFormat | None = None
    payloads: Sequence[Payload] = ()
    source: SourceRequest = field(default_factory=SourceRequest)
    ports: tuple[str, ...] = ("video", "audio")
    change: Callable[[Operator], None] = lambda _: None  # what a test does to each instance

    def live(self, *ends: int | Move) -> Account:
        """Run to the end; the first instances die at those points or are moved, the last one is not."""
        account = Account()
        state: Mapping[str, JsonValue] | None = None
        published = dict.fromkeys(self.ports, Published())
        begin = 0  # first payload that was not acknowledged
        for end in (*ends, None):
            move = end if isinstance(end, Move) else None
            death = end if isinstance(end, int) else None
            inputs = {} if self.form is None else {"a->b": self.form}
            bench = Mortal(self.kind, self.params, inputs, source=self.source, ports=self.ports, points=Points(death))
            bench.state = state
            bench.epochs = account.epochs
            self.change(bench.operator)
            account.lives += 1
            account.begun.append(len(account.made.get("video", [])))
            resume = Resume(
                account.lives, "died" if move is None else "migrated", state, published, tuple(account.lost)
            )
            resume = resume_from_json(json.loads(json.dumps(resume_as_json(resume))))
            taken: dict[str, list[Payload]] = {}
            done = self._work(bench, resume if account.lives > 1 else None, begin, taken, move)
            if not done:
                _add(taken, bench.taken())
                if self.form is not None:
                    begin += bench.consumer_acked()
            for port, payloads in taken.items():
                published[port] = published[port].followed_by(p.descriptor for p in payloads)
            _add(account.made, taken)
            account.lost += [Loss(*loss) for loss in bench.lost_frames]
            account.warnings += [said for said in bench.warnings if said not in account.warnings]
            account.points = bench.points.passed
            state = bench.state
            if done:
                return account
            bench.operator.close()  # no part of a death: frees what a process would have taken along
            bench.close()
        raise AssertionError("the last instance died")

    def _work(
        self,
        bench: Mortal,
        resume: Resume | None,
        begin: int,
        taken: dict[str, list[Payload]],
        move: Move | None,
    ) -> bool:
        """False: it died, or was moved."""
        try:
            if resume is not None:
                bench.go_on(resume)
            done = 0
            for payload in self.payloads[begin:]:
                if move is not None and done == move.after:
                    break
                _add(taken, bench.feed(payload))
                done += 1
            while self.kind.source and (move is None or done < move.after) and bench.operator.step(bench):
                _add(taken, bench.taken())
                done += 1
            if move is None:
                _add(taken, bench.finish())
            elif move.flushed:
                bench.operator.flush(bench)
        except Killed:
            return False
        return move is None


def _add(to: dict[str, list[Payload]], more: Mapping[str, list[Payload]]) -> None:
    for port, payloads in more.items():
        to.setdefault(port, []).extend(payloads)
