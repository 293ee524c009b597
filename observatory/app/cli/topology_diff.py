"""`observatory topology diff`: what differs between two topologies."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from observatory.app.cli.common import common_options, print_json
from observatory.app.units import bytes_text, rate_text, seconds_text
from observatory.topology.diff import Change, ChangeKind

_MARKS = {ChangeKind.APPEARED: "+", ChangeKind.GONE: "-", ChangeKind.CHANGED: "~"}
_COLORS = {ChangeKind.APPEARED: "green", ChangeKind.GONE: "red", ChangeKind.CHANGED: "yellow"}


@click.command(
    "diff",
    epilog="""\b
Exit codes, as of diff: 0 they are the same, 1 they differ, 2 one of them cannot be read.
""",
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@common_options
def diff(before: str, after: str, state: Path, as_json: bool) -> int:
    """Show which nodes, devices, switches and links of topology A are gone in B, appeared there, or changed.

    A and B are topology files of any known format, names of shipped ones, or "real", this machine. Things are the same
    by id; where a topology was read from and how busy its links are does not count.

    \b
    Examples:
      observatory topology diff yesterday.yaml real
      observatory topology diff nccl-topo-a.xml nccl-topo-b.xml --json
    """
    from observatory.topology.diff import compare
    from observatory.topology.load import load_topology

    changes = compare(load_topology(before), load_topology(after))
    if as_json:
        print_json({"same": not changes, "changes": [change_document(change) for change in changes]})
        return 1 if changes else 0
    for change in changes:
        click.echo(click.style(f"{_MARKS[change.kind]} {change_words(change)}", fg=_COLORS[change.kind]))
    return 1 if changes else 0


def change_document(change: Change) -> dict[str, Any]:
    """A change as JSON: kind, what, id, and name, before and after of what changed."""
    return asdict(change)


def change_words(change: Change) -> str:
    """`link n0/gpu0--n0/pcie0:pcie: width 16 -> 8`."""
    if change.kind is not ChangeKind.CHANGED or change.name is None:
        return f"{change.what} {change.id} {change.kind.value}"
    before, after = (value_words(change.name, value) for value in (change.before, change.after))
    name = re.sub(r"(_bytes)?_per_second$|_seconds$|_bytes$", "", change.name).replace("_", " ")
    return f"{change.what} {change.id}: {name} {before} -> {after}"


def value_words(name: str, value: Any) -> str:
    """A value with its unit; unknown is a question mark."""
    if value is None:
        return "?"
    if name.endswith("bytes_per_second"):
        return rate_text(value)
    if name.endswith("_seconds"):
        return seconds_text(value)
    if name.endswith("_bytes"):
        return bytes_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
