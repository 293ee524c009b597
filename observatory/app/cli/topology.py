"""`observatory topology`: what machines are made of, what moving data costs there, and what changes."""

from __future__ import annotations

from pathlib import Path

import click

from observatory.app.cli.common import common_options, print_json
from observatory.app.cli.topology_cost import cost
from observatory.app.cli.topology_diff import diff
from observatory.app.cli.topology_import import import_files
from observatory.app.cli.topology_set import set_part
from observatory.app.cli.topology_watch import watch
from observatory.app.topology_document import topology_document


@click.group()
def command() -> None:
    """Show what machines are made of, what moving data between devices costs, and what changes.

    \b
    Examples:
      observatory topology show
      observatory topology show --topology two-socket-8gpu
      observatory topology import nccl-topo.xml lstopo.xml
      observatory topology cost --topology two-socket-8gpu --from n0/gpu0 --to n0/cpu1
      observatory topology diff yesterday.yaml real
      observatory topology watch
      observatory topology set gpu0-nvswitch0 width=8
    """


command.add_command(import_files)
command.add_command(cost)
command.add_command(diff)
command.add_command(set_part)
command.add_command(watch)


@command.command("show")
@click.option(
    "--topology",
    metavar="FILE|NAME|real|live",
    default="real",
    show_default=True,
    help="A topology file of any known format, the name of a shipped or stored one, this machine, or what "
    "the platform on --state sees.",
)
@common_options
def show(topology: str, state: Path, as_json: bool) -> None:
    """Show a topology as a tree, and links that are not in the tree below it.

    \b
    Examples:
      observatory topology show                                this machine
      observatory topology show --topology two-socket-8gpu     the shipped 8-GPU node
      observatory topology show --topology live                what the platform that runs sees
      observatory topology show --topology rack.yaml --json
      observatory topology show --topology lstopo.xml          a file of hwloc, NCCL, nvidia-smi: see topology import
    """
    from observatory.app.topology_views import chosen_topology

    graph = chosen_topology(topology, state)
    if as_json:
        print_json(topology_document(graph))
        return
    from rich.console import Console

    from observatory.app.cli.topology_tree import draw

    draw(Console(), graph)
