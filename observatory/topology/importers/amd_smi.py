"""`amd-smi topology`, as text or with `--json`.

    LINK TYPE TABLE:
                 0000:0c:00.0 0000:22:00.0
    0000:0c:00.0 SELF         XGMI
    NUMA BW TABLE:                                   least-most, MB/s, N/A where not told

Tables are ACCESS, WEIGHT, HOPS, LINK TYPE, NUMA BW and more; GPUs are named by PCI bus id. In JSON every GPU has `bdf`
and `links` of `bdf`, `link_type`, `num_hops` and `bandwidth`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from observatory.model.topology import Topology
from observatory.topology.importers.amd_links import AmdTables
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.source import Format, Source

_TITLE = re.compile(r"\s*([A-Z][A-Z -]{2,40}) TABLE:\s*\Z")
_BUS_ID = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\Z")
_JSON = re.compile(r"\s*[\[{]")


def _recognise(source: Source) -> bool:
    head = source.head
    if _JSON.match(head):
        return '"num_hops"' in head and '"bdf"' in head
    return any(_TITLE.match(line) for line in head.split("\n")) and "TABLE:" in head


def _read(source: Source) -> Topology:
    tables = _from_json(source) if _JSON.match(source.head) else _from_text(source)
    if not tables.names:
        source.fail("names no GPU", 1, "give the whole output of amd-smi topology")
    build = TopologyBuilder(source, name="amd-smi")
    tables.build(build)
    return build.build()


def _from_text(source: Source) -> AmdTables:
    tables = AmdTables()
    table: dict[tuple[str, str], str] | None = None
    columns: list[str] = []
    for number, line in enumerate(source.lines, 1):
        words = line.split()
        if match := _TITLE.match(line):
            told = {"LINK TYPE": tables.types, "HOPS": tables.hops, "NUMA BW": tables.rates}
            table, columns = told.get(match[1], {}), []
        elif not words or table is None or not _BUS_ID.match(words[0]):
            continue
        elif all(_BUS_ID.match(w) for w in words) and (len(words) > 1 or not columns):
            columns = words
            for name in words:
                tables.name(source, name, number)
        elif len(words) != len(columns) + 1:
            source.fail(
                f"has a row of {len(words) - 1} cells for {len(columns)} columns",
                number,
                "give the whole output of amd-smi topology",
            )
        else:
            table |= {(words[0], c): cell for c, cell in zip(columns, words[1:], strict=True) if c != words[0]}
    return tables


def _from_json(source: Source) -> AmdTables:
    tables = AmdTables()
    try:
        told: Any = json.loads(source.text or "")
    except (ValueError, RecursionError) as failure:
        source.fail(f"is not JSON: {failure}", getattr(failure, "lineno", None), "give the whole output")
    gpus = told.get("gpus", told.get("gpu_data")) if isinstance(told, dict) else told
    for gpu in gpus if isinstance(gpus, list) else []:
        name = str(gpu.get("bdf") or "") if isinstance(gpu, dict) else ""
        if not _BUS_ID.match(name):
            source.fail("has a GPU without a bus id (bdf)", 1, "give the output of amd-smi topology --json")
        tables.name(source, name, 1)
        links = gpu.get("links")
        for link in links if isinstance(links, list) else []:
            other = str(link.get("bdf") or "") if isinstance(link, dict) else ""
            if _BUS_ID.match(other) and other != name:
                tables.types[name, other] = str(link.get("link_type"))
                tables.hops[name, other] = str(link.get("num_hops"))
                tables.rates[name, other] = str(link.get("bandwidth"))
    return tables


FORMAT = Format(name="amd-smi", title="amd-smi topology", recognise=_recognise, read=_read)
