"""NCCL's graphs: what `NCCL_GRAPH_DUMP_FILE` writes, the rings and trees that it chose over a topology.

    <graphs> <graph id pattern nchannels speedintra typeintra> <channel> <net dev/> <gpu dev/> ...

They name GPUs and network devices by number and the search's own speeds, which are no rates of links: GPUs and cards
are read, links are not told.
"""

from __future__ import annotations

from observatory.model.device import DeviceKind
from observatory.model.topology import Topology
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.xml_tree import read_xml, root_name

_MOST_NUMBER = 100_000


def _read(source: Source) -> Topology:
    root = read_xml(source)
    build = TopologyBuilder(source, name="nccl graphs")
    node = build.node()
    found: dict[DeviceKind, set[int]] = {DeviceKind.GPU: set(), DeviceKind.NIC: set()}
    for graph in root.of("graph"):
        for channel in graph.of("channel"):
            for step in channel.children:
                kind = {"gpu": DeviceKind.GPU, "net": DeviceKind.NIC}.get(step.tag)
                number = step.get("dev") or ""
                if kind is None:
                    build.warn("elements that are not known", f"<{step.tag}> on line {step.line}")
                elif not number.isascii() or not number.isdigit() or len(number) > 6 or int(number) > _MOST_NUMBER:
                    source.fail(f"has a <{step.tag}> without a number", step.line, 'dev="0"')
                else:
                    found[kind].add(int(number))
    if not found[DeviceKind.GPU]:
        source.fail("names no GPU", root.line, "NCCL_GRAPH_DUMP_FILE writes whole files")
    for kind, numbers in found.items():
        for index in sorted(numbers):
            build.device(node, kind, number=index)
    build.warn("NCCL's graphs tell which GPUs there are, not how they are linked: give NCCL_TOPO_DUMP_FILE, too")
    return build.build()


FORMAT = Format(
    name="nccl-graphs",
    title="NCCL graphs (XML)",
    recognise=lambda source: root_name(source) == "graphs",
    read=_read,
)
