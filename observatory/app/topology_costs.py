"""C_ij of a topology as a JSON document: what `observatory topology cost --json` prints and the HTTP API answers."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from observatory.documents import did_you_mean
from observatory.model.cost import CostParameters
from observatory.model.topology import Topology
from observatory.topology.cluster_costs import ClusterCosts, Seconds, representatives
from observatory.topology.cost_matrix import LARGEST_DENSE, MESSAGE_BYTES
from observatory.topology.errors import NoSuchVertex

Level = Literal["auto", "nodes", "devices"]


def cost_document(
    topology: Topology, level: Level, node: str | None, message_bytes: float = MESSAGE_BYTES
) -> dict[str, Any]:
    """Predicted seconds for one message, between devices or between nodes; never more than 512 rows.

    Args:
        topology: what moves data.
        level: between what; `auto` is devices where they fit or a node is named, else nodes.
        node: only that node's devices.
        message_bytes: size of the message.

    Raises:
        NoSuchVertex: there is no such node.
    """
    if node is not None and node not in {n.id for n in topology.nodes}:
        mend = did_you_mean(node, [n.id for n in topology.nodes])
        raise NoSuchVertex(f"the topology has no node {node!r}", mend=mend)
    devices = [d.id for d in topology.devices if node in (None, d.node)]
    if level == "auto":
        level = "devices" if node is not None or len(devices) <= LARGEST_DENSE else "nodes"
    costs = ClusterCosts(topology, CostParameters(), message_bytes=message_bytes)
    if level == "nodes":
        labels, seconds = _between_nodes(costs, topology, node)
    else:
        labels = devices
        shown = devices[:LARGEST_DENSE]
        seconds = costs.within(node)[:LARGEST_DENSE, :LARGEST_DENSE] if node else _rows(costs, shown)
    return {
        "level": level,
        "node": node,
        "message_bytes": message_bytes,
        "unit": "seconds",
        "labels": labels[:LARGEST_DENSE],
        "seconds": [[None if value != value else value for value in row] for row in seconds.tolist()],
        "truncated": len(labels) > LARGEST_DENSE,
    }


def _between_nodes(costs: ClusterCosts, topology: Topology, node: str | None) -> tuple[list[str], Seconds]:
    """Nodes that have a device, as many as are shown, and the rows between them."""
    with_devices = representatives(topology)
    numbers = [i for i, name in enumerate(costs.nodes) if name in with_devices and node in (None, name)]
    shown = numbers[:LARGEST_DENSE]
    rows = [costs.between(costs.nodes[i])[shown] for i in shown] if len(shown) < len(costs.nodes) else None
    seconds = costs.between_nodes() if rows is None else np.array(rows).reshape(len(shown), len(shown))
    return [costs.nodes[i] for i in numbers], seconds


def _rows(costs: ClusterCosts, devices: list[str]) -> Seconds:
    return np.array([costs.row(device, devices) for device in devices]).reshape(len(devices), len(devices))
