"""Errors of the incident part.

ObservatoryError
└── AnomalyError
    ├── RecordingError  a recorded file that cannot be read, or is of no known form
    ├── StoreError      incidents cannot be stored or read
    └── NoSuchIncident  there is none of that id                            (exit 2)
"""

from __future__ import annotations

from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode


class AnomalyError(ObservatoryError):
    """Base of everything that the incident part raises on purpose."""


class RecordingError(AnomalyError):
    """A recorded file cannot be read, or is of no known form."""

    exit_code = ExitCode.BAD_INPUT


class StoreError(AnomalyError):
    """The store of incidents cannot be used."""


class NoSuchIncident(AnomalyError):
    """There is no incident of that id."""

    exit_code = ExitCode.BAD_INPUT
