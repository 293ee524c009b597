"""Checks on a pipeline's graph that a schema cannot make, and its topological order."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from observatory.documents import Document, did_you_mean
from observatory.model.device import DeviceKind
from scheduler.specs.models import OperatorSpec, PipelineSpec

_DRAWN = 12  # operators of a cycle that are drawn before the middle is left out


def checked_order(document: Document, spec: PipelineSpec) -> list[int]:
    """Indices of the operators in topological order; among those that are ready, the file's order.

    Raises:
        BadSpec: a name is used twice; an input is unknown, given twice or the operator itself; there is a cycle;
            a constraint or hint names an operator that does not exist, or names one twice.
    """
    names = _unique_names(document, spec.operators)
    _inputs_exist(document, spec.operators, names)
    order = _order(spec.operators, names)
    if len(order) < len(spec.operators):
        _draw_cycle(document, spec.operators, names, set(order))
    for index, constraint in enumerate(spec.topologyConstraints):
        at = ("spec", "topologyConstraints", index)
        _members_exist(document, constraint.members, names, (*at, "members"))
        if constraint.type == "Device_Kind":
            _kind_exists(document, constraint.value, at)
    for index, hint in enumerate(spec.dataLocalityHints):
        _members_exist(document, hint.operators, names, ("spec", "dataLocalityHints", index, "operators"))
    return order


def _kind_exists(document: Document, value: str | None, at: tuple[str | int, ...]) -> None:
    kinds = [k.value for k in DeviceKind]
    if value is None:
        document.fail("a Device_Kind constraint without a value", at, mend=f"add value: {' | '.join(kinds)}")
    if value not in kinds:
        document.fail(f"there is no device kind {value!r}", (*at, "value"), mend=did_you_mean(value, kinds))


def _unique_names(document: Document, operators: Sequence[OperatorSpec]) -> dict[str, int]:
    names: dict[str, int] = {}
    for index, operator in enumerate(operators):
        if operator.name in names:
            first = document.line_of(("spec", "operators", names[operator.name]))
            document.fail(
                f"there are two operators called {operator.name!r}, the first on line {first}",
                ("spec", "operators", index, "name"),
                mend="rename one of them, and the inputs that mean it",
            )
        names[operator.name] = index
    return names


def _inputs_exist(document: Document, operators: Sequence[OperatorSpec], names: Mapping[str, int]) -> None:
    for index, operator in enumerate(operators):
        for position, name in enumerate(operator.inputs):
            at = ("spec", "operators", index, "inputs", position)
            if name == operator.name:
                document.fail(
                    f"operator {name!r} takes its own output", at, mend="name the operator that comes before it"
                )
            if name not in names:
                others = [n for n in names if n != operator.name]
                document.fail(
                    f"operator {operator.name!r}: there is no operator {name!r} to take input from",
                    at,
                    mend=did_you_mean(name, others),
                )
            if name in operator.inputs[:position]:
                document.fail(f"operator {operator.name!r} takes {name!r} twice", at, mend="name it once")


def _members_exist(
    document: Document, members: Sequence[str], names: Mapping[str, int], at: tuple[str | int, ...]
) -> None:
    for position, name in enumerate(members):
        if name not in names:
            document.fail(f"there is no operator {name!r}", (*at, position), mend=did_you_mean(name, names))
        if name in members[:position]:
            document.fail(f"{name!r} is named twice", (*at, position), mend="name it once")


def _order(operators: Sequence[OperatorSpec], names: Mapping[str, int]) -> list[int]:
    """Kahn's algorithm with a heap; operators in or behind a cycle are left out."""
    waits = [len(o.inputs) for o in operators]
    consumers: list[list[int]] = [[] for _ in operators]
    for index, operator in enumerate(operators):
        for name in operator.inputs:
            consumers[names[name]].append(index)
    ready = [i for i, w in enumerate(waits) if w == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for consumer in consumers[index]:
            waits[consumer] -= 1
            if waits[consumer] == 0:
                heapq.heappush(ready, consumer)
    return order


def _draw_cycle(
    document: Document, operators: Sequence[OperatorSpec], names: Mapping[str, int], ordered: set[int]
) -> None:
    """Raise with one cycle, drawn along the flow of the frames from the operator that was written first."""
    current = min(i for i in range(len(operators)) if i not in ordered)
    seen: dict[int, int] = {}
    backwards: list[int] = []
    while current not in seen:  # every operator left has an input that is left, so this ends in a cycle
        seen[current] = len(backwards)
        backwards.append(current)
        current = next(names[n] for n in operators[current].inputs if names[n] not in ordered)
    cycle = backwards[seen[current] :][::-1]
    start = cycle.index(min(cycle))
    drawn = [operators[i].name for i in (*cycle[start:], *cycle[:start], cycle[start])]
    if len(drawn) > _DRAWN:
        hidden = len(drawn) - _DRAWN
        drawn = [*drawn[: _DRAWN // 2], f"({hidden:,} more)", *drawn[-_DRAWN // 2 :]]
    document.fail(
        f"the operators form a cycle: {' -> '.join(drawn)}",
        ("spec", "operators", cycle[start]),
        mend="frames flow one way: remove one of these inputs",
    )
