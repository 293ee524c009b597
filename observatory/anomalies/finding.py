"""What a detector says: that something is bad on a subject as one source sees it, or that it is good again."""

from __future__ import annotations

from dataclasses import dataclass, field

from observatory.model.incident import Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict of one detector from one source.

    `subject` is the id in the topology, else the address in words. `momentary` findings tell of something that
    happened; the others of a state that lasts until the same detector says `bad=False` for the same kind, subject and
    source. `trust` is how sure this evidence alone makes it, 0 to below 1. `affected` are what else suffers.
    """

    kind: str
    subject: str
    source: str
    at_ns: int
    bad: bool
    words: str = ""
    metric: str | None = None
    value: float | None = None
    expected: float | None = None
    severity: Severity | None = None
    mend: str | None = None
    trust: float = 0.8
    momentary: bool = False
    affected: tuple[str, ...] = field(default=())
