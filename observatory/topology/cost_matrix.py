"""C_ij: predicted seconds to move one message of 1 MiB from device i to device j.

Computed per ordered pair when asked for and kept; a dense matrix is made for small sets of devices only. Unknown stays
None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from observatory.model.cost import CostParameters
from observatory.model.topology import Topology
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
        message_bytes: int = MESSAGE_BYTES,
    ) -> None:
        self.finder = topology if isinstance(topology, PathFinder) else PathFinder(topology, parameters)
        self.message_bytes = message_bytes
        self._paths: dict[tuple[str, str], Path] = {}

    def path(self, source: str, target: str) -> Path:
        """The best path for one message. Raises NoSuchVertex."""
        key = (source, target)
        if key not in self._paths:
            self._paths[key] = self.finder.best(source, target, self.message_bytes)
        return self._paths[key]

    def seconds(self, source: str, target: str) -> float | None:
        """C_ij; 0 on the diagonal, None where it cannot be predicted. Raises NoSuchVertex."""
        return self.path(source, target).seconds

    def dense(self, devices: Sequence[str]) -> list[list[float | None]]:
        """Rows and columns in the order of `devices`.

        Raises:
            TopologyError: more than 512 devices: ask for a part.
            NoSuchVertex: an unknown device.
        """
        if len(devices) > LARGEST_DENSE:
            raise TopologyError(
                f"a dense cost matrix of {len(devices):,} devices is too large", mend="ask for one node at a time"
            )
        return [[self.seconds(a, b) for b in devices] for a in devices]

    def as_dict(self, devices: Sequence[str]) -> dict[str, Any]:
        """The dense matrix as JSON: message size, devices, rows of seconds (null where unknown)."""
        return {
            "message_bytes": self.message_bytes,
            "devices": list(devices),
            "seconds": self.dense(devices),
        }
