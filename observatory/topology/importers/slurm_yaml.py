"""Slurm's `topology.yaml`: a list of topologies, each a tree, blocks, or flat.

- topology: topo1
  cluster_default: true
  tree: {switches: [{switch: sw_root, children: "s[1-2]"}, {switch: s1, nodes: "node[01-02]"}]}
- topology: topo2
  block: {block_sizes: [4, 16], blocks: [{block: b1, nodes: "node[01-04]"}]}
- {topology: topo3, flat: true}
"""

from __future__ import annotations

import re
from typing import Any

from observatory.model.topology import Topology
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.network_tree import NetworkTree
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.yaml_documents import Part, mapping, read_parts, sequence, word

_FIRST = re.compile(r"(?:\s*(?:#.*|---)?\n)*\s*- \{?\s*[\"']?topology[\"']?\s*:")


def _read(source: Source) -> Topology:
    (part, *more) = read_parts(source)
    build = TopologyBuilder(source, name="slurm", provenance="description")
    tree = NetworkTree(source, build)
    if more or not isinstance(part.value, list):
        part.fail("is no list of topologies", mend="- topology: NAME")
    named: set[str] = set()
    for index, entry in enumerate(part.value):
        name = word(mapping(entry).get("topology"))
        if name is None:
            part.fail("has a topology without a name", index, mend="begin with - topology: NAME")
        if name in named:
            part.fail(f"has two topologies called {name}", index, "topology", mend="rename one")
        named.add(name)
        kinds = [k for k in ("tree", "block", "flat") if k in entry]
        if kinds == ["tree"]:
            _switches(part, tree, mapping(entry["tree"]), (index, "tree", "switches"))
        elif kinds == ["block"]:
            _blocks(part, tree, mapping(entry["block"]), (index, "block", "blocks"))
        elif kinds == ["flat"]:
            build.warn("flat topologies, which link nothing", name)
        elif not kinds:
            build.warn("kinds of topologies that are not known", f"{name}: {', '.join(sorted(map(str, entry)))[:60]}")
        else:
            part.fail(f"topology {name} has {' and '.join(kinds)}", index, mend="exactly one of tree, block, flat")
    if len(named) > 1:
        build.warn(f"{len(named)} topologies of one cluster are drawn together: {', '.join(sorted(named))[:200]}")
    return build.build()


def _switches(part: Part, tree: NetworkTree, told: dict[str, Any], at: tuple[str | int, ...]) -> None:
    for index, entry in enumerate(sequence(told.get("switches"))):
        name = word(mapping(entry).get("switch"))
        if name is None:
            part.fail("has a switch without a name", *at, index, mend="- switch: NAME")
        line = part.line(*at, index) or 1
        for below in tree.names(_list(entry.get("children")), line):
            tree.join(tree.switch(below), tree.switch(name))
        for host in tree.names(_list(entry.get("nodes")), line):
            tree.join(tree.machine(host), tree.switch(name))


def _blocks(part: Part, tree: NetworkTree, told: dict[str, Any], at: tuple[str | int, ...]) -> None:
    for index, entry in enumerate(sequence(told.get("blocks"))):
        name = word(mapping(entry).get("block"))
        if name is None:
            part.fail("has a block without a name", *at, index, mend="- block: NAME")
        for host in tree.names(_list(entry.get("nodes")), part.line(*at, index) or 1):
            tree.join(tree.machine(host), tree.domain(name))


def _list(value: Any) -> str:
    """Nodes are written as one text or as a list of texts."""
    return ",".join(filter(None, map(word, value))) if isinstance(value, list) else word(value) or ""


FORMAT = Format(
    name="slurm-yaml",
    title="Slurm topology.yaml",
    recognise=lambda source: _FIRST.match(source.head) is not None,
    read=_read,
)
