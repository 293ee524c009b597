"""How an export stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OtlpStatus:
    """What has been sent so far, and how it stands. `error` is why the last try failed; None: it did not."""

    points_sent: int = 0
    points_rejected: int = 0
    incidents_sent: int = 0
    incidents_dropped: int = 0
    incidents_waiting: int = 0
    exports: int = 0
    failures: int = 0
    error: str | None = None
