"""A pipeline as it is handed to a running platform: the text of its file, its inputs, and where it came from.

The platform's own folder means nothing to whoever submits: relative paths are taken from the submitter's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dataplane.operators.base import Operator, Parameters, Probe, SourceRequest
from observatory.app.gateways import Gateways
from observatory.app.prefixes import SourceKey, key_or_none
from observatory.app.typed import Prober, TypedPipeline, source_requests, type_pipeline
from observatory.documents import explain, read_text
from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode
from observatory.model.pipeline import Pipeline
from scheduler.errors import BadSpec
from scheduler.specs.read import parse_spec

PATH_PARAMETERS = ("path", "folder")


class BadSubmission(ObservatoryError):
    """What was handed in is no pipeline with its inputs."""

    exit_code = ExitCode.BAD_INPUT


class Submission(BaseModel):
    """What `observatory submit`, the HTTP API and the configuration hand in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: str = Field(description="The text of the pipeline's file")
    file: str = Field(default="pipeline.yaml", description="What errors call it")
    folder: str | None = Field(default=None, description="Absolute; relative paths are taken from it")
    inputs: tuple[str, ...] = Field(default=(), description="FILE, URL, or OPERATOR=FILE")
    name: str | None = Field(default=None, description="In place of the one in the file")
    frames: int | None = Field(default=None, ge=1, description="Stop after so many of each source")
    realtime: bool | None = Field(default=None, description="Read files at their own pace")
    share: bool | None = Field(
        default=None,
        description="Share what it has in common with other pipelines, from their input on; null: as the platform does",
    )


def submission_from(arguments: dict[str, Any]) -> Submission:
    """What came as JSON. Raises BadSubmission: it names the first field that is wrong."""
    try:
        return Submission.model_validate(arguments)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A misspelt name also leaves the right one missing.
        details = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        words, mend = explain(Submission, details)
        raise BadSubmission(words, mend=mend) from None


def submissions_from(arguments: dict[str, Any]) -> list[Submission]:
    """Several that are to be started together. Raises BadSubmission."""
    given = arguments.get("submissions")
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise BadSubmission("submissions must be a list of them", mend='"submissions": [{"spec": ...}, ...]')
    return [submission_from(one) for one in given]


def submission_of(
    path: Path,
    inputs: tuple[str, ...],
    *,
    name: str | None = None,
    frames: int | None = None,
    realtime: bool | None = None,
    share: bool | None = None,
    folder: Path | None = None,
    pipes: bool = True,
) -> Submission:
    """The pipeline file at `path`, handed in from `folder` (default: the current one); see read_text for `pipes`.

    Raises:
        BadSpec: it cannot be read.
    """
    text = read_text(path, BadSpec, pipes=pipes)
    place = str(Path.cwd() if folder is None else folder)
    return Submission(
        spec=text, file=str(path), folder=place, inputs=inputs, name=name, frames=frames, realtime=realtime, share=share
    )


@dataclass(frozen=True, slots=True)
class KnownInput:
    """An input that is open already, in another pipeline: how it is read, and what probing it told."""

    request: SourceRequest
    probe: Probe


def nothing_known(_: SourceKey) -> KnownInput | None:
    """Of no input."""
    return None


def read_submission(
    submission: Submission,
    probe_input: Prober,
    gateways: Gateways,
    known: Callable[[SourceKey], KnownInput | None] = nothing_known,
) -> TypedPipeline:
    """Parse, open the inputs that are not open already, derive every format.

    Raises MediaObservatoryError, with the line of the mistake.
    """
    graph, source = parse_spec(submission.spec, submission.file)
    if submission.name:
        graph = graph.model_copy(update={"name": submission.name})
    folder = submission.folder
    if folder is not None and not Path(folder).is_absolute():
        raise BadSubmission(f"folder {folder!r} is no absolute path")
    graph = _absolute(graph, folder)
    requests = source_requests(graph, submission.inputs, submission.frames)
    live = {name: _live(graph, name, request, submission) for name, request in requests.items()}
    open_already = _open_already(graph, live, known)
    others = {name: request for name, request in live.items() if name not in open_already}
    probes = [(found.request, found.probe) for found in open_already.values()]

    def probe(kind: type[Operator], params: Parameters, request: SourceRequest) -> Probe:
        found = next((probe for theirs, probe in probes if theirs is request), None)
        return probe_input(kind, params, request) if found is None else found

    with gateways.explaining():
        led = gateways.lead(graph, others) | {name: found.request for name, found in open_already.items()}
        return type_pipeline(graph, led, source, probe)


def _open_already(
    graph: Pipeline, requests: Mapping[str, SourceRequest], known: Callable[[SourceKey], KnownInput | None]
) -> dict[str, KnownInput]:
    """By source; of two that are the same only the first, for the second is opened once more."""
    keys: dict[SourceKey, str] = {}
    for name, request in requests.items():
        if (key := key_or_none(graph, name, request)) is not None:
            keys.setdefault(key, name)
    found = {name: known(key) for key, name in keys.items()}
    return {n: KnownInput(replace(one.request), one.probe) for n, one in found.items() if one is not None}


def _absolute(graph: Pipeline, folder: str | None) -> Pipeline:
    operators = []
    for node in graph.operators:
        params: dict[str, Any] = dict(node.params)
        for key in PATH_PARAMETERS:
            if isinstance(params.get(key), str):
                params[key] = absolute(params[key], folder)
        operators.append(node.model_copy(update={"params": params}))
    return graph.model_copy(update={"operators": tuple(operators)})


def absolute(location: str, folder: str | None) -> str:
    """A location as the submitter means it; URLs and absolute paths are as they are. Raises BadSubmission."""
    if "://" in location or Path(location).is_absolute():
        return location
    if folder is None:
        words = f"{location!r} is a relative path, and there is no folder to take it from"
        raise BadSubmission(words, mend="give an absolute path, or the folder")
    return str(Path(folder) / location)


def _live(graph: Pipeline, name: str, request: SourceRequest, submission: Submission) -> SourceRequest:
    """What a source means on a platform: a generated picture has no end and comes at its own pace."""
    params = next(node.params for node in graph.operators if node.name == name)
    location = None if request.input is None else absolute(request.input, submission.folder)
    generated = location is None and params.get("path") is None
    frames, realtime = request.frames, submission.realtime
    if generated:
        realtime = True if realtime is None else realtime
        if frames is None and params.get("frames") is None:
            frames = 0
    return replace(request, input=location, frames=frames, realtime=realtime)


def shipped(inputs: tuple[str, ...], folder: Path) -> Submission:
    """The pipeline for who names none: into files for a file that ends, into a live window for what does not."""
    live = not inputs or any("://" in given for given in inputs)
    name = "live-hls.yaml" if live else "abr-ladder.yaml"
    text = (files("observatory.app") / "pipelines" / name).read_text()
    return Submission(spec=text, file=name, folder=str(folder), inputs=inputs)
