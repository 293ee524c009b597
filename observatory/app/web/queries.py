"""Query parameters of the routes. Those that a route does not have are refused; large limits are cut to the most."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from fastapi import Depends, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from observatory.app.time_base import parse_time_base
from observatory.model.incident import IncidentState

MOST_FRAMES = 1000
MOST_DECISIONS = 1000
_MOST_NAME_BYTES = 511  # what a key of the store may have


def _short(name: str) -> str:
    if len(name.encode(errors="replace")) > _MOST_NAME_BYTES:
        raise ValueError(f"a name has at most {_MOST_NAME_BYTES} bytes")
    return name


def _time_base(text: str) -> str:
    parse_time_base(text)
    return text


def _at(parameter: str, words: str) -> PydanticCustomError:
    """An error of several parameters together, to be shown at one of them."""
    return PydanticCustomError("together", "{words}", {"words": words, "parameter": parameter})


def _up_to(most: int) -> BeforeValidator:
    """Cut what is larger down to `most`, however many digits it has."""

    def cut(value: object) -> object:
        return most if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) > 9 else value

    return BeforeValidator(cut)


StreamName = Annotated[str, AfterValidator(_short)]
Epoch = Annotated[int, Field(ge=1, lt=2**32)]
SourceIndex = Annotated[int, Field(ge=0, lt=2**64 - 1)]
FrameCount = Annotated[int, _up_to(MOST_FRAMES), Field(ge=1), AfterValidator(lambda n: min(n, MOST_FRAMES))]
DecisionCount = Annotated[int, _up_to(MOST_DECISIONS), Field(ge=1), AfterValidator(lambda n: min(n, MOST_DECISIONS))]


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _NoQuery(_Query):
    """No parameter at all."""


async def _nothing_asked(asked: Annotated[_NoQuery, Query()]) -> None:
    """Refuse any parameter."""


NO_QUERY = [Depends(_nothing_asked)]
"""`dependencies` of a route without query parameters."""


class StreamQuery(_Query):
    """Which stream in which epoch."""

    stream: StreamName | None = Field(
        default=None, description="The stream's name; may be left out when there is only one", examples=["abr-ladder"]
    )
    epoch: Epoch | None = Field(
        default=None, description="Only this one; left out: all epochs of the newest run with frames"
    )


class FramesQuery(StreamQuery):
    """A page of frames."""

    limit: FrameCount = Field(default=20, description=f"At most so many frames; more than {MOST_FRAMES} is cut to that")
    before: SourceIndex | None = Field(default=None, description="Only frames with a smaller source index")


class FindQuery(StreamQuery):
    """One frame: either `pts` (with a time base or without), or `source_index`."""

    pts: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(
        default=None, description="Presentation time in ticks of the time base", examples=[1024]
    )
    time_base: Annotated[str, Field(max_length=21), AfterValidator(_time_base)] | None = Field(
        default=None, description="Seconds per tick; left out: the source stream's", examples=["1/12800"]
    )
    source_index: SourceIndex | None = Field(default=None, description="Number of the frame at its source")

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if (self.pts is None) == (self.source_index is None):
            raise _at("pts", "name the frame with either pts or source_index")
        if self.time_base is not None and self.pts is None:
            raise _at("time_base", "it goes with pts")
        return self

    @property
    def ticks(self) -> tuple[int, int] | None:
        """The time base as numerator and denominator."""
        return None if self.time_base is None else parse_time_base(self.time_base)


class SlowestQuery(StreamQuery):
    """The slowest frames."""

    count: FrameCount = Field(default=10, description=f"How many frames; more than {MOST_FRAMES} is cut to that")


class DecisionsQuery(_Query):
    """The newest decisions."""

    limit: DecisionCount = Field(default=50, description=f"At most so many; more than {MOST_DECISIONS} is cut to that")


class IncidentsQuery(_Query):
    """The newest incidents."""

    state: IncidentState | None = Field(default=None, description="Only those that are open, or closed")
    limit: DecisionCount = Field(default=100, description=f"At most so many; more than {MOST_DECISIONS} is cut to that")


class CostQuery(_Query):
    """A part of the cost matrix."""

    level: Literal["auto", "nodes", "devices"] = Field(
        default="auto", description="`auto`: devices when there are at most 512, else nodes"
    )
    node: StreamName | None = Field(default=None, description="Only the devices of this node", examples=["n0"])
