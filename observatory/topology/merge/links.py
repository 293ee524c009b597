"""Links of several sources as one set: the fullest picture of each machine's buses, completed from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from observatory.model.device import Device, DeviceKind
from observatory.model.link import BandwidthSource, Link, LinkKind, LinkState
from observatory.model.topology import Topology, Vertex, VertexKind
from observatory.topology.merge.contradictions import Contradictions

_PCI = frozenset({LinkKind.PCIE, LinkKind.STORAGE})
_GPU_LINKS = frozenset({LinkKind.NVLINK, LinkKind.XGMI})
_NETWORK = frozenset({LinkKind.RDMA, LinkKind.ETHERNET})
_BUSES = frozenset({VertexKind.PCIE_SWITCH, VertexKind.ROOT_PORT, VertexKind.HOST_BRIDGE, VertexKind.PCI_BRIDGE})
_FILLED = (
    "count", "width", "speed", "best_width", "best_speed", "latency_seconds", "utilisation", "numa_distance",
)  # fmt: skip
_COMPARED = ("count", "numa_distance")
Key = tuple[str, str, LinkKind]


class LinkMerge:
    """Links as merged so far."""

    def __init__(self, said: Contradictions, devices: Mapping[str, Device], vertices: Mapping[str, Vertex]) -> None:
        self.said = said
        self.devices = devices
        self.vertices = vertices
        self._links: dict[Key, Link] = {}
        self._sources: dict[Key, str] = {}

    def add(self, parts: Sequence[Topology], names: Sequence[Mapping[str, str]]) -> None:
        """All links of all topologies; `names` are their vertices' ids in the merged one."""
        renamed = [
            [
                link.model_copy(update={"a": found[link.a], "b": found[link.b]})
                for link in part.links
                if found[link.a] != found[link.b]
            ]
            for part, found in zip(parts, names, strict=True)
        ]
        sources = [", ".join(part.sources) or part.name or "?" for part in parts]
        for family in (_PCI, _GPU_LINKS):
            self._family(family, renamed, sources)
        rest = [
            (link, source)
            for links, source in zip(renamed, sources, strict=True)
            for link in links
            if link.kind not in _PCI | _GPU_LINKS
        ]
        cabled = {
            (self._node(end), other)
            for link, _ in rest
            if link.kind in _NETWORK
            for end, other in ((link.a, link.b), (link.b, link.a))
            if end in self.devices
        }
        for link, source in rest:
            if link.kind is not LinkKind.NETWORK or not self._is_told_better(link, cabled):
                self._one(link, source)

    def links(self) -> tuple[Link, ...]:
        """The links."""
        return tuple(self._links.values())

    def used_vertices(self) -> set[str]:
        """Vertices that are worth keeping: those with links, and what nobody drew otherwise."""
        linked = {end for link in self._links.values() for end in (link.a, link.b)}
        dropped = _BUSES | {VertexKind.NVSWITCH, VertexKind.FAR_END, VertexKind.HOST}
        return {v.id for v in self.vertices.values() if v.id in linked or v.kind not in dropped}

    # -- one machine's picture ---------------------------------------------------------------------------------------

    def _family(self, family: frozenset[LinkKind], renamed: Sequence[list[Link]], sources: Sequence[str]) -> None:
        """Of each machine, all links of the source that tells most; from the others what completes them."""
        mine: dict[str, dict[int, list[Link]]] = {}
        for index, links in enumerate(renamed):
            for link in links:
                if link.kind in family:
                    mine.setdefault(self._node(link.a) or self._node(link.b) or "", {}).setdefault(index, []).append(
                        link
                    )
        for told in mine.values():
            best = max(told, key=lambda i: (self._worth(told[i]), -i))
            for link in told[best]:
                self._one(link, sources[best])
            for index in told:
                if index != best:
                    complete = self._complete_pci if family is _PCI else self._complete_gpu_links
                    complete(told[best], sources[best], told[index], sources[index])

    def _worth(self, links: Sequence[Link]) -> tuple[int, int]:
        """How much of a picture it is: vertices on buses, then links that lead somewhere."""
        ends = {end for link in links for end in (link.a, link.b)}
        buses = sum(1 for e in ends if e in self.vertices and self.vertices[e].kind in _BUSES)
        return buses, sum(1 for link in links if not self._is_far(link))

    def _is_far(self, link: Link) -> bool:
        return any(e in self.vertices and self.vertices[e].kind is VertexKind.FAR_END for e in (link.a, link.b))

    def _complete_pci(self, base: Sequence[Link], base_source: str, other: Sequence[Link], source: str) -> None:
        """A card's own link is the same cable wherever the source lets it end."""
        ours: dict[str, Link] = {link.a: link for link in base if link.a in self.devices}
        for theirs in other:
            mine = ours.get(theirs.a)
            if theirs.a not in self.devices or self.devices[theirs.a].kind is DeviceKind.CPU:
                continue
            if mine is None:
                if theirs.a not in {e for link in base for e in (link.a, link.b)}:
                    self._one(theirs, source)  # a card that the better picture does not have
                continue
            key = _key(mine)
            for field, best in (("width", "best_width"), ("speed", "best_speed")):
                told, known = getattr(theirs, field), getattr(mine, field)
                if told is not None and known is not None and told not in (known, getattr(mine, best)):
                    self.said.add(f"the link of {mine.a}", field, (known, base_source), (told, source))
            self._links[key] = _filled(self._links[key], theirs)

    def _complete_gpu_links(self, base: Sequence[Link], base_source: str, other: Sequence[Link], source: str) -> None:
        """Two pictures agree when every GPU has as many links in both; rates of one are those of the other's links."""
        ours, theirs = _by_gpu(base, self.devices), _by_gpu(other, self.devices)
        pairs = {_key(link): link for link in base}
        for link in other:
            same = pairs.get(_key(link))
            if same is not None and same.count is not None and link.count is not None:
                self.said.add(
                    f"{link.a} -- {link.b} ({link.kind})", "count", (same.count, base_source), (link.count, source)
                )
        for gpu in (g for g in ours if g in theirs):
            counts = (_total(ours[gpu]), _total(theirs[gpu]))
            if None not in counts:
                self.said.add(
                    gpu, f"number of {ours[gpu][0].kind} links", (counts[0], base_source), (counts[1], source)
                )
            self._give_rates(ours[gpu], theirs[gpu])
        for gpu in (g for g in theirs if g not in ours):
            for link in theirs[gpu]:
                self._one(link, source)

    def _give_rates(self, ours: Sequence[Link], theirs: Sequence[Link]) -> None:
        """The rate of one link, as the machine states it, for each link of ours that has none or a data sheet's."""
        total, rates = _total(theirs), [link.bandwidth_bytes_per_second for link in theirs]
        if not total or None in rates:
            return
        each = sum(rate or 0 for rate in rates) / total
        stated = theirs[0].bandwidth_source
        for link in ours:
            now = self._links[_key(link)]
            if now.count is not None and (
                now.bandwidth_bytes_per_second is None
                or (now.bandwidth_source is BandwidthSource.DATA_SHEET and stated is BandwidthSource.STATED)
            ):
                update = {"bandwidth_bytes_per_second": each * now.count, "bandwidth_source": stated}
                self._links[_key(link)] = now.model_copy(update=update)
        if len(ours) == len(theirs) == 1:
            now = self._links[_key(ours[0])]
            self._links[_key(ours[0])] = _filled(now, theirs[0])

    # -- one link ----------------------------------------------------------------------------------------------------

    def _one(self, link: Link, source: str) -> None:
        key = _key(link)
        known = self._links.get(key)
        if known is None:
            self._links[key], self._sources[key] = link, source
            return
        first = self._sources[key]
        for field in _COMPARED:
            mine, theirs = getattr(known, field), getattr(link, field)
            if mine is not None and theirs is not None:
                self.said.add(f"{link.a} -- {link.b} ({link.kind})", field, (mine, first), (theirs, source))
        mine, theirs = known.bandwidth_bytes_per_second, link.bandwidth_bytes_per_second
        sheets = BandwidthSource.DATA_SHEET in (known.bandwidth_source, link.bandwidth_source)
        if mine is not None and theirs is not None and not sheets:
            what = f"{link.a} -- {link.b} ({link.kind})"
            self.said.add(what, "bandwidth_bytes_per_second", (mine, first), (theirs, source))
        self._links[key] = _filled(known, link)

    def _is_told_better(self, link: Link, cabled: set[tuple[str | None, str]]) -> bool:
        """Whether a card of the machine is told to be linked to the switch that its host is said to be linked to."""
        ends = ((link.a, link.b), (link.b, link.a))
        return any(self._kind(e) is VertexKind.HOST and (self._node(e), other) in cabled for e, other in ends)

    def _kind(self, name: str) -> VertexKind | None:
        return self.vertices[name].kind if name in self.vertices else None

    def _node(self, name: str) -> str | None:
        thing = self.devices.get(name) or self.vertices.get(name)
        return None if thing is None else thing.node


def _key(link: Link) -> Key:
    return (link.a, link.b, link.kind) if link.a <= link.b else (link.b, link.a, link.kind)


def _filled(known: Link, other: Link) -> Link:
    """`known` with what only `other` knows."""
    update: dict[str, Any] = {
        field: getattr(other, field)
        for field in _FILLED
        if getattr(known, field) is None and getattr(other, field) is not None
    }
    if known.bandwidth_bytes_per_second is None and other.bandwidth_bytes_per_second is not None:
        update["bandwidth_bytes_per_second"] = other.bandwidth_bytes_per_second
        update["bandwidth_source"] = other.bandwidth_source
    if known.state is LinkState.UNKNOWN and other.state is not LinkState.UNKNOWN:
        update["state"] = other.state
    return known.model_copy(update=update) if update else known


def _by_gpu(links: Sequence[Link], devices: Mapping[str, Device]) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    for link in links:
        for end in (link.a, link.b):
            if end in devices and devices[end].kind is DeviceKind.GPU:
                found.setdefault(end, []).append(link)
    return found


def _total(links: Sequence[Link]) -> int | None:
    counts = [link.count for link in links]
    return None if None in counts else sum(c or 0 for c in counts)
