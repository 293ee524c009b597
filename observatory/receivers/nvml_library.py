"""NVIDIA's management library, through nvidia-ml-py: found, started, and its errors told apart.

A process has one NVML. Where the machine is a recorded or emulated one, below a root of its own, the library is loaded
from there before nvidia-ml-py looks for it: the loader then gives it that one. A machine below a root that has no
library has no NVML, whatever the host has.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.protocol import ReceiverContext

NAME = "libnvidia-ml.so.1"
FOLDERS = ("usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")

NOT_THERE = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
"""Answers that stay: the chip, or the driver, does not tell that."""

_OF_ALL = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    }
)

_NO_SOURCE = frozenset(
    {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_MENDS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "a machine with NVIDIA GPUs needs NVIDIA's driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load NVIDIA's driver (modprobe nvidia); a container needs its devices too",
    pynvml.NVML_ERROR_NO_PERMISSION: "let this user open /dev/nvidiactl",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "restart the machine, or load the driver anew: it was updated",
}

_starting = threading.Lock()


def start(context: ReceiverContext) -> None:
    """Load the library of the context's machine and start it; each start needs a `stop`.

    Raises:
        ReceiverUnavailable: the machine has none, or this process has loaded another.
    """
    with _starting:
        if context.root != Path("/"):
            _load(context.root)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise as_receiver_error(error) from None


def stop() -> None:
    """End one start; what it fails with is nobody's concern any more."""
    with _starting:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return


def as_receiver_error(error: pynvml.NVMLError) -> ReceiverUnavailable | ReceiverFailed:
    """What an error that no call can be made with any more means for a receiver."""
    words = f"NVML: {error}"
    if error.value in _NO_SOURCE:
        return ReceiverUnavailable(words, mend=_MENDS[error.value])
    return ReceiverFailed(words)


def concerns_all(error: pynvml.NVMLError) -> bool:
    """Whether no GPU can be asked any more; any other error is one GPU's, and may be one question's."""
    return error.value in _OF_ALL


@contextmanager
def answers() -> Iterator[None]:
    """Around calls that concern all GPUs. Raises ReceiverFailed where NVML does not answer."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise ReceiverFailed(f"NVML: {error}") from None


def pci_key(bus_id: str) -> str:
    """`0000:3b:00.0` of NVML's `00000000:3B:00.0`; a domain that needs more than four digits keeps its eight."""
    text = bus_id.lower()
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}" if len(domain) == 8 and domain.startswith("0000") else text


def _load(root: Path) -> None:
    library = next((path for path in (root / folder / NAME for folder in FOLDERS) if path.exists()), None)
    if library is None:
        raise ReceiverUnavailable(
            f"the machine below {root} has no {NAME}", mend="it has no GPU that NVML could tell of"
        )
    others = _loaded() - {library.stat().st_ino}
    if others:
        raise ReceiverUnavailable(
            "this process has loaded another machine's NVML", mend="watch each machine in a process of its own"
        )
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        raise ReceiverUnavailable(f"{library} cannot be loaded: {error}") from None


def _loaded() -> set[int]:
    """Inodes of the libraries of that name in this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return {int(line.split()[4]) for line in lines if "/libnvidia-ml.so" in line}
