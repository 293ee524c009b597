"""`cxl list` of ndctl: memory devices, and the buses, ports and regions around them, as JSON.

    # cxl list -M
    [{"memdev":"mem0", "pmem_size":268435456, "ram_size":0, "serial":0, "numa_node":-1, "host":"0000:35:00.0"}]

With `-u` sizes are words: `256.00 MiB (268.44 MB)`. Several answers may follow each other, with their commands as
comments. `numa_node` is that of the card, not of its memory, and -1 where the firmware does not tell. Serial numbers
are not unique.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from observatory.model.device import DeviceKind
from observatory.model.link import LinkKind
from observatory.model.topology import Topology, VertexKind
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.sysfs.pci import BUS_ID

_KEYS = re.compile(r'"(memdev|endpoint|region|decoder|port|bus|anon memdevs|memdevs|buses|root decoders)"\s*:')
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?) (KiB|MiB|GiB|TiB|PiB)\b")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_MOST_BYTES = 1 << 60
_NAME = re.compile(r"[\w.:-]{1,64}\Z")
_DEEPEST = 64
_MOST_NODES = 1 << 16


def _recognise(source: Source) -> bool:
    body = "\n".join(line for line in source.head.split("\n") if not line.startswith("#")).lstrip()
    return body.startswith(("{", "[")) and _KEYS.search(body) is not None and '"links"' not in body[:2000]


def _read(source: Source) -> Topology:
    things = [thing for value in _documents(source) for thing in _objects(source, value, 0)]
    build = TopologyBuilder(source, name="cxl list")
    node = build.node()
    seen: dict[str, str] = {}
    for thing in things:
        name = thing.get("memdev") or (thing.get("host") if "endpoint" in thing else None)
        if isinstance(name, str) and name.startswith("mem") and _NAME.match(name) and (name not in seen):
            seen[name] = _memory(build, node, thing, name)
    buses = [t["bus"] for t in things if isinstance(t.get("bus"), str) and _NAME.match(t["bus"])]
    for bus in dict.fromkeys(buses):
        vertex = build.vertex(node, "cxl_bus", VertexKind.HOST_BRIDGE, name=bus)
        if len(set(buses)) == 1:
            for device in seen.values():
                build.link(device, vertex, LinkKind.CXL)
    regions = [t["region"] for t in things if isinstance(t.get("region"), str)]
    if not seen and not buses:
        what = f"only of region {regions[0][:40]}" if regions else "of none of the things it could"
        source.fail(f"tells of no memory device, {what}", 1, "cxl list -M lists the memory devices")
    for region in regions:
        build.warn("regions, which are no part of a topology, left out", region[:40])
    return build.build()


def _documents(source: Source) -> Iterator[Any]:
    """The JSON values, one after the other; comments between them and what commands print below them are left out."""
    lines = ["" if line.startswith("#") else line for line in source.lines]
    text = "\n".join(lines)
    decoder = json.JSONDecoder()
    at = 0
    while (start := _start(text, at)) is not None:
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as failure:
            position = getattr(failure, "pos", start)
            words = getattr(failure, "msg", "it nests too deep")
            source.fail(
                f"is not JSON: {words[:1].lower()}{words[1:]}",
                text.count("\n", 0, position) + 1,
                "give cxl's own output",
            )
        yield value


def _start(text: str, at: int) -> int | None:
    match = re.compile(r"^\s*[\[{]", re.MULTILINE).search(text, at)
    return None if match is None else match.end() - 1


def _objects(source: Source, value: Any, depth: int) -> Iterator[dict[str, Any]]:
    if depth > _DEEPEST:
        source.fail(f"nests deeper than {_DEEPEST} levels", 1)
    if isinstance(value, dict):
        yield value
        for below in value.values():
            yield from _objects(source, below, depth + 1)
    elif isinstance(value, list):
        for below in value:
            yield from _objects(source, below, depth + 1)


def _memory(build: TopologyBuilder, node: str, thing: dict[str, Any], name: str) -> str:
    sizes = [_size(build, name, thing.get(key)) for key in ("ram_size", "pmem_size") if key in thing]
    host = thing.get("host")
    numa = thing.get("numa_node")
    known = isinstance(numa, int) and not isinstance(numa, bool) and 0 <= numa < _MOST_NODES
    return build.device(
        node,
        DeviceKind.CXL_MEMORY,
        name="CXL memory",
        pci_bus_id=host.lower() if isinstance(host, str) and BUS_ID.match(host.lower()) else None,
        numa_node=numa if known else None,
        memory_bytes=None if not sizes or None in sizes else sum(s or 0 for s in sizes) or None,
        os_names=(name,),
    )


def _size(build: TopologyBuilder, name: str, value: Any) -> int | None:
    """Bytes, or words with binary units; None, and a warning, for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES:
        return value
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) < 19:
            return int(value)
        if match := _SIZE.match(value):
            size = round(float(match[1]) * _UNITS[match[2]])
            return size if size <= _MOST_BYTES else None
    build.warn("sizes that make no sense", f"{name}: {str(value)[:30]}")
    return None


FORMAT = Format(name="cxl-list", title="cxl list", recognise=_recognise, read=_read)
