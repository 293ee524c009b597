"""A layered layout of our own: which order and position vertices take in their rows so that few edges cross.

Orders by barycentre sweeps (Sugiyama, Tagawa, Toda 1981), then places each row as near as it can be to the means of its
neighbours with a least distance (isotonic regression by pooling adjacent violators).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Edge = tuple[str, str]
SWEEPS = 9  # odd: the last one goes down, so that what hangs together below one parent stands together


def layers_of(edges: Iterable[Edge], names: Iterable[str]) -> list[list[str]]:
    """Rows of a DAG: a vertex stands one row after the last of its predecessors. A cycle's vertices stand in row 0."""
    before: dict[str, set[str]] = {name: set() for name in names}
    for a, b in edges:
        before.setdefault(a, set())
        before.setdefault(b, set()).add(a)
    depth: dict[str, int] = {}
    waiting = dict(before)
    while waiting:
        ready = [name for name, above in waiting.items() if all(a in depth for a in above)] or list(waiting)
        for name in ready:
            depth[name] = max((depth[a] + 1 for a in waiting.pop(name) if a in depth), default=0)
    rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in before:
        rows[depth[name]].append(name)
    return rows


def ordered(rows: Sequence[Sequence[str]], edges: Iterable[Edge]) -> list[list[str]]:
    """The rows, each in an order that lets few edges cross."""
    near = _neighbours(edges)
    found = [list(row) for row in rows]
    row_of = {name: number for number, row in enumerate(found) for name in row}
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for number in range(len(found)) if down else range(len(found) - 1, -1, -1):
            at = {name: (i + 0.5) / len(row) for row in found for i, name in enumerate(row)}
            wanted = {}
            for name in found[number]:
                other = [
                    at[n]
                    for n in near.get(name, ())
                    if n in at and (row_of[n] < number if down else row_of[n] > number)
                ]
                wanted[name] = sum(other) / len(other) if other else at[name]
            found[number].sort(key=wanted.__getitem__)
    return found


def spread(rows: Sequence[Sequence[str]], edges: Iterable[Edge], gap: float = 1.0) -> dict[str, float]:
    """A position for every name along its row, at least `gap` apart, near the mean of its neighbours."""
    near = _neighbours(edges)
    at = {name: (i - (len(row) - 1) / 2) * gap for row in rows for i, name in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = []
            for name in row:
                other = [at[n] for n in near.get(name, ()) if n in at and n not in row]
                wanted.append(sum(other) / len(other) if other else at[name])
            at.update(zip(row, apart(wanted, gap), strict=True))
    return at


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """The positions nearest to `wanted` (least squares) that keep this order and at least `gap` between neighbours."""
    blocks: list[tuple[float, int]] = []  # mean of (wanted - index * gap), how many
    for index, value in enumerate(wanted):
        mean, size = value - index * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, size = (before * many + mean * size) / (many + size), many + size
        blocks.append((mean, size))
    found: list[float] = []
    for mean, size in blocks:
        first = len(found)
        found.extend(mean + (first + i) * gap for i in range(size))
    return found


def _neighbours(edges: Iterable[Edge]) -> dict[str, list[str]]:
    near: dict[str, list[str]] = {}
    for a, b in edges:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    return near
