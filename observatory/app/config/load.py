"""Reading the configuration: command-line options over environment variables over one TOML file over defaults."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from observatory.app.config.environment import Key, from_environment, misspelt, nested
from observatory.app.config.errors import ConfigError
from observatory.app.config.sections import (
    FramesSection,
    OtlpSection,
    PipelineSection,
    PlatformSection,
    TelemetrySection,
)
from observatory.app.config.toml_lines import key_lines
from observatory.app.submission import Submission, submission_of
from observatory.documents import did_you_mean, dotted, explain, read_text
from observatory.model.errors import MediaObservatoryError
from observatory.topology.load import REAL, shipped_names
from scheduler.specs.read import parse_spec

_MUST = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "finite_number": "a finite number",
    "greater_than": "more than",
    "greater_than_equal": "at least",
    "less_than_equal": "at most",
}
"""What pydantic wants to say by its kinds of errors."""

FILE_NAME = "observatory.toml"
MAX_BYTES = 1_000_000
_LONG_NUMBER = re.compile(r"(?:[0-9]_?){4301,}")  # Python converts no longer one

Kind = Literal["default", "file", "environment", "option"]


class Source(NamedTuple):
    """Where a value comes from. `where`: `FILE:LINE`, the variable, or the option; empty for defaults."""

    kind: Kind
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.kind


@dataclass(frozen=True, slots=True)
class ConfiguredPipeline:
    """One pipeline of the file. `name` is what the platform calls it; `line` is where the file has it."""

    name: str
    submission: Submission
    line: int | None


@dataclass(frozen=True, slots=True)
class Config:
    """Effective values. Paths are absolute; `file` is None when there is none."""

    platform: PlatformSection
    frames: FramesSection
    telemetry: TelemetrySection
    otlp: OtlpSection
    pipelines: tuple[ConfiguredPipeline, ...]
    file: Path | None
    warnings: tuple[str, ...]
    sources: Mapping[str, Source]

    def source_of(self, key: str) -> Source:
        """Where the value of a key such as `platform.port` or `pipelines[0].spec` comes from."""
        return self.sources.get(key, Source("default"))


class _Settings(BaseModel):
    """The whole file, with what overrides it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    platform: PlatformSection = Field(default_factory=PlatformSection)
    frames: FramesSection = Field(default_factory=FramesSection)
    telemetry: TelemetrySection = Field(default_factory=TelemetrySection)
    otlp: OtlpSection = Field(default_factory=OtlpSection)
    pipelines: tuple[PipelineSection, ...] = ()


class _Read(NamedTuple):
    """The file as it was written."""

    path: Path | None
    values: dict[str, Any]
    lines: dict[tuple[str | int, ...], int]

    def line(self, path: tuple[str | int, ...]) -> int | None:
        """Line of a key, or of the closest thing above it that the file has."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1 if self.lines else None


def find_config(
    environment: Mapping[str, str] | None = None, on_skip: Callable[[str], None] = lambda words: None
) -> Path | None:
    """`$OBSERVATORY_CONFIG`, else `./observatory.toml`, else the user's own; None when there is none.

    Args:
        environment: in place of the process's own.
        on_skip: called with words about a place where this process may not look.

    Raises:
        ConfigError: `$OBSERVATORY_CONFIG` names a file that is not there, or may not be looked at.
    """
    environment = os.environ if environment is None else environment
    if named := environment.get("OBSERVATORY_CONFIG"):
        try:
            Path(named).stat()
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(
                "OBSERVATORY_CONFIG: there is no such file", file=named, mend="unset it, or write it"
            ) from None
        except OSError as error:
            words = f"OBSERVATORY_CONFIG: cannot be looked at: {error.strerror}"
            raise ConfigError(words, file=named, mend="unset it, or let this user read it") from None
        return Path(named)
    for path in _usual_places(environment):
        try:
            if path.is_file():
                return path
        except OSError as error:
            on_skip(f"{path} cannot be looked at ({error.strerror}), and is left out")
    return None


def _usual_places(environment: Mapping[str, str]) -> Iterator[Path]:
    yield Path(FILE_NAME)
    if base := environment.get("XDG_CONFIG_HOME"):
        yield Path(base) / "media-observatory" / FILE_NAME
    else:
        with contextlib.suppress(RuntimeError):  # a user without a home has no file of its own there
            yield Path.home() / ".config" / "media-observatory" / FILE_NAME


def load_config(
    path: Path | None,
    *,
    options: Mapping[str, tuple[str, Any]] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """The effective configuration.

    Args:
        path: the file; None: the one that `find_config` finds, or none.
        options: from the command line, over everything else: `platform.port` -> (`--port`, 0).
        environment: in place of the process's own.

    Raises:
        ConfigError: with the file, line and mend of the first mistake, and all of them in `errors`.
    """
    environment = os.environ if environment is None else environment
    skipped: list[str] = []
    file = _read(find_config(environment, skipped.append) if path is None else path)
    given = {_key(key): value for key, value in (options or {}).items()}
    set_ = from_environment(environment)
    overrides: dict[Key, tuple[str, Any]] = {**set_, **given}
    merged = _merge(file.values, nested({key: value for key, (_, value) in overrides.items()}))
    try:
        settings = _Settings(**merged)
    except ValidationError as error:
        raise ConfigError.of(_mistakes(error, file, overrides)) from None
    sources = _sources(file, set_, given)
    folder = Path.cwd() if file.path is None else file.path.absolute().parent
    return Config(
        platform=_absolute(settings.platform, folder, sources),
        frames=settings.frames,
        telemetry=settings.telemetry,
        otlp=settings.otlp,
        pipelines=_pipelines(settings.pipelines, file, folder),
        file=None if file.path is None else file.path.absolute(),
        warnings=(*skipped, *misspelt(environment)),
        sources=sources,
    )


def _key(key: str) -> Key:
    section, _, field = key.partition(".")
    return section, field


def _read(path: Path | None) -> _Read:
    if path is None:
        return _Read(None, {}, {})
    name = str(path)
    text = read_text(path, ConfigError, max_bytes=MAX_BYTES, pipes=False, kind="TOML").replace("\r\n", "\n")
    try:
        return _Read(path, tomllib.loads(text), key_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(error, text, name) from None
    except RecursionError:
        raise ConfigError("nests too deeply", file=name) from None
    except MemoryError:
        raise ConfigError("takes more memory than there is", file=name) from None
    except Exception as error:  # a platform that reads it again has pipelines to lose
        if (found := _LONG_NUMBER.search(text)) is not None:
            line = text.count("\n", 0, found.start()) + 1
            raise ConfigError("a number of more than 4300 digits is too long", file=name, line=line) from None
        raise ConfigError(f"cannot be read: {type(error).__name__}: {error}", file=name) from None


def _not_toml(error: tomllib.TOMLDecodeError, text: str, name: str) -> ConfigError:
    words, _, place = str(error).partition(" (at ")
    found = re.match(r"line (\d+)", place)
    line = int(found.group(1)) if found else max(1, len(text.splitlines()))
    written = text.splitlines()[line - 1].strip() if text.strip() and line <= len(text.splitlines()) else ""
    mend = "text stands in quotes, sections in brackets: [platform]"
    if re.match(r"[\w.-]+\s*:", written):
        mend = "TOML writes key = value, not key: value"
    return ConfigError(f"is not TOML: {words[:1].lower()}{words[1:]}", file=name, line=line, mend=mend)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for section, values in above.items():
        own = merged.get(section, {})
        if isinstance(own, dict):  # else it is a mistake, and will be said to be one
            merged[section] = {**own, **values}
    return merged


def _mistakes(error: ValidationError, file: _Read, overrides: Mapping[Key, tuple[str, Any]]) -> list[ConfigError]:
    """All of them, by line; those of the environment and the command line first."""
    found: list[ConfigError] = []
    details = error.errors(include_url=False)
    typos = {each["loc"][:-1] for each in details if each["type"] == "extra_forbidden"}
    for each in details:
        if each["type"] == "missing" and each["loc"][:-1] in typos:
            continue  # a misspelt name also leaves the right one missing
        found.append(_mistake(each, file, overrides))
    return sorted(found, key=lambda mistake: mistake.line or 0)


def _mistake(details: ErrorDetails, file: _Read, overrides: Mapping[Key, tuple[str, Any]]) -> ConfigError:
    words, mend = explain(_Settings, details)
    where, kind = details["loc"], details["type"]
    name = dotted(where)
    if kind == "missing":
        mend = f'add {where[-1]} = "..."'
    elif kind in _MUST:
        limit = next((f" {limit:g}" for limit in details.get("ctx", {}).values() if isinstance(limit, int | float)), "")
        words = f"{name} must be {_MUST[kind]}{limit}, not {_given(details['input'])}"
    elif where == ("pipelines",) and isinstance(details["input"], dict):
        mend = "two brackets begin a pipeline: [[pipelines]]"
    elif len(where) == 1 and isinstance(details["input"], list):
        mend = f"one bracket begins this section: [{name}]"
    words = words.replace(f"{name}: must", f"{name} must").replace("a mapping (key: value)", "a table")
    key = tuple(where[:2])
    if len(key) == 2 and key in overrides:
        origin = overrides[key][0]  # type: ignore[index]
        return ConfigError(words.replace(name, origin, 1), mend=mend)
    return ConfigError(words, file=None if file.path is None else str(file.path), line=file.line(where), mend=mend)


def _given(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a hexadecimal one of more than 4300 decimal digits
        return "a number that long"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _sources(
    file: _Read, set_: Mapping[Key, tuple[str, Any]], given: Mapping[Key, tuple[str, Any]]
) -> dict[str, Source]:
    sources = {dotted(path): Source("file", f"{file.path}:{line}") for path, line in file.lines.items()}
    sources |= {dotted(key): Source("environment", name) for key, (name, _) in set_.items()}
    return sources | {dotted(key): Source("option", name) for key, (name, _) in given.items()}


def _absolute(section: PlatformSection, folder: Path, sources: Mapping[str, Source]) -> PlatformSection:
    """Paths of the file are relative to its folder, all others to the current one."""

    def base(key: str) -> Path:
        return folder if sources.get(key, Source("default")).kind == "file" else Path.cwd()

    def located(key: str, path: Path | str) -> Path:
        return base(key) / _expanded(path, key, sources.get(key, Source("default")))

    update: dict[str, Any] = {"state": located("platform.state", section.state)}
    topology = section.topology
    if topology is not None and topology != REAL and topology not in shipped_names():
        update["topology"] = str(located("platform.topology", topology))
    return section.model_copy(update=update)


def _expanded(path: Path | str, key: str, source: Source) -> Path:
    """With the home for `~`. Raises ConfigError: there is none, or no file can have such a name."""
    name = key if source.kind in ("file", "default") else source.where
    words = f"{name}: no file can have a NUL in its name"
    if "\0" not in str(path):
        try:
            return Path(path).expanduser()
        except RuntimeError:
            words = f"{name}: there is no home for {str(path).split('/')[0]}"
    mend = "write the whole path"
    if source.kind != "file":
        raise ConfigError(words, mend=mend)
    file, _, line = source.where.rpartition(":")
    raise ConfigError(words, file=file, line=int(line), mend=mend)


def _pipelines(sections: tuple[PipelineSection, ...], file: _Read, folder: Path) -> tuple[ConfiguredPipeline, ...]:
    """Read the pipelines' own files. Raises ConfigError for all that cannot be read, and for names that are taken."""
    found: list[ConfiguredPipeline] = []
    errors: list[MediaObservatoryError] = []
    taken: dict[str, int | None] = {}
    for number, section in enumerate(sections):
        line = file.line(("pipelines", number))
        try:
            one = _pipeline(section, number, file, folder)
        except MediaObservatoryError as error:
            missing = error.line is None  # the file itself is what is wrong: the line that names it is to be mended
            if missing and file.path is not None:
                words = f"pipelines[{number}].spec: {error}"
                error = ConfigError(
                    words, file=str(file.path), line=file.line(("pipelines", number, "spec")), mend=error.mend
                )
            errors.append(error)
            continue
        if one.name in taken:
            words = f"pipelines[{number}]: there is a pipeline {one.name} already, on line {taken[one.name]}"
            errors.append(
                ConfigError(words, file=str(file.path), line=line, mend='give it a name of its own: name = "..."')
            )
        taken.setdefault(one.name, line)
        found.append(one)
    if errors:
        raise ConfigError.of(errors)
    return tuple(found)


def _place(file: _Read, number: int) -> Source:
    return Source("file", f"{file.path}:{file.line(('pipelines', number, 'spec'))}")


def _pipeline(section: PipelineSection, number: int, file: _Read, folder: Path) -> ConfiguredPipeline:
    submission = submission_of(
        folder / _expanded(section.spec, f"pipelines[{number}].spec", _place(file, number)),
        section.inputs,
        name=section.name,
        frames=section.frames,
        realtime=section.realtime,
        folder=folder,
        pipes=False,
    )
    pipeline, _ = parse_spec(submission.spec, submission.file)
    written = file.values["pipelines"][number].get("inputs")
    sources = [node.name for node in pipeline.operators if not node.inputs]
    for operator in written if isinstance(written, dict) else ():
        if operator not in sources:
            words = f"pipelines[{number}].inputs.{operator}: {section.spec} has no source of that name"
            line = file.line(("pipelines", number, "inputs", operator))
            raise ConfigError(words, file=str(file.path), line=line, mend=did_you_mean(operator, sources))
    return ConfiguredPipeline(section.name or pipeline.name, submission, file.line(("pipelines", number)))
