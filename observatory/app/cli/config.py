"""`observatory config`: check a configuration file, show the values in force."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from observatory.app.cli.common import common_options, print_error, print_json, warn
from observatory.model.errors import ExitCode, MediaObservatoryError

if TYPE_CHECKING:
    from observatory.app.config.load import Config


@click.group()
def command() -> None:
    """Check a configuration file, or show the values in force and where each comes from.

    The file is FILE, else $OBSERVATORY_CONFIG, else ./observatory.toml, else
    $XDG_CONFIG_HOME/media-observatory/observatory.toml; environment variables OBSERVATORY_<SECTION>_<FIELD> go over it.

    \b
    Examples:
      observatory config check
      OBSERVATORY_PLATFORM_PORT=9000 observatory config show
    """


@command.command("check")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@common_options
def check(file: Path | None, state: Path, as_json: bool) -> int:
    """Find every mistake in a configuration file and in what it names; exit code 2 when there is one.

    \b
    Examples:
      observatory config check
      observatory config check /etc/observatory.toml --json
    """
    from observatory.app.config.check import check as look
    from observatory.app.config.errors import ConfigError
    from observatory.app.config.load import load_config

    config: Config | None = None
    errors: tuple[MediaObservatoryError, ...]
    warnings: tuple[str, ...] = ()
    try:
        config = load_config(file, options=_options(state))
    except ConfigError as error:
        errors = error.errors
    else:
        errors, warnings = (found := look(config)).errors, found.warnings
    for words in warnings:
        warn(words)
    for one in errors:
        print_error(one, as_json=False)
    if as_json:
        print_json(_report(config, errors, warnings))
    elif config is not None and not errors:
        click.echo(f"OK: {_summary(config)}")
    return ExitCode.BAD_INPUT if errors else ExitCode.DONE


@command.command("show")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@common_options
def show(file: Path | None, state: Path, as_json: bool) -> None:
    """Show the values in force and where each comes from: the default, the file, the environment.

    \b
    Examples:
      observatory config show
      OBSERVATORY_FRAMES_DISK_BUDGET=2GB observatory config show observatory.toml --json
    """
    from observatory.app.config.load import load_config

    config = load_config(file, options=_options(state))
    for words in config.warnings:
        warn(words)
    if as_json:
        print_json(_document(config))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    console.print(f"file: {config.file or 'none'}\n", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for key, words, source in _rows(config):
        table.add_row(key, words, source)
    console.print(table)


def _options(state: Path) -> dict[str, tuple[str, Any]]:
    """`--state` where it was given; click also fills in its default."""
    given = click.get_current_context().get_parameter_source("state") is ParameterSource.COMMANDLINE
    return {"platform.state": ("--state", state)} if given else {}


def _values(config: Config) -> Iterator[tuple[str, Any]]:
    """Every setting of the sections, as the file calls it."""
    from observatory.app.config.environment import SECTIONS

    for section, model in SECTIONS.items():
        for name, field in model.model_fields.items():
            yield f"{section}.{field.alias or name}", getattr(getattr(config, section), name)


def _rows(config: Config) -> Iterator[tuple[str, str, str]]:
    from observatory.app.config.changes import shown
    from observatory.app.units import bytes_text

    for key, value in _values(config):
        is_size = key in ("platform.memory_limit", "frames.disk_budget") and value is not None
        yield key, bytes_text(value) if is_size else shown(value), str(config.source_of(key))
    for number, one in enumerate(config.pipelines):
        words = " ".join([one.submission.file, *one.submission.inputs])
        yield f"pipeline {one.name}", words, str(config.source_of(f"pipelines[{number}]"))


def _document(config: Config) -> dict[str, Any]:
    settings = {}
    for key, value in _values(config):
        source = config.source_of(key)
        plain = (
            str(value)
            if isinstance(value, Path)
            else [str(one) for one in value]
            if isinstance(value, tuple)
            else value
        )
        settings[key] = {"value": plain, "source": source.kind, "where": source.where or None}
    return {
        "file": None if config.file is None else str(config.file),
        "settings": settings,
        "pipelines": [
            {"name": one.name, "line": one.line, **one.submission.model_dump(mode="json", exclude={"spec", "name"})}
            for one in config.pipelines
        ],
        "warnings": list(config.warnings),
    }


def _report(
    config: Config | None, errors: tuple[MediaObservatoryError, ...], warnings: tuple[str, ...]
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "ok": not errors,
        "errors": [error.as_dict() for error in errors],
        "warnings": list(warnings),
    }
    if errors:
        report["error"] = report["errors"][0]
    elif config is not None:
        report |= {"file": None if config.file is None else str(config.file)}
        report |= {"pipelines": [one.name for one in config.pipelines]}
    return report


def _summary(config: Config) -> str:
    from observatory.app.units import bytes_text

    names = ", ".join(one.name for one in config.pipelines) or "none"
    frames = config.frames
    return (
        f"{config.file or 'no file, the defaults'}\n"
        f"  pages at {config.platform.host}:{config.platform.port or 'a free port'}, state in {config.platform.state}\n"
        f"  pipelines: {names}\n"
        f"  frames: all for {frames.keep_all_seconds:g} s, then 1 in {frames.keep_one_in} and the slow ones, "
        f"within {bytes_text(frames.disk_budget_bytes)}"
    )
