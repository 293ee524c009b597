"""Errors of chaos.

MediaObservatoryError
└── ChaosError
    └── MachineError          the emulated machine
        ├── CannotEmulate     a topology that no machine can be made of, or no room for its files   (exit 1)
        ├── NoSuchPart        a link or device that it does not have                                (exit 2)
        └── BadChange         a change that no link or device of that kind can have                 (exit 2)
"""

from __future__ import annotations

from observatory.model.errors import ExitCode, MediaObservatoryError


class ChaosError(MediaObservatoryError):
    """Base of everything that chaos raises on purpose."""


class MachineError(ChaosError):
    """Base of the emulated machine's errors."""


class CannotEmulate(MachineError):
    """A topology that no machine can be made of, or a folder that cannot hold it."""


class NoSuchPart(MachineError):
    """A link or device that the machine does not have."""

    exit_code = ExitCode.BAD_INPUT


class BadChange(MachineError):
    """A change that no link or device of that kind can have."""

    exit_code = ExitCode.BAD_INPUT
