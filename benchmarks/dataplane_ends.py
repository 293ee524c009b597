"""One way of handing frames over, as the measurements see it: memory for a frame, send it, take it, be done with it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.report import ROOT

PEERS = next(iter((ROOT / ".venv-bench").glob("lib/python3*/site-packages")), None)
if PEERS is not None and str(PEERS) not in sys.path:
    sys.path.append(str(PEERS))  # last: what the project has itself stays the project's

SLOTS = 4
PAGE_BYTES = 4096
NO_PEERS = "not installed (script/bench makes .venv-bench)"

Bytes = npt.NDArray[np.uint8]


class Sender(Protocol):
    """The producing end. `frame` and `send` alternate; no view of the frame may be left when it is sent."""

    def frame(self) -> Bytes: ...
    def send(self) -> None: ...


class Receiver(Protocol):
    """The consuming end. `take` and `done` alternate; no view of the frame may be left when it is done."""

    def take(self) -> Bytes: ...
    def done(self) -> None: ...


class Transport:
    """One way of handing frames over.

    `copies`: whether a hand-over copies the payload; `synchronised`: whether a frame that is taken is one that was
    sent; `huge_pages`: whether it needs 2 MB pages.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    copies: ClassVar[bool] = False
    synchronised: ClassVar[bool] = True
    huge_pages: ClassVar[bool] = False

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot be measured here; None: it can."""
        return None

    @classmethod
    @contextmanager
    def prepare(cls, context: BaseContext, frame_bytes: int) -> Iterator[tuple[Any, Any]]:
        """What sender and receiver get; what is left of them is removed afterwards. Normally two ends of a socket."""
        left, right = socket.socketpair()
        with left, right:
            yield left, right

    @classmethod
    def sender(cls, end: Any, frame_bytes: int) -> Sender:
        raise NotImplementedError

    @classmethod
    def receiver(cls, end: Any, frame_bytes: int) -> Receiver:
        raise NotImplementedError
