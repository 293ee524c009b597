"""Errors of the platform itself.

MediaObservatoryError
└── observatory.errors.ObservatoryError
    └── PlatformError
        ├── AlreadyRunning   a second platform on one state directory
        ├── NotRunning       a question to a platform that is not there
        ├── NoSuchPipeline   a pipeline that it does not have
        ├── NameTaken        a pipeline of that name runs already, or one that writes the same file
        ├── ShuttingDown     a pipeline for a platform that is about to end
        ├── CannotEmulate    an edge that has no path through emulated links (observatory.app.links)
        ├── NotEmulated      a change of hardware that is real, or that nobody looks at
        ├── EndedAtOnce      a pipeline that was not given the time to finish                   (exit 1)
        └── StillRunning     a pipeline that does not end                                       (exit 1)
"""

from __future__ import annotations

from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode


class PlatformError(ObservatoryError):
    """Base of what a platform refuses."""

    exit_code = ExitCode.BAD_INPUT


class AlreadyRunning(PlatformError):
    """Another platform has this state directory."""


class NotRunning(PlatformError):
    """No platform runs on this state directory."""


class NoSuchPipeline(PlatformError):
    """The platform has no pipeline of that name."""


class NameTaken(PlatformError):
    """A pipeline of that name, or with one of its outputs, is running."""


class ShuttingDown(PlatformError):
    """The platform takes no pipelines any more."""


class NotEmulated(PlatformError):
    """Only the emulated machine's hardware can be changed by a command."""


class EndedAtOnce(PlatformError):
    """A pipeline was ended before what was in flight was finished."""

    exit_code = ExitCode.JOB_FAILED


class StillRunning(PlatformError):
    """A pipeline that was told to end, and does not."""

    exit_code = ExitCode.JOB_FAILED
