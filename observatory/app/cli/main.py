"""`observatory`: the group of all commands, and the one place where errors become words and exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import resource
from typing import Any

import click

from observatory.app.cli.common import complain, print_error, silence_stdout, wants_json
from observatory.model.errors import ExitCode, MediaObservatoryError

# name -> (module, help line); the module is imported only when its command runs or shows its own help.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("observatory.app.cli.up", "Run the live platform: pipelines, pages, metrics, a control socket."),
    "run": ("observatory.app.cli.run", "Run a pipeline over shared memory until its input ends."),
    "plan": ("observatory.app.cli.plan", "Place a pipeline on a topology and explain it, running nothing."),
    "frames": ("observatory.app.cli.frames", "Find frames again: find, list, slowest, stats."),
    "topology": (
        "observatory.app.cli.topology",
        "Show machines and change emulated ones: show, import, cost, diff, watch, set.",
    ),
    "incidents": (
        "observatory.app.cli.incidents",
        "Show what is wrong with the hardware, under a platform or in recorded files.",
    ),
    "submit": ("observatory.app.cli.submit", "Start one more pipeline on a running platform."),
    "move": ("observatory.app.cli.move", "Let another process take over an operator's work, while frames flow."),
    "remove": ("observatory.app.cli.remove", "End one pipeline of a running platform."),
    "ps": ("observatory.app.cli.ps", "Show running pipelines and their worker processes."),
    "config": ("observatory.app.cli.config", "Check a configuration file, show the values in force."),
    "doctor": ("observatory.app.cli.doctor", "Say what this machine allows, why not, and the mend."),
}


class _ReaderLeft(Exception):  # it is none
    """Whoever read our standard output is gone."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when it is needed: `--help` stays instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command; its click command is called `command`."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would make exit code 1 of a reader that leaves (`| head`)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderLeft from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  observatory run                                   the shipped ABR ladder on a test picture
  observatory run ladder.yaml --input film.mp4      your pipeline, your video
  observatory frames find --stream abr-ladder --pts 1024
  observatory doctor
""",
)
@click.version_option(package_name="media-observatory")
def cli() -> None:
    """Measure, place and move media pipelines: real frames through real processes, every frame found again."""


def run_cli(arguments: list[str]) -> int:
    """Run the command line; the exit code is returned. Never raises for errors of the user's making."""
    as_json = wants_json(arguments)
    try:
        result: Any = cli.main(args=arguments, prog_name="observatory", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        complain(error.format_message())
        return ExitCode.BAD_INPUT
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "observatory"
        print_error(
            MediaObservatoryError(error.format_message(), mend=f"see: {command} --help"),
            as_json,
            kind="UsageError",
        )
        return ExitCode.BAD_INPUT
    except click.ClickException as error:
        print_error(MediaObservatoryError(error.format_message()), as_json, kind=type(error).__name__)
        return ExitCode.BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        print_error(MediaObservatoryError("interrupted"), as_json, kind="Interrupted")
        return ExitCode.INTERRUPTED
    except MediaObservatoryError as error:
        print_error(error, as_json)
        return error.exit_code
    except (BrokenPipeError, _ReaderLeft):  # not an error
        silence_stdout()
        return ExitCode.DONE
    except Exception as error:
        if (known := _of_the_system(error)) is not None:
            print_error(known, as_json, kind="SystemError")
            return ExitCode.JOB_FAILED
        if os.environ.get("OBSERVATORY_DEBUG"):  # a defect of ours: still one clear line, and details for who asks
            raise
        words = f"internal error: {type(error).__name__}: {error}"
        defect = MediaObservatoryError(words, mend="set OBSERVATORY_DEBUG=1 to see where, and report it")
        print_error(defect, as_json, kind="InternalError")
        return ExitCode.JOB_FAILED
    return result if isinstance(result, int) else ExitCode.DONE


def _of_the_system(error: Exception) -> MediaObservatoryError | None:
    """The error in words when it is the machine's, which may come from anywhere; None when it is ours."""
    if not isinstance(error, OSError):
        return None
    number = error.errno
    if number in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        words = f"too many files are open: this process may have {limit}"
        return MediaObservatoryError(words, mend="allow more (ulimit -n 4096), or run fewer operators")
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF) and error.filename is None:
        silence_stdout()
        return MediaObservatoryError(f"standard output cannot be written: {os.strerror(number)}")
    return None
