"""The root of every error this product raises on purpose.

    MediaObservatoryError
    ├── ModelError                       a value that the shared types refuse (this package)
    ├── observatory.errors...            one base class per package, each drawn in its own module
    ├── dataplane.errors.DataplaneError
    └── scheduler.errors.SchedulerError

An error says what is wrong, where (file and line when there is one) and how to mend it. The command line prints those
three and exits with `exit_code`; nothing else is shown unless asked for.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    JOB_FAILED = 1
    BAD_INPUT = 2
    INTERRUPTED = 130


class MediaObservatoryError(Exception):
    """Base of all errors with a message for people.

    Args:
        message: what is wrong, in one sentence.
        file: the file the error is about, if any.
        line: 1-based line in that file, if known.
        mend: what the reader can do about it, if known.
    """

    exit_code: ExitCode = ExitCode.JOB_FAILED

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, mend: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.mend = mend

    def __str__(self) -> str:
        where = "" if self.file is None else f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        return f"{where}{self.message}"

    def as_dict(self) -> dict[str, str | int | None]:
        """The error as it appears under `error` in `--json` output."""
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "mend": self.mend,
        }


class ModelError(MediaObservatoryError):
    """A value that the shared types refuse."""

    exit_code = ExitCode.BAD_INPUT
