"""`nvidia-smi topo -m`: how GPUs and network cards reach each other; and `topo -p2p`, whether they may.

    \tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID      in tabs or spaces, with terminal escapes, wrapped
    GPU0\t X \tNV18\tPIX\t0-55\t0\t\tN/A

X self, PIX one PCIe bridge at most, PXB several, PHB a host bridge, NODE several host bridges of a NUMA node, SYS the
link between NUMA nodes (SOC, older), NV# so many NVLinks; the legend names NIC0 and others. The matrix tells no speeds,
and for GPUs that NVLinks join nothing of their PCIe path.

Where every GPU reaches every other by the same number of NVLinks and has not that many links, there is a switch between
them: eight GPUs of NV18 have 18 links each, not 126.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from observatory.model.data_sheets import MOST_NVLINKS
from observatory.model.device import DeviceKind, Port
from observatory.model.link import LinkKind
from observatory.model.topology import Topology, VertexKind
from observatory.topology.cpulist import parse_cpulist
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.source import Format, Source

_LABEL = re.compile(r"(?:GPU|NIC)\d{1,4}\Z|(?!GPU|NIC)[A-Za-z][\w.-]{0,40}\d\Z")
_LABELS = re.compile(r"(?:GPU|NIC)\d{1,4}")
_PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # from near to far
_OLD = {"SOC": "SYS", "PSB": "PIX"}
_NVLINKS = re.compile(r"NV(\d{1,3})\Z")
_STATUSES = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "NC", "U"})
_CELL = re.compile(r"(?:X|PIX|PXB|PHB|NODE|SYS|SOC|PSB|NV\d{1,3}|C2C|N/A|OK|CNS|GNS|TNS|NS|NC|U)\Z")
_TITLES = re.compile(r"\b(?:CPU Affinity|NUMA Affinity|GPU NUMA ID)\b")
_LEGEND = re.compile(r"\s*(NIC\d{1,4})\s*:\s*(\S{1,64})\s*\Z")
_MOST_COLUMNS = 512


@dataclass
class _Row:
    """One row of the matrix: cells by column, and what stands behind them."""

    label: str
    line: int
    cells: dict[str, str]
    cpus: tuple[int, ...] | None = None
    numa: int | None = None


@dataclass
class _Matrix:
    rows: list[_Row] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    nics: dict[str, str] = field(default_factory=dict)
    unclear: list[str] = field(default_factory=list)

    def cell(self, a: str, b: str) -> str | None:
        """What stands between two, told by either."""
        for x, y in ((a, b), (b, a)):
            row = next((r for r in self.rows if r.label == x), None)
            if row is not None and row.cells.get(y) not in (None, "N/A", "X"):
                return row.cells[y]
        return None

    @property
    def labels(self) -> list[str]:
        """Everything named, in the columns' order."""
        return list(dict.fromkeys([*self.columns, *(r.label for r in self.rows)]))


def _recognise(source: Source) -> bool:
    return any(_is_row(line.split()) for line in source.head.split("\n")[:400])


def _is_row(words: Sequence[str]) -> bool:
    return len(words) > 1 and re.match(r"GPU\d{1,4}\Z", words[0]) is not None and _CELL.match(words[1]) is not None


def _read(source: Source) -> Topology:
    matrix = _parse(source)
    build = TopologyBuilder(source, name="nvidia-smi topo")
    node = build.node()
    cells = {c for r in matrix.rows for c in r.cells.values()} - {"X", "N/A"}
    names = _devices(build, node, matrix)
    for label in matrix.unclear:
        build.warn("columns that run into each other, left out", label)
    if cells & _STATUSES:
        _peer_access(build, matrix)
        return build.build()
    processors = _processors(build, node, matrix, names)
    _nvlinks(build, node, matrix, names)
    _pcie(build, node, matrix, names, processors)
    return build.build()


# -- the text ----------------------------------------------------------------------------------------------------------


def _parse(source: Source) -> _Matrix:
    matrix = _Matrix()
    header: list[str] = []
    for number, line in enumerate(source.lines, 1):
        words = line.split()
        if match := _LEGEND.match(line):
            matrix.nics[match[1]] = match[2]
        elif len(words) > 1 and _LABEL.match(words[0]) and _CELL.match(words[1]):
            if not header:
                source.fail("has a row before the line with the columns", number, "give the whole output")
            matrix.rows.append(_row(source, matrix, number, line, header))
        elif not matrix.rows:
            labels = _header(line)
            header = [*header, *labels] if labels and header else labels  # a terminal wraps long lines
            if len(header) > _MOST_COLUMNS:
                source.fail(f"has more than {_MOST_COLUMNS} columns", number, "no machine has so many cards")
    if not matrix.rows:
        source.fail("has no rows", 1, "give the whole output of nvidia-smi topo -m")
    named = [r.label for r in matrix.rows]
    twice = next((label for label in named if named.count(label) > 1), None)
    if twice is not None:
        source.fail(f"has two rows called {twice}", [r.line for r in matrix.rows if r.label == twice][1])
    return matrix


def _header(line: str) -> list[str]:
    """The columns that a line names; none for a line that says anything else."""
    words = _TITLES.sub(" ", line).split()
    if not words or not all(_LABEL.match(w) or len(_LABELS.findall(w)) > 1 for w in words):
        return []
    return words


def _row(source: Source, matrix: _Matrix, number: int, line: str, header: list[str]) -> _Row:
    tabs = "\t" in line
    parts = [p.strip() for p in line.split("\t")] if tabs else line.split()
    label, *rest = parts
    cells: list[str] = []
    for part in rest:
        if not _CELL.match(part) or (part == "N/A" and len(cells) >= len(header)):
            break
        cells.append(part)
    split = [w for h in header for w in (_LABELS.findall(h) if len(_LABELS.findall(h)) > 1 else [h])]
    if len(cells) < len(split) and len(split) != len(header):
        matrix.unclear = [h for h in header if len(_LABELS.findall(h)) > 1]
        split = header
    if len(cells) > len(split):  # N/A of an affinity is no cell
        cells = cells[: len(split)]
    if len(cells) < len(split):
        source.fail(f"has a row of {len(cells)} cells for {len(split)} columns", number, "give the whole output")
    matrix.columns = [c for c in split if c not in matrix.unclear]
    row = _Row(label, number, dict(zip(split, cells, strict=True)))
    for column in matrix.unclear:
        row.cells.pop(column, None)
    behind = rest[len(cells) :]
    if behind:
        row.cpus = _cpus(source, behind[0], number)
    if len(behind) > 1 and behind[1].isascii() and behind[1].isdigit() and len(behind[1]) < 6:
        row.numa = int(behind[1])  # `0-1` is not one node
    return row


def _cpus(source: Source, text: str, number: int) -> tuple[int, ...] | None:
    if text in ("", "N/A"):
        return None
    try:
        return parse_cpulist(text) or None
    except ValueError as error:
        source.fail(f"has an affinity that makes no sense: {error}", number, "the form is 0-3,8")


# -- devices -----------------------------------------------------------------------------------------------------------


def _devices(build: TopologyBuilder, node: str, matrix: _Matrix) -> dict[str, str]:
    """Label -> device. GPUs keep their numbers; cards are named as the legend says."""
    names: dict[str, str] = {}
    rows = {r.label: r for r in matrix.rows}
    for label in sorted(matrix.labels, key=lambda x: (not x.startswith("GPU"), _order(x))):
        row = rows.get(label)
        numa = None if row is None else row.numa
        if re.match(r"GPU\d+\Z", label):
            names[label] = build.device(node, DeviceKind.GPU, number=int(label[3:]), numa_node=numa)
        else:
            os_name = matrix.nics.get(label, None if label.startswith("NIC") else label)
            if os_name is None:
                build.warn("cards that the legend does not name", label)
            names[label] = build.device(
                node,
                DeviceKind.NIC,
                number=int(label[3:]) if re.match(r"NIC\d+\Z", label) else None,
                numa_node=numa,
                os_names=() if os_name is None else (os_name,),
                ports=() if os_name is None else (Port(name=os_name),),
            )
    return names


def _order(label: str) -> int:
    digits = re.search(r"\d+\Z", label)
    return int(digits[0]) if label.startswith(("GPU", "NIC")) and digits else 0


def _processors(build: TopologyBuilder, node: str, matrix: _Matrix, names: dict[str, str]) -> dict[str, str]:
    """Label -> the processor whose threads are its affinity. One device for every set of threads."""
    devices: dict[tuple[tuple[int, ...], int | None], str] = {}
    found: dict[str, str] = {}
    for row in matrix.rows:
        if row.cpus is not None:
            key = (row.cpus, row.numa)
            if key not in devices:
                devices[key] = build.device(node, DeviceKind.CPU, numa_node=row.numa, cpus=row.cpus)
            found[row.label] = devices[key]
    for label in matrix.labels:
        if label not in found:  # a card: in the NUMA node of a GPU that is no farther than NODE
            near = [g for g in found if matrix.cell(label, g) in _PATHS[:4]]
            if near and len({found[g] for g in near}) == 1:
                found[label] = found[near[0]]
                build.update(names[label], numa_node=build.devices[names[near[0]]].numa_node)
    ids = list(devices.values())
    for index, a in enumerate(ids):
        for b in ids[index + 1 :]:
            build.link(a, b, LinkKind.UPI)
    return found


# -- links -------------------------------------------------------------------------------------------------------------


def _peer_access(build: TopologyBuilder, matrix: _Matrix) -> None:
    """`topo -p2p` tells what is allowed, not what is linked."""
    for a in matrix.rows:
        for label, cell in a.cells.items():
            if cell in _STATUSES - {"OK"} and a.label < label:
                build.warn("no peer-to-peer access", f"{a.label}-{label} ({cell})")
    build.warn("topo -p2p tells which GPUs may access each other, not how they are linked: give topo -m, too")


def _nvlinks(build: TopologyBuilder, node: str, matrix: _Matrix, names: dict[str, str]) -> None:
    gpus = [label for label in matrix.labels if label.startswith("GPU")]
    counts: dict[tuple[str, str], int] = {}
    for index, a in enumerate(gpus):
        for b in gpus[index + 1 :]:
            match = _NVLINKS.match(matrix.cell(a, b) or "")
            if match and int(match[1]) > 0:
                counts[a, b] = int(match[1])
    for group, count in _switched(gpus, counts):
        switch = build.vertex(node, "nvswitch", VertexKind.NVSWITCH)
        for label in group:
            build.link(names[label], switch, LinkKind.NVLINK, count=count)
        build.warn(f"GPUs that reach all others by {count} NVLinks have switches between: drawn as one")
        counts = {pair: n for pair, n in counts.items() if not set(pair) <= set(group)}
    for (a, b), count in counts.items():
        build.link(names[a], names[b], LinkKind.NVLINK, count=count)


def _switched(gpus: Sequence[str], counts: dict[tuple[str, str], int]) -> list[tuple[list[str], int]]:
    """Groups of GPUs that all reach each other by one number of links which they cannot have for each."""
    found = []
    for count in sorted(set(counts.values()), reverse=True):
        joined = {pair for pair, n in counts.items() if n == count}
        members = [g for g in gpus if any(g in pair for pair in joined)]
        size = len(members)
        if len(joined) == size * (size - 1) // 2 and size > 2 and (size - 1) * count > MOST_NVLINKS:
            found.append((members, count))
    return found


def _pcie(
    build: TopologyBuilder, node: str, matrix: _Matrix, names: dict[str, str], processors: dict[str, str]
) -> None:
    """Switches and host bridges, as far as near and far tell them; the rest hangs on its processor."""
    tops = {label: names[label] for label in matrix.labels}  # what a device is below of, so far
    for path, kind, stem in (
        ("PIX", VertexKind.PCIE_SWITCH, "pcie"),
        ("PXB", VertexKind.PCIE_SWITCH, "pcie"),
        ("PHB", VertexKind.HOST_BRIDGE, "hostbridge"),
    ):
        reach = _PATHS[: _PATHS.index(path) + 1]
        for group in _groups(matrix, reach):
            below = list(dict.fromkeys(tops[label] for label in group))
            if len(below) < 2:
                continue
            vertex = build.vertex(node, stem, kind)
            for name in below:
                build.link(name, vertex, LinkKind.PCIE)
            tops |= dict.fromkeys(group, vertex)
    for label, top in tops.items():
        if label in processors:
            build.link(top, processors[label], LinkKind.PCIE)


def _groups(matrix: _Matrix, reach: Sequence[str]) -> list[list[str]]:
    """Labels joined by paths within reach."""
    labels = matrix.labels
    group = {label: label for label in labels}

    def root(label: str) -> str:
        while group[label] != label:
            label = group[label]
        return label

    for row in matrix.rows:
        for other, cell in row.cells.items():
            if other in group and row.label in group and _OLD.get(cell, cell) in reach:
                group[root(other)] = root(row.label)
    found: dict[str, list[str]] = {}
    for label in labels:
        found.setdefault(root(label), []).append(label)
    return [members for members in found.values() if len(members) > 1]


FORMAT = Format(name="nvidia-smi-topo", title="nvidia-smi topo -m, -p2p", recognise=_recognise, read=_read)
