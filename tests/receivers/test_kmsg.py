"""The kernel's log as it is written: a pipe or a file in the place of /dev/kmsg, and the real one if it may be read."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from observatory.model.observation import HardwareEvent, Seen
from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.kernel_log import Recogniser
from observatory.receivers.kmsg import Kmsg
from observatory.receivers.protocol import ReceiverContext
from observatory.receivers.runner import Runner
from observatory.receivers.status import ReceiverState
from tests.receivers.waiting import wait_until

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."


class Heard:
    def __init__(self, root: Path, options: dict[str, str] | None = None) -> None:
        from observatory.receivers.runner import Settings

        self.events: list[HardwareEvent] = []
        settings = {"kmsg": Settings(options=options or {})}
        self.runner = Runner({"kmsg": Kmsg}, "n0", self._deliver, root=root, settings=settings)

    def _deliver(self, name: str, batch: object) -> None:
        assert isinstance(batch, list)
        self.events += batch

    @property
    def codes(self) -> list[str | None]:
        return [event.code for event in self.events]


@contextmanager
def heard(root: Path, options: dict[str, str] | None = None) -> Iterator[Heard]:
    one = Heard(root, options)
    with one.runner:
        wait_until(lambda: one.runner.statuses()[0].state is ReceiverState.WORKING, "it is open")
        yield one


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    return tmp_path / "dev/kmsg"


def test_each_line_as_it_is_written(pipe: Path) -> None:
    with heard(pipe.parents[1]) as here:
        with pipe.open("w") as writer:
            writer.write(f"4,10,1000,-;eth0: an ordinary line\n4,11,2000,-;{XID}\n")
        wait_until(lambda: here.codes == ["79"], "the first")
        with pipe.open("w") as writer:  # another writer
            writer.write(f"4,12,3000,-;{XID.replace('79', '48')}\n")
        wait_until(lambda: here.codes == ["79", "48"], "the second")
        assert here.events[0].source == "kmsg"
        assert str(here.events[0].subject) == "n0:pci:0000:9b:00.0"
        assert here.runner.statuses()[0].events == 2


def test_half_a_line_waits_for_the_rest(pipe: Path) -> None:
    with heard(pipe.parents[1]) as here:
        with pipe.open("w") as writer:
            writer.write(XID[:20])
            writer.flush()
            writer.write(XID[20:] + "\n")
        wait_until(lambda: here.codes == ["79"], "one event")


def test_lines_that_were_overwritten_are_counted(pipe: Path) -> None:
    with heard(pipe.parents[1]) as here:
        with pipe.open("w") as writer:
            writer.write(f"4,10,1000,-;one\n4,11,1000,-;two\n4,15,1000,-;{XID}\n")
        wait_until(lambda: here.codes == ["79"], "the event")
        wait_until(lambda: here.runner.statuses()[0].lost == 3, "three lines between 11 and 15")


def test_the_device_says_that_it_overwrote_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads of a device give whose reader was too slow: EPIPE, then the oldest line that is left."""
    answers: list[bytes | OSError] = [
        b"4,10,1000,-;one\n",
        OSError(errno.EPIPE, "Broken pipe"),
        f"4,110,2000,-;{XID}\n SUBSYSTEM=pci\n".encode(),
        BlockingIOError(),
    ]

    def read(descriptor: int, length: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("observatory.receivers.kmsg.os.read", read)
    receiver = Kmsg()
    receiver._recogniser = Recogniser("n0")
    found = receiver._read()
    assert found is not None
    assert [event.code for event in found if isinstance(event, HardwareEvent)] == ["79"]
    assert receiver.lost == 99  # 11 to 109


def test_a_flood_of_ordinary_and_odd_lines_delays_the_event_but_loses_it_not(pipe: Path) -> None:
    with heard(pipe.parents[1]) as here:

        def flood() -> None:
            with pipe.open("wb") as writer:
                for _ in range(200):
                    writer.write(b"4,1,1,-;an ordinary line\n" * 100 + os.urandom(200).replace(b"\n", b"") + b"\n")
                writer.write(b"x" * 40_000 + b"\n" + XID.encode() + b"\n")

        thread = threading.Thread(target=flood)
        thread.start()
        wait_until(lambda: "79" in here.codes, "the event after the flood")
        thread.join()
        assert here.runner.statuses()[0].state is ReceiverState.WORKING


def test_a_file_that_grows_and_is_begun_anew(tmp_path: Path) -> None:
    log = tmp_path / "dev/kmsg"
    log.parent.mkdir()
    log.write_text(f"{XID}\n" * 3)  # from before: not told
    with heard(tmp_path) as here:
        with log.open("a") as writer:
            writer.write(f"{XID.replace('79', '48')}\n")
        wait_until(lambda: here.codes == ["48"], "what was added")
        log.write_text("")
        wait_until(lambda: here.runner.statuses()[0].state is ReceiverState.WORKING, "it goes on")
        for _ in range(2):  # the second write comes after it has seen that the file is shorter
            with log.open("a") as writer:
                writer.write(f"{XID.replace('79', '63')}\n")
        wait_until(lambda: "63" in here.codes, "what is written to the new one")


def test_the_log_since_boot(tmp_path: Path) -> None:
    log = tmp_path / "dev/kmsg"
    log.parent.mkdir()
    log.write_text(f"[    5.000000] {XID}\n")
    with heard(tmp_path, {"since": "boot"}) as here:
        wait_until(lambda: here.codes == ["79"], "what was there")
        assert here.events[0].at_ns == 5_000_000_000  # when the kernel wrote it


def test_what_is_written_now_has_a_time_of_now(pipe: Path) -> None:
    import time

    with heard(pipe.parents[1]) as here:
        before = time.monotonic_ns()
        with pipe.open("w") as writer:
            writer.write(f"[    5.000000] {XID}\n[999999999.000000] {XID}\n")
        wait_until(lambda: len(here.events) == 2, "both")
        assert all(before <= event.at_ns <= time.monotonic_ns() for event in here.events)


@pytest.mark.parametrize("kind", ["nothing", "folder"])
def test_a_machine_without_says_why(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        (tmp_path / "dev/kmsg").mkdir(parents=True)
    with pytest.raises(ReceiverUnavailable):
        asyncio.run(Kmsg().open(ReceiverContext("n0", tmp_path)))


def test_the_log_of_this_machine_from_its_beginning() -> None:
    async def first() -> list[Seen] | None:
        receiver = Kmsg()
        try:
            await receiver.open(ReceiverContext("n0", options={"since": "boot"}))
        except ReceiverUnavailable:
            return None
        try:
            async with asyncio.timeout(0.5):
                async for batch in receiver.events():
                    return list(batch)
        except TimeoutError:  # a log without anything wrong
            pass
        finally:
            assert receiver.records > 0
            await receiver.close()
        return []

    if asyncio.run(first()) is None:
        pytest.skip("the kernel's log may not be read here")
