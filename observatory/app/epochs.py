"""A further epoch of a run that goes on: a source's input made a jump, and its worker waits for a number."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from observatory.errors import ObservatoryError
from observatory.frames.collector import Collector
from observatory.frames.errors import FrameStoreError
from observatory.frames.store import FrameStore
from observatory.model.manifest import ClockAnchor, EpochEntry, RunManifest, StreamEntry


class BegunEpoch(NamedTuple):
    """A new epoch. `warning`: why the frame store does not have it yet, in words for the user; None when it has."""

    entry: EpochEntry
    warning: str | None


class Epochs:
    """Begins the epochs of one run. For the thread that polls its supervisor.

    Args:
        store: open for writing.
        manifest: the run; stored.
        collector: of that run.
        answer: tells a source, by its operator's name, the number it waits for: `Supervisor.answer_epoch`.
    """

    def __init__(
        self, store: FrameStore, manifest: RunManifest, collector: Collector, answer: Callable[[str, int], None]
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._collector = collector
        self._answer = answer

    def begin(self, operator: str, message: dict[str, Any]) -> BegunEpoch:
        """Number an epoch, store what began it, let the collector know its records, and only then answer the source.

        Frames never wait for a store that fails: the number is given all the same, and the collector stores the epoch,
        with its records, as soon as the store takes it.

        Args:
            operator: the source that asks.
            message: what it said: that of a `Notice` of the kind "epoch". With an `epoch`, that is the number which its
                frames carry; where the stream has got beyond it, the store has it under another one.

        Raises:
            ObservatoryError: the operator is no source of this run.
        """
        stream = self._stream_of(operator)
        newest = next(s.epoch for s in self._collector.snapshot().streams if s.id == stream.id)
        given = message.get("epoch")  # a source that several jobs share has a number for all of them
        asked = EpochEntry(
            stream=stream.id,
            epoch=newest + 1 if given is None else given,
            reason=message["reason"],
            pts_offset=message["pts_offset"],
            began=ClockAnchor(monotonic_ns=time.monotonic_ns(), realtime_ns=time.time_ns()),
            source_index=message["source_index"],
        )
        try:
            entry, warning = self._store.begin_epoch(self._manifest.run_id, stream.name, asked), None
        except FrameStoreError as error:
            entry = asked
            if given is None:
                entry = asked.model_copy(update={"epoch": max(asked.epoch, _last_known(self._store, stream) + 1)})
            warning = (
                f"{operator}: epoch {entry.epoch} of stream {stream.name} is not stored yet, its frames go on without "
                f"records: {error}"
            )
        if given is None:
            self._collector.add_epoch(entry, stored=warning is None)
        else:
            self._collector.add_epoch(asked, stored=warning is None, stored_as=entry.epoch)
        self._answer(operator, entry.epoch)
        return BegunEpoch(entry, warning)

    def _stream_of(self, operator: str) -> StreamEntry:
        for stream in self._manifest.streams:
            if stream.source_operator == operator:
                return stream
        name = self._manifest.pipeline.name
        raise ObservatoryError(f"operator {operator} asks for an epoch, but is no source of {name}")


def _last_known(store: FrameStore, stream: StreamEntry) -> int:
    """The latest epoch that any run of the stream began, as far as the store can say."""
    with contextlib.suppress(FrameStoreError), store.read() as reader:
        info = reader.stream(stream.name)
        if info is not None:
            return info.last_epoch
    return 0
