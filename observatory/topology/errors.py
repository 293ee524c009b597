"""Errors of the topology package.

ObservatoryError
└── TopologyError
    ├── BadTopology        a file that cannot be understood; carries file, line and mend              (exit 2)
    ├── NoSuchVertex       a device, switch or socket that the graph does not have                    (exit 2)
    └── MachineUnreadable  the machine's own description (sysfs) is missing or makes no sense         (exit 1)
"""

from __future__ import annotations

from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode


class TopologyError(ObservatoryError):
    """Base of everything the topology package raises on purpose."""


class BadTopology(TopologyError):
    """A topology file that cannot be understood."""

    exit_code = ExitCode.BAD_INPUT


class NoSuchVertex(TopologyError):
    """A device, switch or socket that the graph does not have."""

    exit_code = ExitCode.BAD_INPUT


class MachineUnreadable(TopologyError):
    """The machine's own description is missing or makes no sense."""
