"""A placement problem in numbers: which device may run which operator, for how long, and what the edges carry.

Built once per decision from the pipeline, its typed edges and the topology; HEFT, the solver and its error messages all
read it. Everything that is known before anything is placed is decided here; each refusal keeps its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dataplane.operators.base import Operator
from observatory.documents import did_you_mean
from observatory.model.cost import CostParameters
from observatory.model.device import Device, DeviceKind, EngineKind
from observatory.model.media import PortFormat
from observatory.model.pipeline import Edge, OperatorNode, Pipeline
from observatory.model.topology import Topology
from observatory.topology.domains import Domains
from observatory.topology.graph import TopologyGraph
from observatory.topology.paths import Path, PathFinder
from scheduler.errors import ImpossiblePlacement
from scheduler.profiles import FULL_HD, ServiceTime, service_time

DEFAULT_RATE = 30.0
"""Frames per second of a stream that does not say, when the pipeline's `qos` does not either."""

FRAMES_HELD = 4
"""Frames of an output that are in memory at least, for the memory cap; pools are sized exactly when a run starts."""

RUNS_NOTHING = frozenset({DeviceKind.NIC, DeviceKind.CXL_MEMORY, DeviceKind.STORAGE})


@dataclass(frozen=True, slots=True)
class Task:
    """One operator. `rate` in frames/s; `memory_bytes` is the least that its outputs hold."""

    index: int
    node: OperatorNode
    engines: Mapping[str, str]
    pixels: int
    rate: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Flow:
    """One edge by numbers. `name` is `a->b`, and `a->b:audio` for audio."""

    name: str
    producer: int
    consumer: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task on a device: the engine it takes there and for how long per frame."""

    engine: EngineKind
    time: ServiceTime

    @property
    def seconds(self) -> float:
        """Seconds of one engine per frame."""
        return self.time.seconds


@dataclass(slots=True)
class Problem:
    """Tasks in topological order, devices in the topology's order, candidates and refusals by (task, device)."""

    pipeline: Pipeline
    topology: Topology
    tasks: tuple[Task, ...]
    flows: tuple[Flow, ...]
    devices: tuple[Device, ...]
    candidates: tuple[Mapping[int, Candidate], ...]  # by task: device -> how
    refusals: tuple[Mapping[int, str], ...]  # by task: device -> why not
    possible: tuple[Mapping[int, Candidate], ...]  # by task, as if nothing were pinned: for the binding constraint
    domains: Domains
    finder: PathFinder
    rate_is_asked_for: bool
    notes: tuple[str, ...]
    incoming: tuple[tuple[Flow, ...], ...] = field(init=False)
    outgoing: tuple[tuple[Flow, ...], ...] = field(init=False)
    _paths: dict[tuple[int, int, int], Path] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.tasks)
        self.incoming = tuple(tuple(f for f in self.flows if f.consumer == t) for t in range(count))
        self.outgoing = tuple(tuple(f for f in self.flows if f.producer == t) for t in range(count))

    def path(self, payload_bytes: int, source: int, target: int) -> Path:
        """The best path for that payload between two devices (numbers)."""
        key = (payload_bytes, source, target)
        if key not in self._paths:
            a, b = self.devices[source].id, self.devices[target].id
            self._paths[key] = self.finder.best(a, b, payload_bytes)
        return self._paths[key]

    def transfer(self, payload_bytes: int, source: int, target: int) -> float | None:
        """Predicted seconds between two devices (numbers); None when they cannot be predicted."""
        return 0.0 if source == target else self.path(payload_bytes, source, target).seconds

    def capacity(self, device: int, engine: EngineKind) -> int:
        """How many engines of that kind the device has."""
        found = self.devices[device].engine(engine)
        return found.count if found else 0

    def sessions(self, device: int, engine: EngineKind) -> int | None:
        """How many operators may hold an engine of that kind there at once; None: any number."""
        found = self.devices[device].engine(engine)
        return found.sessions if found else None

    def names(self, placement: Sequence[int]) -> dict[str, str]:
        """Operator name -> device id."""
        return {t.node.name: self.devices[placement[t.index]].id for t in self.tasks}


def build_problem(
    pipeline: Pipeline,
    edges: Sequence[Edge],
    topology: Topology,
    parameters: CostParameters,
    operator_types: Mapping[str, type[Operator]],
) -> Problem:
    """The problem behind a pipeline on a topology. `operator_types` by operator name.

    Raises:
        ImpossiblePlacement: an operator is pinned to a device that does not exist.
    """
    index = {node.name: i for i, node in enumerate(pipeline.operators)}
    notes: list[str] = []
    rates = _rates(pipeline, edges, index, notes)
    tasks = tuple(
        _task(i, node, edges, rates[i], operator_types[node.name].engines) for i, node in enumerate(pipeline.operators)
    )
    flows = tuple(
        Flow(
            name=e.name if e.port == "video" else f"{e.name}:{e.port}",
            producer=index[e.producer],
            consumer=index[e.consumer],
            payload_bytes=e.bytes_per_frame,
        )
        for e in edges
    )
    graph = TopologyGraph(topology)
    domains = Domains(graph)
    kinds = _kinds_asked_for(pipeline)
    possible: list[dict[int, Candidate]] = []
    candidates: list[dict[int, Candidate]] = []
    refusals: list[dict[int, str]] = []
    for task in tasks:
        _pin_exists(pipeline, task.node, topology)
        able: dict[int, Candidate] = {}
        refused: dict[int, str] = {}
        for number, device in enumerate(topology.devices):
            fit = _fit(task, device)
            if isinstance(fit, str):
                refused[number] = fit
                continue
            able[number] = fit
            if task.node.device is not None and device.id != task.node.device:
                refused[number] = f"the operator is pinned to {task.node.device}"
            elif device.kind.value not in kinds.get(task.node.name, {device.kind.value}):
                wanted = next(iter(kinds[task.node.name]), "two different kinds")
                refused[number] = f"the hard constraint Device_Kind asks for {wanted}"
        possible.append(able)
        candidates.append({d: c for d, c in able.items() if d not in refused})
        refusals.append(refused)
    notes += _profile_notes(tasks, candidates)
    return Problem(
        pipeline=pipeline,
        topology=topology,
        tasks=tasks,
        flows=flows,
        devices=topology.devices,
        candidates=tuple(candidates),
        refusals=tuple(refusals),
        possible=tuple(possible),
        domains=domains,
        finder=PathFinder(graph, parameters),
        rate_is_asked_for=pipeline.qos.frames_per_second is not None,
        notes=tuple(notes),
    )


def _rates(pipeline: Pipeline, edges: Sequence[Edge], index: Mapping[str, int], notes: list[str]) -> list[float]:
    """Frames per second of every operator: `qos` when it asks, else what flows in (sources: out), else 30."""
    if pipeline.qos.frames_per_second is not None:
        return [pipeline.qos.frames_per_second] * len(index)
    found: list[float | None] = [None] * len(index)
    for edge in edges:
        rate = _video_rate(edge.format)
        for name in (edge.producer, edge.consumer):
            if rate is not None:
                found[index[name]] = max(rate, found[index[name]] or 0.0)
    unknown = [name for name, i in index.items() if found[i] is None]
    if unknown:
        notes.append(f"the frame rate of {', '.join(unknown)} is unknown: {DEFAULT_RATE:g} frames/s assumed")
    return [DEFAULT_RATE if rate is None else rate for rate in found]


def _video_rate(form: PortFormat) -> float | None:
    if form.kind == "video":
        return form.frames_per_second
    return form.video.frames_per_second if form.kind == "packet" else None


def _pixels(form: PortFormat) -> int:
    if form.kind == "video":
        return form.width * form.height
    return form.video.width * form.video.height if form.kind == "packet" else 0


def _task(index: int, node: OperatorNode, edges: Sequence[Edge], rate: float, engines: Mapping[str, str]) -> Task:
    incoming = [e.format for e in edges if e.consumer == node.name]
    outgoing = {e.port: e for e in edges if e.producer == node.name}
    seen = incoming or [e.format for e in outgoing.values()]
    return Task(
        index=index,
        node=node,
        engines=engines,
        pixels=max((_pixels(f) for f in seen), default=0) or FULL_HD,
        rate=rate,
        memory_bytes=FRAMES_HELD * sum(e.bytes_per_frame for e in outgoing.values()),
    )


def _fit(task: Task, device: Device) -> Candidate | str:
    """How the task runs on the device, or why it cannot."""
    if device.kind in RUNS_NOTHING:
        return f"a {device.kind.value} runs no operators"
    wanted = task.engines.get(device.kind.value)
    if wanted is None:
        return f"{task.node.op} does not run on a {device.kind.value}"
    engine = EngineKind(wanted)
    if device.engine(engine) is None:
        return f"it has no {engine.value} engine"
    if device.memory_bytes is not None and task.memory_bytes > device.memory_bytes:
        return f"{task.memory_bytes / 1e9:.1f} GB do not fit into its memory of {device.memory_bytes / 1e9:.1f} GB"
    return Candidate(engine, service_time(task.node.op, device.kind, task.pixels, task.node.params))


def _kinds_asked_for(pipeline: Pipeline) -> dict[str, set[str]]:
    """Operator -> device kinds that hard Device_Kind constraints ask for (two different ones: nothing fits)."""
    asked: dict[str, set[str]] = {}
    for constraint in pipeline.topology_constraints:
        if constraint.type == "Device_Kind" and constraint.weight is None and constraint.value is not None:
            for member in constraint.members:
                before = asked.get(member)
                asked[member] = {constraint.value} if before is None else before & {constraint.value}
    return asked


def _pin_exists(pipeline: Pipeline, node: OperatorNode, topology: Topology) -> None:
    if node.device is not None and topology.device(node.device) is None:
        raise ImpossiblePlacement(
            f"{node.name}: it is pinned to {node.device}, which the topology does not have",
            file=pipeline.source_file,
            line=node.line,
            mend=did_you_mean(node.device, [d.id for d in topology.devices]),
        )


def _profile_notes(tasks: Sequence[Task], candidates: Sequence[Mapping[int, Candidate]]) -> list[str]:
    times = [c.time for per_task in candidates for c in per_task.values()]
    guessed = sorted({t.node.op for t, c in zip(tasks, candidates, strict=True) for x in c.values() if _guessed(x)})
    if not times or not guessed:
        return []
    return [f"service times of {', '.join(guessed)} are estimates on some devices, not measurements"]


def _guessed(candidate: Candidate) -> bool:
    return candidate.time.origin == "estimate"
