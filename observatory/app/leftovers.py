"""What a process that was killed leaves in the state directory, and nobody else removes."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

from observatory.app.control import short_address

YOUNG_SECONDS = 60.0  # what is younger may just be being made


def sweep_leftovers(state: Path) -> None:
    """Remove sockets that nobody listens at, and folders of runs whose workers said nothing. Never raises.

    For who holds the StateLock, before it makes a socket of its own; jobs of `observatory run` may be running.
    """
    with contextlib.suppress(OSError):
        entries = sorted((state / "run").iterdir())
        alone = True
        for path in entries:
            if path.suffix in (".sock", ".making") and path.is_socket():
                alone &= _sweep_socket(path)
        for path in entries:
            if path.is_dir() and not path.is_symlink():
                _sweep_folder(path, alone)


def _sweep_socket(path: Path) -> bool:
    """Remove it when nobody listens there; whether it is gone."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client, short_address(path) as address:
        client.settimeout(0)  # it is taken at once, refused at once, or too many wait already: then somebody listens
        try:
            client.connect(address)
        except ConnectionRefusedError:
            if path.suffix == ".sock" or _old(path):
                path.unlink(missing_ok=True)
                return True
    return False


def _sweep_folder(folder: Path, alone: bool) -> None:
    """Remove the folder of a run that holds nothing, or only empty logs when no worker can be writing any."""
    with contextlib.suppress(OSError):
        logs = list(folder.iterdir())
        if not _old(folder) or (logs and not alone) or any(log.suffix != ".log" or log.stat().st_size for log in logs):
            return
        for log in logs:
            log.unlink()
        folder.rmdir()


def _old(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime > YOUNG_SECONDS
