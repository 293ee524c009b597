"""The floor of a hand-over to a process that sleeps: a bare futex, in C++ (dataplane_floor.cpp), two processes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


@cache
def build() -> str:
    """Compile it, once per process; returns the library's path.

    Raises:
        OSError: there is no compiler.
        subprocess.CalledProcessError: it failed.
    """
    folder = tempfile.TemporaryDirectory(prefix="observatory-bench-")
    _FOLDERS.append(folder)
    library = Path(folder.name) / "floor.so"
    source = Path(__file__).with_suffix(".cpp")
    subprocess.run(["c++", "-std=c++20", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)


@cache
def _load(library: str) -> ctypes.CDLL:
    loaded = ctypes.CDLL(library)
    loaded.floor_wake.argtypes = [ctypes.c_void_p]
    loaded.floor_wake.restype = None
    loaded.floor_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    loaded.floor_wait.restype = ctypes.c_int64
    return loaded


def wake(library: str, words: Any, first: int) -> None:
    """Stamp, move the word on, wake. `words[first]` and the one after it are the floor's."""
    _load(library).floor_wake(ctypes.addressof(words) + 8 * first)


def wait(library: str, words: Any, first: int, seen: int) -> int:
    """Sleep until the word is not `seen` any more; nanoseconds since the stamp."""
    return int(_load(library).floor_wait(ctypes.addressof(words) + 8 * first, seen))
