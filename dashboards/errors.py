"""What can go wrong between the pages and the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from observatory.model.errors import MediaObservatoryError


class DashboardError(MediaObservatoryError):
    """Base of the errors of this package."""


class ApiRefused(DashboardError):
    """The API answered with an error: its words, its place, its mend.

    Attributes:
        status: the HTTP status.
        nearest: frames nearest to the one that was not found, each `{pts, time_base, source_index}`.
        lost: what the table of lost frames says of it, if it is there.
    """

    def __init__(self, status: int, said: Mapping[str, Any]) -> None:
        super().__init__(
            str(said.get("message") or f"the API answered with HTTP {status}"),
            file=said.get("file"),
            line=said.get("line"),
            mend=said.get("mend"),
        )
        self.status = status
        self.nearest: tuple[Mapping[str, Any], ...] = tuple(said.get("nearest") or ())
        self.lost: Any = said.get("lost")


class ApiUnreachable(DashboardError):
    """The API did not answer."""
