"""NVLinks one by one: an edge of the graph stands for all that join two chips, receivers see each from its GPU."""

from __future__ import annotations

import numpy as np

from observatory.model.data_sheets import nvlink_data_bytes_per_second
from observatory.topology.live_links import LiveLinks

_WIDTHS = frozenset({"link.width", "link.width.best"})
_TAKEN = frozenset({"link.up", "link.bandwidth"}) | _WIDTHS


class NvlinkEnds:
    """What each GPU says of its NVLinks, put together to one width and one bandwidth for every edge.

    Both ends of an edge may be GPUs, which see the same NVLinks under numbers of their own: the end that sees fewer of
    them carry traffic is believed. A width is told for every peer of a GPU (`busid/peer`); several of them are one edge
    where a topology has one vertex for all switches.
    """

    def __init__(self, links: LiveLinks) -> None:
        self._links = links
        self._up: dict[int, dict[str, dict[str, bool]]] = {}
        self._rates: dict[int, dict[str, dict[str, float]]] = {}
        self._widths: dict[tuple[int, str], dict[str, dict[str, float]]] = {}
        self._carried: dict[tuple[int, str], dict[str, dict[str, float]]] = {}

    def takes(self, metric: str) -> bool:
        """Whether that is told of one NVLink and must be put together."""
        return metric in _TAKEN

    def see(self, edge: int, key: str, metric: str, value: float) -> None:
        """One value of the NVLink `busid/n`, or of all that lead to one peer."""
        gpu, _, number = key.partition("/")
        if metric in _WIDTHS:
            self._widths.setdefault((edge, metric), {}).setdefault(gpu, {})[number] = value
        elif metric == "link.up":
            self._up.setdefault(edge, {}).setdefault(gpu, {})[number] = value > 0
        else:
            self._rates.setdefault(edge, {}).setdefault(gpu, {})[number] = nvlink_data_bytes_per_second(value)
        active = [self._active(edge, gpu) for gpu in self._up.get(edge, {})] or self._summed(edge, "link.width")
        if active:
            self._links.width[edge] = min(active)
        there_are = [*map(len, self._up.get(edge, {}).values()), *self._summed(edge, "link.width.best")]
        if there_are:
            self._links.best_width[edge] = np.fmax(self._links.best_width[edge], max(there_are))
        rates = [rate for rate in (self._rate(edge, gpu) for gpu in self._rates.get(edge, {})) if rate is not None]
        self._links.stated[edge] = min(rates, default=np.nan)

    def _summed(self, edge: int, metric: str) -> list[float]:
        """Of every GPU the sum over its peers that are this edge."""
        return [sum(peers.values()) for peers in self._widths.get((edge, metric), {}).values()]

    def carried(self, edge: int, key: str, direction: str, value: float) -> float:
        """Bytes per second of one NVLink in one direction; returns those of the edge, from the end that sees more."""
        gpu, _, number = key.partition("/")
        ends = self._carried.setdefault((edge, direction), {})
        ends.setdefault(gpu, {})[number] = value
        return max(sum(numbers.values()) for numbers in ends.values())

    def _active(self, edge: int, gpu: str) -> float:
        """NVLinks that carry traffic; of those that were not told of all do, as the topology has it."""
        told = self._up[edge][gpu]
        whole = self._links.described_width[edge]
        others = max(0.0, whole - len(told)) if not np.isnan(whole) else 0.0
        return others + sum(told.values())

    def _rate(self, edge: int, gpu: str) -> float | None:
        """What the active ones carry together; None until every one of them has told its rate."""
        rates = self._rates[edge][gpu]
        up = self._up.get(edge, {}).get(gpu, {})
        whole = self._links.described_width[edge]
        if not np.isnan(whole) and len(rates) < whole:
            return None
        active = [rate for number, rate in rates.items() if up.get(number, True)]
        return sum(active) if active else None
