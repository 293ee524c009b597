"""Records in bulk: arrays in, sorted keys and values out, with one index entry per frame instead of one per record.

Of a frame's hops, the PTS index needs the one whose producer is the source, once; a later hop only when its (PTS, time
base) names another point in time than the source's did (a rebased PTS). A mere change of time base (1/25 -> 1/12800)
needs no entry: the look-up converts exactly. What was indexed already is remembered in a fixed window per stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from observatory.frames.keys import INDEX_KEY, ORIGIN_HOP, ORIGIN_SOURCE, RECORD_KEY, RECORD_VALUE
from observatory.frames.runs import RunTables
from observatory.model.kinds import UNKNOWN_I64, UNKNOWN_U64
from observatory.model.record import RECORD_DTYPE

Records = npt.NDArray[np.void]
Pairs = Iterator[tuple[bytes, bytes]]

WINDOW = 4096
"""Source indices per stream whose PTS is remembered (power of two)."""

_RECORD_KEY = np.dtype([("stream", ">u4"), ("epoch", ">u4"), ("source_index", ">u8"), ("hop", ">u4")])
_INDEX_KEY = np.dtype(
    [("stream", ">u4"), ("epoch", ">u4"), ("origin", "u1"), ("num", ">u4"), ("den", ">u4"), ("pts", ">u8")]
)
_PTS_AT = RECORD_DTYPE.fields["pts"][1]  # type: ignore[index]
_HOP_AT = RECORD_DTYPE.fields["hop"][1]  # type: ignore[index]
_SLOT_AT = RECORD_DTYPE.fields["slot"][1]  # type: ignore[index]
_HEAD = _HOP_AT - _PTS_AT  # PTS and time base; what follows the hop is the rest of the value
_SIGN = np.uint64(1 << 63)

if (_RECORD_KEY.itemsize, _INDEX_KEY.itemsize) != (RECORD_KEY.size, INDEX_KEY.size):
    raise AssertionError("the NumPy and struct layouts of the keys differ")
if _HEAD + RECORD_DTYPE.itemsize - _SLOT_AT != RECORD_VALUE.size:
    raise AssertionError("the NumPy and struct layouts of a record differ")


def sort_records(records: Records) -> Records:
    """The records in the order of their keys."""
    if len(records) < 2:
        return records
    stream, epoch, index, hop = (records[n] for n in ("stream", "epoch", "source_index", "hop"))
    lowest = index.min()
    spans = [int(stream.max()) + 1, int(index.max() - lowest) + 1, int(hop.max()) + 1]
    if (epoch == epoch[0]).all() and spans[0] * spans[1] * spans[2] < 2**63:  # one number says it all: 4 times as fast
        single = (stream.astype(np.uint64) * np.uint64(spans[1]) + (index - lowest)) * np.uint64(spans[2]) + hop
        order = np.argsort(single, kind="stable")
    else:
        order = np.lexsort((hop, index, epoch, stream))
    whole = np.ascontiguousarray(records).view(f"V{RECORD_DTYPE.itemsize}")
    return whole[order].view(RECORD_DTYPE)


def record_pairs(records: Records) -> Pairs:
    """Keys and values for the records table, in the order of `records`."""
    count = len(records)
    keys = np.empty(count, _RECORD_KEY)
    for name in _RECORD_KEY.names or ():
        keys[name] = records[name]
    raw = np.ascontiguousarray(records).view(np.uint8).reshape(count, RECORD_DTYPE.itemsize)
    values = np.empty((count, RECORD_VALUE.size), np.uint8)
    values[:, :_HEAD] = raw[:, _PTS_AT:_HOP_AT]
    values[:, _HEAD:] = raw[:, _SLOT_AT:]
    return zip(_as_bytes(keys), _as_bytes(values), strict=True)


def stored_to_records(keys: list[bytes], values: list[bytes]) -> Records:
    """Inverse of `record_pairs`: an array of RECORD_DTYPE."""
    count = len(keys)
    records = np.zeros(count, RECORD_DTYPE)
    if not count:
        return records
    parts = np.frombuffer(b"".join(keys), _RECORD_KEY)
    for name in _RECORD_KEY.names or ():
        records[name] = parts[name]
    raw = records.view(np.uint8).reshape(count, RECORD_DTYPE.itemsize)
    stored = np.frombuffer(b"".join(values), np.uint8).reshape(count, RECORD_VALUE.size)
    raw[:, _PTS_AT:_HOP_AT] = stored[:, :_HEAD]
    raw[:, _SLOT_AT:] = stored[:, _HEAD:]
    return records


def by_run(
    stream: npt.NDArray[np.uint32], epoch: npt.NDArray[np.uint32]
) -> Iterator[tuple[tuple[int, int], npt.NDArray[np.bool_]]]:
    """Each (stream, epoch) that occurs, and in which rows. For few at a time."""
    joined = stream.astype(np.uint64) << np.uint64(32) | epoch
    for value in np.unique(joined).tolist():
        yield (value >> 32, value & 0xFFFFFFFF), joined == np.uint64(value)


class RunKeys:
    """Pairs of (stream, epoch), to find their records in bulk. There may be many: a source may break off for days."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._keys = np.array(sorted({stream << 32 | epoch for stream, epoch in pairs}), np.uint64)

    def add(self, stream: int, epoch: int) -> None:
        """One more pair; it may be there already."""
        key = np.uint64(stream << 32 | epoch)
        at = int(np.searchsorted(self._keys, key))
        if at == len(self._keys) or self._keys[at] != key:
            self._keys = np.insert(self._keys, at, key)

    def of(self, records: Records) -> npt.NDArray[np.bool_]:
        """Which of the records carry one of these pairs."""
        if not len(self._keys):
            return np.zeros(len(records), bool)
        wanted = records["stream"].astype(np.uint64) << np.uint64(32) | records["epoch"]
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        mask: npt.NDArray[np.bool_] = self._keys[at] == wanted
        return mask


class Indexer:
    """Chooses what of one run's records goes into the PTS index, and remembers what is there."""

    def __init__(self, tables: RunTables) -> None:
        sources = {s.id: s.source_operator for s in tables.streams}
        self._from_source = np.array([sources.get(h.stream) == h.producer for h in tables.hops], bool)
        self._first_of_port = np.array([h.first_of_port for h in tables.hops], bool)
        ids = np.array([s.id for s in tables.streams], np.uint32)
        order = np.argsort(ids)
        self._ids = ids[order]
        self._runs = RunKeys((s.id, s.epoch) for s in tables.streams)
        cells = len(ids) * WINDOW
        self._seen = np.full(cells, UNKNOWN_U64, np.uint64)
        self._pts = np.zeros(cells, np.int64)
        self._num = np.zeros(cells, np.int64)
        self._den = np.ones(cells, np.int64)

    def admit(self, stream: int, epoch: int) -> None:
        """Records of this stream and epoch are this run's, too."""
        self._runs.add(stream, epoch)

    def split(self, records: Records) -> tuple[Records, Records]:
        """(Records of this run, records of others). Records of hops that this run does not have are in neither."""
        own = self._runs.of(records)
        named = records["hop"] < len(self._from_source)
        if own.all() and named.all():
            return records, records[:0]
        return records[own & named], records[~own]

    def pairs(self, records: Records) -> Pairs:
        """New index entries for records that are sorted and of this run. Call it once per batch: it remembers."""
        hops, pts = records["hop"], records["pts"]
        has_pts = pts != UNKNOWN_I64
        from_source = self._from_source[hops]
        return chain(
            self._source_pairs(_Points(records, np.flatnonzero(has_pts & from_source))),
            self._hop_pairs(_Points(records, np.flatnonzero(has_pts & ~from_source & self._first_of_port[hops]))),
        )

    def _cells(self, points: _Points) -> npt.NDArray[np.int64]:
        position = np.searchsorted(self._ids, points.stream).astype(np.int64)
        return position * WINDOW + (points.index & np.uint64(WINDOW - 1)).astype(np.int64)

    def _source_pairs(self, points: _Points) -> Pairs:
        cells = self._cells(points)
        new = self._seen[cells] != points.index
        # The first of its frame in this batch, too.
        new[1:] &= (points.index[1:] != points.index[:-1]) | (points.stream[1:] != points.stream[:-1])
        points, cells = points.where(new), cells[new]
        self._seen[cells] = points.index
        self._pts[cells], self._num[cells], self._den[cells] = points.pts, points.num, points.den
        return points.pairs(ORIGIN_SOURCE)

    def _hop_pairs(self, points: _Points) -> Pairs:
        if not len(points.pts):
            return iter(())
        cells = self._cells(points)
        same = self._seen[cells] == points.index
        # Equal as fractions, without overflow: pts * num / den == source pts * source num / source den.
        pts, num, den = self._pts[cells], self._num[cells], self._den[cells]
        largest = max(int(np.abs(points.pts).max()), int(np.abs(pts).max()))
        scale = max(int(points.num.max()), int(num.max())) * max(int(points.den.max()), int(den.max()))
        if largest * scale < 2**63:
            same &= points.pts * points.num * den == pts * num * points.den
        else:
            same &= (points.pts == pts) & (points.num == num) & (points.den == den)
        return points.where(~same).pairs(ORIGIN_HOP)


def possible_entries(
    records: Records, tables: RunTables, hop_bases: Collection[tuple[int, int]]
) -> list[tuple[bytes, bytes]]:
    """Every entry (key, value) that sorted records of one stream may have in the PTS index, in their order.

    `hop_bases`: time bases in which there are entries of rebased PTS at all; others are not looked at.
    """
    sources = {s.id: s.source_operator for s in tables.streams}
    from_source = np.array([sources.get(h.stream) == h.producer for h in tables.hops], bool)
    hops = records["hop"]
    named = (hops < len(from_source)) & (records["pts"] != UNKNOWN_I64)
    at_source = named.copy()
    at_source[named] = from_source[hops[named]]
    entries = list(_Points(records, np.flatnonzero(at_source)).distinct().pairs(ORIGIN_SOURCE))
    rebased = named & ~at_source
    for num, den in hop_bases:
        own = rebased & (records["time_base_num"] == num) & (records["time_base_den"] == den)
        entries += _Points(records, np.flatnonzero(own)).distinct().pairs(ORIGIN_HOP)
    return entries


class _Points:
    """The columns of some records that the index is made of."""

    __slots__ = ("den", "epoch", "index", "num", "pts", "stream")

    def __init__(self, records: Records, rows: npt.NDArray[np.int64]) -> None:
        self.stream = records["stream"][rows]
        self.epoch = records["epoch"][rows]
        self.index = records["source_index"][rows]
        self.pts = records["pts"][rows]
        self.num = records["time_base_num"][rows].astype(np.int64)
        self.den = records["time_base_den"][rows].astype(np.int64)

    def where(self, mask: npt.NDArray[np.bool_]) -> _Points:
        chosen = _Points.__new__(_Points)
        for name in self.__slots__:
            setattr(chosen, name, getattr(self, name)[mask])
        return chosen

    def distinct(self) -> _Points:
        """Without those that say the same as the one before."""
        if len(self.pts) < 2:
            return self
        new = np.ones(len(self.pts), bool)
        new[1:] = False
        for name in self.__slots__:
            column = getattr(self, name)
            new[1:] |= column[1:] != column[:-1]
        return self.where(new)

    def pairs(self, origin: int) -> Pairs:
        keys = np.empty(len(self.pts), _INDEX_KEY)
        keys["stream"], keys["epoch"], keys["origin"] = self.stream, self.epoch, origin
        keys["num"], keys["den"] = self.num, self.den
        keys["pts"] = self.pts.astype(np.uint64) ^ _SIGN
        return zip(_as_bytes(keys), _as_bytes(self.index.astype("<u8")), strict=True)


def _as_bytes(array: npt.NDArray[Any]) -> list[bytes]:
    """One bytes object per row."""
    flat = np.ascontiguousarray(array)
    width = flat.itemsize if flat.ndim == 1 else flat.shape[1] * flat.itemsize
    rows: list[bytes] = flat.view(f"V{width}").reshape(-1).tolist() if flat.size else []
    return rows
