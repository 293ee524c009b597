"""The PTS that a stream's source gave its frames, for a while: what an end-to-end latency is to be found by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from observatory.frames.ingest import Records
from observatory.model.kinds import UNKNOWN_I64, UNKNOWN_U64
from observatory.model.manifest import RunManifest

WINDOW = 4096
"""Frames per stream that are remembered (power of two): as many as the frame tracker keeps open."""


class SourcePts:
    """Remembers (epoch, source index) -> (PTS, time base) of the newest frames of each stream of a run."""

    def __init__(self, manifest: RunManifest) -> None:
        sources = {(s.id, s.source_operator) for s in manifest.streams}
        self._from_source = np.array(
            [(manifest.ports[h.port].stream, h.edge.producer) in sources for h in manifest.hops], bool
        )
        self._ids = np.sort(np.array([s.id for s in manifest.streams], np.uint32))
        cells = len(self._ids) * WINDOW
        self._index = np.full(cells, UNKNOWN_U64, np.uint64)
        self._epoch = np.zeros(cells, np.uint32)
        self._pts = np.full(cells, UNKNOWN_I64, np.int64)
        self._num = np.zeros(cells, np.uint32)
        self._den = np.ones(cells, np.uint32)

    def observe(self, records: Records) -> None:
        """Take records of this run (streams and hops that it has)."""
        own = records[self._from_source[records["hop"]]]
        cells = self._cells(own["stream"], own["source_index"])
        self._index[cells] = own["source_index"]
        self._epoch[cells] = own["epoch"]
        self._pts[cells] = own["pts"]
        self._num[cells] = own["time_base_num"]
        self._den[cells] = own["time_base_den"]

    def find(
        self, stream: npt.NDArray[np.uint32], epoch: npt.NDArray[np.uint32], source_index: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """PTS and time base (numerator, denominator) of frames; PTS UNKNOWN_I64 of those no longer remembered."""
        cells = self._cells(stream, source_index)
        same = (self._index[cells] == source_index) & (self._epoch[cells] == epoch)
        return np.where(same, self._pts[cells], UNKNOWN_I64), self._num[cells], self._den[cells]

    def _cells(self, stream: npt.NDArray[np.uint32], source_index: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        position = np.searchsorted(self._ids, stream).astype(np.int64)
        return position * WINDOW + (source_index & np.uint64(WINDOW - 1)).astype(np.int64)
