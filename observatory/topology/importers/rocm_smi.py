"""`rocm-smi --showtopo` (also `--showtoponuma` and the other parts alone).

    ====== Link Type between two GPUs ======
           GPU0         GPU1
    GPU0   0            XGMI
    ====== Numa Nodes ======
    GPU[0]   : (Topology) Numa Node: 0          -1 where the firmware does not tell
    GPU[0]   : (Topology) Numa Affinity: 0

Weights and hops are relative; only links of one hop are links.
"""

from __future__ import annotations

import re

from observatory.model.topology import Topology
from observatory.topology.importers.amd_links import AmdTables
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.source import Format, Source

_TITLE = re.compile(r"=+ ([A-Za-z][\w ()/-]{2,60}?) =+\s*\Z")
_NUMA = re.compile(r"\s*GPU ?\[?(\d{1,3})\]?\s*: \(Topology\) Numa (Node|Affinity): (-?\d{1,4}|N/A|None)\s*\Z")
_NAME = re.compile(r"GPU\d{1,3}\Z")


def _recognise(source: Source) -> bool:
    head = source.head
    return "between two GPUs ==" in head or "(Topology) Numa" in head


def _read(source: Source) -> Topology:
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
    if not tables.names:
        source.fail("names no GPU", 1, "give the whole output of rocm-smi --showtopo")
    tables.names.sort(key=lambda name: int(name[3:]))
    build = TopologyBuilder(source, name="rocm-smi")
    tables.build(build)
    if not tables.types:
        build.warn("how the GPUs are linked is not told: give rocm-smi --showtopo")
    return build.build()


FORMAT = Format(name="rocm-smi", title="rocm-smi --showtopo", recognise=_recognise, read=_read)
