"""Slurm's `topology.conf`: switches or blocks, and the machines below them.

    SwitchName=root Switches=leaf[0-1]          topology/tree; keys in any case, `#` begins a comment
    SwitchName=leaf0 Nodes=tux[0-15] LinkSpeed=100
    BlockName=b1 Nodes=node[01-04]              topology/block
    BlockSizes=4,8

LinkSpeed has no unit that Slurm says anything of; it is kept as `speed`. topograph writes the same format.
"""

from __future__ import annotations

import re

from observatory.model.topology import Topology
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.network_tree import NetworkTree
from observatory.topology.importers.source import Format, Source

_LINE = re.compile(r"^[ \t]*(?:SwitchName|BlockName)[ \t]*=[ \t]*[^\s$={]", re.IGNORECASE | re.MULTILINE)
_WORD = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)")
_KNOWN = frozenset({"switchname", "blockname", "nodes", "switches", "linkspeed", "blocksizes", "comment"})


def _read(source: Source) -> Topology:
    build = TopologyBuilder(source, name="slurm", provenance="description")
    tree = NetworkTree(source, build)
    named: dict[str, int] = {}
    mentioned: dict[str, int] = {}
    for number, line in _logical_lines(source):
        words = {key.lower(): value for key, value in _WORD.findall(line)}
        if not words:
            source.fail(f"has a line that is none of topology.conf: {line.strip()[:60]!r}", number, "KEY=VALUE ...")
        name = words.get("switchname") or words.get("blockname")
        for key in sorted(words.keys() - _KNOWN):
            build.warn("keys that are not known", f"{key} on line {number}")
        if name is None:
            continue
        if name.lower() in named:
            source.fail(f"names {name} twice, first on line {named[name.lower()]}", number, "remove one of them")
        named[name.lower()] = number
        if "nodes" not in words and "switches" not in words:
            build.warn("switches or blocks with nothing below", name)
        above = tree.switch(name) if "switchname" in words else tree.domain(name)
        fields = {"speed": words["linkspeed"]} if "linkspeed" in words else {}
        for below in tree.names(words.get("switches", ""), number):
            mentioned.setdefault(below.lower(), number)
            tree.join(tree.switch(below), above, **fields)
        tree.machines_below(tree.names(words.get("nodes", ""), number), above, **fields)
    if not named:
        source.fail("names no switch and no block", 1, "SwitchName=... or BlockName=...")
    for name in (m for m in mentioned if m not in named):
        build.warn("switches that are mentioned and never told of", name)
    return build.build()


def _logical_lines(source: Source) -> list[tuple[int, str]]:
    """Lines without comments, those that end in a backslash joined with the next."""
    found: list[tuple[int, str]] = []
    start, held = 0, ""
    for number, line in enumerate(source.lines, 1):
        text = line.split("#", 1)[0].rstrip()
        start = start or number
        if text.endswith("\\"):
            held += text[:-1] + " "
            continue
        if (held + text).strip():
            found.append((start, held + text))
        start, held = 0, ""
    return found


def _recognise(source: Source) -> bool:
    return not source.head.startswith("#!") and _LINE.search(source.head) is not None


FORMAT = Format(name="slurm-conf", title="Slurm topology.conf (topograph's, too)", recognise=_recognise, read=_read)
