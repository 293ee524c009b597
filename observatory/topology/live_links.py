"""What is known of every link now, in columns: what receivers said, what the topology described, and what follows.

    described   as the topology had it: the base that measurements are put upon
    observed    the last good value of each kind; NaN: none so far
    effective   bandwidth, latency and state, worked out of both

A PCI Express link to a GPU is slowed down by the GPU while it has nothing to do, and is fast again as soon as it has
(NVIDIA, "Power and performance of GPUs", P-states). So a lower speed there counts only once it was seen under load.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from observatory.model.data_sheets import PCIE
from observatory.model.device import DeviceKind
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import Topology
from observatory.topology.graph import LinkArrays, TopologyGraph

Column = npt.NDArray[np.float64]

LOADED = 0.1
"""Share of a link's present bandwidth in use from which on it counts as under load."""

_BELOW = 0.99  # of the described bandwidth: what is less is no rounding
_TRANSFERS = re.compile(r"(\d+(?:\.\d+)?) ?GT/s")
_BUSES = frozenset({LinkKind.PCIE, LinkKind.CXL})
_SPEEDS = np.array([row.gigatransfers_per_second * 1e9 for row in PCIE])
_EFFICIENCIES = np.array([row.efficiency for row in PCIE])


class State(IntEnum):
    """`LinkState` as a number."""

    UNKNOWN = 0
    UP = 1
    DEGRADED = 2
    DOWN = 3

    @property
    def link_state(self) -> LinkState:
        """The state's name in the model."""
        return LinkState(self.name.lower())


@dataclass(frozen=True, slots=True)
class Effective:
    """What follows for some links: bandwidth (B/s), latency (s), state, width (lanes), speed (T/s)."""

    bandwidth: Column
    latency: Column
    state: npt.NDArray[np.int8]
    width: Column
    speed: Column


class LiveLinks:
    """Columns of the links of one topology, in its order; NaN where a number is not known."""

    def __init__(self, graph: TopologyGraph) -> None:
        topology = graph.topology
        self.graph = graph
        arrays = graph.arrays()
        count = len(topology.links)
        self.a, self.b = arrays.a, arrays.b
        self.described_bandwidth = arrays.bandwidth_bytes_per_second
        self.described_latency = arrays.latency_seconds
        self.described_state = np.array([State[link.state.name] for link in topology.links], dtype=np.int8)
        self.described_width = _column([_width(link) for link in topology.links])
        self.described_speed = _column([_transfers(link.speed) for link in topology.links])
        self.is_bus = np.array([link.kind in _BUSES for link in topology.links], dtype=np.bool_)
        self.rests = _rests(topology)
        self.width, self.speed = _unknown(count), _unknown(count)
        self.best_width = _column([link.best_width for link in topology.links])
        self.best_speed = _column([_transfers(link.best_speed) for link in topology.links])
        self.loaded_speed = _unknown(count)  # the lowest that is known not to be rest
        self.stated, self.up, self.latency = _unknown(count), _unknown(count), _unknown(count)
        self.sent, self.received = _unknown(count), _unknown(count)  # B/s, from `a` and to it, as its observer has it
        self.share = _unknown(count)  # of the bandwidth, as a source states it
        self.errors, self.errors_per_second = np.zeros(count), _unknown(count)
        self.lost_end = np.zeros(count, dtype=np.bool_)  # a device at one of its ends has failed
        self.observed_ns = np.zeros(count, dtype=np.int64)  # 0: never
        self.effective = Effective(
            self.described_bandwidth.copy(),
            self.described_latency.copy(),
            self.described_state.copy(),
            self.described_width.copy(),
            self.described_speed.copy(),
        )

    def arrays(self) -> LinkArrays:
        """The effective values, for costs."""
        now = self.effective
        return LinkArrays(self.a, self.b, now.bandwidth, now.latency, now.state != State.DOWN)

    def utilisation(self, links: npt.NDArray[np.intp] | slice = slice(None)) -> Column:
        """Share of the bandwidth in use, 0 to 1; of the busier direction."""
        busier = np.fmax(self.sent[links], self.received[links])
        share = np.where(np.isnan(busier), self.share[links], busier / self.effective.bandwidth[links])
        return np.clip(share, 0.0, 1.0)

    def work_out(self, links: npt.NDArray[np.intp]) -> Effective:
        """The effective values of some links, of all that is known now; nothing is changed but `loaded_speed`."""
        width = _first(self.width[links], self.described_width[links])
        speed = _first(self.speed[links], self.described_speed[links])
        counted = self._counted_speed(links, speed, width)
        scaled = self.described_bandwidth[links] * width / self.described_width[links]
        measured = ~np.isnan(self.width[links]) | ~np.isnan(self.speed[links])
        bus = np.where(self.is_bus[links] & measured, pcie_bytes_per_second(counted, width), np.nan)
        scaled = np.where(np.isnan(self.width[links]), np.nan, scaled)
        bandwidth = _first(self.stated[links], bus, scaled, self.described_bandwidth[links])
        down = (self.up[links] == 0) | (width == 0) | (bandwidth <= 0) | self.lost_end[links]
        bandwidth = np.where(bandwidth > 0, bandwidth, self.effective.bandwidth[links])
        below = (width < self.best_width[links]) | (self.is_bus[links] & (counted < self.best_speed[links]))
        below |= bandwidth < self.described_bandwidth[links] * _BELOW
        seen = measured | (self.up[links] == 1) | ~np.isnan(self.stated[links])
        state = np.where(seen, State.UP, self.described_state[links])
        state = np.where(below & (state != State.DOWN), State.DEGRADED, state)
        state = np.where(down, State.DOWN, state).astype(np.int8)
        return Effective(bandwidth, _first(self.latency[links], self.described_latency[links]), state, width, speed)

    def _counted_speed(self, links: npt.NDArray[np.intp], speed: Column, width: Column) -> Column:
        """The speed that a link has when it is used: the present one, unless its GPU may be at rest."""
        now = pcie_bytes_per_second(speed, width)
        loaded = np.fmax(self.sent[links], self.received[links]) >= LOADED * now
        known = self.loaded_speed[links]
        faster = speed > known
        self.loaded_speed[links] = known = np.where(loaded | faster, speed, known)
        at_rest = np.fmax(speed, _first(known, self.best_speed[links], self.described_speed[links]))
        return np.where(self.rests[links] & ~loaded, at_rest, speed)


def pcie_bytes_per_second(speed: Column, width: Column) -> Column:
    """`data_sheets.pcie_bytes_per_second` of columns: speeds in transfers per second, widths in lanes."""
    row = np.minimum(np.searchsorted(_SPEEDS, np.nan_to_num(speed)), len(_SPEEDS) - 1)
    rate: Column = speed * width * _EFFICIENCIES[row] / 8
    return rate


def speed_words(speed: float) -> str:
    """`16.0 GT/s`."""
    return f"{speed / 1e9:.1f} GT/s"


def _width(link: Link) -> int | None:
    """Lanes; of NVLink and xGMI how many links there are, where only that is told."""
    several = link.kind in (LinkKind.NVLINK, LinkKind.XGMI)
    return link.count if link.width is None and several else link.width


def _transfers(text: str | None) -> float | None:
    match = None if text is None else _TRANSFERS.match(text)
    return None if match is None else float(match[1]) * 1e9


def _rests(topology: Topology) -> npt.NDArray[np.bool_]:
    """Links that a GPU slows down when it has nothing to do."""
    gpus = {device.id for device in topology.devices if device.kind is DeviceKind.GPU}

    def slowed(link: Link) -> bool:
        return link.kind is LinkKind.PCIE and (link.a in gpus or link.b in gpus)

    return np.array([slowed(link) for link in topology.links], dtype=np.bool_)


def _first(*columns: Column) -> Column:
    """Element by element the first that is known."""
    found = columns[0]
    for column in columns[1:]:
        found = np.where(np.isnan(found), column, found)
    return found


def _column(values: list[int | None] | list[float | None]) -> Column:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _unknown(count: int) -> Column:
    return np.full(count, np.nan)
