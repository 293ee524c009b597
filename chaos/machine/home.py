"""Where the emulated machine's files are: in memory, as those of /sys are, and a link to them at the folder asked for.

Making a thousand files on a disk takes up to two seconds where others use it, in memory 40 ms. What a killed process
left behind is removed by the next machine on this host.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from chaos.errors import CannotEmulate

MEMORY = Path("/dev/shm")
_PREFIX = "media-observatory-machine-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-\w+\Z")


def make_home(folder: Path, memory: Path = MEMORY) -> Path:
    """An empty folder in memory, to which `folder` leads; on its disk where there is no memory for files.

    Raises:
        CannotEmulate: neither can be made.
    """
    sweep(memory)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_home(folder)
        if not (memory.is_dir() and os.access(memory, os.W_OK)):
            folder.mkdir(mode=0o700)
            return folder
        home = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=memory))
        try:
            folder.symlink_to(home)
        except OSError:
            home.rmdir()
            raise
        return home
    except OSError as error:
        raise CannotEmulate(f"cannot be made: {error.strerror}", file=str(folder)) from None


def remove_home(folder: Path) -> None:
    """Remove what `make_home` made: the link and where it leads, if that is such a folder."""
    if folder.is_symlink():
        target = folder.readlink()
        with contextlib.suppress(FileNotFoundError):
            folder.unlink()
        if _NAME.match(target.name):
            shutil.rmtree(target, ignore_errors=True)
    elif folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def sweep(memory: Path = MEMORY) -> None:
    """Remove the folders of processes that are no more."""
    with contextlib.suppress(OSError):
        for path in list(memory.iterdir()):
            match = _NAME.match(path.name)
            if match is not None and not Path(f"/proc/{match[1]}").exists():
                shutil.rmtree(path, ignore_errors=True)
