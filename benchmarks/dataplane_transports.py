"""The ring and its peers, all behind one interface (dataplane_ends.py)."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.dataplane_ends import Transport
from benchmarks.dataplane_peers import IceoryxEvent, IceoryxPolling, SharedMemoryQueue, Zmq
from benchmarks.dataplane_ring import Ceiling, CeilingHuge, Ring, RingHuge, RingSpinning

TRANSPORTS: Sequence[type[Transport]] = (
    Ring,
    RingHuge,
    RingSpinning,
    IceoryxEvent,
    IceoryxPolling,
    SharedMemoryQueue,
    Zmq,
    Ceiling,
    CeilingHuge,
)
BY_NAME = {one.name: one for one in TRANSPORTS}
