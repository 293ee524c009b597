"""`python -m observatory.app.web`: the web process, started by the platform with a socket that listens already."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    """Serve until SIGTERM, or until the platform has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # before the imports, which take a while
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    _allow_many_files()

    from observatory.app.web.app import application
    from observatory.app.web.guard import Access
    from observatory.app.web.serve import end_with, make_server

    listening = socket.socket(fileno=arguments.socket_fd)
    access = Access.bound_to(listening.getsockname()[0], arguments.allow_host)
    server = make_server(application(arguments.control, arguments.state, access))
    server.end_in_any_case()
    if arguments.parent is not None:
        try:
            end_with(arguments.parent, server)
        except ProcessLookupError:
            sys.exit("the platform has ended already")
    asyncio.run(server.serve(sockets=[listening]))
    logging.shutdown()
    os._exit(0)  # threads that still wait for the platform are not waited for


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m observatory.app.web", description=__doc__)
    parser.add_argument("--socket-fd", type=int, required=True, help="An inherited TCP socket that listens")
    parser.add_argument("--state", type=Path, required=True, help="The state directory")
    parser.add_argument("--control", type=Path, required=True, help="The platform's control socket")
    parser.add_argument("--parent", type=int, help="Process id of the platform: end when it ends")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="A name that requests may be addressed to"
    )
    return parser.parse_args()


def _allow_many_files() -> None:
    """Every browser takes a descriptor; the usual 1024 are few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
