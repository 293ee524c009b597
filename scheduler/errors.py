"""Errors of the scheduler.

MediaObservatoryError
└── SchedulerError
    ├── BadSpec               a pipeline file that cannot be understood; carries file, line and mend     (exit 2)
    ├── ImpossiblePlacement   no device may run an operator, or constraints contradict each other        (exit 2)
    ├── NoSuchDecision        the audit store has no decision of that id                                 (exit 2)
    └── AuditError            the audit store cannot be read or written                                  (exit 1)
        └── AuditFull         ... because its disk is full
"""

from __future__ import annotations

from observatory.model.errors import ExitCode, MediaObservatoryError


class SchedulerError(MediaObservatoryError):
    """Base of everything the scheduler raises on purpose."""


class BadSpec(SchedulerError):
    """A pipeline specification that cannot be understood."""

    exit_code = ExitCode.BAD_INPUT


class ImpossiblePlacement(SchedulerError):
    """A pipeline that can never be placed on this topology: says which operator, and why each device is no choice."""

    exit_code = ExitCode.BAD_INPUT


class NoSuchDecision(SchedulerError):
    """A decision id that the audit store does not know."""

    exit_code = ExitCode.BAD_INPUT


class AuditError(SchedulerError):
    """The audit store cannot be read or written."""


class AuditFull(AuditError):
    """The disk of the audit store is full."""
