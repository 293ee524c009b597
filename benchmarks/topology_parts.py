"""One part of `script/bench topology` in a process of its own: `python -m benchmarks.topology_parts PART`, JSON out.

CPU seconds are those of the process, memory is the growth of its largest resident set.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.topology_cluster import cluster
from observatory.model.cost import CostParameters
from observatory.model.observation import Address, AddressKind, Observation
from observatory.model.topology import Topology
from observatory.topology.cluster_costs import ClusterCosts
from observatory.topology.cost_matrix import MESSAGE_BYTES
from observatory.topology.graph import LinkArrays, TopologyGraph
from observatory.topology.live import LiveTopology

MACHINES = 500
UPDATED = 10_000
ROUNDS = 15


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def build() -> dict[str, Any]:
    """Graph and all costs of a cluster from its description."""
    topology = cluster(MACHINES)
    gc.collect()
    before = resident_bytes()
    began = time.process_time()
    costs = ClusterCosts(TopologyGraph(topology), CostParameters(), message_bytes=MESSAGE_BYTES)
    costs.refresh()
    within = time.process_time() - began
    costs.refresh_between()
    whole = time.process_time() - began
    return {
        "devices": len(topology.devices),
        "links": len(topology.links),
        "within_seconds": within,
        "seconds": whole,
        "resident_growth_bytes": resident_bytes() - before,
    }


def update() -> dict[str, Any]:
    """Links with other bandwidths and latencies than before, all of them, drawn anew for every round."""
    graph = TopologyGraph(cluster(MACHINES))
    costs = ClusterCosts(graph, CostParameters(), message_bytes=MESSAGE_BYTES)
    costs.refresh_between()
    described = graph.arrays()
    inner = np.array([i for i in range(len(described.up)) if graph.is_inner(i)])
    random = np.random.default_rng(1)
    found: dict[str, list[float]] = {}
    for where, numbers in (("inside", inner), ("anywhere", np.arange(len(described.up)))):
        for _ in range(ROUNDS):
            arrays = _changed(described, random.choice(numbers, UPDATED, replace=False), random)
            taking = seconds(lambda arrays=arrays: costs.take(arrays))  # type: ignore[misc]
            refreshing = seconds(costs.refresh)
            between = seconds(costs.refresh_between)
            found.setdefault(f"{where}_refresh_seconds", []).append(taking + refreshing)
            found.setdefault(f"{where}_between_seconds", []).append(between)
    few = _changed(described, random.choice(inner, 10, replace=False), random)
    costs.take(described)
    costs.refresh_between()
    found["ten_links_seconds"] = [
        seconds(lambda i=i: (costs.take(few if i % 2 else described), costs.refresh_between()))  # type: ignore[misc]
        for i in range(1, ROUNDS + 1)
    ]
    costs.take(_changed(described, np.arange(len(described.up)), random))
    costs.refresh()
    found["row_seconds"] = [seconds(lambda n=n: costs.between(f"n{n}")) for n in range(ROUNDS)]  # type: ignore[misc]
    return found


def _changed(described: LinkArrays, numbers: Any, random: np.random.Generator) -> LinkArrays:
    bandwidth, latency = described.bandwidth_bytes_per_second.copy(), described.latency_seconds.copy()
    bandwidth[numbers] *= random.choice([0.25, 0.5, 0.75], len(numbers))
    latency[numbers] *= random.uniform(1, 3, len(numbers))
    return LinkArrays(described.a, described.b, bandwidth, latency, described.up)


def live() -> dict[str, Any]:
    """Observations of 10,000 links put into the live graph: all as before, and all other than before."""
    topology = cluster(MACHINES)
    kept = LiveTopology(topology)
    kept.apply(_batch(topology, 16, 1))
    gc.collect()
    gc.disable()  # its collections fall where they will, on whatever the rest of a process holds
    found: dict[str, list[float]] = {"unchanged_seconds": [], "changed_seconds": [], "snapshot_seconds": []}
    for at in range(2, ROUNDS + 2):
        other, same = (_batch(topology, 16 if at % 2 else 8, at * 2 + i) for i in range(2))
        found["changed_seconds"].append(seconds(lambda batch=other: kept.apply(batch)))  # type: ignore[misc]
        found["unchanged_seconds"].append(seconds(lambda batch=same: kept.apply(batch)))  # type: ignore[misc]
        found["snapshot_seconds"].append(seconds(kept.snapshot))
    return found


def _batch(topology: Topology, width: int, at: int) -> list[Observation]:
    return [
        Observation(Address("n0", AddressKind.LINK, link.id), "link.width", width, at, "bench")
        for link in topology.links[:UPDATED]
    ]


def networkx() -> dict[str, Any]:
    """The peer: Dijkstra from every device inside its machine, and from one CPU of every machine through the cluster.

    Its weights can only be added up, so what it answers is latency plus bytes over each link, not over the bottleneck.
    """
    import networkx as nx

    topology = cluster(MACHINES)
    home = {d.id: d.node for d in topology.devices} | {v.id: v.node for v in topology.vertices}
    began = time.process_time()
    graph: nx.Graph[str] = nx.Graph()
    for link in topology.links:
        rate, latency = link.bandwidth_bytes_per_second or 1.0, link.latency_seconds or 0.0
        graph.add_edge(link.a, link.b, weight=latency + MESSAGE_BYTES / rate)
    members: dict[str | None, list[str]] = {}
    for name, node in home.items():
        members.setdefault(node, []).append(name)
    for machine in topology.nodes:
        inside = graph.subgraph(members[machine.id])
        for device in members[machine.id][:20]:
            nx.single_source_dijkstra_path_length(inside, device)
    within = time.process_time() - began
    sources = 20  # of 500: each takes as long
    began = time.process_time()
    for number in range(sources):
        nx.single_source_dijkstra_path_length(graph, f"n{number}/cpu0")
    between = (time.process_time() - began) / sources * len(topology.nodes)
    return {"within_seconds": within, "between_seconds": between}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "build": build,
    "update": update,
    "live": live,
    "networkx": networkx,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]]()))
