"""`observatory topology cost`: what moving data costs, between all devices or nodes, or between two and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from observatory.app.cli.common import common_options, print_json, warn
from observatory.app.units import bytes_text, parse_size, rate_text, seconds_text
from observatory.documents import did_you_mean
from observatory.model.errors import ModelError

if TYPE_CHECKING:
    from rich.console import Console

    from observatory.model.link import Link
    from observatory.model.topology import Topology
    from observatory.topology.paths import Path as Way

_DRAWN = 40  # rows and columns that a terminal can show


@click.command("cost")
@click.option(
    "--topology",
    metavar="FILE|NAME|real|live",
    help="A topology file of any known format, the name of a shipped or stored one, this machine (real), or what the "
    "platform on --state sees (live). Default: live where a platform runs, else real.",
)
@click.option("--from", "source", metavar="DEVICE", help="Only from this device.")
@click.option("--to", "target", metavar="DEVICE", help="With --from: the way between the two, link by link.")
@click.option("--bytes", "size", metavar="N", default="1Mi", show_default=True, help="Size: 8000, 3M, 1Mi.")
@click.option("--node", metavar="NODE", help="Only the devices of this node.")
@click.option("--assume-latencies", is_flag=True, help="Where none is told take that of data sheets, and say so.")
@click.option("--nodes", "between_nodes", is_flag=True, help="Between nodes, also where all devices would fit.")
@common_options
def cost(
    topology: str | None,
    source: str | None,
    target: str | None,
    size: str,
    node: str | None,
    assume_latencies: bool,
    between_nodes: bool,
    state: Path,
    as_json: bool,
) -> None:
    """Predicted time to move one message: latencies of all links on the best way, and bytes over its bottleneck.

    Between devices; between nodes (from the first CPU of each) where there are more than 512 devices. "?" is a cost
    that cannot be predicted: no way, or a link of unknown bandwidth or latency on every way. This machine's own
    description has no latencies: give a file that has, or --assume-latencies.

    \b
    Examples:
      observatory topology cost --topology two-socket-8gpu
      observatory topology cost --topology two-socket-8gpu --from n0/gpu0 --to n0/cpu1
      observatory topology cost --topology two-socket-8gpu --from n0/gpu0 --bytes 3110400
      observatory topology cost --topology live --from n0/gpu0
      observatory topology cost --topology cluster.yaml --node n3 --json
      observatory topology cost --topology nccl-topo.xml --assume-latencies
    """
    from observatory.app.topology_views import chosen_topology, live_or_real
    from observatory.topology.errors import NoSuchVertex

    if target is not None and source is None:
        raise ModelError("--to says only where data goes", mend="give --from DEVICE, too")
    if source is not None and (node is not None or between_nodes):
        raise ModelError("--from and --node (or --nodes) contradict each other", mend="leave one of them out")
    message_bytes = parse_size(size) or 0
    graph, which = live_or_real(state) if topology is None else (chosen_topology(topology, state), topology)
    names = {*(d.id for d in graph.devices), *(v.id for v in graph.vertices)}
    for end in (source, target):
        if end is not None and end not in names:
            raise NoSuchVertex(
                f"no device or vertex {end!r} in {which}",
                mend=did_you_mean(end, names) or "name another --topology: a file, live, real",
            )
    if assume_latencies:
        from observatory.topology.defaults import with_default_latencies

        told, graph = len(graph.warnings), with_default_latencies(graph)
        for words in graph.warnings[told:]:
            warn(words)
    if source is not None and target is not None:
        _pair(graph, source, target, message_bytes, as_json)
        return
    document = (
        _row(graph, source, message_bytes) if source is not None else _matrix(graph, node, between_nodes, message_bytes)
    )
    if as_json:
        print_json(document)
        return
    from rich.console import Console

    _draw(Console(), document)


def _matrix(topology: Topology, node: str | None, between_nodes: bool, message_bytes: int) -> dict[str, Any]:
    from observatory.app.topology_costs import cost_document

    return cost_document(topology, "nodes" if between_nodes else "auto", node, message_bytes)


def _row(topology: Topology, source: str, message_bytes: int) -> dict[str, Any]:
    from observatory.model.cost import CostParameters
    from observatory.topology.cluster_costs import ClusterCosts

    targets = [device.id for device in topology.devices]
    seconds = ClusterCosts(topology, CostParameters(), message_bytes=message_bytes).row(source, targets).tolist()
    return {
        "from": source,
        "message_bytes": message_bytes,
        "unit": "seconds",
        "labels": targets,
        "seconds": [None if value != value else value for value in seconds],
    }


def _draw(console: Console, document: dict[str, Any]) -> None:
    from rich.table import Table

    labels: list[str] = document["labels"]
    about = f"{bytes_text(document['message_bytes'])} "
    if "from" in document:
        console.print(f"{about}from {document['from']}", style="bold", highlight=False)
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("to")
        table.add_column("takes", justify="right")
        for label, seconds in zip(labels, document["seconds"], strict=True):
            table.add_row(label, seconds_text(seconds))
        console.print(table, highlight=False)
        return
    shared = _shared(labels)
    title = f"{about}between {document['level']}{f' of {shared[:-1]}' if shared else ''}"
    console.print(title, style="bold", highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0))
    shown = labels[:_DRAWN]
    table.add_column("")
    for label in shown:
        table.add_column(label.removeprefix(shared), justify="right", no_wrap=True)
    for label, row in zip(shown, document["seconds"], strict=False):
        table.add_row(label.removeprefix(shared), *map(seconds_text, row[:_DRAWN]))
    wide = 12 + sum(10 for _ in shown)
    console.width = max(console.width, wide)  # a matrix that is folded cannot be read
    console.print(table, highlight=False, soft_wrap=True)
    if len(labels) > _DRAWN:
        more = f"and {len(labels) - _DRAWN} more: --node NODE shows those of one node, --json all"
        console.print(more, highlight=False)


def _shared(labels: list[str]) -> str:
    """The node, where all devices are of one."""
    nodes = {label.partition("/")[0] for label in labels if "/" in label}
    return f"{nodes.pop()}/" if len(nodes) == 1 and len(labels) > 1 else ""


# -- two devices -------------------------------------------------------------------------------------------------------


def _pair(topology: Topology, source: str, target: str, message_bytes: int, as_json: bool) -> None:
    from observatory.model.cost import CostParameters
    from observatory.topology.paths import PathFinder

    way = PathFinder(topology, CostParameters()).best(source, target, message_bytes)
    if as_json:
        print_json(_pair_document(source, target, message_bytes, way))
        return
    from rich.console import Console

    _draw_pair(Console(), source, target, message_bytes, way)


def _bottleneck(way: Way) -> Link | None:
    """The narrowest link; None of a way that cannot be predicted."""
    if way.seconds is None or not way.links:
        return None
    return min(way.links, key=lambda link: link.bandwidth_bytes_per_second or 0.0)


def _pair_document(source: str, target: str, message_bytes: int, way: Way) -> dict[str, Any]:
    slowest = _bottleneck(way)
    return {
        "from": source,
        "to": target,
        "message_bytes": message_bytes,
        "seconds": way.seconds,
        "reason": way.reason,
        "bottleneck": None if slowest is None else slowest.id,
        "path": [
            {
                "link": link.id,
                "kind": link.kind.value,
                "latency_seconds": link.latency_seconds,
                "bandwidth_bytes_per_second": link.bandwidth_bytes_per_second,
            }
            for link in way.links
        ],
    }


def _draw_pair(console: Console, source: str, target: str, message_bytes: int, way: Way) -> None:
    from rich.table import Table

    takes = seconds_text(way.seconds) if way.seconds is not None else f"? ({way.reason})"
    console.print(f"{bytes_text(message_bytes)} from {source} to {target}: {takes}", highlight=False)
    if not way.links:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "link", "latency", "bandwidth", ""):
        table.add_column(heading, justify="right" if heading in ("latency", "bandwidth") else "left")
    slowest, here = _bottleneck(way), source
    for link in way.links:
        there = link.b if link.a == here else link.a
        longest = seconds_text(message_bytes / (link.bandwidth_bytes_per_second or 1))
        mark = f"bottleneck: {longest}" if link is slowest else ""
        latency, rate = seconds_text(link.latency_seconds), rate_text(link.bandwidth_bytes_per_second)
        table.add_row(f"  {here} to {there}", link.kind.value, latency, rate, mark)
        here = there
    if slowest is not None:
        latencies = sum(link.latency_seconds or 0.0 for link in way.links)
        table.add_row("  all latencies", "", seconds_text(latencies), "", "")
    console.print(table, highlight=False)
