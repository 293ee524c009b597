"""Constraints in numbers: hard ones become sets of allowed devices, soft ones and hints become wishes with a weight.

A hard domain constraint leaves a choice (which socket?), and all choices of several constraints multiply; each
combination is a problem of its own without domain constraints, and the solver takes the best answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from observatory.documents import did_you_mean
from observatory.model.pipeline import TopologyConstraint
from scheduler.errors import ImpossiblePlacement
from scheduler.problem import Problem

MOST_COMBINATIONS = 256
HINT_WEIGHT = 50.0
"""What a locality hint weighs on the scale of soft constraints (0-100)."""

_HINTS = {"same-device": "Device", "same-numa": "NUMA_Node", "same-socket": "Socket", "same-node": "Node"}

Allowed = tuple[frozenset[int], ...]
"""By task: the devices it may go to."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks that belong into one domain. `domains`: by device number, the domain it is in, or None."""

    text: str
    members: tuple[int, ...]
    domains: tuple[str | None, ...]
    value: str | None

    def choices(self, allowed: Sequence[frozenset[int]]) -> list[str]:
        """Domains in which every member has a device, in order of the devices."""
        names = [self.value] if self.value is not None else list(dict.fromkeys(d for d in self.domains if d))
        return [n for n in names if all(any(self.domains[d] == n for d in allowed[m]) for m in self.members)]

    def met(self, placement: Sequence[int]) -> bool:
        """Whether a placement keeps it."""
        found = {self.domains[placement[m]] for m in self.members}
        return len(found) == 1 and None not in found and (self.value is None or found == {self.value})


@dataclass(frozen=True, slots=True)
class Wish:
    """A soft group and how much it weighs, in (0, 1]."""

    group: Group
    weight: float

    def broken_by(self, task: int, device: int, placed: Mapping[int, int], allowed: Sequence[frozenset[int]]) -> bool:
        """Whether putting the task there breaks the wish, given what is placed; unplaced members must still fit."""
        domains = self.group.domains
        domain = domains[device]
        if domain is None or (self.group.value is not None and domain != self.group.value):
            return True
        for member in self.group.members:
            if member == task:
                continue
            if member in placed:
                if domains[placed[member]] != domain:
                    return True
            elif not any(domains[d] == domain for d in allowed[member]):
                return True
        return False


def hard_groups(problem: Problem) -> tuple[Group, ...]:
    """The hard domain constraints (Device_Kind is in the candidates already). Raises ImpossiblePlacement."""
    found = []
    for constraint in problem.pipeline.topology_constraints:
        if constraint.weight is None and constraint.type != "Device_Kind":
            _value_exists(problem, constraint)
            found.append(_group(problem, constraint))
    return tuple(found)


def wishes(problem: Problem) -> tuple[Wish, ...]:
    """Soft constraints and locality hints."""
    found = []
    for constraint in problem.pipeline.topology_constraints:
        if constraint.weight is None:
            continue
        if constraint.type == "Device_Kind":  # each member by itself
            for member in constraint.members:
                single = constraint.model_copy(update={"members": (member,)})
                found.append(Wish(_group(problem, single), constraint.weight / 100))
        else:
            found.append(Wish(_group(problem, constraint), constraint.weight / 100))
    index = {t.node.name: t.index for t in problem.tasks}
    for hint in problem.pipeline.locality_hints:
        kind = _HINTS[hint.prefer]
        domains = (
            tuple(d.id for d in problem.devices)
            if kind == "Device"
            else tuple(problem.domains.of(d.id, kind) for d in problem.devices)
        )
        text = f"{hint.prefer} for {', '.join(hint.operators)}"
        members = tuple(index[o] for o in hint.operators)
        found.append(Wish(Group(text, members, domains, None), HINT_WEIGHT / 100))
    return tuple(found)


def combinations(
    groups: Sequence[Group], candidates: Sequence[Mapping[int, object]], notes: list[str]
) -> Iterator[Allowed]:
    """Allowed devices for every choice of a domain for each group; choices that leave a task nowhere are left out."""
    start: Allowed = tuple(frozenset(c) for c in candidates)
    choices = [group.choices(start) for group in groups]
    total = math.prod(len(c) for c in choices)
    if total > MOST_COMBINATIONS:
        notes.append(f"only {MOST_COMBINATIONS} of {total:,} ways to choose domains were tried")
    for chosen in itertools.islice(itertools.product(*choices), MOST_COMBINATIONS):
        allowed = list(start)
        for group, name in zip(groups, chosen, strict=True):
            inside = frozenset(d for d, domain in enumerate(group.domains) if domain == name)
            for member in group.members:
                allowed[member] &= inside
        if all(allowed):
            yield tuple(allowed)


def _group(problem: Problem, constraint: TopologyConstraint) -> Group:
    index = {t.node.name: t.index for t in problem.tasks}
    where = f" {constraint.value}" if constraint.value else ""
    return Group(
        text=f"{constraint.type}{where} for {', '.join(constraint.members)}",
        members=tuple(index[m] for m in constraint.members),
        domains=tuple(problem.domains.of(d.id, constraint.type) for d in problem.devices),
        value=constraint.value,
    )


def _value_exists(problem: Problem, constraint: TopologyConstraint) -> None:
    names = problem.domains.names(constraint.type)
    if constraint.value is not None and constraint.value not in names:
        raise ImpossiblePlacement(
            f"the hard constraint {constraint.type} names {constraint.value!r}, which the topology does not have",
            file=problem.pipeline.source_file,
            mend=did_you_mean(constraint.value, names) if names else f"this topology has no {constraint.type}",
        )
