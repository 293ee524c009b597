"""A source plug-in for tests: grey frames whose own time stamps jump; each jump begins an epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, cast

from dataplane._ring import Descriptor
from dataplane.operators.base import (
    NO_WISHES,
    Context,
    Operator,
    OutputPort,
    Parameters,
    Probe,
    Restart,
    Resume,
    SlotClass,
    SourceRequest,
)
from dataplane.operators.formats import layout_of
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.media import PayloadKind, PixelFormat, TimeBase, VideoFormat

STEP = 3600  # ticks of 1/90000 s: 25 frames a second
FORMAT = VideoFormat(
    width=64, height=36, pixel_format=PixelFormat.YUV420P, time_base=TimeBase(num=1, den=90_000), frames_per_second=25
)


class JumpingParameters(Parameters):
    """`first`: the own time stamp that each epoch begins with; `frames` of each; one of them may be lost."""

    first: list[int]
    frames: int
    lose: int | None = None
    stall: str | None = None  # a file: made when the last epoch has its number; no frame of it ever comes


class Jumping(Operator):
    """Publishes `frames` frames from each of `first` on; the job's times rise by one step from frame to frame."""

    op = "jumping"
    Params = JumpingParameters
    summary = "Grey frames with jumps"
    source = True
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._said = cast(JumpingParameters, params)
        self._index = 0
        self._epoch = 0

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        return CommitContract(kind=CommitKind.STATELESS, copies_per_frame=0)

    @classmethod
    def probe(cls, params: Parameters, request: SourceRequest) -> Probe:
        port = OutputPort("video", FORMAT, (SlotClass(FORMAT.bytes_per_frame, 1, shared_by_consumers=True),), "1")
        return Probe(input="jumps", outputs=(port,))

    @classmethod
    def restart(cls, params: Parameters, request: SourceRequest = NO_WISHES) -> Restart:
        return Restart(after_death=True, migration=True, why="each frame follows from its number")

    def continue_from(self, resume: Resume, context: Context) -> None:
        published = resume.on("video")
        lost = [loss.source_index + 1 for loss in resume.lost if loss.source_index is not None]
        self._index = max([published.next_source_index, *lost])
        self._epoch = cast(int, (resume.state or {}).get("epoch", 0))

    def step(self, context: Context) -> bool:
        said = self._said
        epoch, at = divmod(self._index, said.frames)
        if epoch == len(said.first):
            return False
        offset = STEP * self._index - said.first[epoch] - STEP * at if epoch else 0
        if epoch and at == 0:
            self._epoch = context.begin_epoch(f"jump {epoch}", offset)
            context.checkpoint({"epoch": self._epoch})  # its first frame may be one that is lost
            if said.stall is not None and epoch == len(said.first) - 1:
                Path(said.stall).write_text(str(self._epoch))
                while not context.stopping.is_set():
                    time.sleep(0.05)
                return False
        pts = said.first[epoch] + STEP * at + offset
        if self._index == said.lose:
            context.lost(self._index, pts, "lost on purpose")
        else:
            self._publish(pts, context)
        self._index += 1
        return True

    def _publish(self, pts: int, context: Context) -> None:
        layout = layout_of(FORMAT)
        with context.acquire(layout.total_bytes) as slot:
            slot.array[: layout.total_bytes] = 128
            described = Descriptor(
                payload_kind=PayloadKind.VIDEO_FRAME,
                source_index=self._index,
                pts=pts,
                duration=STEP,
                time_base=(1, 90_000),
                pixel_format=FORMAT.pixel_format,
                width=FORMAT.width,
                height=FORMAT.height,
                planes=layout.offsets_and_strides,
                epoch=self._epoch,
            )
            slot.publish(described, layout.total_bytes)
        context.count_frame()
