"""`rocm-smi --showtopo` (also `--showtoponuma` and the other parts alone).

    ====== Link Type between two GPUs ======
           GPU0         GPU1
    GPU0   0            XGMI
    ====== Numa Nodes ======
    GPU[0]   : (Topology) Numa Node: 0          -1 where the firmware does not tell
    GPU[0]   : (Topology) Numa Affinity: 0

With `--json` the same is under `system` ("(Topology) Link type between DRM devices 0 and 1": "XGMI") and `card0`.
Weights are relative; only links of one hop are links.
"""

from __future__ import annotations

import json
import re

from observatory.model.topology import Topology
from observatory.topology.importers.amd_links import AmdTables
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.yaml_documents import mapping

_TITLE = re.compile(r"=+ ([A-Za-z][\w ()/-]{2,60}?) =+\s*\Z")
_NUMA = re.compile(r"\s*GPU ?\[?(\d{1,3})\]?\s*: \(Topology\) Numa (Node|Affinity): (-?\d{1,4}|N/A|None)\s*\Z")
_NAME = re.compile(r"GPU\d{1,3}\Z")


_PAIR = re.compile(r"\(Topology\) (Hops|Link type) between DRM devices (\d{1,3}) and (\d{1,3})\Z", re.IGNORECASE)
_CARD = re.compile(r"card(\d{1,3})\Z")


def _recognise(source: Source) -> bool:
    head = source.head
    return "between two GPUs ==" in head or "(Topology) Numa" in head


def _read(source: Source) -> Topology:
    tables = _from_json(source) if source.head.lstrip().startswith("{") else _from_text(source)
    if not tables.names:
        source.fail("names no GPU", 1, "give the whole output of rocm-smi --showtopo")
    tables.names.sort(key=lambda name: int(name[3:]))
    build = TopologyBuilder(source, name="rocm-smi")
    tables.build(build)
    if not tables.types:
        build.warn("how the GPUs are linked is not told: give rocm-smi --showtopo")
    return build.build()


def _from_json(source: Source) -> AmdTables:
    tables = AmdTables()
    try:
        told = mapping(json.loads(source.text or ""))
    except (ValueError, RecursionError) as failure:
        source.fail(f"is not JSON: {failure}", getattr(failure, "lineno", None), "give the whole output")
    for key, value in told.items():
        if (match := _CARD.match(key)) is not None:
            name = f"GPU{int(match[1])}"
            tables.name(source, name, 1)
            numa = str(mapping(value).get("(Topology) Numa Node"))
            if numa.isascii() and numa.isdigit() and len(numa) < 5:
                tables.numa[name] = int(numa)
    for key, value in mapping(told.get("system")).items():
        if (match := _PAIR.match(key)) is not None:
            pair = (f"GPU{int(match[2])}", f"GPU{int(match[3])}")
            for name in pair:
                tables.name(source, name, 1)
            (tables.hops if match[1].lower() == "hops" else tables.types)[pair] = str(value)
    return tables


def _from_text(source: Source) -> AmdTables:
    tables = AmdTables()
    table: dict[tuple[str, str], str] | None = None
    columns: list[str] = []
    for number, line in enumerate(source.lines, 1):
        words = line.split()
        if match := _TITLE.match(line.strip()):
            columns = []
            table = {"Link Type between two GPUs": tables.types, "Hops between two GPUs": tables.hops}.get(match[1])
            table = {} if table is None and "between two GPUs" in match[1] else table
        elif match := _NUMA.match(line):
            name = f"GPU{int(match[1])}"
            tables.name(source, name, number)
            if match[2] == "Node" and match[3].isdigit():
                tables.numa[name] = int(match[3])
        elif words and all(_NAME.match(w) for w in words) and table is not None:
            columns = words
        elif words and _NAME.match(words[0]) and table is not None:
            if len(words) != len(columns) + 1:
                source.fail(
                    f"has a row of {len(words) - 1} cells for {len(columns)} columns",
                    number,
                    "give the whole output of rocm-smi --showtopo",
                )
            tables.name(source, words[0], number)
            table |= {(words[0], c): cell for c, cell in zip(columns, words[1:], strict=True) if c != words[0]}
    return tables


FORMAT = Format(name="rocm-smi", title="rocm-smi --showtopo", recognise=_recognise, read=_read)
