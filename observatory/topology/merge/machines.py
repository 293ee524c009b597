"""Which machines of several topologies are the same, and what they are called in the merged one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from observatory.model.device import Device, DeviceKind
from observatory.model.topology import Topology
from observatory.topology.merge.contradictions import Contradictions


@dataclass(eq=False)
class _Machine:
    """One machine as known so far."""

    id: str
    hostname: str | None
    sources: list[str] = field(default_factory=list)
    guids: set[str] = field(default_factory=set)
    bus_ids: dict[DeviceKind, set[str]] = field(default_factory=dict)

    def learn(self, devices: Sequence[Device], hostname: str | None, source: str) -> None:
        self.hostname = self.hostname or hostname
        self.sources.append(source)
        for device in devices:
            self.guids |= {p.guid for p in device.ports if p.guid}
            if device.pci_bus_id:
                self.bus_ids.setdefault(device.kind, set()).add(normal_bus_id(device.pci_bus_id))


class _Before:
    """The machines of the sources before one, indexed."""

    def __init__(self, machines: Sequence[_Machine]) -> None:
        self.machines = dict.fromkeys(machines)
        self.without_name = [m for m in machines if m.hostname is None]
        self.by_guid: dict[str, _Machine] = {}
        for machine in machines:
            for guid in machine.guids:
                self.by_guid.setdefault(guid, machine)


def normal_bus_id(bus_id: str) -> str:
    """Bus ids as one form: `00000000:1D:00.0` of NVIDIA's tools is `0000:1d:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest and all(c in "0123456789abcdef" for c in domain) else bus_id.lower()


class Machines:
    """Finds the same machines. `nodes` are the ids of the merged topology, with host names."""

    def __init__(self, topologies: Sequence[Topology], said: Contradictions) -> None:
        self.topologies = topologies
        self.said = said
        self._machines: list[_Machine] = []
        self._by_hostname: dict[str, list[_Machine]] = {}
        self._of: list[dict[str, _Machine]] = []
        self._taken: set[str] = set()
        for topology in topologies:
            source = ", ".join(topology.sources) or topology.name or "?"
            devices: dict[str, list[Device]] = {}
            for device in topology.devices:
                devices.setdefault(device.node, []).append(device)
            before = _Before(self._machines)
            found: dict[str, _Machine] = {}
            used: set[_Machine] = set()
            for node in topology.nodes:
                mine = devices.get(node.id, [])
                machine = self._by_name(node.hostname, before.machines)
                if machine is None and mine:
                    machine = self._find(node.hostname, mine, before, len(topology.nodes), source)
                if machine is None or machine in used:
                    machine = _Machine(self._free(node.id), None)
                    self._taken.add(machine.id)
                    self._machines.append(machine)
                used.add(machine)
                machine.learn(mine, node.hostname, source)
                if node.hostname is not None:
                    known = self._by_hostname.setdefault(_short(node.hostname), [])
                    if machine not in known:
                        known.append(machine)
                found[node.id] = machine
            self._of.append(found)
        taken: set[str] = set()
        for machine in self._machines:  # a host name that came later is the better name
            better = machine.hostname.replace("/", "_").replace(" ", "_") if machine.hostname else machine.id
            machine.id = better if better not in taken else machine.id
            taken.add(machine.id)
        self.nodes = {m.id: m.hostname for m in self._machines}

    def renamed(self, index: int) -> Topology:
        """One of the topologies with its machines named as in the merged one."""
        topology = self.topologies[index]
        ids = {old: machine.id for old, machine in self._of[index].items()}
        if all(old == new for old, new in ids.items()):
            return topology

        def name(text: str) -> str:
            node, slash, rest = text.partition("/")
            return f"{ids.get(node, node)}{slash}{rest}"

        def node(text: str | None) -> str | None:
            return None if text is None else ids.get(text, text)

        return Topology(
            name=topology.name,
            provenance=topology.provenance,
            sources=topology.sources,
            nodes=tuple(n.model_copy(update={"id": ids[n.id]}) for n in topology.nodes),
            devices=tuple(d.model_copy(update={"id": name(d.id), "node": node(d.node)}) for d in topology.devices),
            vertices=tuple(v.model_copy(update={"id": name(v.id), "node": node(v.node)}) for v in topology.vertices),
            links=tuple(x.model_copy(update={"a": name(x.a), "b": name(x.b)}) for x in topology.links),
            numa_nodes=tuple(n.model_copy(update={"node": node(n.node)}) for n in topology.numa_nodes),
            caches=tuple(c.model_copy(update={"node": node(c.node)}) for c in topology.caches),
            pci_functions=tuple(
                f.model_copy(update={"node": node(f.node), "shown_as": f.shown_as and name(f.shown_as)})
                for f in topology.pci_functions
            ),
            warnings=topology.warnings,
        )

    # -- finding ---------------------------------------------------------------------------------------------------

    def _by_name(self, hostname: str | None, earlier: Collection[_Machine]) -> _Machine | None:
        """The machine of an earlier source that calls itself so."""
        if hostname is None:
            return None
        named = self._by_hostname.get(_short(hostname), ())
        return next((m for m in named if m in earlier and _same_host(hostname, m.hostname or "")), None)

    def _find(
        self, hostname: str | None, devices: Sequence[Device], before: _Before, siblings: int, source: str
    ) -> _Machine | None:
        guids = {p.guid for d in devices for p in d.ports if p.guid}
        known = sorted(guids & before.by_guid.keys())
        if known:
            machine = before.by_guid[known[0]]
            if hostname is not None and machine.hostname is not None:
                what = f"the machine with port {known[0]}"
                self.said.add(what, "host name", (machine.hostname, machine.sources[0]), (hostname, source))
            return machine
        candidates = before.machines if hostname is None else before.without_name
        bus_ids: dict[DeviceKind, set[str]] = {}
        for device in devices:
            if device.pci_bus_id:
                bus_ids.setdefault(device.kind, set()).add(normal_bus_id(device.pci_bus_id))
        fitting = [m for m in candidates if _fits(bus_ids, m.bus_ids)]
        if len(fitting) == 1 and (siblings == 1 or (bus_ids and _overlap(bus_ids, fitting[0].bus_ids))):
            return fitting[0]
        if len(fitting) > 1 and siblings == 1 and hostname is None:
            self.said.say(
                f"{source} does not tell which of {len(fitting)} machines it is about: it is drawn beside them"
            )
        elif candidates and not fitting and siblings == 1:
            self.said.say(f"{source} shares no PCI bus id with the others: it is taken for another machine")
        return None

    def _free(self, wanted: str) -> str:
        if wanted not in self._taken:
            return wanted
        stem = wanted.rstrip("0123456789") or "n"
        return next(name for n in range(len(self._taken) + 1) if (name := f"{stem}{n}") not in self._taken)


def _short(hostname: str) -> str:
    return hostname.partition(".")[0].casefold()


def _same_host(a: str, b: str) -> bool:
    """`gpu1` is `gpu1.example.org`, which is not `gpu1.other.org`."""
    a, b = a.casefold(), b.casefold()
    return a == b or ("." not in a and _short(b) == a) or ("." not in b and _short(a) == b)


def _overlap(a: dict[DeviceKind, set[str]], b: dict[DeviceKind, set[str]]) -> bool:
    return any(a[kind] & b.get(kind, set()) for kind in a)


def _fits(a: dict[DeviceKind, set[str]], b: dict[DeviceKind, set[str]]) -> bool:
    """Whether two sets of devices may be of one machine: some are the same, or they are of no kind in common."""
    common = a.keys() & b.keys()
    return not common or _overlap(a, b)
