"""Topologies by name: a shipped description, `real` for this machine, or a file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from observatory.documents import closest
from observatory.model.topology import Topology
from observatory.topology.errors import BadTopology

DEFAULT = "two-socket-8gpu"
REAL = "real"


def shipped_names() -> tuple[str, ...]:
    """Names of the topologies that come with the package."""
    folder = files("observatory.topology") / "shipped"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def load_topology(choice: str | Path | None = None) -> Topology:
    """The topology that `choice` names: None the shipped default, `real` this machine, a shipped name, or a file of
    any format.

    Raises:
        BadTopology: the file cannot be read or understood.
        MachineUnreadable: `real` on a machine whose sysfs says nothing.
    """
    from observatory.topology.importers.own_yaml import read_topology

    if choice is None:
        choice = DEFAULT
    if choice == REAL:
        from observatory.topology.importers.real import read_machine

        return read_machine()
    if isinstance(choice, str) and choice in shipped_names():
        with as_file(files("observatory.topology") / "shipped" / f"{choice}.yaml") as path:
            topology = read_topology(path)
        return topology.model_copy(update={"sources": (f"shipped: {choice}",)})
    if not Path(choice).exists():
        known = (REAL, *shipped_names())
        meant = closest(str(choice), known)
        mend = f"did you mean {meant}?" if meant else f"name a file, or one of: {', '.join(known)}"
        raise BadTopology(f"there is no topology {choice}", file=str(choice), mend=mend)
    from observatory.topology.importers.recognise import read_file

    return read_file(str(choice))


def import_topologies(choices: Sequence[str | Path]) -> Topology:
    """What several files, folders or names tell of the same machines, merged; contradictions are warnings.

    Raises:
        BadTopology: one of them cannot be read or understood.
        MachineUnreadable: `real` on a machine whose sysfs says nothing.
    """
    from observatory.topology.merge.topologies import merge_topologies

    return merge_topologies([load_topology(choice) for choice in choices])
