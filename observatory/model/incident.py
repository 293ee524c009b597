"""Incidents: what went wrong with the hardware, with the evidence for it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Severity(StrEnum):
    """How bad it is for the work on that hardware."""

    INFO = "info"  # worth a look, nothing suffers
    WARNING = "warning"  # slower or less reliable
    CRITICAL = "critical"  # the device or link cannot be used, or damages what it works on


class IncidentState(StrEnum):
    """Of one incident."""

    OPEN = "open"
    CLOSED = "closed"


class Evidence(BaseModel):
    """One thing that was seen: `words` for people, and where it is a value, the metric with what was found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_ns: int  # CLOCK_MONOTONIC
    source: str  # the receiver
    subject: str  # device, link or node of the topology; else the address in words
    words: str
    metric: str | None = None
    value: float | None = None
    expected: float | None = None


class Incident(BaseModel):
    """One thing that is wrong, from when it was noticed to when it was over.

    `subject` is the device, link, switch or node that is to blame; `affected` what else suffers (the links of a parent
    that failed). `confidence` is 0 to 1: one source alone never makes it 1. `flaps` counts how often it came back while
    open. Its trouble may be over before it is closed: `well_since` is when, until it is closed, and `words` say so too.
    Times are Unix seconds for people, `noticed_ns` CLOCK_MONOTONIC for measuring.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: str  # nvlink_degraded, pcie_downtrained, rdma_loss, xid, ...: observatory.anomalies.kinds
    subject: str
    severity: Severity
    state: IncidentState
    words: str
    confidence: float = Field(ge=0, le=1)
    sources: tuple[str, ...]
    affected: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...]
    opened_at: float
    closed_at: float | None = None
    well_since: float | None = None  # None: still bad, or nothing tells whether it is
    noticed_ns: int
    flaps: int = Field(default=0, ge=0)
    mend: str | None = None  # what a person can do
