"""Where each word of a pipeline was written, for whoever finds a mistake in it later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from observatory.documents import Document
from scheduler.errors import BadSpec


@dataclass(frozen=True, slots=True)
class SpecSource:
    """The file behind a pipeline. `warnings` are for people: what was read and let pass."""

    document: Document
    positions: Mapping[str, int]  # operator name -> its index in spec.operators of the file
    warnings: tuple[str, ...] = field(default=())

    @property
    def file(self) -> str:
        """Path of the file, as it was named."""
        return self.document.file

    def line_of(self, operator: str, *where: str | int) -> int | None:
        """1-based line of an operator, or of one of its parameters.

        `where` is the way into `params`: `line_of("hd", "width")`, `line_of("net", "layers", 2)`. When that was not
        written, the line of what is closest above it; None when there is no such operator.
        """
        index = self.positions.get(operator)
        if index is None:
            return None
        within = ("params", *where) if where else ()
        return self.document.line_of(("spec", "operators", index, *within))

    def error(self, operator: str, *where: str | int, message: str, mend: str | None = None) -> BadSpec:
        """A BadSpec at the line of an operator or of one of its parameters, to be raised by the caller."""
        return BadSpec(message, file=self.file, line=self.line_of(operator, *where), mend=mend)
