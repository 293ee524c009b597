"""The page of topology files, with a table of public ones: `python -m observatory.topology.importers.reference DATA`.

DATA is a folder of files that other projects published, by kind; what our importers make of each is a row.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from observatory.model.topology import Topology
from observatory.topology.errors import BadTopology
from observatory.topology.importers.recognise import format_of, formats, read_source
from observatory.topology.importers.source import Source, open_source

KINDS = (
    "nccl-topo",
    "nvidia-smi-topo",
    "rocm-topo",
    "hwloc",
    "hwloc-sysfs",
    "sysfs-ib",
    "node-exporter/sys.ttar",
    "ib-fabric",
    "slurm-topology",
    "topograph",
    "k8s-nodes",
    "k8s-topology",
    "cxl",
)
_PCIE = ((2.5, 1), (5.0, 2), (8.0, 3), (16.0, 4), (32.0, 5), (64.0, 6))
_SHOWN_WARNINGS = 2
_LONGEST = 150

_TEXT = """\
# Topology files of other tools

<!-- Made by `python -m observatory.topology.importers.reference DATA`: change it there. -->

`observatory topology import A B C` reads files of the formats below, recognises each by its content, merges what they
say of the same machines, and shows it; `--save` stores it as [our own YAML](topology-yaml.md). Wherever a command
takes `--topology`, it takes one of these files, too.

    observatory topology import lstopo.xml nccl-topo.xml nvlink.txt
    nvidia-smi topo -m | observatory topology import /dev/stdin

## What becomes of what they say

- **Unknown stays unknown** (null). A NUMA node of -1, an empty speed, `Unknown`, a width of 0 or 255: none of them is
  a value. What makes no sense is a warning that names the line.
- **A link's bandwidth** is that of one direction, all its parallel links together. `bandwidth_source` says whose word
  it is: `stated` by the machine's own tool, `negotiated` (worked out from speed and width), or `data_sheet` (below).
  A matrix of `nvidia-smi` does not tell which chip it is about, so its NVLinks have a count and no bandwidth.
- **Where a link leads is not always told.** `nvidia-smi nvlink -s` tells speeds only: its links lead to a vertex of
  kind `far_end`. Slurm, topograph and Kubernetes name machines without their cards: a vertex of kind `host` stands
  for the machine, links of kind `network` for cables of no known technology, vertices of kind `domain` for racks,
  blocks and accelerator domains.
- **NVLink switches.** In NCCL's files a GPU's links lead to switches that no PCI element tells of: each becomes a
  vertex. In the matrix of `nvidia-smi topo -m`, GPUs that all reach each other by more links than a GPU has are
  linked by switches, drawn as one.
- **PCI Express in NCCL's files** is the best that both ends can do, not what the link runs at: its state is unknown.
- **A GPU that is partitioned (MIG) or shared** is one GPU. Engines come from the table below; 0 says that there is
  none.

## The same machine in several files

Machines are the same by host name (`gpu1` is `gpu1.example.org`), by the GUID of a port, by PCI bus ids. A file
without any of these tells of the one machine that the others tell of. Devices of a machine are the same by PCI bus
id, GUID or the system's names; GPUs without bus ids by their order on the bus. The first file's word stands; what it
does not know is taken from the others. PCI buses and the links between GPUs are drawn as the file draws them that
tells most of them.

What two files say differently is a warning that begins with `contradiction:` and names both.

## Limits

A file may have 16 MB, an archive may unpack to 100 MB; nothing is unpacked to a disk. Entities in XML, aliases
without end in YAML, host lists of more than 100,000 names and more than 300,000 things in one file are refused. A
file that is refused is told with file, line and a mend; the exit code is 2.
"""


def reference(data: Path) -> str:
    """The page. `data` is the folder with the public files."""
    parts = [
        _TEXT,
        "## Formats\n",
        *_formats(),
        "",
        "What these tell only by the kind of a chip is looked up in [data sheets](data-sheets.md).",
        "",
        "## Public files\n",
        *_files(data),
    ]
    return "\n".join(parts) + "\n"


def _formats() -> Iterator[str]:
    yield "| format | what it is |"
    yield "|---|---|"
    for found in formats():
        yield f"| `{found.name}` | {found.title} |"
    yield "| `own` | [our own YAML](topology-yaml.md) |"


def _files(data: Path) -> Iterator[str]:
    yield "What is made of files that other projects published. *Not understood*: warnings, or why a file is refused.\n"
    yield "| file | format | understood | not understood |"
    yield "|---|---|---|---|"
    for kind in KINDS:
        place = data / kind
        for path in [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file()):
            yield _row(data, path)


def _row(data: Path, path: Path) -> str:
    name = path.relative_to(data).as_posix()
    source = Source(Path(name), open_source(path).data)
    found = format_of(source)
    try:
        topology = read_source(source)
    except BadTopology as refusal:
        line = f", line {refusal.line}" if refusal.line else ""
        words = f"refused{line}: {refusal.message}; {refusal.mend}"
        return f"| {name} | {f'`{found.name}`' if found else ''} | | {_cell(words)} |"
    warnings = [*topology.warnings[:_SHOWN_WARNINGS]]
    more = len(topology.warnings) - len(warnings)
    words = "; ".join(_cut(w) for w in warnings) + (f"; {more} more" if more > 0 else "")
    return f"| {name} | `{found.name if found else 'own'}` | {_understood(topology)} | {_cell(words)} |"


def _understood(topology: Topology) -> str:
    machines = len(topology.nodes)
    parts = [f"{machines} machine{'' if machines == 1 else 's'}"]
    for things in (
        [d.kind.value for d in topology.devices],
        [v.kind.value for v in topology.vertices],
        [f"{link.kind.value} links" for link in topology.links],
    ):
        if things:
            parts.append(", ".join(f"{count} {kind}" for kind, count in Counter(things).items()))
    return "; ".join(parts)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m observatory.topology.importers.reference DATA   (the folder of public files)")
    sys.stdout.write(reference(Path(sys.argv[1])))
