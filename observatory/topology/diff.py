"""What differs between two topologies: nodes, devices, vertices and links that appeared or are gone, and what changed.

Things are the same by id. Where a topology was read from, what it is called, and what is in use of links do not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from observatory.model.topology import Topology

_NOT_COMPARED = frozenset({"utilisation"})
_SAME = 1e-9  # relative: what a file's rounding makes


class ChangeKind(StrEnum):
    """What became of a thing."""

    APPEARED = "appeared"
    GONE = "gone"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; `name`, `before` and `after` are set for a property that changed. None: not known."""

    kind: ChangeKind
    what: str  # node, device, vertex, link
    id: str
    name: str | None = None
    before: Any = None
    after: Any = None


def compare(before: Topology, after: Topology) -> tuple[Change, ...]:
    """All differences: by kind of thing, then in the order of the first topology, then what is only in the second."""
    return tuple(
        change
        for what, old, new in (
            ("node", before.nodes, after.nodes),
            ("device", before.devices, after.devices),
            ("vertex", before.vertices, after.vertices),
            ("link", before.links, after.links),
        )
        for change in _compare(what, old, new)
    )


def _compare(what: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Change]:
    was, now = _by_id(old), _by_id(new)
    for name, thing in was.items():
        if name not in now:
            yield Change(ChangeKind.GONE, what, name)
        elif thing is not now[name] and thing != now[name]:
            yield from _properties(what, name, thing, now[name])
    for name in now:
        if name not in was:
            yield Change(ChangeKind.APPEARED, what, name)


def _by_id(things: Sequence[Any]) -> dict[str, Any]:
    return {thing.id: thing for thing in things}


def _properties(what: str, name: str, old: BaseModel, new: BaseModel) -> Iterator[Change]:
    was, now = old.model_dump(mode="json"), new.model_dump(mode="json")
    ends = {"a", "b"} if what == "link" else set()  # the id has both, in order
    for key in (k for k in was if k not in _NOT_COMPARED and k not in ends):
        if not _same(was[key], now[key]):
            yield Change(ChangeKind.CHANGED, what, name, key, was[key], now[key])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_SAME)
    return bool(a == b)
