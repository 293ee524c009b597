"""What `rocm-smi` and `amd-smi` tell alike: tables of GPUs against GPUs with link type, hops and rates."""

from __future__ import annotations

from dataclasses import dataclass, field

from observatory.model.device import DeviceKind
from observatory.model.link import LinkKind
from observatory.model.topology import VertexKind
from observatory.topology.importers.building import TopologyBuilder, stated
from observatory.topology.importers.source import Source

Pair = tuple[str, str]
_MOST_GPUS = 512


@dataclass
class AmdTables:
    """The tables by what they tell, each from a pair of names to the cell's word."""

    names: list[str] = field(default_factory=list)
    types: dict[Pair, str] = field(default_factory=dict)
    hops: dict[Pair, str] = field(default_factory=dict)
    rates: dict[Pair, str] = field(default_factory=dict)  # MB/s, as least-most
    numa: dict[str, int] = field(default_factory=dict)

    def name(self, source: Source, name: str, line: int) -> None:
        """Note a GPU."""
        if name not in self.names:
            self.names.append(name)
            if len(self.names) > _MOST_GPUS:
                source.fail(f"names more than {_MOST_GPUS} GPUs", line, "no machine has so many")

    def build(self, build: TopologyBuilder) -> None:
        """GPUs, links of one hop between them, and the NUMA nodes that the others reach each other by."""
        node = build.node()
        devices: dict[str, str] = {}
        for name in self.names:
            by_number = name.startswith("GPU")
            devices[name] = build.device(
                node,
                DeviceKind.GPU,
                number=int(name[3:]) if by_number else None,
                numa_node=self.numa.get(name),
                pci_bus_id=None if by_number else name.lower(),
            )
        numa = {
            n: build.vertex(node, "numa", VertexKind.NUMA, name=f"NUMA node {n}") for n in sorted({*self.numa.values()})
        }
        for name, number in self.numa.items():
            build.link(devices[name], numa[number], LinkKind.PCIE)
        for (a, b), kind in self.types.items():
            self._link(build, devices, a, b, kind)

    def _link(self, build: TopologyBuilder, devices: dict[str, str], a: str, b: str, kind: str) -> None:
        other = self.types.get((b, a), kind)
        if other != kind:
            build.warn("links that both ends tell otherwise", f"{a}-{b}: {kind} and {other}")
        if kind == "XGMI" and a in devices and b in devices:
            hops = self.hops.get((a, b))
            if hops is not None and hops != "1":
                build.warn("GPUs that reach each other by xGMI over others", f"{a}-{b}: {hops} hops")
                return
            build.link(devices[a], devices[b], LinkKind.XGMI, **stated(_rate(self.rates.get((a, b)))))
        elif kind not in ("XGMI", "PCIE", "SELF", "0", "N/A"):
            build.warn("kinds of links that are not known", f"{kind[:20]}")


def _rate(text: str | None) -> float | None:
    """The most of `50000-50000` MB/s; None for N/A and 0."""
    most = (text or "").rpartition("-")[2]
    rate = int(most) if most.isascii() and most.isdigit() and len(most) < 10 else 0
    return rate * 1e6 or None
