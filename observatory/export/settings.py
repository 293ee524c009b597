"""Where telemetry is exported to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """Where to, and how often. `endpoint` is the collector's address, without the path of a signal."""

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)
    interval_seconds: float = 10.0
    timeout_seconds: float = 10.0
    compression: Literal["gzip", "none"] = "gzip"
