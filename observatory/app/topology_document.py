"""A topology as a JSON document: what `observatory topology show --json` prints and the HTTP API answers."""

from __future__ import annotations

from typing import Any

from observatory.model.link import LinkState
from observatory.model.topology import Topology


def topology_document(topology: Topology) -> dict[str, Any]:
    """The document; unknown values are null."""
    document = topology.model_dump(mode="json")
    for link in document["links"]:
        if link["state"] == LinkState.UNKNOWN:
            link["state"] = None
    return document
