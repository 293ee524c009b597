"""Checking a configuration before anything runs: what is wrong, and what may turn out to be."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from observatory.app.config.errors import ConfigError
from observatory.app.config.load import Config, ConfiguredPipeline
from observatory.app.submission import PATH_PARAMETERS, absolute
from observatory.app.typed import kind_of, parameters_of, source_requests
from observatory.app.units import bytes_text
from observatory.model.errors import MediaObservatoryError
from observatory.model.pipeline import OperatorNode, Pipeline
from observatory.topology.load import load_topology
from scheduler.specs.read import parse_spec


@dataclass(frozen=True, slots=True)
class Findings:
    """`errors` keep a platform from starting; `warnings` may be as they should."""

    errors: tuple[MediaObservatoryError, ...]
    warnings: tuple[str, ...]


def check(config: Config) -> Findings:
    """Look at everything that the configuration names."""
    checks: tuple[Callable[[Config], Iterator[MediaObservatoryError | str]], ...] = (
        _check_state,
        _check_topology,
        _check_pipelines,
        _check_address,
        _check_budget,
    )
    found: list[MediaObservatoryError | str] = [*config.warnings]
    for one in checks:
        found += one(config)
    return Findings(
        tuple(each for each in found if isinstance(each, MediaObservatoryError)),
        tuple(each for each in found if isinstance(each, str)),
    )


def mistake(config: Config, key: str, words: str, mend: str | None = None) -> ConfigError:
    """An error at the place where a value was written: the file, the variable or the option."""
    source = config.source_of(key)
    if source.kind == "file":
        return _at(config, key, f"{key}: {words}", mend)
    return ConfigError(f"{key if source.kind == 'default' else source.where}: {words}", mend=mend)


def _at(config: Config, key: str, words: str, mend: str | None) -> ConfigError:
    file, _, line = config.source_of(key).where.rpartition(":")
    return ConfigError(words, file=file, line=int(line), mend=mend)


def _exists(path: Path) -> bool:
    """Whether it is there for this process: what it may not look at is not."""
    try:
        return path.exists()
    except OSError:
        return False


def _check_state(config: Config) -> Iterator[MediaObservatoryError]:
    state = config.platform.state
    there = next(path for path in (state, *state.parents) if _exists(path))
    if not there.is_dir():
        yield mistake(config, "platform.state", f"{there} is a file, not a folder", "name a folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield mistake(config, "platform.state", f"{there} cannot be written", "choose another, or change its owner")


def _check_topology(config: Config) -> Iterator[MediaObservatoryError]:
    try:
        load_topology(config.platform.topology)
    except MediaObservatoryError as error:
        at_fault = error.line is None
        yield mistake(config, "platform.topology", str(error), error.mend) if at_fault else error


def _check_pipelines(config: Config) -> Iterator[MediaObservatoryError | str]:
    outputs: dict[str, str] = {}
    for number, one in enumerate(config.pipelines):
        key = f"pipelines[{number}]"
        graph, source = parse_spec(one.submission.spec, one.submission.file)
        yield from (f"pipeline {one.name}: {words}" for words in source.warnings)
        for node in graph.operators:
            try:
                kind = kind_of(node, source)
                parameters_of(node, kind, source)
            except MediaObservatoryError as error:
                yield error
                continue
            if kind.sink:
                yield from _check_output(config, key, one, node, outputs)
        yield from _check_inputs(config, key, one, graph)


def _check_output(
    config: Config, key: str, one: ConfiguredPipeline, node: OperatorNode, outputs: dict[str, str]
) -> Iterator[MediaObservatoryError]:
    """Two pipelines that write to one place would destroy a file."""
    for parameter in PATH_PARAMETERS:
        written = node.params.get(parameter)
        if not isinstance(written, str):
            continue
        path = absolute(written, one.submission.folder)
        owner = outputs.setdefault(path, one.name)
        if owner != one.name:
            words = f"pipeline {one.name}: its operator {node.name} writes to {path}, as the pipeline {owner} does"
            mend = "give every pipeline outputs of its own"
            yield _at(config, key, words, mend)


def _check_inputs(
    config: Config, key: str, one: ConfiguredPipeline, graph: Pipeline
) -> Iterator[MediaObservatoryError | str]:
    try:
        requests = source_requests(graph, one.submission.inputs, one.submission.frames)
    except MediaObservatoryError as error:
        words = error.message.replace("--input ", "inputs: ")
        mend = error.mend.replace("--input ", "inputs = ") if error.mend else None
        yield _at(config, key, f"pipeline {one.name}: {words}", mend)
    else:
        yield from _missing_inputs(one, [request.input for request in requests.values()])


def _missing_inputs(one: ConfiguredPipeline, inputs: list[str | None]) -> Iterator[str]:
    for location in inputs:
        path = None if location is None or "://" in location else absolute(location, one.submission.folder)
        if path is not None and not _exists(Path(path)):
            yield f"pipeline {one.name}: its input {path} is not there (yet)"


def _check_address(config: Config) -> Iterator[MediaObservatoryError | str]:
    host, port = config.platform.host, config.platform.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        yield mistake(config, "platform.host", f"{host} is no address: {error.strerror}", "write 127.0.0.1")
        return
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            yield f"platform.port: {host}:{port} cannot be used now: {error.strerror}"


def _check_budget(config: Config) -> Iterator[str]:
    state, budget = config.platform.state, config.frames.disk_budget_bytes
    there = next(path for path in (state, *state.parents) if _exists(path))
    data = state / "frames" / "data.mdb"
    used = data.stat().st_blocks * 512 if _exists(data) else 0
    free = shutil.disk_usage(there).free
    if budget > free + used:
        yield (
            f"frames.disk_budget: {bytes_text(budget)}, but the disk of {there} has {bytes_text(free)} free "
            f"and the frame store takes {bytes_text(used)}"
        )
