"""A run's names, read from its stored manifest without building the model: what a look-up needs, and fast."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from observatory.frames.errors import FrameStoreDamaged, FrameStoreVersion

KNOWN_MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class RunStream:
    """One stream of a run; the time base is (numerator, denominator) of seconds per tick, `epoch` its first."""

    name: str
    id: int
    epoch: int
    source_operator: str
    input: str
    time_base: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RunEpoch:
    """One epoch of a stream. What a run begins with has no reason, and nothing is added to its time stamps.

    `pts_offset`: ticks of the stream's time base that the source added to its input's own time stamps.
    """

    stream: int
    epoch: int
    reason: str | None
    pts_offset: int
    began_monotonic_ns: int
    began_realtime_ns: int
    source_index: int

    @property
    def realtime_offset_ns(self) -> int:
        """What to add to CLOCK_MONOTONIC for the wall clock, as read when the epoch began."""
        return self.began_realtime_ns - self.began_monotonic_ns


@dataclass(frozen=True, slots=True)
class RunHop:
    """One hop of a run, with names instead of numbers. `first_of_port`: the first hop that its output port feeds.

    `link`: that it crossed emulated links, how much slower than described they were, and which; None: it crossed none.
    """

    index: int
    edge: str
    producer: str
    consumer: str
    stream: int
    first_of_port: bool
    policy: str
    producer_device: str | None
    consumer_device: str | None
    producer_real_device: str | None
    consumer_real_device: str | None
    link: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RunTables:
    """What the numbers in a run's records mean."""

    run_id: str
    pipeline: str
    streams: tuple[RunStream, ...]
    devices: tuple[str, ...]
    hops: tuple[RunHop, ...]
    started_monotonic_ns: int
    started_realtime_ns: int
    by_stream: dict[int, tuple[RunHop, ...]]
    by_id: dict[int, RunStream]

    def stream(self, stream: int, epoch: int) -> RunStream:
        """The stream of that id as it is in one of its epochs. Raises KeyError when the run has no such stream."""
        entry = self.by_id[stream]
        return entry if entry.epoch == epoch else replace(entry, epoch=epoch)

    def begun_with(self, stream: int, epoch: int) -> RunEpoch:
        """An epoch as it is when it began with the run: nothing is stored of that but the manifest."""
        return RunEpoch(stream, epoch, None, 0, self.started_monotonic_ns, self.started_realtime_ns, 0)

    def hops_of(self, stream: int) -> tuple[RunHop, ...]:
        """The hops that carry frames of that stream, in the order of the DAG: from its source on."""
        return self.by_stream.get(stream, ())

    def device(self, index: int) -> str | None:
        """Name of a device, or None for an index that the run does not have (unknown)."""
        return self.devices[index] if index < len(self.devices) else None


def parse_epoch(text: bytes | str) -> RunEpoch:
    """A stored EpochEntry. Raises FrameStoreDamaged."""
    try:
        raw: dict[str, Any] = json.loads(text)
        return RunEpoch(
            stream=int(raw["stream"]),
            epoch=int(raw["epoch"]),
            reason=str(raw["reason"]),
            pts_offset=int(raw["pts_offset"]),
            began_monotonic_ns=int(raw["began"]["monotonic_ns"]),
            began_realtime_ns=int(raw["began"]["realtime_ns"]),
            source_index=int(raw["source_index"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FrameStoreDamaged(f"what is stored of an epoch is not readable: {error!r}") from None


def parse_run(text: bytes | str) -> RunTables:
    """The tables in a stored RunManifest.

    Raises:
        FrameStoreVersion: a manifest of another version.
        FrameStoreDamaged: not a manifest.
    """
    try:
        raw: dict[str, Any] = json.loads(text)
        version = raw["version"]
        if version != KNOWN_MANIFEST_VERSION:
            raise FrameStoreVersion(
                f"run {raw.get('run_id')}: a manifest of version {version}; this software knows version "
                f"{KNOWN_MANIFEST_VERSION}",
                mend="read it with the version that wrote it",
            )
        return _tables(raw)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise FrameStoreDamaged(f"the manifest of a run is not readable: {error!r}") from None


def _tables(raw: dict[str, Any]) -> RunTables:
    devices = tuple(raw["devices"])
    ports = raw["ports"]
    rank = {o["name"]: i for i, o in enumerate(raw["pipeline"]["operators"])}
    seen: set[int] = set()
    emulation = raw.get("link_emulation")
    hops: list[RunHop] = []
    for index, entry in enumerate(raw["hops"]):
        edge, port = entry["edge"], entry["port"]

        def named(what: str, entry: dict[str, Any] = entry) -> str | None:
            number = entry[what]
            return devices[number] if number < len(devices) else None

        hops.append(
            RunHop(
                index=index,
                edge=f"{edge['producer']}->{edge['consumer']}",
                producer=edge["producer"],
                consumer=edge["consumer"],
                stream=ports[port]["stream"],
                first_of_port=port not in seen,
                policy=edge.get("policy", "block"),
                producer_device=named("producer_device"),
                consumer_device=named("consumer_device"),
                producer_real_device=named("producer_real_device"),
                consumer_real_device=named("consumer_real_device"),
                link=emulation | {"path": entry["links"]} if emulation and entry.get("links") else None,
            )
        )
        seen.add(port)
    last = len(rank)
    by_stream: dict[int, list[RunHop]] = {}
    for hop in sorted(hops, key=lambda h: (rank.get(h.producer, last), rank.get(h.consumer, last), h.index)):
        by_stream.setdefault(hop.stream, []).append(hop)
    streams = tuple(
        RunStream(
            name=s["name"],
            id=s["id"],
            epoch=s["epoch"],
            source_operator=s["source_operator"],
            input=s["input"],
            time_base=(s["time_base"]["num"], s["time_base"]["den"]),
        )
        for s in raw["streams"]
    )
    return RunTables(
        run_id=raw["run_id"],
        pipeline=raw["pipeline"]["name"],
        streams=streams,
        devices=devices,
        hops=tuple(hops),
        started_monotonic_ns=raw["started"]["monotonic_ns"],
        started_realtime_ns=raw["started"]["realtime_ns"],
        by_stream={stream: tuple(own) for stream, own in by_stream.items()},
        by_id={s.id: s for s in streams},
    )
