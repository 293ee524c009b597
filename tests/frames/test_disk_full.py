"""A full disk: nothing that was stored is lost, the error says what to do, and storing goes on when there is room."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from observatory.app.epochs import Epochs
from observatory.frames.collector import Collector
from observatory.frames.errors import FrameStoreFull
from observatory.frames.store import FrameStore, StreamRun
from observatory.model.record import LostFrame
from tests.frames.support import begin, record

MEGABYTE = 1 << 20
NO_TIME: dict[str, Any] = {"pts": None, "time_base": None}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", mount], capture_output=True, text=True, check=False
    )
    if made.returncode:
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(f"cannot mount a small disk: {made.stderr}")
        pytest.skip(f"cannot mount a small disk (this needs root): {made.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_full_disk_costs_only_what_did_not_fit(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * MEGABYTE))
    with FrameStore.open(small_disk, write=True) as store:
        (run,) = begin(store)
        batch = np.repeat(record(run, 0, 2), 1000)
        stored = 0

        def store_until_full() -> None:
            nonlocal stored
            while True:
                batch["source_index"] = batch["pts"] = np.arange(stored, stored + 1000)
                store.append(batch)
                stored += 1000

        with pytest.raises(FrameStoreFull) as caught:
            store_until_full()
        assert "the disk is full" in str(caught.value)
        assert "free disk space" in (caught.value.mend or "")
        assert stored > 5000
        for _ in range(3):  # it stays full, and says so each time
            with pytest.raises(FrameStoreFull):
                store.append(batch)
        assert counted(store) == (stored, stored)

        ballast.unlink()
        store.append(batch)
        assert counted(store) == (stored + 1000, stored + 1000)
    with FrameStore.open(small_disk) as store:
        assert counted(store) == (stored + 1000, stored + 1000)


def test_a_disk_that_is_full_from_the_start_is_named(small_disk: Path) -> None:
    fill(small_disk / "ballast")
    with pytest.raises(FrameStoreFull, match="the disk is full"):
        FrameStore.open(small_disk, write=True)


def test_a_disk_that_fills_up_after_opening_kills_nobody(small_disk: Path) -> None:
    with FrameStore.open(small_disk, write=True) as store:
        fill(small_disk / "ballast")
        with pytest.raises(FrameStoreFull):
            store.add_lost(1, 1, [LostFrame(operator="a", reason="b", source_index=i, **NO_TIME) for i in range(10**5)])
        with store.read() as reader:
            reader.streams()


def test_an_epoch_that_begins_on_a_full_disk_is_stored_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with FrameStore.open(small_disk, write=True) as store:
        (run,) = begin(store)
        manifest = store.manifest(run.id, run.epoch)
        collector = Collector(manifest, [], store)
        told: list[int] = []
        epochs = Epochs(store, manifest, collector, lambda _, epoch: told.append(epoch))
        fill(ballast)
        store_until_full(store, run)
        asked = {"reason": "jump", "pts_offset": 3, "source_index": 100_000}
        entry, warning = epochs.begin("decode", asked)
        assert (entry.epoch, told) == (2, [2])
        assert warning is not None
        assert "the disk is full" in warning
        with store.read() as reader:
            assert list(reader.begun_epochs(run.id)) == [1]
        ballast.unlink()
        assert collector.finish().error is None
        with store.read() as reader:
            assert list(reader.begun_epochs(run.id)) == [2, 1]
            began = reader.epoch(run.id, 2)
        assert began is not None
        assert (began.reason, began.pts_offset, began.source_index) == ("jump", 3, 100_000)


def store_until_full(store: FrameStore, run: StreamRun) -> None:
    """Use up the pages that the file has already."""
    with contextlib.suppress(FrameStoreFull):
        for number in count():
            store.append(record(run, number, 2))


def fill(path: Path) -> None:
    """Take every free byte of a disk."""
    with path.open("wb", buffering=0) as file:
        size = MEGABYTE
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def counted(store: FrameStore) -> tuple[int, int]:
    """Records, and index entries that lead to one."""
    with store.read() as reader:
        found = sum(1 for _ in reader.frames(1, 1))
        assert found == reader.entries("records")
        return found, reader.entries("index")
