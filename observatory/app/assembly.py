"""From a typed, placed pipeline to what runs: pools, worker assignments and the run manifest.

This is where names become numbers: a traced port's index in the manifest is the `place` of its producer's events, a
traced edge's index is the `place` of its consumer's events and the `hop` of its records.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from dataplane.assignment import Assignment, InputAssignment, OutputAssignment
from dataplane.operators.base import SourceRequest
from dataplane.sizing import DEFAULT_QUEUE_FRAMES, PortPool, size_port
from observatory.app.links import EdgeRoute
from observatory.app.placing import Placed
from observatory.app.typed import TypedOperator, TypedPipeline
from observatory.model.manifest import ClockAnchor, HopEntry, LinkEmulation, PortEntry, RunManifest, StreamEntry
from observatory.model.media import TimeBase
from observatory.model.pipeline import Edge, SharedMemoryProfile
from observatory.model.plan import Placement


@dataclass(frozen=True, slots=True)
class StreamNumbers:
    """A source's numbers in the frame store."""

    id: int
    epoch: int


def size_pools(typed: TypedPipeline, queue_frames: int = DEFAULT_QUEUE_FRAMES) -> dict[tuple[str, str], PortPool]:
    """The pool of every output port that has consumers, by (operator, port)."""
    pools = {}
    huge = typed.pipeline.shared_memory_profile is SharedMemoryProfile.HUGEPAGE_2MB
    for name, operator in typed.operators.items():
        for port in operator.outputs:
            consumers = [typed.operators[e.consumer] for e in edges_of(typed, name, port.name)]
            if consumers:
                held = [c.kind.contract(c.params).held_frames for c in consumers]
                on_huge = huge and port.format.kind == "video"
                pools[name, port.name] = size_port(name, port, held, queue_frames, on_huge)
    return pools


def edges_of(typed: TypedPipeline, operator: str, port: str) -> list[Edge]:
    """Edges that leave one port, in order."""
    return [e for e in typed.edges if e.producer == operator and e.port == port]


def build_manifest(
    typed: TypedPipeline,
    placed: Placed,
    numbers: Mapping[str, StreamNumbers],
    routes: Mapping[str, EdgeRoute] | None = None,
    emulation: LinkEmulation | None = None,
) -> RunManifest:
    """The manifest of a run: `numbers` by source operator, `routes` of emulated links by edge."""
    routes = routes or {}
    placement = placed.placement
    devices = list(dict.fromkeys([*placement.devices.values(), placed.real_device]))
    real = devices.index(placed.real_device)
    ports: list[PortEntry] = []
    hops: list[HopEntry] = []
    port_ids: dict[tuple[str, str], int] = {}
    for edge in (e for e in typed.edges if e.traced):
        key = (edge.producer, edge.port)
        if key not in port_ids:
            port_ids[key] = len(ports)
            source = typed.operators[edge.producer].sources[0]
            ports.append(PortEntry(operator=edge.producer, port=edge.port, stream=numbers[source].id))
        hops.append(
            HopEntry(
                edge=edge,
                port=port_ids[key],
                producer_device=devices.index(placement.devices[edge.producer]),
                consumer_device=devices.index(placement.devices[edge.consumer]),
                producer_real_device=real,
                consumer_real_device=real,
                links=routes[edge.name].links if edge.name in routes else (),
            )
        )
    return RunManifest(
        run_id=f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}",
        host=socket.gethostname(),
        software_version=version("media-observatory"),
        started=ClockAnchor(monotonic_ns=time.monotonic_ns(), realtime_ns=time.time_ns()),
        pipeline=typed.pipeline,
        decision_id=placed.decision.id,
        topology_name=placed.topology_name,
        streams=tuple(
            StreamEntry(
                name=typed.stream_name(source),
                id=numbers[source].id,
                epoch=numbers[source].epoch,
                source_operator=source,
                input=probe.input,
                time_base=_source_time_base(typed, source),
            )
            for source, probe in typed.probes.items()
        ),
        devices=tuple(devices),
        ports=tuple(ports),
        hops=tuple(hops),
        link_emulation=emulation,
    )


def _source_time_base(typed: TypedPipeline, source: str) -> TimeBase:
    video = next(p.format for p in typed.operators[source].outputs if p.name == "video")
    if video.kind == "video":
        return video.time_base
    raise ValueError(f"source {source} gives {video.kind}, not raw video")


def build_assignments(
    typed: TypedPipeline,
    manifest: RunManifest,
    pools: Mapping[tuple[str, str], PortPool],
    placement: Placement,
    routes: Mapping[str, EdgeRoute] | None = None,
    without: Container[str] = (),
) -> list[Assignment]:
    """One assignment per operator, producers before consumers; `routes` of emulated links by edge.

    `without`: operators that somebody else runs.
    """
    streams = {s.source_operator: s for s in manifest.streams}
    hop_ids = {hop.edge.name: index for index, hop in enumerate(manifest.hops)}
    port_ids = {(port.operator, port.port): index for index, port in enumerate(manifest.ports)}
    assignments = []
    for name, operator in typed.operators.items():
        if name in without:
            continue
        stream = streams[operator.sources[0]]
        incoming = [e for e in typed.edges if e.consumer == name]
        assignments.append(
            Assignment(
                operator=name,
                op=operator.node.op,
                params=operator.params.model_dump(mode="json", exclude_unset=True),
                device=placement.devices[name],
                real_device=manifest.hops[0].producer_real_device if manifest.hops else 0,
                stream=stream.id,
                epoch=stream.epoch,
                inputs=tuple(_input(e, hop_ids, routes or {}) for e in incoming),
                outputs=_outputs(operator, pools, port_ids),
                source=typed.requests.get(name, SourceRequest()),
                start_seconds=typed.probes[operator.sources[0]].start_seconds,
            )
        )
    return assignments


def _input(edge: Edge, hop_ids: Mapping[str, int], routes: Mapping[str, EdgeRoute]) -> InputAssignment:
    told = InputAssignment(
        edge=edge.name,
        producer=edge.producer,
        port=edge.port,
        format=edge.format,
        policy=edge.policy,
        place=hop_ids.get(edge.name) if edge.traced else None,
    )
    route = routes.get(told.key)
    return told if route is None else told.model_copy(update={"link": route.path})


def held_by(typed: TypedPipeline, edge: Edge) -> int:
    """Frames that the consumer of an edge holds."""
    consumer = typed.operators[edge.consumer]
    return consumer.kind.contract(consumer.params).held_frames


def size_shared_pools(
    readers: Sequence[tuple[TypedPipeline, Mapping[str, str]]], queue_frames: int, held_frames: int
) -> dict[tuple[str, str], PortPool]:
    """The pools of operators that several pipelines read, by (operator, port), under the first pipeline's names.

    Args:
        readers: each pipeline, and its names of the shared operators with the first one's.
        held_frames: room for who comes later: what one of them may hold, at least.
    """
    first, shared = readers[0]
    huge = first.pipeline.shared_memory_profile is SharedMemoryProfile.HUGEPAGE_2MB
    pools = {}
    for name in shared:
        for port in first.operators[name].outputs:
            held = [
                held_by(typed, edge)
                for typed, names in readers
                for edge in typed.edges
                if (names.get(edge.producer), edge.port) == (name, port.name)
            ]
            if held:
                on_huge = huge and port.format.kind == "video"
                pools[name, port.name] = size_port(name, port, [*held, held_frames], queue_frames, on_huge)
    return pools


def build_shared_assignments(
    typed: TypedPipeline,
    operators: Sequence[str],
    pools: Mapping[tuple[str, str], PortPool],
    placement: Placement,
    routes: Mapping[str, EdgeRoute],
) -> list[Assignment]:
    """The assignments of operators that run for several pipelines, of which `typed` is the first.

    Their events carry stream, epoch and device 0, and places of their own: each pipeline gets them under its numbers.
    """
    traced = [key for key in pools if any(e.traced and (e.producer, e.port) == key for e in typed.edges)]
    hops = [e for e in typed.edges if e.traced and e.consumer in operators]
    port_ids = {key: number for number, key in enumerate(traced)}
    hop_ids = {edge.name: number for number, edge in enumerate(hops)}
    found = []
    for name in operators:
        operator = typed.operators[name]
        incoming = [e for e in typed.edges if e.consumer == name]
        found.append(
            Assignment(
                operator=name,
                op=operator.node.op,
                params=operator.params.model_dump(mode="json", exclude_unset=True),
                device=placement.devices[name],
                real_device=0,
                stream=0,
                epoch=0,
                inputs=tuple(_input(e, hop_ids, routes) for e in incoming),
                outputs=_outputs(operator, pools, port_ids),
                source=typed.requests.get(name, SourceRequest()),
                start_seconds=typed.probes[operator.sources[0]].start_seconds,
            )
        )
    return found


def _outputs(
    operator: TypedOperator, pools: Mapping[tuple[str, str], PortPool], port_ids: Mapping[tuple[str, str], int]
) -> tuple[OutputAssignment, ...]:
    name = operator.node.name
    return tuple(
        OutputAssignment(
            port=port.name,
            format=port.format,
            ring_capacity=pools[name, port.name].ring_capacity,
            sizes=pools[name, port.name].sizes,
            huge_pages=pools[name, port.name].huge_pages,
            place=port_ids.get((name, port.name)),
        )
        for port in operator.outputs
        if (name, port.name) in pools
    )
