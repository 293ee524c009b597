"""Cost of moving data: parameters per link kind, and the transfer-time formula.

    T = messages * (c_sw + sum_l alpha_k(l) * latency_l) + beta_k(b) * bytes / bandwidth_b + gamma_k(b) * queue_b + r

b is the bottleneck of the path: the link on which the bytes take longest, that of the largest beta_k / bandwidth.
alpha, beta and gamma are dimensionless, per link kind, and 1 where the data sheet is right (the alpha-beta model of
Hockney, "The communication challenge for MPP", 1994, with a queueing term).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from observatory.model.errors import ModelError
from observatory.model.link import Link, LinkKind, LinkState


class LinkCoefficients(BaseModel):
    """alpha (latency), beta (bandwidth), gamma (queue) of one link kind; dimensionless."""

    model_config = ConfigDict(frozen=True)

    alpha: float = Field(default=1.0, ge=0)
    beta: float = Field(default=1.0, ge=0)
    gamma: float = Field(default=1.0, ge=0)


class CostParameters(BaseModel):
    """All coefficients, versioned by whoever calibrates them."""

    model_config = ConfigDict(frozen=True)

    version: int = 1
    software_seconds_per_message: float = Field(default=0.0, ge=0)
    by_kind: dict[LinkKind, LinkCoefficients] = Field(default_factory=dict)

    def of(self, kind: LinkKind) -> LinkCoefficients:
        """Coefficients of a link kind; the data sheet's (1, 1, 1) when none were calibrated."""
        return self.by_kind.get(kind, LinkCoefficients())


def transfer_seconds(
    path: Sequence[Link],
    payload_bytes: float,
    parameters: CostParameters,
    *,
    messages: int = 1,
    queue_seconds: float = 0.0,
    residual_seconds: float = 0.0,
) -> float:
    """Predicted seconds to move `payload_bytes` over `path`; 0 for an empty path (same device: there is no link).

    Raises:
        ModelError: a link on the path is down, or its latency or bandwidth is unknown.
    """
    if not path:
        return 0.0
    latency = 0.0
    slowest = 0.0
    bottleneck = LinkCoefficients()
    for link in path:
        if link.state is LinkState.DOWN:
            raise ModelError(f"link {link.id} is down")
        if link.bandwidth_bytes_per_second is None or link.latency_seconds is None:
            raise ModelError(f"link {link.id}: latency or bandwidth is unknown")
        of_kind = parameters.of(link.kind)
        latency += of_kind.alpha * link.latency_seconds
        seconds_per_byte = of_kind.beta / link.bandwidth_bytes_per_second
        if seconds_per_byte > slowest:
            slowest, bottleneck = seconds_per_byte, of_kind
    return (
        messages * (parameters.software_seconds_per_message + latency)
        + slowest * payload_bytes
        + bottleneck.gamma * queue_seconds
        + residual_seconds
    )
