"""What pipelines have in common at their beginning: the same source, and below it the same operators.

Two sources are the same when they run the same operator with the same parameters on the same input, as far and at the
pace asked for. An operator below is the same when it has the same parameters and its inputs are the same, all the way
up to one source. Sharing ends where the picture is coded: a stream of packets cannot be cut anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import ValidationError

from dataplane.errors import NoSuchOperator
from dataplane.operators.base import Operator, Parameters, SourceRequest
from dataplane.operators.registry import operator_type
from observatory.app.typed import TypedOperator, TypedPipeline
from observatory.model.pipeline import OnFull, OperatorNode, Pipeline, SharedMemoryProfile


class SourceKey(NamedTuple):
    """Equal for sources that give the same frames."""

    op: str
    params: str  # as JSON, with every default, without the location
    location: str | None  # None: it is generated
    frames: int | None
    realtime: bool | None
    profile: SharedMemoryProfile
    device: str | None  # where its pipeline wants it to run


def source_key(
    node: OperatorNode,
    kind: type[Operator],
    params: Parameters,
    request: SourceRequest,
    profile: SharedMemoryProfile,
) -> SourceKey:
    """What decides which frames a source gives, and where they lie."""
    said = params.model_dump_json(exclude={"path"})
    location = request.input if request.input is not None else getattr(params, "path", None)
    if location is not None and "://" not in location:
        location = os.path.realpath(location)
    return SourceKey(kind.op, said, location, request.frames, request.realtime, profile, node.device)


def key_in(typed: TypedPipeline, source: str) -> SourceKey:
    """Of a source of a pipeline."""
    operator = typed.operators[source]
    profile = typed.pipeline.shared_memory_profile
    return source_key(operator.node, operator.kind, operator.params, typed.requests[source], profile)


def key_or_none(pipeline: Pipeline, source: str, request: SourceRequest) -> SourceKey | None:
    """The key of a source that may not be right: None then."""
    node = pipeline.operator(source)
    try:
        kind = operator_type(node.op)
        params = kind.Params.model_validate(node.params)
    except (ValidationError, NoSuchOperator):
        return None
    return source_key(node, kind, params, request, pipeline.shared_memory_profile)


def sources_by_key(typed: TypedPipeline) -> dict[SourceKey, str]:
    """The sources of a pipeline; of two that are the same the first."""
    found: dict[SourceKey, str] = {}
    for source in typed.probes:
        found.setdefault(key_in(typed, source), source)
    return found


@dataclass(frozen=True, slots=True)
class Member:
    """A pipeline and the source of it that others have too."""

    typed: TypedPipeline
    source: str


def common_prefix(members: Sequence[Member]) -> list[dict[str, str]]:
    """Per member: its names of the operators that all have in common, and the first member's names of them.

    The source is always among them: who asks has seen that it is the same.
    """
    first = members[0]
    found = [{member.source: first.source} for member in members]
    if len(members) == 1 or any(member.typed.pipeline.qos.on_full is not OnFull.BLOCK for member in members):
        return found  # what one consumer inside drops is gone for all
    for name, operator in first.typed.operators.items():
        if not _may_be_shared(operator, first.source):
            continue
        same = [_same_as(member.typed, named, operator) for member, named in zip(members, found, strict=True)]
        if all(one is not None for one in same):
            for named, one in zip(found, same, strict=True):
                named[str(one)] = name
    return found


def _may_be_shared(operator: TypedOperator, source: str) -> bool:
    kind = operator.kind
    raw = all(port.format.kind == "video" for port in operator.outputs)
    return not kind.source and not kind.sink and not kind.takes_audio and operator.sources == (source,) and raw


def _same_as(typed: TypedPipeline, named: Mapping[str, str], wanted: TypedOperator) -> str | None:
    """The operator of a pipeline that does the same as `wanted`; `named`: its names of what is known to be common."""
    for name, operator in typed.operators.items():
        inputs = tuple(named.get(above) for above in operator.node.inputs)
        if name not in named and inputs == wanted.node.inputs and _same_work(operator, wanted):
            return name
    return None


def _same_work(one: TypedOperator, other: TypedOperator) -> bool:
    mine, theirs = one.node, other.node
    same_work = (mine.op, mine.device, one.params) == (theirs.op, theirs.device, other.params)
    return same_work and one.outputs == other.outputs
