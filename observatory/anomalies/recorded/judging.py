"""How well the watch does on cases whose verdict is known: precision and recall over a table of labelled files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from observatory.anomalies.recorded.files import analyse, read_recordings

NODE = "case"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One case: what was expected and what was found, as `kind subject`."""

    case: str
    expected: frozenset[str]
    found: frozenset[str]

    @property
    def missed(self) -> frozenset[str]:
        """Expected and not found."""
        return self.expected - self.found

    @property
    def invented(self) -> frozenset[str]:
        """Found and not expected."""
        return self.found - self.expected

    @property
    def is_right(self) -> bool:
        """Whether exactly what was expected was found."""
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class Score:
    """Over all cases: incidents found rightly, found wrongly, and not found."""

    judgements: tuple[Judgement, ...]

    @property
    def hits(self) -> int:
        """Incidents that were expected and found."""
        return sum(len(j.expected & j.found) for j in self.judgements)

    @property
    def precision(self) -> float:
        """Share of the found incidents that were expected; 1 where none was found."""
        found = sum(len(j.found) for j in self.judgements)
        return self.hits / found if found else 1.0

    @property
    def recall(self) -> float:
        """Share of the expected incidents that were found; 1 where none was expected."""
        expected = sum(len(j.expected) for j in self.judgements)
        return self.hits / expected if expected else 1.0


def judge(cases: Iterable[dict[str, Any]], root: Path) -> Score:
    """Run the watch over every case of a table of labels (`case`, `files`, `expect`), with files below `root`."""
    return Score(tuple(_judge(case["case"], case["files"], case["expect"], root) for case in cases))


def _judge(case: str, files: Sequence[str], expect: Sequence[str], root: Path) -> Judgement:
    analysis = analyse(read_recordings([root / file for file in files], NODE))
    found = (f"{i.kind} {i.subject.removeprefix(f'{NODE}:')}" for i in analysis.incidents)
    return Judgement(case, frozenset(expect), frozenset(found))
