"""`observatory topology import`: what files of others say of machines, merged and shown."""

from __future__ import annotations

import re
from pathlib import Path

import click

from observatory.app.cli.common import common_options, print_json
from observatory.app.topology_document import topology_document
from observatory.model.errors import MediaObservatoryError
from observatory.model.topology import Topology

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_DRAWN_NODES = 32


class CannotSave(MediaObservatoryError):
    """The topology cannot be stored."""


@click.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--save", is_flag=True, help="Store it as our own YAML under the state directory; else nothing is stored."
)
@click.option("--name", metavar="NAME", help="What to store it as. Default: the first file's name.")
@common_options
def import_files(sources: tuple[str, ...], save: bool, name: str | None, state: Path, as_json: bool) -> None:
    """Read topology files of any known format, merge what they say of the same machines, and show it.

    Files are recognised by their content: NCCL and RCCL topologies and graphs (XML), nvidia-smi topo -m, topo -p2p and
    nvlink -s, rocm-smi --showtopo, amd-smi topology, hwloc XML, sysfs trees (folder, tar, ttar), ibnetdiscover,
    iblinkinfo, ibstatus, Slurm's topology.conf and topology.yaml, topograph, Kubernetes Nodes, Volcano HyperNodes,
    Kueue Topologies, cxl list, and our own YAML. A FILE may also be "real", this machine, or the name of a shipped
    topology.

    Machines are the same by host name, by GUID of a port, by PCI bus ids. Contradictions are warnings that name both
    files.

    \b
    Examples:
      observatory topology import nccl-topo.xml
      observatory topology import lstopo.xml nccl-topo.xml nvlink.txt --json
      nvidia-smi topo -m | observatory topology import /dev/stdin
      observatory topology import nodes.yaml topology.conf --save --name cluster
    """
    from observatory.topology.load import import_topologies

    topology = import_topologies(sources)
    saved = _save(topology, state, name or Path(sources[0]).name.partition(".")[0]) if save else None
    if as_json:
        document = topology_document(topology)
        print_json(document if saved is None else {**document, "saved": str(saved)})
        return
    _show(topology)
    if saved is not None:
        click.echo(f"stored: {saved} (use it with --topology {saved})")


def _save(topology: Topology, state: Path, name: str) -> Path:
    from observatory.topology.own_yaml_writer import write_topology

    if not topology.nodes:
        raise CannotSave("there is nothing to store: no machine is told of", mend="import files that name machines")
    clean = _NOT_IN_NAMES.sub("-", name).strip("-.") or "topology"
    path = state / "topologies" / f"{clean}.yaml"
    try:
        write_topology(topology, path, clean)
    except OSError as failure:
        raise CannotSave(
            f"cannot be written: {failure.strerror}", file=str(path), mend="give another --state"
        ) from None
    return path


def _show(topology: Topology) -> None:
    from rich.console import Console

    from observatory.app.cli.topology_tree import draw
    from observatory.app.cli.topology_words import summary_words

    console = Console()
    if len(topology.nodes) > _DRAWN_NODES:
        click.echo(summary_words(topology))
        click.echo("too many machines to draw here: --json has all of them")
        for warning in topology.warnings:
            click.echo(f"warning: {warning}")
        return
    draw(console, topology)
    click.echo(summary_words(topology))
