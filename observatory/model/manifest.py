"""The run manifest: what a run was, and the tables that give the numbers in its records their names."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from observatory.model.media import TimeBase
from observatory.model.pipeline import Edge, Pipeline

MANIFEST_VERSION = 1


class StreamEntry(BaseModel):
    """One source of a run: its name, its number in the store, its epoch there, and what it was read from."""

    model_config = ConfigDict(frozen=True)

    name: str
    id: int = Field(ge=0)
    epoch: int = Field(ge=1)
    source_operator: str
    input: str
    time_base: TimeBase


class PortEntry(BaseModel):
    """An output port; its index in `RunManifest.ports` is `place` of the producer's events."""

    model_config = ConfigDict(frozen=True)

    operator: str
    port: str
    stream: int  # id of the stream whose frames it carries


class HopEntry(BaseModel):
    """A traced edge; its index in `RunManifest.hops` is `hop` of records and `place` of the consumer's events.

    The four devices are indices into `RunManifest.devices`. `links` are the ids of those it crosses, in order;
    none: its two operators share a memory.
    """

    model_config = ConfigDict(frozen=True)

    edge: Edge
    port: int
    producer_device: int
    consumer_device: int
    producer_real_device: int
    consumer_real_device: int
    links: tuple[str, ...] = ()


class ClockAnchor(BaseModel):
    """One reading of both clocks at the start of the run; joins CLOCK_MONOTONIC to the wall clock."""

    model_config = ConfigDict(frozen=True)

    monotonic_ns: int
    realtime_ns: int


class EpochEntry(BaseModel):
    """A further epoch of one of the run's streams: what a discontinuity of its source began while the run went on.

    The epoch that the run began with is in its `StreamEntry`; nothing was added to time stamps in it. Source indices go
    on through all epochs of a run, so that (stream, source index) is unique in it.
    """

    model_config = ConfigDict(frozen=True)

    stream: int = Field(ge=0, description="Id of the stream")
    epoch: int = Field(ge=1)
    reason: str = Field(description="What happened to the source, in words")
    pts_offset: int = Field(
        default=0, description="Ticks of the stream's time base that the source added to its input's own time stamps"
    )
    began: ClockAnchor
    source_index: int = Field(ge=0, description="The first that frames of this epoch can have")


class LinkEmulation(BaseModel):
    """That LINK_START and LINK_END of a run are of emulated links.

    They took `time_scale` times as long as on the links described. What they really do was drawn from `seed`; None:
    they do what is advertised.
    """

    model_config = ConfigDict(frozen=True)

    label: Literal["emulated"] = "emulated"
    time_scale: float = Field(gt=0)
    seed: int | None = None


class RunManifest(BaseModel):
    """Everything a reader of the frame store needs to name what a run's records say."""

    model_config = ConfigDict(frozen=True)

    version: int = MANIFEST_VERSION
    run_id: str
    host: str
    software_version: str
    started: ClockAnchor
    pipeline: Pipeline
    decision_id: str
    topology_name: str
    streams: tuple[StreamEntry, ...]
    devices: tuple[str, ...]
    ports: tuple[PortEntry, ...]
    hops: tuple[HopEntry, ...]
    tracers: tuple[str, ...] = ("shm",)
    link_emulation: LinkEmulation | None = None  # None: no hop crosses a link
