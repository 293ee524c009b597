"""Small machines and pipelines for the scheduler's tests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dataplane.operators.base import Operator
from observatory.model.device import Device, DeviceKind, Engine, EngineKind
from observatory.model.link import Link, LinkKind
from observatory.model.media import PixelFormat, TimeBase, VideoFormat
from observatory.model.pipeline import Edge, LocalityHint, OperatorNode, Pipeline, Qos, TopologyConstraint
from observatory.model.topology import Node, Topology, Vertex, VertexKind

EVERYWHERE = {"cpu": "compute", "gpu": "compute", "vpu": "compute"}


def operator_of(engines: Mapping[str, str]) -> type[Operator]:
    return type("Fake", (Operator,), {"engines": dict(engines), "op": "fake"})


def video(width: int, height: int, rate: float | None = 30.0) -> VideoFormat:
    return VideoFormat(
        width=width,
        height=height,
        pixel_format=PixelFormat.YUV420P,
        time_base=TimeBase(num=1, den=30),
        frames_per_second=rate,
    )


@dataclass
class Job:
    """A pipeline with its edges and operator types, as `place` takes them."""

    pipeline: Pipeline
    edges: tuple[Edge, ...]
    types: dict[str, type[Operator]]


def job(
    operators: Sequence[tuple[str, str, Sequence[str]]],
    *,
    engines: Mapping[str, Mapping[str, str]] | None = None,
    formats: Mapping[str, VideoFormat] | None = None,
    pins: Mapping[str, str] | None = None,
    constraints: Sequence[TopologyConstraint] = (),
    hints: Sequence[LocalityHint] = (),
    qos: Qos | None = None,
    rate: float | None = 30.0,
) -> Job:
    """`operators`: (name, op, inputs). Engines by op name; formats by producer name."""
    nodes = tuple(
        OperatorNode(name=n, op=op, inputs=tuple(i), device=(pins or {}).get(n), line=10 + k)
        for k, (n, op, i) in enumerate(operators)
    )
    pipeline = Pipeline(
        name="test",
        operators=nodes,
        topology_constraints=tuple(constraints),
        locality_hints=tuple(hints),
        qos=qos or Qos(),
        source_file="p.yaml",
    )
    size = formats or {}
    edges = tuple(
        Edge(producer=i, port="video", consumer=n.name, format=size.get(i, video(1280, 720, rate)))
        for n in nodes
        for i in n.inputs
    )
    types = {n.name: operator_of((engines or {}).get(n.op, EVERYWHERE)) for n in nodes}
    return Job(pipeline, edges, types)


def device(name: str, *, numa: int | None = None, memory: int | None = None, **engines: int) -> Device:
    node, _, rest = name.partition("/")
    return Device(
        id=name,
        kind=DeviceKind(rest.rstrip("0123456789")),
        node=node,
        numa_node=numa,
        memory_bytes=memory,
        engines=tuple(Engine(kind=EngineKind(k), count=c) for k, c in engines.items()),
    )


def link(a: str, b: str, bandwidth: float | None, latency: float | None, kind: LinkKind = LinkKind.PCIE) -> Link:
    return Link(a=a, b=b, kind=kind, bandwidth_bytes_per_second=bandwidth, latency_seconds=latency)


def star(devices: Sequence[Device], bandwidth: float = 1e10, latency: float = 1e-6) -> Topology:
    """Every device on one switch."""
    return Topology(
        name="star",
        nodes=(Node(id="n0"),),
        devices=tuple(devices),
        vertices=(Vertex(id="n0/sw", kind=VertexKind.PCIE_SWITCH, node="n0"),),
        links=tuple(link(d.id, "n0/sw", bandwidth, latency) for d in devices),
    )


def random_job(rng: random.Random, size: int) -> Job:
    """A connected-ish DAG whose operators have profiles of very different lengths."""
    ops = ["decode", "scale", "watermark", "encode", "blend", "crop", "mux", "super_res"]
    operators = []
    for i in range(size):
        inputs = [f"o{j}" for j in sorted(rng.sample(range(i), min(i, rng.choice([1, 1, 2]))))]
        operators.append((f"o{i}", rng.choice(ops), inputs))
    formats = {f"o{i}": video(2 * rng.randint(32, 1920), 2 * rng.randint(32, 1080)) for i in range(size)}
    return job(operators, formats=formats)


def random_machine(rng: random.Random, size: int) -> Topology:
    kinds = [DeviceKind.CPU, DeviceKind.GPU, DeviceKind.VPU]
    devices = [device(f"n0/{rng.choice(kinds).value}{i}", compute=rng.choice([1, 1, 2, 4])) for i in range(size)]
    links = [link(d.id, "n0/sw", rng.choice([1e9, 5e9, 5e10]), rng.choice([1e-7, 1e-5])) for d in devices]
    return star(devices).model_copy(update={"links": tuple(links)})
