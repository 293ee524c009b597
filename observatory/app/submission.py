"""A pipeline as it is handed to a running platform: the text of its file, its inputs, and where it came from.

The platform's own folder means nothing to whoever submits: relative paths are taken from the submitter's.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dataplane.operators.base import SourceRequest
from observatory.app.gateways import Gateways
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


def submission_of(
    path: Path,
    inputs: tuple[str, ...],
    *,
    name: str | None = None,
    frames: int | None = None,
    realtime: bool | None = None,
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
        spec=text, file=str(path), folder=place, inputs=inputs, name=name, frames=frames, realtime=realtime
    )


def read_submission(submission: Submission, probe_input: Prober, gateways: Gateways) -> TypedPipeline:
    """Parse, open the inputs, derive every format. Raises MediaObservatoryError, with the line of the mistake."""
    graph, source = parse_spec(submission.spec, submission.file)
    if submission.name:
        graph = graph.model_copy(update={"name": submission.name})
    folder = submission.folder
    if folder is not None and not Path(folder).is_absolute():
        raise BadSubmission(f"folder {folder!r} is no absolute path")
    graph = _absolute(graph, folder)
    requests = source_requests(graph, submission.inputs, submission.frames)
    live = {name: _live(graph, name, request, submission) for name, request in requests.items()}
    with gateways.explaining():
        return type_pipeline(graph, gateways.lead(graph, live), source, probe_input)


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
