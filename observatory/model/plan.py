"""Plans and decision records: where each operator runs, and why."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from observatory.model.cost import CostParameters

DECISION_VERSION = 1


class Placement(BaseModel):
    """Operator name -> device id, for one pipeline."""

    model_config = ConfigDict(frozen=True)

    pipeline: str
    devices: dict[str, str]


class EdgeCost(BaseModel):
    """What one edge is predicted to cost under a placement."""

    model_config = ConfigDict(frozen=True)

    edge: str
    producer_device: str
    consumer_device: str
    path: tuple[str, ...]  # link ids; empty on one device
    bytes_per_frame: int
    predicted_seconds: float
    share: float = Field(ge=0, le=1)


class CandidateScore(BaseModel):
    """How one device did for one operator. `rejected` says why when it could not be used."""

    model_config = ConfigDict(frozen=True)

    operator: str
    device: str
    finish_seconds: float | None
    rejected: str | None = None


class DecisionRecord(BaseModel):
    """One decision of the scheduler, complete enough to explain and to replay.

    `lower_bound` and `gap` are None when no bound was computed; `actual_cost` joins after the run. Costs are seconds
    of transfer per frame, summed over edges; `makespan_seconds` is the critical path of one frame.
    """

    model_config = ConfigDict(frozen=True)

    version: int = DECISION_VERSION
    id: str
    trigger: str
    created_unix_seconds: float
    software_version: str
    solver: str
    input_topology_matrix: dict[str, Any]
    candidate_nodes: tuple[str, ...]
    score_breakdown: tuple[CandidateScore, ...]
    edges: tuple[EdgeCost, ...]
    final_placement: dict[str, str]  # "pipeline/operator" -> device
    predicted_cost: float
    makespan_seconds: float | None
    lower_bound: float | None = None
    gap: float | None = None
    runner_up: dict[str, str] | None = None
    binding_constraint: str | None = None
    moved_operators: tuple[str, ...] = ()
    unmet_wishes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was assumed: frame rates, estimated service times
    solve_seconds: float
    cost_parameters: CostParameters
    actual_cost: float | None = None
