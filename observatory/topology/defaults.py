"""What a topology does not tell, filled in from data sheets where somebody asks for it: latencies of links.

Importers leave a latency unknown where its source does not tell it, and so a cost. This makes a guess of it that says
what it is: the rows of `observatory.model.data_sheets.LATENCIES`, each with its source and its assumption.
"""

from __future__ import annotations

from collections import Counter

from observatory.model.data_sheets import LATENCIES, default_latency_seconds
from observatory.model.link import Link
from observatory.model.topology import Topology


def with_default_latencies(topology: Topology) -> Topology:
    """The topology with a latency for every link of a kind that has one in the data sheets; a warning for each kind."""
    filled: Counter[str] = Counter()

    def fill(link: Link) -> Link:
        seconds = default_latency_seconds(link.kind) if link.latency_seconds is None else None
        if seconds is None:
            return link
        filled[link.kind.value] += 1
        return link.model_copy(update={"latency_seconds": seconds})

    links = tuple(fill(link) for link in topology.links)
    rows = {row.kind.value: row for row in reversed(LATENCIES)}
    warnings = tuple(
        f"latencies of {count} {kind} links are assumed: {rows[kind].seconds * 1e9:g} ns ({rows[kind].source})"
        for kind, count in filled.items()
    )
    return topology.model_copy(update={"links": links, "warnings": (*topology.warnings, *warnings)})
