"""Operators that make one frame from one frame: the loop around a function from picture to picture."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from dataplane.errors import BadParameters
from dataplane.operators.base import (
    NO_WISHES,
    Context,
    Operator,
    OutputPort,
    Parameters,
    Restart,
    SlotClass,
    SourceRequest,
)
from dataplane.operators.formats import PlaneLayout, layout_of
from dataplane.operators.frames import derived_descriptor
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.media import PayloadKind, PortFormat, VideoFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

LARGEST_SIDE = 16384


class PerFrameOperator(Operator):
    """Takes a frame, acquires a slot, renders into it, publishes, and only then acknowledges its input."""

    copies_reason: ClassVar[str]

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self.source_layout: PlaneLayout
        self.target_layout: PlaneLayout
        self.sample_aspect: tuple[int, int] | None = None  # of the output, where it is not the input's

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Stateless: publish the frame made from a frame, then acknowledge that frame."""
        return CommitContract(
            kind=CommitKind.STATELESS, copies_per_frame=1, held_frames=1, copies_reason=cls.copies_reason
        )

    @classmethod
    def restart(cls, params: Parameters, request: SourceRequest = NO_WISHES) -> Restart:
        """At any frame: nothing is remembered from one to the next."""
        return Restart(
            after_death=True,
            migration=True,
            why="nothing is kept from one frame to the next: what was published is not made again, the rest is",
        )

    @classmethod
    @abstractmethod
    def output_format(cls, params: Parameters, source: VideoFormat) -> VideoFormat:
        """The format made from `source`. Raises BadParameters."""

    @abstractmethod
    def prepare(self, source: VideoFormat, target: VideoFormat) -> None:
        """Called once, before the first frame."""

    @abstractmethod
    def render(self, frame: ReadLease, target: npt.NDArray[np.uint8]) -> None:
        """Make the picture of `frame` into the slot `target`. No array of the lease may outlive the call."""

    @classmethod
    def output(cls, params: Parameters, inputs: Sequence[PortFormat]) -> tuple[OutputPort, ...]:
        """One port "video" with the format made from the input's."""
        source = single_video(cls.op, inputs)
        target = cls.output_format(params, source)
        slots = (SlotClass(target.bytes_per_frame, 1, shared_by_consumers=True),)
        return (OutputPort(name="video", format=target, slots=slots, why="1 being written"),)

    def open(self, context: Context) -> None:
        """Learn the formats of both sides."""
        source = single_video(self.op, list(context.inputs.values()))
        target = self.output_format(self.params, source)
        self.source_layout = layout_of(source)
        self.target_layout = layout_of(target)
        self.prepare(source, target)

    def process(self, frame: ReadLease, edge: str, context: Context) -> None:
        """Make one frame from one frame."""
        descriptor = frame.descriptor
        if descriptor.payload_kind != PayloadKind.VIDEO_FRAME:
            frame.release()  # a frame that was lost upstream: it is listed there
            return
        resume = context.resume
        if resume is not None and resume.was_published("video", descriptor.epoch, descriptor.source_index):
            frame.release()  # it came again, for an earlier instance died before it could say that it was done
            return
        size = self.target_layout.total_bytes
        with context.acquire(size) as slot:
            frame.launch()
            slot.launch()
            self.render(frame, slot.array[:size])
            slot.publish(derived_descriptor(descriptor, self.target_layout, self.sample_aspect), size)
        frame.release()


def single_video(op: str, inputs: Sequence[PortFormat]) -> VideoFormat:
    """The only input's format. Raises BadParameters when it is not one of raw video."""
    if len(inputs) != 1 or not isinstance(inputs[0], VideoFormat):
        kinds = ", ".join(form.kind for form in inputs) or "nothing"
        raise BadParameters(f"{op} takes one input of raw video, not {kinds}", mend=f"put {op} before any encode")
    return inputs[0]


def check_size(op: str, width: int, height: int) -> None:
    """Refuse sizes that 4:2:0 pictures cannot have. Raises BadParameters."""
    if width % 2 or height % 2 or not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE):
        raise BadParameters(
            f"{op}: {width}x{height} is not possible",
            mend=f"width and height are even and at most {LARGEST_SIDE}",
        )
