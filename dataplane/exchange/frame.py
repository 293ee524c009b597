"""One frame as a subscriber has it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from dataplane.errors import Dismissed

if TYPE_CHECKING:
    from dataplane._ring import Descriptor, ReadLease


class Frame:
    """A frame that its publisher keeps for us until it is released: at the end of its `with` block.

    `array` and `plane` are views of the publisher's memory: read-only, not copied. The frame is given back when it is
    released **and** no such view is left; a view that is kept keeps the frame, and counts against `hold`. Copy what you
    keep: `np.array(frame.array)`.

    Attributes:
        descriptor: what the publisher says about it: PTS, format, planes.
        sequence: its number in this publisher's stream; a gap means that frames were dropped for us.
        lost_before: how many were dropped just before it; None for the first frame after a (re)connection.
        incarnation: 1 for the first publisher, one more after each reconnection. Sequences of different incarnations
            have nothing to do with each other.
    """

    __slots__ = ("_give_back", "_lease", "_open", "descriptor", "incarnation", "lost_before", "sequence")

    def __init__(
        self, lease: ReadLease, incarnation: int, lost_before: int | None, give_back: Callable[[ReadLease], None]
    ) -> None:
        self._lease = lease
        self._give_back = give_back
        self._open = True
        self.descriptor: Descriptor = lease.descriptor
        self.sequence = lease.sequence
        self.incarnation = incarnation
        self.lost_before = lost_before

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The payload, read-only, shape (bytes,), no copy. LeaseError after the release."""
        return self._lease.array

    def plane(self, index: int) -> npt.NDArray[np.uint8]:
        """Plane `index`, read-only, shape (rows, stride) in bytes, no copy. LeaseError after the release."""
        return self._lease.plane(index)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array, dtype=dtype, copy=copy)

    @property
    def bytes(self) -> int:
        """Of the payload."""
        return self.descriptor.bytes

    def release(self) -> None:
        """Give the frame back, as soon as no view of it is left. A second call does nothing.

        Raises Dismissed when the publisher turned us out meanwhile: what was read of this frame may have been
        overwritten while it was read.
        """
        if self._open:
            self._open = False
            self._give_back(self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        # A loop without `with`: the frame that its variable held before.
        with contextlib.suppress(Dismissed):  # said by the next `take`
            self.release()

    def __repr__(self) -> str:
        kind, size = self.descriptor.payload_kind, self.descriptor.bytes
        return f"Frame(sequence={self.sequence}, incarnation={self.incarnation}, kind={kind}, bytes={size})"
