"""Several processes on one store: readers beside a writer, two writers, and a writer that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from observatory.frames import lookup
from observatory.frames.errors import FrameStoreError
from observatory.frames.store import FrameStore
from tests.frames.support import begin, python, whole_frame

WRITER = """
import sys
from pathlib import Path
import numpy as np
from observatory.frames.store import FrameStore
from tests.frames.support import begin, whole_frame
store = FrameStore.open(Path(sys.argv[1]), write=True)
(run,) = begin(store, sys.argv[2], run_id=sys.argv[2])
for batch in range(int(sys.argv[3])):
    store.append(np.concatenate([whole_frame(run, 10 * batch + i) for i in range(10)]))
    print(batch, flush=True)
"""


def test_readers_see_whole_commits_while_another_process_writes(tmp_path: Path) -> None:
    seen: list[int] = []
    with python(WRITER, tmp_path, "ladder", 60) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "0\n"  # committed
        watch(tmp_path, writer, seen)
    assert writer.returncode == 0
    assert seen == sorted(seen)
    assert seen[-1] == 600


def watch(state: Path, writer: subprocess.Popen[str], seen: list[int]) -> None:
    """Read until the writer has ended and all is there; `seen` gets the number of frames each time."""
    with FrameStore.open(state) as store:
        while writer.poll() is None or not seen or seen[-1] < 600:
            with store.read() as reader:
                frames = list(reader.frames(1, 1))
                entries = reader.entries("index")
            assert all(len(frame) == 4 for frame in frames), "half a frame of one commit"
            assert len(frames) == entries
            assert len(frames) % 10 == 0
            seen.append(len(frames))
            assert lookup.find(store, len(frames) - 1).source_index == len(frames) - 1


def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    writers = [python(WRITER, tmp_path, name, 30) for name in ("one", "two", "one")]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    with FrameStore.open(tmp_path) as store, store.read() as reader:
        # The two runs of "one" began at the same time: they have epochs of their own, and nothing is mixed.
        assert {s.name: s.last_epoch for s in reader.streams()} == {"one": 2, "two": 1}
        numbers = {s.name: s.id for s in reader.streams()}
        for name, epoch in (("one", 1), ("one", 2), ("two", 1)):
            assert len(list(reader.frames(numbers[name], epoch))) == 300


def test_what_was_committed_survives_the_death_of_the_writer(tmp_path: Path) -> None:
    with python(WRITER, tmp_path, "ladder", 100_000) as writer:
        assert writer.stdout is not None
        last = int(writer.stdout.readline())
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            last = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        said = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        last = int(said[-1]) if said else last
    with FrameStore.open(tmp_path, write=True) as store:
        with store.read() as reader:
            frames = list(reader.frames(1, 1))
            assert len(frames) >= 10 * (last + 1)
            assert all(len(frame) == 4 for frame in frames)
            assert reader.entries("index") == len(frames)
            assert reader.counters(1, 1) is None  # it never said that it finished
        (run,) = begin(store, run_id="after")  # the writer's lock went with it
        assert run.epoch == 2
        store.append(whole_frame(run, 1))
        assert lookup.find(store, 1).epoch == 2


def test_a_killed_reader_does_not_keep_its_place(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True) as store:
        (run,) = begin(store)
        store.append(whole_frame(run, 1))
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from observatory.frames.store import FrameStore\n"
        "with FrameStore.open(Path(sys.argv[1])).read() as reader:\n"
        "    print(len(reader.records(1, 1, 1)), flush=True)\n"
        "    time.sleep(60)\n"
    )
    with python(script, tmp_path) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "4\n"
        reader.kill()
    with FrameStore.open(tmp_path, write=True) as store:
        for index in range(2, 50):
            store.append(whole_frame(run, index))
        assert store.size_bytes < 2_000_000  # free pages are used again


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_to_be_spawned(tmp_path: Path) -> None:
    with FrameStore.open(tmp_path, write=True):
        child = os.fork()
        if child == 0:
            try:
                FrameStore.open(tmp_path)
            except FrameStoreError as error:
                os._exit(0 if "forked" in str(error) else 1)
            except BaseException:
                os._exit(2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
