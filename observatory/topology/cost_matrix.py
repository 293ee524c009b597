"""C_ij: predicted seconds to move one message of 1 MiB from device i to device j.

A dense matrix is made for small sets of devices only; `cluster_costs` has the rest. Unknown stays None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from observatory.model.cost import CostParameters
from observatory.model.topology import Topology
from observatory.topology.cluster_costs import ClusterCosts
from observatory.topology.errors import TopologyError
from observatory.topology.graph import TopologyGraph
from observatory.topology.paths import Path, PathFinder

MESSAGE_BYTES = 2**20
LARGEST_DENSE = 512


class CostMatrix:
    """Costs between the devices of one topology under one set of parameters."""

    def __init__(
        self,
        topology: Topology | TopologyGraph | PathFinder,
        parameters: CostParameters,
        *,
        message_bytes: float = MESSAGE_BYTES,
    ) -> None:
        self.finder = topology if isinstance(topology, PathFinder) else PathFinder(topology, parameters)
        self.message_bytes = message_bytes
        self.costs = ClusterCosts(self.finder.graph, self.finder.parameters, message_bytes=message_bytes)

    def path(self, source: str, target: str) -> Path:
        """The best path for one message. Raises NoSuchVertex."""
        return self.finder.best(source, target, self.message_bytes)

    def seconds(self, source: str, target: str) -> float | None:
        """C_ij; 0 on the diagonal, None where it cannot be predicted. Raises NoSuchVertex."""
        return self.dense([source], [target])[0][0]

    def dense(self, devices: Sequence[str], targets: Sequence[str] | None = None) -> list[list[float | None]]:
        """Rows in the order of `devices`, columns in that of `targets` (the same devices unless told).

        Raises:
            TopologyError: more than 512 devices: ask for a part.
            NoSuchVertex: an unknown device.
        """
        targets = devices if targets is None else targets
        most = max(len(devices), len(targets))
        if most > LARGEST_DENSE:
            raise TopologyError(
                f"a dense cost matrix of {most:,} devices is too large", mend="ask for one node at a time"
            )
        rows = (self.costs.row(device, targets).tolist() for device in devices)
        return [[None if seconds != seconds else seconds for seconds in row] for row in rows]

    def as_dict(self, devices: Sequence[str]) -> dict[str, Any]:
        """The dense matrix as JSON: message size, devices, rows of seconds (null where unknown)."""
        return {
            "message_bytes": self.message_bytes,
            "devices": list(devices),
            "seconds": self.dense(devices),
        }
