"""A topology drawn in the terminal: a tree of what hangs on each socket, then the links that are not in it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from observatory.app.units import bytes_text, rate_text, seconds_text
from observatory.model.device import Device
from observatory.model.link import Link, LinkKind, LinkState
from observatory.model.topology import Topology, Vertex, VertexKind
from observatory.topology.cpulist import format_cpulist
from observatory.topology.graph import TopologyGraph

WIDE = 160
"""Columns that lines may take when the output is no terminal."""

_DOWNWARDS = frozenset({LinkKind.MEMORY, LinkKind.PCIE, LinkKind.CXL, LinkKind.C2C})
_LEAVES_OF_A_SWITCH = 4  # other links to one switch beyond so many are drawn as one line


def draw(console: Console, topology: Topology) -> None:
    """Print the tree, the other links, and the warnings."""
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDE)
    graph = TopologyGraph(topology)
    drawing = _Drawing(graph)
    title = f"[bold]{escape(topology.name or 'topology')}[/]"
    if topology.provenance == "description":
        title += " [dim](a description, not a measurement)[/]"
    tree = Tree(f"{title} [dim]from {escape(', '.join(topology.sources))}[/]", guide_style="dim")
    for node in topology.nodes:
        drawing.node(tree.add(f"[bold]{escape(node.id)}[/]"), node.id)
    console.print(tree, highlight=False)
    drawing.other_links(console)
    for warning in topology.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True, highlight=False)


class _Drawing:
    """What was drawn so far: every device and vertex once, every link once."""

    def __init__(self, graph: TopologyGraph) -> None:
        self.graph = graph
        self.things: dict[str, Device | Vertex] = {d.id: d for d in graph.topology.devices}
        self.things |= {v.id: v for v in graph.topology.vertices}
        self.drawn: set[str] = set()
        self.links: set[int] = set()

    def node(self, tree: Tree, node: str) -> None:
        """Sockets with all that hangs on them, then what is left of the node."""
        mine = {n: thing for n, thing in self.things.items() if thing.node == node}
        sockets = [n for n, thing in mine.items() if isinstance(thing, Vertex) and thing.kind is VertexKind.SOCKET]
        devices = [n for n, thing in mine.items() if isinstance(thing, Device)]
        self.drawn |= set(sockets)  # so that none is drawn below another
        for name in sockets:
            self.branch(tree, name, None)
        for name in (*devices, *mine):
            if name not in self.drawn:
                self.branch(tree, name, None)

    def branch(self, tree: Tree, name: str, link: int | None) -> None:
        """One thing, and below it what it leads to downwards."""
        self.drawn.add(name)
        below = tree.add(self.words(name, link))
        found = []
        for number, index in self.graph.neighbours[self.graph.numbers[name]]:
            other = self.graph.names[number]
            if other not in self.drawn and self.graph.topology.links[index].kind in _DOWNWARDS:
                self.links.add(index)
                self.drawn.add(other)  # before going deeper: what hangs here directly is drawn here
                found.append((other, index))
        for other, index in found:
            self.branch(below, other, index)

    def words(self, name: str, link: int | None) -> str:
        """A device or vertex in one line, and the link it hangs on."""
        thing = self.things[name]
        if isinstance(thing, Vertex):
            words = f"{escape(name)} [dim]{thing.kind.value}[/]"
        else:
            words = f"[cyan]{escape(name)}[/] {escape(' '.join(_about(thing)))}"
        if link is not None:
            told = _link_words(self.graph.topology.links[link])
            words += f" [dim]- {escape(told)}[/]" if told else ""
        return words

    def other_links(self, console: Console) -> None:
        """Links outside the tree, in a table; many alike links to one switch in one row."""
        rows: dict[tuple[str, str], list[str]] = {}
        for index, link in enumerate(self.graph.topology.links):
            if index not in self.links:
                hub, leaf = (link.a, link.b) if isinstance(self.things[link.a], Vertex) else (link.b, link.a)
                rows.setdefault((hub, _link_words(link) or link.kind.value), []).append(leaf)
        if not rows:
            return
        table = Table(title="\nother links", title_justify="left", title_style="bold", box=None, show_header=False)
        for (hub, words), leaves in rows.items():
            many = len(leaves) > _LEAVES_OF_A_SWITCH
            ends = [f"{len(leaves)} x {_shared(leaves)}"] if many else leaves
            for end in ends:
                table.add_row(f"  {escape(end)}", escape(hub), escape(words))
        console.print(table)


def _about(device: Device) -> Iterable[str]:
    if device.name:
        yield device.name
    for engine in device.engines:
        what = (
            {"compute": "cores"}.get(engine.kind.value, engine.kind.value)
            if device.kind == "cpu"
            else engine.kind.value
        )
        sessions = "" if engine.sessions is None else f" (at most {engine.sessions} sessions)"
        yield f"{engine.count} {what}{sessions}"
    if device.memory_bytes is not None:
        yield bytes_text(device.memory_bytes)
    if device.numa_node is not None:
        yield f"numa {device.numa_node}"
    if device.cpus is not None:
        yield f"cpus {format_cpulist(device.cpus)}"
    if device.pci_bus_id:
        yield device.pci_bus_id


def _link_words(link: Link) -> str:
    """What is known of a link: kind, count or width, speed, bandwidth, latency, distance, a state worth saying."""
    words = [link.kind.value]
    if link.count is not None:
        words.append(f"x{link.count}")
    elif link.width is not None:
        words.append(f"x{link.width}")
    if link.speed:
        words.append(link.speed)
    if link.bandwidth_bytes_per_second is not None:
        words.append(rate_text(link.bandwidth_bytes_per_second))
    if link.latency_seconds is not None:
        words.append(seconds_text(link.latency_seconds))
    if link.numa_distance is not None:
        words.append(f"distance {link.numa_distance}")
    if link.state in (LinkState.DEGRADED, LinkState.DOWN):
        words.append(link.state.value.upper())
    return " ".join(words) if len(words) > 1 else ""


def _shared(names: list[str]) -> str:
    """`n0/gpu0..7` for names that differ in a number at the end, else the first and how many more."""
    stems = {n.rstrip("0123456789") for n in names}
    if len(stems) == 1:
        stem = stems.pop()
        numbers = tuple(sorted(int(n[len(stem) :]) for n in names if n != stem))
        if len(numbers) == len(names):
            return f"{stem}{format_cpulist(numbers)}"
    return f"{names[0]}, ..."
