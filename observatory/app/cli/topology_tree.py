"""A topology drawn in the terminal: a tree of what hangs on each socket, then the links that are not in it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from observatory.app.cli.topology_words import (
    cache_words,
    counted,
    device_words,
    function_words,
    link_words,
    vertex_words,
)
from observatory.model.device import Device, DeviceKind
from observatory.model.hardware import PciFunction
from observatory.model.link import LinkKind
from observatory.model.topology import Topology, Vertex, VertexKind
from observatory.topology.cpulist import format_cpulist
from observatory.topology.graph import TopologyGraph

WIDE = 160
"""Columns that lines may take when the output is no terminal."""

_DOWNWARDS = frozenset({LinkKind.MEMORY, LinkKind.PCIE, LinkKind.CXL, LinkKind.C2C, LinkKind.STORAGE})
_PORTS = frozenset({VertexKind.ROOT_PORT, VertexKind.PCI_BRIDGE})
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
        self.unshown = _unshown(graph.topology)
        self.of_node: dict[str | None, dict[str, Device | Vertex]] = {}
        for name, thing in self.things.items():
            self.of_node.setdefault(thing.node, {})[name] = thing

    def node(self, tree: Tree, node: str) -> None:
        """Sockets with all that hangs on them, then what is left of the node: buses of no known socket, devices."""
        mine = self.of_node.get(node, {})
        sockets = self.of_kind(mine, VertexKind.SOCKET)
        buses = self.of_kind(mine, VertexKind.HOST_BRIDGE)
        devices = [n for n, thing in mine.items() if isinstance(thing, Device)]
        self.drawn |= set(sockets)  # so that none is drawn below another
        for name in sockets:
            self.branch(tree, name, None)
        for name in (*buses, *devices, *mine):
            if name not in self.drawn:
                self.branch(tree, name, None)

    @staticmethod
    def of_kind(things: dict[str, Device | Vertex], kind: VertexKind) -> list[str]:
        """The names of the vertices of one kind."""
        return [name for name, thing in things.items() if isinstance(thing, Vertex) and thing.kind is kind]

    def branch(self, tree: Tree, name: str, link: int | None) -> None:
        """One thing, and below it what it leads to downwards."""
        self.drawn.add(name)
        below = tree.add(self.words(name, link))
        thing = self.things[name]
        if isinstance(thing, Device) and thing.kind is DeviceKind.CPU:
            self.caches(below, thing)
        found = []
        empty = 0
        for other, index in self.downwards(name):
            self.links.add(index)
            self.drawn.add(other)  # before going deeper: what hangs here directly is drawn here
            if self.is_empty_port(other):
                empty += 1
            else:
                found.append((other, index))
        for other, index in found:
            self.branch(below, other, index)
        rest = [f"{counted(empty, 'port')} with nothing behind"] if empty else []
        if name in self.unshown:
            rest.append(function_words(self.unshown[name]))
        if rest:
            below.add(f"[dim]and {escape(', '.join(rest))}[/]")

    def downwards(self, name: str) -> list[tuple[str, int]]:
        """What is linked to `name` and not drawn yet; between processors no link leads down."""
        found = []
        for number, index in self.graph.neighbours[self.graph.numbers[name]]:
            other = self.graph.names[number]
            level = self.is_cpu(name) and self.is_cpu(other)
            if other not in self.drawn and not level and self.graph.topology.links[index].kind in _DOWNWARDS:
                found.append((other, index))
        return found

    def is_cpu(self, name: str) -> bool:
        """Whether it is a device of kind cpu."""
        thing = self.things[name]
        return isinstance(thing, Device) and thing.kind is DeviceKind.CPU

    def is_empty_port(self, name: str) -> bool:
        """Whether it is a port or bridge with nothing behind it; its own link upwards is one."""
        thing = self.things[name]
        leaf = len(self.graph.neighbours[self.graph.numbers[name]]) == 1
        return isinstance(thing, Vertex) and thing.kind in _PORTS and leaf and name not in self.unshown

    def caches(self, tree: Tree, device: Device) -> None:
        """The caches of a processor; one that it shares with a processor drawn before was told there."""
        mine = set(device.cpus or ())
        caches = [c for c in self.graph.topology.caches if c.node == device.node and c.cpus[0] in mine]
        if caches:
            tree.add(f"[dim]{escape(cache_words(caches))}[/]")

    def words(self, name: str, link: int | None) -> str:
        """A device or vertex in one line, and the link it hangs on."""
        thing = self.things[name]
        if isinstance(thing, Vertex):
            words = f"{escape(name)} [dim]{escape(vertex_words(thing))}[/]"
        else:
            words = f"[cyan]{escape(name)}[/] {escape(device_words(thing))}"
        if link is not None:
            told = link_words(self.graph.topology.links[link])
            words += f" [dim]- {escape(told)}[/]" if told else ""
        return words

    def other_links(self, console: Console) -> None:
        """Links outside the tree, in a table; many alike links to one switch in one row."""
        rows: dict[tuple[str, str], list[str]] = {}
        for index, link in enumerate(self.graph.topology.links):
            if index not in self.links:
                hub, leaf = (link.a, link.b) if isinstance(self.things[link.a], Vertex) else (link.b, link.a)
                rows.setdefault((hub, link_words(link) or link.kind.value), []).append(leaf)
        if not rows:
            return
        table = Table(title="\nother links", title_justify="left", title_style="bold", box=None, show_header=False)
        for (hub, words), leaves in rows.items():
            many = len(leaves) > _LEAVES_OF_A_SWITCH
            ends = [f"{len(leaves)} x {_shared(leaves)}"] if many else leaves
            for end in ends:
                table.add_row(f"  {escape(end)}", escape(hub), escape(words))
        console.print(table)


def _unshown(topology: Topology) -> dict[str, list[PciFunction]]:
    """Vertex -> PCI functions right below it that nothing stands for; virtual ones belong to their card."""
    stands_for = {(f.node, f.bus_id): f.shown_as for f in topology.pci_functions}
    hosts = {(v.node, v.name): v.id for v in topology.vertices if v.kind is VertexKind.HOST_BRIDGE}
    found: dict[str, list[PciFunction]] = {}
    for function in topology.pci_functions:
        if function.parent is None:
            above = hosts.get((function.node, function.host_bridge))
        else:
            above = stands_for.get((function.node, function.parent))
        if function.shown_as is None and function.physical_function is None and above is not None:
            found.setdefault(above, []).append(function)
    return found


def _shared(names: list[str]) -> str:
    """`n0/gpu0..7` for names that differ in a number at the end, else the first and how many more."""
    stems = {n.rstrip("0123456789") for n in names}
    if len(stems) == 1:
        stem = stems.pop()
        numbers = tuple(sorted(int(n[len(stem) :]) for n in names if n != stem))
        if len(numbers) == len(names):
            return f"{stem}{format_cpulist(numbers)}"
    return f"{names[0]}, ..."
