"""Kubernetes: labels of Nodes, Volcano's HyperNodes, Kueue's Topologies, and clusters of `kind`.

    kubectl get nodes,hypernodes -o yaml        or -o json: Node, NodeList, List, in one or several documents

Labels of a Node that are read: `kubernetes.io/hostname`; those of NVIDIA's feature discovery
(`nvidia.com/gpu.{count,product,memory}` in MiB, `nvidia.com/mig-*.count`); and where it is: the levels of a Kueue
Topology in the same file, else those of `_LEVELS`, from far to near. A level's name counts within the level above it:
rack r1 of block b1 is not rack r1 of block b2. A card that is partitioned (MIG) or shared is one card.
"""

from __future__ import annotations

import re
from typing import Any

from observatory.model.data_sheets import gpu_sheet
from observatory.model.device import DeviceKind
from observatory.model.topology import Topology, VertexKind
from observatory.topology.importers.building import TopologyBuilder
from observatory.topology.importers.network_tree import FABRIC, NetworkTree
from observatory.topology.importers.source import Format, Source
from observatory.topology.importers.yaml_documents import Part, mapping, read_parts, sequence, word

_LEVELS = (
    ("topology.kubernetes.io/region", "topology.kubernetes.io/zone"),
    ("network.topology.nvidia.com/core", "network.topology.nvidia.com/spine", "network.topology.nvidia.com/leaf"),
    (
        "cloud.google.com/gce-topology-block",
        "cloud.google.com/gce-topology-subblock",
        "cloud.google.com/gce-topology-host",
    ),
    (
        "topology.k8s.aws/network-node-layer-1",
        "topology.k8s.aws/network-node-layer-2",
        "topology.k8s.aws/network-node-layer-3",
    ),
    ("cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"),
)
_ACCELERATOR_DOMAINS = ("network.topology.nvidia.com/accelerator", "nvidia.com/gpu.clique")
_HOSTNAME = "kubernetes.io/hostname"
_KIND = re.compile(r'(?:^\s*(?:- )?["\']?kind["\']?|"kind")\s*:\s*["\']?([A-Za-z]+)', re.MULTILINE)
_API = re.compile(r'["\']?apiVersion["\']?\s*:\s*["\']?(?!media\.observatory)[\w./-]+')
_MIG = re.compile(r"nvidia\.com/mig-(\w+\.\w+)\.count\Z")
_QUANTITY = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti|k|M|G|T)?\Z")
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_MOST_GPUS = 1024
_MEBIBYTE = 1 << 20


def _recognise(source: Source) -> bool:
    head = source.head
    return not head.startswith("#!") and _API.search(head) is not None and _KIND.search(head) is not None


def _read(source: Source) -> Topology:
    reading = _Cluster(source)
    for part in read_parts(source):
        for thing in _things(part.value):
            reading.sort(part, thing)
    return reading.topology()


def _things(value: Any) -> list[dict[str, Any]]:
    """The objects of a document: one, or the items of a list."""
    told = mapping(value)
    if word(told.get("kind")) and str(told["kind"]).endswith("List"):
        return [{"kind": str(told["kind"]).removesuffix("List"), **mapping(i)} for i in sequence(told.get("items"))]
    return [told]


class _Cluster:
    """What a file tells of one cluster."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.build = TopologyBuilder(source, name="kubernetes", provenance="description")
        self.tree = NetworkTree(source, self.build)
        self.nodes: list[tuple[Part, dict[str, Any]]] = []
        self.hypernodes: list[tuple[Part, dict[str, Any]]] = []
        self.levels: list[tuple[str, ...]] = []
        self.others: dict[str, Part] = {}
        self.hostnames: dict[str, str] = {}  # of Nodes by name: members are named by the latter

    def sort(self, part: Part, thing: dict[str, Any]) -> None:
        """Take in one object."""
        kind, api = word(thing.get("kind")) or "nothing", str(thing.get("apiVersion") or "")
        if kind == "Node":
            self.nodes.append((part, thing))
        elif kind == "HyperNode":
            self.hypernodes.append((part, thing))
        elif kind == "Topology" and api.startswith("kueue."):
            levels = [
                word(mapping(level).get("nodeLabel")) for level in sequence(mapping(thing.get("spec")).get("levels"))
            ]
            if not levels or None in levels:
                part.fail("is a Topology without levels", "spec", mend="spec: {levels: [{nodeLabel: ...}]}")
            self.levels.append(tuple(level for level in levels if level is not None))
        elif kind == "Cluster" and api.startswith("kind."):
            name = _name(thing) or "kind"
            for index, node in enumerate(sequence(thing.get("nodes"))):
                told = mapping(node)
                role = word(told.get("role")) or "node"
                self.nodes.append((part, {"metadata": {"name": f"{name}-{role}{index}", "labels": told.get("labels")}}))
        else:
            self.others.setdefault(kind, part)

    def topology(self) -> Topology:
        """All of it, or a refusal that says what was there instead."""
        if not self.nodes and not self.hypernodes and not self.levels:
            kinds = ", ".join(self.others) or "nothing"
            part = next(iter(self.others.values()), None)
            self.source.fail(
                f"describes {kinds[:120]}, which tells no topology",
                None if part is None else part.line("kind"),
                "give Nodes, HyperNodes or Kueue Topologies: kubectl get nodes -o yaml",
            )
        for part, node in self.nodes:
            self._node(part, node)
        for part, hypernode in self.hypernodes:
            self._hypernode(part, hypernode)
        if self.levels and not self.nodes:
            for levels in self.levels:
                self.build.warn("levels that Nodes have labels of, but no Node is told of", " > ".join(levels))
        if self.others:
            self.build.warn("objects that tell no topology, left out", ", ".join(self.others)[:200])
        return self.build.build()

    # -- Nodes -----------------------------------------------------------------------------------------------------

    def _node(self, part: Part, thing: dict[str, Any]) -> None:
        labels = {str(k): v for k, v in mapping(mapping(thing.get("metadata")).get("labels")).items()}
        hostname = word(labels.get(_HOSTNAME)) or _name(thing)
        if hostname is None:
            part.fail("has a Node without a name", "metadata", mend="metadata: {name: ...}")
        if hostname in self.build.nodes:
            self.build.warn("Nodes told twice", hostname)
            return
        node = self.build.node(hostname)
        self.hostnames[_name(thing) or hostname] = hostname
        capacity = mapping(mapping(thing.get("status")).get("capacity"))
        memory = _quantity(capacity.get("memory"))
        if memory is not None:
            self.build.device(node, DeviceKind.CPU, memory_bytes=memory)
        self._gpus(node, labels, capacity)
        self._place(hostname, labels)

    def _gpus(self, node: str, labels: dict[str, Any], capacity: dict[str, Any]) -> None:
        count = _count(labels.get("nvidia.com/gpu.count"))
        replicas = _count(labels.get("nvidia.com/gpu.replicas")) or 1
        if count is None and (offered := _count(capacity.get("nvidia.com/gpu"))):
            count = offered // replicas if replicas and offered % replicas == 0 else offered
        product = word(labels.get("nvidia.com/gpu.product"))
        if count is None:
            count, product = _count(capacity.get("amd.com/gpu")), word(labels.get("amd.com/gpu.product-name"))
        if not count:
            return
        if count > _MOST_GPUS:
            self.build.warn("numbers of GPUs that no machine has, left out", f"{node}: {count}")
            return
        sheet = gpu_sheet(name=product)
        mebibytes = _count(labels.get("nvidia.com/gpu.memory"))
        for _ in range(count):
            self.build.device(
                node,
                DeviceKind.GPU,
                name=product,
                memory_bytes=mebibytes * _MEBIBYTE if mebibytes else None,
                engines=sheet.device_engines() if sheet else (),
            )
        parts = [
            f"{n} x {m[1]}"
            for k, v in sorted(labels.items())
            if (m := _MIG.match(k)) and (n := _count(v)) is not None and n
        ]
        if parts:
            self.build.warn("GPUs that are partitioned (MIG), shown whole", f"{node}: {', '.join(parts)}")
        if replicas > 1:
            self.build.warn("GPUs that several pods share, shown once", node)

    def _place(self, hostname: str, labels: dict[str, Any]) -> None:
        """The domains a machine is in, each below the one of the level above."""
        machine: str | None = None
        for levels in (*self.levels, *_LEVELS):
            path = [name for level in levels if level != _HOSTNAME and (name := word(labels.get(level))) is not None]
            if not path:
                continue
            machine = machine or self.tree.machine(hostname)
            above = None
            for depth in range(1, len(path) + 1):
                here = self.build.named_vertex(FABRIC, ".".join(path[:depth]), VertexKind.DOMAIN)
                if above is not None:
                    self.tree.join(here, above)
                above = here
            if above is not None:
                self.tree.join(machine, above)
        for label in _ACCELERATOR_DOMAINS:
            if domain := word(labels.get(label)):
                self.tree.join(self.tree.machine(hostname), self.tree.domain(domain))

    # -- HyperNodes ------------------------------------------------------------------------------------------------

    def _hypernode(self, part: Part, thing: dict[str, Any]) -> None:
        name = _name(thing)
        if name is None:
            part.fail("has a HyperNode without a name", "metadata", mend="metadata: {name: ...}")
        here = self.tree.domain(name)
        for member in sequence(mapping(thing.get("spec")).get("members")):
            selector = mapping(mapping(member).get("selector"))
            kind = word(mapping(member).get("type"))
            for host in self._members(name, selector, kind):
                below = (
                    self.tree.domain(host) if kind == "HyperNode" else self.tree.machine(self.hostnames.get(host, host))
                )
                self.tree.join(below, here)

    def _members(self, name: str, selector: dict[str, Any], kind: str | None) -> list[str]:
        """Names that a selector selects: one by name; by pattern or labels those of Nodes in the same file."""
        exact = word(mapping(selector.get("exactMatch")).get("name"))
        if exact is not None:
            return [exact]
        known = {word(mapping(n.get("metadata")).get("name")): n for _, n in self.nodes}
        if kind == "HyperNode":
            known = {_name(h): h for _, h in self.hypernodes}
        labels = mapping(mapping(selector.get("labelMatch")).get("matchLabels"))
        pattern = word(mapping(selector.get("regexMatch")).get("pattern"))
        found: list[str] = []
        if labels:
            for host, thing in known.items():
                own = mapping(mapping(thing.get("metadata")).get("labels"))
                if host is not None and all(str(own.get(k)) == str(v) for k, v in labels.items()):
                    found.append(host)
        if not found:
            what = f"pattern {pattern[:40]!r}" if pattern else "labels" if labels else "nothing that is known"
            self.build.warn("members selected otherwise than by name, which this file does not tell", f"{name}: {what}")
        return found


def _name(thing: dict[str, Any]) -> str | None:
    return word(mapping(thing.get("metadata")).get("name")) or word(thing.get("name"))


def _count(value: Any) -> int | None:
    text = word(value) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _quantity(value: Any) -> int | None:
    match = _QUANTITY.match(word(value) or "")
    return int(match[1]) * _UNITS.get(match[2] or "", 1) if match else None


FORMAT = Format(
    name="kubernetes",
    title="Kubernetes Nodes, Volcano HyperNodes, Kueue Topologies, kind clusters",
    recognise=_recognise,
    read=_read,
)
