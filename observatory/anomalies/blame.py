"""One parent's many links are one incident: who is to blame where everything that hangs on one thing is down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from observatory.anomalies.case import Case
from observatory.anomalies.finding import Finding
from observatory.anomalies.subjects import Subjects

_DOWN = frozenset({"link_down", "nvlink_down", "gpu_lost", "device_lost"})
_LEAST = 2  # of one thing says nothing of what it hangs on
_OVER_SHARE = 0.5

Key = tuple[str, str]


class Blame:
    """Finds parents all of whose children that were ever seen are down."""

    def __init__(self, subjects: Subjects) -> None:
        self.subjects = subjects
        self.known: set[str] = set()
        self._sizes: dict[str, int] = {}

    def judge(self, cases: Mapping[Key, Case], now_ns: int) -> Iterator[tuple[Finding, list[Key]]]:
        """A verdict against each parent, with the incidents that are part of it; the largest family first."""
        down = {
            case.subject: key
            for key, case in cases.items()
            if case.kind.name in _DOWN and not case.blamed and case.well_ns is None
        }
        if len(down) < _LEAST:
            return
        families: dict[str, list[str]] = defaultdict(list)
        for subject in sorted(down):
            for parent in self.subjects.parents(subject):
                families[parent].append(subject)
        taken: set[str] = set()
        for parent, members in sorted(families.items(), key=lambda item: (-len(item[1]), item[0])):
            left = [subject for subject in members if subject not in taken]
            if len(left) < _LEAST or not self._all_down(parent, members):
                continue
            is_device = self.subjects.is_device(parent)
            if is_device and any(cases[down[subject]].kind.name != "nvlink_down" for subject in left):
                continue  # a card with two dead cables is no dead card
            taken.update(left)
            self._sizes[parent] = len(left)
            kind = "nvlink_down" if is_device else "switch_lost"
            words = f"all {len(left)} links and devices at it are down"
            yield (
                Finding(kind, parent, "topology", now_ns, True, words, trust=0.0, affected=tuple(left)),
                [down[subject] for subject in left],
            )

    def _all_down(self, parent: str, members: list[str]) -> bool:
        """All children that are told of, of the sort that is down: links or devices."""
        links = {"--" in subject for subject in members}
        seen = {c for c in self.subjects.children(parent) if c in self.known and ("--" in c) in links}
        return seen <= set(members)

    def is_over(self, case: Case) -> bool:
        """Whether too few of its parts are left to blame it."""
        left = {subject for _, subject, _ in case.absorbed}
        return len(left) < max(_LEAST, self._sizes.get(case.subject, 0) * _OVER_SHARE)
