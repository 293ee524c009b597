"""Commit contracts: what an operator promises about its input and output when its process dies."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class CommitKind(StrEnum):
    """When an operator acknowledges its input, and how it restarts.

    STATELESS   each output depends on one input: publish it, then acknowledge; a restart repeats at most one frame.
    PREFIX      (encoder) acknowledge only what the published packets cover as a prefix in presentation order,
                reordering included; a restart begins with a key frame and the same codec parameters.
    KEYFRAME    (decoder) coded input is kept since the last key frame; a restart decodes from there and drops what
                was already published, by source index.
    FRAGMENT    (mux) acknowledge what is in a finished fragment; a restart truncates to the last whole fragment.
    """

    STATELESS = "stateless"
    PREFIX = "prefix"
    KEYFRAME = "keyframe"
    FRAGMENT = "fragment"


class CommitContract(BaseModel):
    """An operator's contract, and what keeping it costs.

    `copies_per_frame` counts whole-frame copies made by the operator, per output frame. `held_frames` is the largest
    number of input frames it keeps unacknowledged in the steady state; pools upstream are sized with it.
    """

    model_config = ConfigDict(frozen=True)

    kind: CommitKind
    copies_per_frame: int = Field(ge=0)
    held_frames: int = Field(default=1, ge=1)
    copies_reason: str = ""
