"""Devices of the same machine that are one device: by PCI bus id, GUID, the system's names, their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from observatory.model.device import Device, DeviceKind, Port
from observatory.model.link import LinkState
from observatory.model.topology import Topology
from observatory.topology.merge.contradictions import Contradictions
from observatory.topology.merge.machines import normal_bus_id

_FILLED = ("name", "numa_node", "pci_bus_id", "memory_bytes", "pci_id", "capacity_bytes", "rotational", "cpus")
_COMPARED = ("numa_node", "memory_bytes", "pci_id", "capacity_bytes")


class DeviceMerge:
    """Devices as merged so far, by id."""

    def __init__(self, said: Contradictions) -> None:
        self.said = said
        self.devices: dict[str, Device] = {}
        self._sources: dict[str, dict[str, str]] = {}  # device -> field -> the source that told it
        self._of_node: dict[str, list[str]] = {}

    def add(self, part: Topology) -> dict[str, str]:
        """Take in one topology; its device ids -> those of the merged one."""
        source = ", ".join(part.sources) or part.name or "?"
        before = {node: list(ids) for node, ids in self._of_node.items()}
        names: dict[str, str] = {}
        used: set[str] = set()
        ranks, others = _Ranks(part.devices), _Ranks([self.devices[i] for ids in before.values() for i in ids])
        for device in part.devices:
            known = [self.devices[i] for i in before.get(device.node, ()) if i not in used]
            match = self._find(device, known, ranks, others)
            if match is None:
                names[device.id] = self._new(device, source)
            else:
                names[device.id] = match.id
                used.add(match.id)
                self._fill(match, device, source)
        self._count_gpus(part, before, source)
        return names

    def _find(self, device: Device, known: Sequence[Device], ranks: _Ranks, others: _Ranks) -> Device | None:
        alike = [d for d in known if d.kind is device.kind]
        if device.pci_bus_id:
            own = normal_bus_id(device.pci_bus_id)
            for other in known:
                if other.pci_bus_id and normal_bus_id(other.pci_bus_id) == own:
                    return other
            alike = [d for d in alike if not d.pci_bus_id]
        guids = {p.guid for p in device.ports if p.guid}
        names = {*device.os_names, *(p.name for p in device.ports)}
        for other in alike:
            if guids & {p.guid for p in other.ports if p.guid}:
                return other
        for other in alike:
            if names & {*other.os_names, *(p.name for p in other.ports)}:
                return other
        if device.kind is DeviceKind.CPU:
            return _same_cpu(device, alike)
        if device.kind is DeviceKind.GPU:
            rank = ranks.of(device)
            return next((d for d in alike if others.of(d) == rank), None)
        return None

    def _new(self, device: Device, source: str) -> str:
        if device.id in self.devices:
            stem = device.id.rstrip("0123456789")
            taken = {i for i in self._of_node.get(device.node, ()) if i.startswith(stem)}
            name = next(n for k in range(len(taken) + 1) if (n := f"{stem}{k}") not in self.devices)
            device = device.model_copy(update={"id": name})
        self.devices[device.id] = device
        self._sources[device.id] = {f: source for f in (*_FILLED, "kind") if getattr(device, f) is not None}
        self._of_node.setdefault(device.node, []).append(device.id)
        return device.id

    def _fill(self, known: Device, other: Device, source: str) -> None:
        sources = self._sources[known.id]
        changed: dict[str, Any] = {}
        for field in _FILLED:
            mine, theirs = getattr(known, field), getattr(other, field)
            if theirs is None:
                continue
            if mine is None:
                changed[field], sources[field] = theirs, source
            elif field in _COMPARED and not (field == "numa_node" and known.kind is DeviceKind.CXL_MEMORY):
                self.said.add(known.id, field, (mine, sources[field]), (theirs, source))
        if known.kind is not other.kind:
            self.said.add(known.id, "kind", (known.kind.value, sources["kind"]), (other.kind.value, source))
        changed["os_names"] = tuple(dict.fromkeys((*known.os_names, *other.os_names)))
        changed["engines"] = known.engines or other.engines
        changed["virtual_functions"] = known.virtual_functions or other.virtual_functions
        changed["ports"] = self._ports(known, other, source)
        self.devices[known.id] = known.model_copy(update=changed)

    def _ports(self, known: Device, other: Device, source: str) -> tuple[Port, ...]:
        """Ports are one by GUID and number, by name, or when each card has a single one."""
        ports = list(known.ports)
        for theirs in other.ports:
            index = next((i for i, p in enumerate(ports) if _same_port(p, theirs)), None)
            if index is None and len(known.ports) == len(other.ports) == 1:
                index = 0
            if index is None:
                ports.append(theirs)
                continue
            mine = ports[index]
            if mine.bytes_per_second is not None and theirs.bytes_per_second is not None:
                told = self._sources[known.id].get(f"port {mine.name}", self._sources[known.id].get("kind", "?"))
                self.said.add(
                    f"{known.id} port {mine.name}",
                    "bytes_per_second",
                    (mine.bytes_per_second, told),
                    (theirs.bytes_per_second, source),
                )
            elif theirs.bytes_per_second is not None:
                self._sources[known.id][f"port {mine.name}"] = source
            ports[index] = mine.model_copy(
                update={
                    "link_layer": mine.link_layer or theirs.link_layer,
                    "bytes_per_second": mine.bytes_per_second or theirs.bytes_per_second,
                    "guid": mine.guid or theirs.guid,
                    "state": mine.state if mine.state is not LinkState.UNKNOWN else theirs.state,
                }
            )
        return tuple(ports)

    def _count_gpus(self, part: Topology, before: dict[str, list[str]], source: str) -> None:
        """Sources that tell of GPUs of one machine tell of all of them."""
        mine = Counter(d.node for d in part.devices_of(DeviceKind.GPU))
        for node, count in mine.items():
            known = [i for i in before.get(node, ()) if self.devices[i].kind is DeviceKind.GPU]
            if known:
                told = self._sources[known[0]].get("kind", "?")
                self.said.add(node, "number of GPUs", (len(known), told), (count, source))


class _Ranks:
    """The place of every GPU among those of its machine: in bus order where there are bus ids, else by number."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._ranks: dict[str, int] = {}
        by_node: dict[str, list[Device]] = {}
        for device in devices:
            if device.kind is DeviceKind.GPU:
                by_node.setdefault(device.node, []).append(device)
        for gpus in by_node.values():
            on_bus = all(d.pci_bus_id for d in gpus)
            ordered = sorted(gpus, key=lambda d: (normal_bus_id(d.pci_bus_id or "") if on_bus else "", _number(d.id)))
            self._ranks |= {d.id: rank for rank, d in enumerate(ordered)}

    def of(self, device: Device) -> int | None:
        """The place of one."""
        return self._ranks.get(device.id)


def _number(name: str) -> int:
    return int(name[len(name.rstrip("0123456789")) :] or 0)


def _same_cpu(device: Device, alike: Sequence[Device]) -> Device | None:
    mine = set(device.cpus or ())
    by_cpus = [d for d in alike if mine and mine & set(d.cpus or ())]
    if len(by_cpus) == 1:
        return by_cpus[0]
    by_numa = [d for d in alike if device.numa_node is not None and d.numa_node == device.numa_node]
    if len(by_numa) == 1:
        return by_numa[0]
    nothing = device.cpus is None and device.numa_node is None
    return alike[0] if len(alike) == 1 and nothing else None


def _same_port(a: Port, b: Port) -> bool:
    if a.guid is not None and a.guid == b.guid and a.name.rpartition("/")[2] == b.name.rpartition("/")[2]:
        return True
    return a.name == b.name or a.name.partition("/")[0] == b.name or b.name.partition("/")[0] == a.name
