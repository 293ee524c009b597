"""topograph: its models of clusters (YAML), and the answers of NetQ that it reads (JSON).

    switches: {core: {switches: [spine-1]}, spine-1: {switches: [leaf-1-1]}}
    blocks: [{switch: leaf-1-1, nodes: ["srv11[01-08]"], annotations: {accelerator...../domain: nvl-1-1}}]

An annotation that ends in `/domain` names the accelerator domain (NVLink between machines) of the block's nodes. NetQ's
`topologyGraph` has nodes in tiers and links with every cable; its `computeNodes` has the GPUs of each machine. What
topograph writes for Slurm is read as Slurm's.
"""

from __future__ import annotations

import re
from typing import Any

from observatory.model.device import DeviceKind
from observatory.model.link import LinkKind
from observatory.model.topology import Topology
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.network_tree import NetworkTree
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.yaml_documents import Part, mapping, read_parts, sequence, word

_SWITCHES = re.compile(r"^switches:", re.MULTILINE)
_BLOCKS = re.compile(r"^(?:blocks|nodes|capacity_blocks):", re.MULTILINE)
_MOST_GPUS = 1024
_MOST_CABLES = 4096


def _recognise(source: Source) -> bool:
    head = source.head
    if head.lstrip()[:1] in ("[", "{"):
        return '"compounded_links"' in head or ('"GpuIDList"' in head and '"DomainUUID"' in head)
    return _SWITCHES.search(head) is not None and _BLOCKS.search(source.text or "") is not None


def _read(source: Source) -> Topology:
    (part, *more) = read_parts(source)
    if more:
        part.fail("holds a second document", mend="one document per file")
    build = TopologyBuilder(source, name="topograph", provenance="description")
    tree = NetworkTree(source, build)
    if isinstance(part.value, list):
        build.provenance = "measurement"
        for entry in part.value:
            if "GpuIDList" in mapping(entry):
                _compute_node(part, tree, entry)
            else:
                _netq_graph(part, tree, mapping(entry))
    else:
        _model(part, tree)
    if not build.nodes and not build.vertices:
        part.fail("names no switch and no machine", mend="switches: and blocks:")
    return build.build()


def _model(part: Part, tree: NetworkTree) -> None:
    told = mapping(part.value)
    for name, switch in mapping(told.get("switches")).items():
        for below in sequence(mapping(switch).get("switches")):
            tree.join(tree.switch(word(below) or "?"), tree.switch(name))
        tree.switch(name)
    for index, block in enumerate(sequence(told.get("blocks"))):
        at = ("blocks", index)
        if not isinstance(block, dict):
            part.fail("has a block that is no mapping", *at, mend="- switch: NAME, nodes: [...]")
        line = part.line(*at) or 1
        hosts = [h for text in sequence(block.get("nodes")) for h in tree.names(word(text) or "", line)]
        switch = word(block.get("switch"))
        domain = next(
            (word(v) for k, v in mapping(block.get("annotations")).items() if str(k).endswith("/domain")), None
        )
        for host in hosts:
            machine = tree.machine(host)
            if switch:
                tree.join(machine, tree.switch(switch))
            if domain:
                tree.join(machine, tree.domain(domain))


def _compute_node(part: Part, tree: NetworkTree, entry: dict[str, Any]) -> None:
    name = word(entry.get("Name"))
    if name is None:
        part.fail("has a compute node without a Name")
    gpus = sequence(entry.get("GpuIDList"))
    if len(gpus) > _MOST_GPUS:
        part.fail(f"says that {name} has {len(gpus):,} GPUs", mend="no machine has so many")
    node = tree.build.node(name)
    for _ in gpus:
        tree.build.device(node, DeviceKind.GPU)
    if domain := word(entry.get("DomainUUID")):
        tree.join(tree.machine(name), tree.domain(domain))


def _netq_graph(part: Part, tree: NetworkTree, told: dict[str, Any]) -> None:
    """Devices in tiers; what is found by LLDP only is a machine."""
    ends: dict[str, str] = {}
    for tier in sequence(told.get("nodes")):
        for device in sequence(mapping(tier).get("compounded_nodes")):
            entry = mapping(device)
            key, name = word(entry.get("id")), word(entry.get("name"))
            if key is None or name is None:
                part.fail("has a node without id or name")
            is_switch = entry.get("device_type") == "switch"
            ends[key] = tree.switch(name) if is_switch else tree.machine(name)
    for told_link in sequence(told.get("links")):
        entry = mapping(told_link)
        a, b = (ends.get(word(entry.get(key)) or "") for key in ("src", "target"))
        cables = len(sequence(entry.get("compounded_links"))) or entry.get("size")
        if a is None or b is None:
            tree.build.warn("links to nodes that are not told of", str(entry.get("id"))[:60])
            continue
        known = isinstance(cables, int) and not isinstance(cables, bool) and 0 < cables < _MOST_CABLES
        tree.build.link(a, b, LinkKind.ETHERNET, count=cables if known else None)


FORMAT = Format(name="topograph", title="topograph models, NetQ", recognise=_recognise, read=_read)
