"""Read a pipeline from a file: a Media Pipeline Spec, or a Kubernetes PodGroup with the same fields.

The parameters of operators are not looked into here: their own models do that, and `SpecSource` tells them the line.
"""

from __future__ import annotations

from pathlib import Path

from observatory.documents import Document, did_you_mean, parse_document, read_document
from observatory.model.pipeline import (
    LocalityHint,
    OnFull,
    OperatorNode,
    Pipeline,
    Priority,
    Qos,
    SharedMemoryProfile,
    TopologyConstraint,
)
from scheduler.errors import BadSpec
from scheduler.specs.graph import checked_order
from scheduler.specs.models import (
    MEDIA_API_VERSIONS,
    POD_GROUP_API_VERSIONS,
    POD_GROUP_IGNORED,
    MediaPipelineFile,
    MetadataSpec,
    PipelineSpec,
    PodGroupFile,
)
from scheduler.specs.source import SpecSource

_KINDS = {"MediaPipeline": MEDIA_API_VERSIONS, "PodGroup": POD_GROUP_API_VERSIONS}


def read_spec(path: str | Path) -> tuple[Pipeline, SpecSource]:
    """The pipeline in the YAML (or JSON) file at `path`, and where each part of it was written.

    Raises:
        BadSpec: the file cannot be read or understood; says file, line and, where it is known, how to mend it.
    """
    return _read(read_document(path, BadSpec))


def parse_spec(text: str, name: str) -> tuple[Pipeline, SpecSource]:
    """The pipeline in `text`; `name` stands for the file in messages. Raises BadSpec."""
    return _read(parse_document(text, name, BadSpec))


def _read(document: Document) -> tuple[Pipeline, SpecSource]:
    warnings: tuple[str, ...] = ()
    metadata: MetadataSpec
    spec: PipelineSpec
    if _kind(document) == "PodGroup":
        group = document.parse(PodGroupFile)
        metadata, spec = group.metadata, group.spec
        passed = [f for f in POD_GROUP_IGNORED if getattr(spec, f) is not None]
        if passed:
            warnings = (f"spec.{', spec.'.join(passed)}: for the cluster's gang scheduler; not used here",)
    else:
        file = document.parse(MediaPipelineFile)
        metadata, spec = file.metadata, file.spec
    order = checked_order(document, spec)
    pipeline = _pipeline(document, metadata.name, spec, order)
    return pipeline, SpecSource(document, {o.name: i for i, o in enumerate(spec.operators)}, warnings)


def _kind(document: Document) -> str:
    value = document.value
    if not isinstance(value, dict):
        held = "a list" if isinstance(value, list) else "one value"
        document.fail(
            f"holds {held}, not a pipeline",
            mend="a pipeline starts with apiVersion: media.observatory/v1, then kind: MediaPipeline",
        )
    for key in ("apiVersion", "kind"):
        if key not in value:
            wanted = "media.observatory/v1" if key == "apiVersion" else "MediaPipeline"
            document.fail(f"{key} is missing", mend=f"add {key}: {wanted}")
    kind, version = value["kind"], value["apiVersion"]
    if not isinstance(kind, str) or kind not in _KINDS:
        document.fail(f"kind: {kind!r} is no pipeline", ("kind",), mend=did_you_mean(str(kind), _KINDS))
    if version not in _KINDS[kind]:
        document.fail(
            f"apiVersion: {version!r} is not known for a {kind}",
            ("apiVersion",),
            mend=f"write {' or '.join(_KINDS[kind])}",
        )
    return kind


def _pipeline(document: Document, name: str, spec: PipelineSpec, order: list[int]) -> Pipeline:
    qos = spec.qos
    return Pipeline(
        name=name,
        operators=tuple(
            OperatorNode(
                name=spec.operators[i].name,
                op=spec.operators[i].op,
                inputs=tuple(spec.operators[i].inputs),
                params=spec.operators[i].params,
                device=spec.operators[i].device,
                line=document.line_of(("spec", "operators", i)),
            )
            for i in order
        ),
        qos=Qos(
            deadline_seconds=qos.deadline_seconds,
            frames_per_second=qos.frames_per_second,
            priority=Priority(qos.priority),
            on_full=OnFull(qos.on_full),
        ),
        topology_constraints=tuple(
            TopologyConstraint(type=c.type, members=tuple(c.members), weight=c.weight, value=c.value)
            for c in spec.topologyConstraints
        ),
        locality_hints=tuple(
            LocalityHint(operators=tuple(h.operators), prefer=h.prefer) for h in spec.dataLocalityHints
        ),
        shared_memory_profile=SharedMemoryProfile(spec.sharedMemoryProfile),
        source_file=document.file,
    )
