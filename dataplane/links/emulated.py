"""The link of two operators on different devices of an emulated machine: a path through its fabric.

Descriptors are delayed for as long as the bytes would take, bytes are never copied. A thread of the consumer's process
paces them (dataplane/native/core/link.cpp), so that a transfer overlaps with the consumer's work as DMA does.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from dataplane import _ring
from dataplane.errors import DataplaneError
from dataplane.links import shm


class EmulatedPath(BaseModel):
    """The ways of a fabric that an edge's payloads cross (see `dataplane.fabric`).

    Within a segment the slowest way sets the pace (cut-through); each further segment starts when the whole payload has
    arrived (it is staged in the memory of the device between them).
    """

    model_config = ConfigDict(frozen=True)

    segments: tuple[tuple[int, ...], ...] = Field(min_length=1)


def put_under(
    consumer: _ring.RingConsumer, link: EmulatedPath | None, fabric: _ring.Fabric | None, edge: str = "edge"
) -> None:
    """Let the edge's payloads cross `link` from the next `attach` on; None: they share a memory.

    Raises:
        DataplaneError: the path is not one of that fabric, or there is none.
    """
    if link is None:
        shm.put_under(consumer)
        return
    if fabric is None:
        raise DataplaneError(f"{edge} crosses an emulated link, and no fabric was handed on")
    try:
        consumer.link(fabric, link.segments)
    except _ring.RingError as error:
        raise DataplaneError(f"{edge} cannot cross its path: {error}") from None


def open_fabric(fds: Sequence[int]) -> _ring.Fabric | None:
    """The fabric whose descriptors were handed on; None for none. They may be closed afterwards.

    Raises:
        DataplaneError: they are not those of a fabric, or of another version's.
    """
    if not fds:
        return None
    try:
        return _ring.Fabric.open(*fds)
    except (_ring.RingError, TypeError) as error:
        raise DataplaneError(f"the fabric that was handed on cannot be used: {error}") from None
