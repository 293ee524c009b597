"""Entry point of the command `observatory`: until the command line is loaded, Ctrl-C ends the process, no more.

SIGHUP, which asks a platform to read its configuration again, does not end one that is only about to begin.
"""

from __future__ import annotations

import io
import signal
import sys
from typing import NoReturn

from observatory.app import hang_up


def main() -> NoReturn:
    """Load the command line and run it with the process's arguments."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a half-imported module can only answer with a traceback
    if sys.argv[1:2] == ["up"]:
        hang_up.hold()
    from observatory.app.cli.main import run_cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what the terminal's encoding lacks is no reason to fail
    sys.exit(run_cli(sys.argv[1:]))
