"""`observatory topology diff`: what differs between two topologies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from observatory.app.cli.common import common_options, print_json
from observatory.app.units import bytes_text, rate_text, seconds_text
from observatory.topology.cpulist import format_cpulist
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

    A and B are topology files of any known format, names of shipped or stored ones, "real", this machine, or "live",
    what the platform on --state sees. Things are the same by id; where a topology was read from and how busy its links
    are does not count.

    \b
    Examples:
      observatory topology diff yesterday.yaml real
      observatory topology diff real live
      observatory topology diff nccl-topo-a.xml nccl-topo-b.xml --json
    """
    from observatory.app.topology_views import chosen_topology
    from observatory.topology.diff import compare

    changes = compare(chosen_topology(before, state), chosen_topology(after, state))
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
    return _plain_words(value)


def _plain_words(value: Any) -> str:
    """Of a list its members, of a thing (an engine, a port, a cache) what is known of it, in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        if value and all(isinstance(number, int) for number in value):
            return format_cpulist(tuple(value))
        return ", ".join(map(_plain_words, value)) or "none"
    if isinstance(value, dict):
        return " ".join(_parts(value)) or "none"
    return str(value)


def _parts(thing: Mapping[str, Any]) -> Iterator[str]:
    """`1 decode`, `mlx5_0/1 link layer infiniband 50 GB/s up`: names and kinds as they are, the rest with its name."""
    for name, value in thing.items():
        if value is None or value == [] or value == "unknown":
            continue
        if name == "kind" and "count" in thing:
            yield f"{thing['count']} {value}"
        elif name in ("id", "name", "kind", "state") or name.endswith(("_per_second", "_seconds", "_bytes")):
            yield value_words(name, value)
        elif name != "count":
            yield f"{name.replace('_', ' ')} {value_words(name, value)}"
