"""What speaks for one incident: what a source says twice in the same words is kept once, with how often."""

from __future__ import annotations

from collections.abc import Iterator

from observatory.model.incident import Evidence

Said = tuple[str, str, str]


class EvidenceLog:
    """The evidence of one incident, in the order in which it was told first."""

    def __init__(self) -> None:
        self._first: dict[Said, Evidence] = {}
        self._counts: dict[Said, int] = {}

    def __len__(self) -> int:
        return len(self._first)

    def keep(self, evidence: Evidence, most: int, count: int = 1) -> bool:
        """Take one in; beyond `most` the middle is dropped, so that it stays known how it began. Whether it is new."""
        said = (evidence.source, evidence.subject, evidence.words)
        if said in self._first:
            self._counts[said] += count
            return False
        if len(self._first) >= most:
            dropped = list(self._first)[most // 2]
            del self._first[dropped], self._counts[dropped]
        self._first[said], self._counts[said] = evidence, count
        return True

    def join(self, other: EvidenceLog, most: int) -> None:
        """Take in that of another incident which is part of this one, as far as there is room."""
        for said, evidence in other._first.items():
            if said in self._first or len(self._first) < most:
                self.keep(evidence, most, other._counts[said])

    def shown(self) -> Iterator[Evidence]:
        """For people: words end with how often they were told, where that is more than once."""
        for said, evidence in self._first.items():
            count = self._counts[said]
            yield evidence if count == 1 else evidence.model_copy(update={"words": f"{evidence.words} (x{count})"})
