"""A pipeline with its types: parameters validated, inputs opened, formats carried along every edge.

Everything a user can get wrong in a specification is found here, before any process starts, and named with file, line
and mend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dataplane.errors import BadMedia, BadParameters, NoSuchOperator
from dataplane.operators.base import Operator, OutputPort, Parameters, Probe, SourceRequest
from dataplane.operators.registry import operator_type
from observatory.documents import explain
from observatory.model.errors import MediaObservatoryError
from observatory.model.media import PortFormat
from observatory.model.pipeline import Edge, OnFull, OperatorNode, Pipeline
from scheduler.specs.source import SpecSource


@dataclass(frozen=True, slots=True)
class TypedOperator:
    """One operator with its plug-in, valid parameters and output ports. `sources`: the source operators above it."""

    node: OperatorNode
    kind: type[Operator]
    params: Parameters
    outputs: tuple[OutputPort, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TypedPipeline:
    """A pipeline that can run: operators in topological order, edges with formats, what probing the inputs told."""

    pipeline: Pipeline
    operators: Mapping[str, TypedOperator]
    edges: tuple[Edge, ...]
    probes: Mapping[str, Probe]
    requests: Mapping[str, SourceRequest]
    notes: tuple[str, ...] = ()  # what reading the specification had to say

    @property
    def warnings(self) -> list[str]:
        """What reading the specification and opening the inputs had to say."""
        return [*self.notes, *(f"{name}: {words}" for name, probe in self.probes.items() for words in probe.warnings)]

    def stream_name(self, source: str) -> str:
        """A stream is called as the pipeline, with `/INPUT` when there are several."""
        return self.pipeline.name if len(self.probes) == 1 else f"{self.pipeline.name}/{source}"


def source_requests(pipeline: Pipeline, inputs: Sequence[str], frames: int | None) -> dict[str, SourceRequest]:
    """What `--input` (FILE or OPERATOR=FILE, repeatable) and `--frames` mean for each source operator.

    Raises:
        BadParameters: an input that names no source, or could mean several.
    """
    sources = [node for node in pipeline.operators if not node.inputs]
    named = {node.name for node in sources}
    chosen: dict[str, str] = {}
    for given in inputs:
        name, equals, path = given.partition("=")
        if equals and name in named:
            _choose(chosen, name, path, given)
            continue
        open_sources = [n.name for n in sources if "path" not in n.params] if len(sources) > 1 else sorted(named)
        if len(open_sources) != 1:
            raise BadParameters(
                f"--input {given}: the pipeline has {len(sources)} sources: {', '.join(sorted(named))}",
                mend=f"name the one you mean: --input {min(named)}={given}",
            )
        _choose(chosen, open_sources[0], given, given)
    return {name: SourceRequest(input=chosen.get(name), frames=frames) for name in named}


def _choose(chosen: dict[str, str], source: str, path: str, given: str) -> None:
    if source in chosen:
        raise BadParameters(f"--input {given}: {source} has one already: {chosen[source]}", mend="give it once")
    chosen[source] = path


Prober = Callable[[type[Operator], Parameters, SourceRequest], Probe]
"""Opens an input: here, or in a process of its own."""


def probe_here(kind: type[Operator], params: Parameters, request: SourceRequest) -> Probe:
    """Open an input in this process."""
    return kind.probe(params, request)


def type_pipeline(
    pipeline: Pipeline,
    requests: Mapping[str, SourceRequest],
    source: SpecSource | None = None,
    probe_input: Prober = probe_here,
) -> TypedPipeline:
    """Validate parameters, open the inputs, and derive the format of every edge.

    Raises:
        MediaObservatoryError: the first thing that cannot work, with file and line of the operator or parameter.
    """
    operators: dict[str, TypedOperator] = {}
    edges: list[Edge] = []
    probes: dict[str, Probe] = {}
    for node in pipeline.operators:
        kind = kind_of(node, source)
        params = parameters_of(node, kind, source)
        incoming = [_video_edge(operators[name], node, pipeline.qos.on_full) for name in node.inputs]
        above = tuple(dict.fromkeys(s for name in node.inputs for s in operators[name].sources))
        if kind.takes_audio and getattr(params, "audio", None) != "none":
            incoming += _audio_edges(operators, above, node)
        try:
            if kind.source:
                probes[node.name] = probe = probe_input(kind, params, requests[node.name])
                outputs, above = probe.outputs, (node.name,)
            else:
                outputs = kind.output(params, [edge.format for edge in incoming])
        except (BadParameters, BadMedia) as error:
            raise _located(error, node, source) from None
        edges += incoming
        operators[node.name] = TypedOperator(node, kind, params, outputs, above)
    notes = source.warnings if source else ()
    typed = TypedPipeline(pipeline, operators, tuple(edges), probes, dict(requests), notes)
    _refuse_loose_ends(typed, source)
    _refuse_shared_outputs(typed, source)
    return typed


def kind_of(node: OperatorNode, source: SpecSource | None) -> type[Operator]:
    """The plug-in of an operator. Raises MediaObservatoryError: there is none, or it takes other inputs."""
    try:
        kind = operator_type(node.op)
    except NoSuchOperator as error:
        raise _located(error, node, source) from None
    if kind.source and node.inputs:
        raise _located(BadParameters(f"{node.name}: {node.op} is a source and takes no inputs"), node, source)
    if not kind.source and not node.inputs:
        raise _located(BadParameters(f"{node.name}: {node.op} needs an input", mend="add inputs: [NAME]"), node, source)
    if kind.max_inputs is not None and len(node.inputs) > kind.max_inputs:
        words = f"{node.name}: {node.op} takes {kind.max_inputs} input, {len(node.inputs)} are given"
        raise _located(BadParameters(words), node, source)
    return kind


def parameters_of(node: OperatorNode, kind: type[Operator], source: SpecSource | None) -> Parameters:
    """The parameters of an operator as its plug-in takes them. Raises BadParameters, or BadSpec with their line."""
    try:
        return kind.Params.model_validate(node.params)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A misspelt name also leaves the right one missing: the misspelling is what to mend.
        details = next((d for d in found if d["type"] == "extra_forbidden"), found[0])
        words, mend = explain(kind.Params, details)
        mend = mend or f"every parameter of {node.op}: docs/reference/operators.md"
        message = f"{node.name} ({node.op}): {words}"
        if source is None:
            raise BadParameters(message, mend=mend) from None
        raise source.error(node.name, *details["loc"], message=message, mend=mend) from None


def _video_edge(producer: TypedOperator, consumer: OperatorNode, on_full: OnFull) -> Edge:
    port = next((p for p in producer.outputs if p.name == "video"), None)
    if port is None:
        raise BadParameters(f"{consumer.name}: {producer.node.name} ({producer.node.op}) has no output to take")
    # Dropping a coded packet would damage every frame up to the next key frame: only raw frames may be dropped.
    policy = on_full if port.format.kind == "video" else OnFull.BLOCK
    return Edge(producer=producer.node.name, port="video", consumer=consumer.name, format=port.format, policy=policy)


def _audio_edges(operators: Mapping[str, TypedOperator], sources: Sequence[str], consumer: OperatorNode) -> list[Edge]:
    def edge(name: str, form: PortFormat) -> Edge:
        return Edge(producer=name, port="audio", consumer=consumer.name, format=form, traced=False)

    return [edge(name, port.format) for name in sources for port in operators[name].outputs if port.name == "audio"]


def _located(error: MediaObservatoryError, node: OperatorNode, source: SpecSource | None) -> MediaObservatoryError:
    """The error with the operator's place in the specification, unless it already has a place of its own."""
    if error.file is None and source is not None:
        error.file, error.line = source.file, source.line_of(node.name)
    return error


def _refuse_loose_ends(typed: TypedPipeline, source: SpecSource | None) -> None:
    """Work whose result nobody takes is a mistake, not a wish."""
    used = {edge.producer for edge in typed.edges if edge.port == "video"}
    for name, operator in typed.operators.items():
        if not operator.kind.sink and name not in used:
            words = f"{name}: nothing takes its output"
            mend = f"name it in the inputs of another operator, or remove {name}"
            raise _located(BadParameters(words, mend=mend), operator.node, source)


def _refuse_shared_outputs(typed: TypedPipeline, source: SpecSource | None) -> None:
    """Two sinks on one path, or in one folder of segments, or a sink on an input, would destroy a file."""
    taken: dict[Path, str] = {}
    for name, probe in typed.probes.items():
        if "://" not in probe.input:
            taken[Path(probe.input).resolve()] = f"the input of {name}"
    for name, operator in typed.operators.items():
        key = next((k for k in ("path", "folder") if getattr(operator.params, k, None) is not None), None)
        if not operator.kind.sink or key is None:
            continue
        path = getattr(operator.params, key)
        resolved = Path(path).resolve()
        if resolved in taken:
            words = f"{name}: {path} is also {taken[resolved]}"
            error = BadParameters(words, mend=f"give every output a {key} of its own")
            if source is not None:
                error.file, error.line = source.file, source.line_of(name, key)
            raise error
        taken[resolved] = f"the output of {name}"
