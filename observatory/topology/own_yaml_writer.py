"""A topology as our own YAML: what `read_topology` reads back. Unknown values are left out, as there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from observatory.model.device import Device, Engine
from observatory.model.link import Link
from observatory.model.topology import Topology, Vertex
from observatory.topology.cpulist import format_cpulist
from observatory.topology.importers.own_yaml import API_VERSION

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_DEFAULTS = {"state": "unknown"}


def topology_yaml(topology: Topology, name: str) -> str:
    """The document. NUMA nodes, caches, PCI functions that are no devices, and warnings have no place in it."""
    document = {
        "apiVersion": API_VERSION,
        "kind": "Topology",
        "metadata": {
            "name": name,
            "provenance": "measurement" if topology.provenance == "measurement" else "description",
            "sources": list(topology.sources),
        },
        "spec": {
            "nodes": [{"id": n.id, "hostname": n.hostname} if n.hostname else n.id for n in topology.nodes],
            "devices": [_device(d) for d in topology.devices],
            "vertices": [_vertex(v) for v in topology.vertices],
            "links": [_link(link) for link in topology.links],
        },
    }
    text: str = yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120)
    return text


def write_topology(topology: Topology, path: Path, name: str) -> None:
    """Write it to `path`, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(topology_yaml(topology, name), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _known(thing: dict[str, Any]) -> dict[str, Any]:
    return {key: v for key, v in thing.items() if v not in (None, [], {}) and _DEFAULTS.get(key) != v}


def _device(device: Device) -> dict[str, Any]:
    told = device.model_dump(mode="json", exclude={"kind", "node", "engines", "cpus", "ports"})
    told["engines"] = {e.kind.value: _engine(e) for e in device.engines}
    told["cpus"] = None if device.cpus is None else format_cpulist(device.cpus)
    told["ports"] = [_known(port.model_dump(mode="json")) for port in device.ports]
    return _known(told)


def _engine(engine: Engine) -> Any:
    return engine.count if engine.sessions is None else {"count": engine.count, "sessions": engine.sessions}


def _vertex(vertex: Vertex) -> dict[str, Any]:
    return _known(vertex.model_dump(mode="json", exclude={"node"}))


def _link(link: Link) -> dict[str, Any]:
    return _known(link.model_dump(mode="json"))
