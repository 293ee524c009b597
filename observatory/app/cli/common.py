"""What every command shares: `--state` and `--json`, where state lives, how results and errors are printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from observatory.model.errors import ExitCode, MediaObservatoryError

if TYPE_CHECKING:
    from pydantic import BaseModel  # takes a tenth of a second to import; not every command needs it

Function = TypeVar("Function", bound=Callable[..., Any])


class NoHome(MediaObservatoryError):
    """The user has no home directory, and nothing says where to keep state."""

    exit_code = ExitCode.BAD_INPUT


def default_state() -> Path:
    """`$OBSERVATORY_STATE`, or `$XDG_STATE_HOME/media-observatory`, or `~/.local/state/media-observatory`.

    Raises:
        NoHome: none of them can be told.
    """
    if explicit := os.environ.get("OBSERVATORY_STATE"):
        return Path(explicit)
    try:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise NoHome("this user has no home directory to keep state in", mend="set HOME, or give --state") from None
    return Path(base) / "media-observatory"


def common_options(function: Function) -> Function:
    """Add `--state DIR` (passed as `state: Path`) and `--json` (passed as `as_json: bool`) to a command."""
    function = click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON document on standard output and nothing else there.",
    )(function)
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_state,
        show_default="$XDG_STATE_HOME/media-observatory",
        help="Directory of frame records, decisions and sockets.",
    )(function)


def link_options(function: Function) -> Function:
    """Add `--emulate-links [SCALE]` (passed as `emulate_links`) and `--link-seed` (`link_seed`) to a command."""
    function = click.option(
        "--link-seed",
        metavar="N|exact",
        help="What emulated links really do is drawn from it; exact: what is advertised. Default: another each time.",
    )(function)
    return click.option(
        "--emulate-links",
        is_flag=False,
        flag_value="auto",
        metavar="[SCALE|auto]",
        help="Let frames cross the topology's links between devices, SCALE times slower. auto: 3 MB take 1 ms or more.",
    )(function)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` was given before any `--`; needed before the arguments are parsed, to print usage errors."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def print_json(document: BaseModel | dict[str, Any] | list[Any]) -> None:
    """Write one JSON document to standard output. NaN and infinity are refused: they are not JSON."""
    value = document if isinstance(document, dict | list) else document.model_dump(mode="json")
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    if sys.stdout is not None:  # it is None where it was closed before the start
        sys.stdout.write(text)
        sys.stdout.flush()


def _label(words: str, color: str) -> str:
    """Bold and coloured, unless $NO_COLOR or $TERM asks for plain text (click takes it off where it is no terminal)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return words if plain else click.style(words, fg=color, bold=True)


def print_error(error: MediaObservatoryError, as_json: bool, *, kind: str | None = None) -> None:
    """Words on standard error; with `--json` also `{"error": ...}` on standard output."""
    complain(f"{_label('error:', 'red')} {error}")
    if error.mend:
        complain(f"{_label(' mend:', 'cyan')} {error.mend}")
    if as_json:
        document = error.as_dict()
        if kind:
            document["kind"] = kind
        try:
            print_json({"error": document})
        except OSError:  # nobody reads it; the words are on standard error
            silence_stdout()


def silence_stdout() -> None:
    """Throw away what standard output still holds: else the interpreter complains at its exit."""
    _silence(sys.stdout)


def _silence(stream: TextIO | None) -> None:
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(message: str) -> None:
    """One warning on standard error."""
    complain(f"{_label('warning:', 'yellow')} {message}")


def complain(words: str) -> None:
    """One message on standard error."""
    try:
        click.echo(words, err=True)
    except OSError:  # the exit code is left to say it
        _silence(sys.stderr)
