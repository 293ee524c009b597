"""`observatory topology`: what a machine is made of."""

from __future__ import annotations

from pathlib import Path

import click

from observatory.app.cli.common import common_options, print_json
from observatory.app.cli.topology_import import import_files
from observatory.app.topology_document import topology_document


@click.group()
def command() -> None:
    """Show what a machine is made of: nodes, sockets, devices, and the links between them.

    \b
    Examples:
      observatory topology show
      observatory topology show --topology two-socket-8gpu
      observatory topology import nccl-topo.xml lstopo.xml
    """


command.add_command(import_files)


@command.command("show")
@click.option(
    "--topology",
    metavar="FILE|NAME|real",
    default="real",
    show_default=True,
    help="A topology file of any known format, the name of a shipped one, or this machine.",
)
@common_options
def show(topology: str, state: Path, as_json: bool) -> None:
    """Show a topology as a tree, and links that are not in the tree below it.

    \b
    Examples:
      observatory topology show                                this machine
      observatory topology show --topology two-socket-8gpu     the shipped 8-GPU node
      observatory topology show --topology rack.yaml --json
      observatory topology show --topology lstopo.xml          a file of hwloc, NCCL, nvidia-smi: see topology import
    """
    from observatory.topology.load import load_topology

    graph = load_topology(topology)
    if as_json:
        print_json(topology_document(graph))
        return
    from rich.console import Console

    from observatory.app.cli.topology_tree import draw

    draw(Console(), graph)
