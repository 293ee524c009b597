"""A topology file as it was given: read once, never more than a limit, as text where it is text.

Importers recognise what they can read by its content, never by its name.
"""

from __future__ import annotations

import gc
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from observatory.model.topology import Topology
from observatory.topology.errors import BadTopology

MAX_BYTES = 16_000_000
_HEAD = 65_536

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][0-9A-B]|\x1b[=>]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_ENCODINGS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


@dataclass(frozen=True, eq=False)
class Source:
    """What was given: `path` for people, and the bytes in it (none of a folder)."""

    path: Path
    data: bytes
    is_folder: bool = False

    @property
    def name(self) -> str:
        """What it is called in messages and in a topology's `sources`."""
        return str(self.path)

    @cached_property
    def text(self) -> str | None:
        """The text without terminal escapes, carriage returns and hard spaces; None when the bytes are no text.

        UTF-8, or UTF-16 with a mark: what a Windows shell makes of a redirected output.
        """
        encoding = next((name for mark, name in _ENCODINGS if self.data.startswith(mark)), "utf-8")
        try:
            text = self.data.decode(encoding)
        except UnicodeDecodeError:
            return None
        text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
        return None if _CONTROL.search(text) else text

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines of the text; of what is no text none."""
        return tuple((self.text or "").split("\n"))

    @cached_property
    def head(self) -> str:
        """The beginning of the text, enough to recognise it by."""
        return (self.text or "")[:_HEAD]

    def fail(self, message: str, line: int | None = None, mend: str | None = None) -> NoReturn:
        """Refuse the file. Raises BadTopology."""
        raise BadTopology(message, file=self.name, line=line, mend=mend)


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file: what it is called, how it is told from the others, and who reads it.

    `read` raises BadTopology for what it cannot understand.
    """

    name: str
    title: str
    recognise: Callable[[Source], bool]
    read: Callable[[Source], Topology]


@contextmanager
def without_collection() -> Iterator[None]:
    """Without the garbage collector, which would look at all that was read again and again: none of it is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled and gc.get_freeze_count() == 0:
            gc.freeze()  # what is new counts as old from here on, without a look at each of it now
            gc.unfreeze()
        if enabled:
            gc.enable()


def open_source(path: str | Path) -> Source:
    """The file, folder or pipe at `path`, at most `MAX_BYTES` of it in memory.

    Raises:
        BadTopology: it cannot be read, or is larger.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return Source(path, b"", is_folder=True)
        return Source(path, _read(path))
    except FileNotFoundError:
        raise BadTopology("there is no such file", file=str(path), mend="check the path") from None
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise BadTopology(f"cannot be read: {reason}", file=str(path)) from None


def _read(path: Path) -> bytes:
    """Opened without waiting for a writer, except into a pipe: a shell's `<(...)` is one."""
    flags = os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC | (0 if path.is_fifo() else os.O_NONBLOCK)
    with os.fdopen(os.open(path, flags), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
            raise ValueError("it is a device, not a file")
        data = b"" if status.st_size > MAX_BYTES else stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES or status.st_size > MAX_BYTES:
            raise BadTopology(
                f"is larger than {MAX_BYTES / 1e6:g} MB", file=str(path), mend="is this really a topology file?"
            )
        return data
