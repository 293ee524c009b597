"""Costs of moving one message between the devices of a cluster (native).

Vertices are numbered, devices first; a region is a machine, -1 the outside. A link that is down or not known has an
infinite latency. Costs are infinite where there is no way.
"""

import numpy as np
import numpy.typing as npt

class Costs:
    """The costs of one graph. Raises ValueError for columns that do not fit each other."""

    def __init__(
        self,
        regions: int,
        devices: int,
        region: npt.NDArray[np.int32],
        forwards: npt.NDArray[np.uint8],
        card: npt.NDArray[np.uint8],
        a: npt.NDArray[np.int32],
        b: npt.NDArray[np.int32],
        representative: npt.NDArray[np.int32],
        message_bytes: float,
        software_seconds: float,
    ) -> None: ...
    def update(self, latency: npt.NDArray[np.float64], rate: npt.NDArray[np.float64]) -> int:
        """Take latencies (s) and rates (s/B) of all links; how many are other than before."""

    def refresh(self) -> int:
        """Work out what is stale inside machines; how many machines that were."""

    def refresh_between(self) -> int:
        """Work out what is stale between machines, after `refresh`; how many rows that were."""

    def within(self, region: int) -> npt.NDArray[np.float64]:
        """Shape (devices of the machine, the same), in seconds."""

    def between(self) -> npt.NDArray[np.float64]:
        """Shape (machines, machines), in seconds, between the devices that stand for them."""

    def between_row(self, region: int) -> npt.NDArray[np.float64]:
        """One row of `between`, worked out if it is stale, after `refresh`."""

    def row(self, device: int, targets: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Seconds from one device to each of the targets, after `refresh`."""
