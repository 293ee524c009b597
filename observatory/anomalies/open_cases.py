"""The incidents that are open, found by subject, and by what their subjects belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from observatory.anomalies.case import Case
from observatory.anomalies.subjects import Subjects

Key = tuple[str, str]
"""Group of kinds (or the kind that has none), and subject."""


class OpenCases(dict[Key, Case]):
    """Open incidents. Looking for what belongs to one thing costs no walk over all of them."""

    def __init__(self, subjects: Subjects) -> None:
        super().__init__()
        self._subjects = subjects
        self._below: dict[str, set[Key]] = defaultdict(set)

    def __setitem__(self, key: Key, case: Case) -> None:
        super().__setitem__(key, case)
        for above in self._above(case.subject):
            self._below[above].add(key)

    def __delitem__(self, key: Key) -> None:
        for above in self._above(self[key].subject):
            keys = self._below[above]
            keys.discard(key)
            if not keys:
                del self._below[above]
        super().__delitem__(key)

    def belonging_to(self, subject: str) -> list[Key]:
        """Keys of incidents of that subject itself, of its parts, and of what hangs on it; in order."""
        return sorted(self._below.get(subject, ()))

    def _above(self, subject: str) -> Iterator[str]:
        yield subject
        owner = self._subjects.owner(subject)
        if owner is not None:
            yield owner
        yield from self._subjects.parents(subject)
