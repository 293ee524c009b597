"""Errors of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode, MediaObservatoryError


class ConfigError(ObservatoryError):
    """The configuration, or what it names, cannot be used. `errors` are all mistakes found; it shows the first."""

    exit_code = ExitCode.BAD_INPUT

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, mend: str | None = None
    ) -> None:
        super().__init__(message, file=file, line=line, mend=mend)
        self.errors: tuple[MediaObservatoryError, ...] = (self,)

    @classmethod
    def of(cls, errors: Sequence[MediaObservatoryError]) -> Self:
        """One error that stands for all of these (at least one)."""
        first = errors[0]
        more = len(errors) - 1
        words = f"and {more} more mistake{'s' if more > 1 else ''}: observatory config check shows all"
        mend = "; ".join(part for part in (first.mend, words if more else None) if part)
        error = cls(first.message, file=first.file, line=first.line, mend=mend or None)
        error.errors = tuple(errors)
        return error
