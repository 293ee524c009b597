"""The runner: whatever a source or a plug-in does, the others go on."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen
from observatory.receivers.discovery import discover
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.protocol import ReceiverContext
from observatory.receivers.runner import Limits, Runner, Settings
from observatory.receivers.status import ReceiverState, ReceiverStatus
from tests.receivers.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
NODE = Address("n0", AddressKind.NODE)
QUICK = Settings(
    period_seconds=0.01,
    limits=Limits(
        open_seconds=0.2, poll_seconds=0.2, close_seconds=0.2, first_back_off_seconds=0.01, unavailable_seconds=0.05
    ),
)


def observation(name: str, value: float | None = 1.0, metric: str = "link.width", **changes: Any) -> Observation:
    fields: dict[str, Any] = {"subject": NODE, "at_ns": time.monotonic_ns(), "source": name, **changes}
    return Observation(metric=metric, value=value, **fields)


class Steady:
    """A source that works, and says something new each time."""

    name: ClassVar[str] = "steady"
    period_seconds: ClassVar[float] = 0.01

    async def open(self, context: ReceiverContext) -> None:
        self.context = context
        self.looks = 0

    async def poll(self) -> Sequence[Seen]:
        self.looks += 1
        return [replace(observation(self.name), value=float(self.looks))]

    async def close(self) -> None: ...


class Taken:
    """What was delivered."""

    def __init__(self) -> None:
        self.batches: dict[str, list[Sequence[Seen]]] = defaultdict(list)

    def __call__(self, name: str, batch: Sequence[Seen]) -> None:
        self.batches[name].append(batch)

    def count(self, name: str) -> int:
        return sum(len(batch) for batch in self.batches[name])


class Bench:
    """A runner of one receiver that misbehaves beside one that works."""

    def __init__(self, make: Callable[[], Any], settings: Settings = QUICK) -> None:
        self.taken = Taken()
        self.runner = Runner(
            {"odd": make, "steady": Steady}, "n0", self.taken, settings={"odd": settings, "steady": QUICK}
        )

    def odd(self) -> ReceiverStatus:
        return self.runner.statuses()[0]

    def the_other_goes_on(self) -> None:
        before = self.taken.count("steady")
        wait_until(lambda: self.taken.count("steady") > before + 3, "the other receiver goes on")


@pytest.fixture
def run() -> Iterator[Callable[..., Bench]]:
    running: list[Runner] = []

    def start(make: Callable[[], Any], settings: Settings = QUICK) -> Bench:
        bench = Bench(make, settings)
        running.append(bench.runner)
        bench.runner.start()
        return bench

    yield start
    for runner in running:
        runner.stop(20.0)


class Odd(Steady):
    name: ClassVar[str] = "odd"


def test_what_is_seen_is_delivered_and_counted(run: Callable[..., Bench]) -> None:
    bench = run(Odd)
    wait_until(lambda: bench.taken.count("odd") >= 5, "five polls")
    status = bench.odd()
    assert status.state is ReceiverState.WORKING
    assert not status.stale
    assert status.polls >= 4
    assert status.observations >= 5
    assert status.age_seconds is not None
    assert (status.failures, status.timeouts, status.dropped, status.refused) == (0, 0, 0, {})


def test_a_call_that_blocks_stops_nobody_and_is_said(run: Callable[..., Bench]) -> None:
    let_go = threading.Event()

    class Blocks(Odd):
        async def poll(self) -> Sequence[Seen]:
            let_go.wait()
            return [observation("odd")]

    bench = run(Blocks)
    wait_until(lambda: bench.odd().state is ReceiverState.HANGING, "it counts as hanging")
    assert bench.odd().stale
    assert "has not come back" in (bench.odd().reason or "")
    bench.the_other_goes_on()
    began = time.monotonic()
    assert bench.runner.stop(0.5) == ("odd",)
    assert time.monotonic() - began < 30
    let_go.set()


def test_a_blocked_source_that_comes_back_works_again(run: Callable[..., Bench]) -> None:
    let_go = threading.Event()

    class Blocks(Odd):
        async def poll(self) -> Sequence[Seen]:
            let_go.wait()
            return [observation("odd")]

    bench = run(Blocks)
    wait_until(lambda: bench.odd().state is ReceiverState.HANGING, "it counts as hanging")
    let_go.set()
    wait_until(lambda: bench.odd().state is ReceiverState.WORKING and not bench.odd().stale, "it works again")
    assert bench.odd().timeouts == 1


def test_a_call_that_waits_for_ever_is_cancelled(run: Callable[..., Bench]) -> None:
    opened: list[object] = []

    class Waits(Odd):
        async def open(self, context: ReceiverContext) -> None:
            opened.append(self)

        async def poll(self) -> Sequence[Seen]:
            await asyncio.Event().wait()
            return []

    bench = run(Waits)
    wait_until(lambda: len(opened) >= 3, "it is opened again and again")
    assert bench.odd().timeouts >= 2
    assert "did not answer" in (bench.odd().reason or "")
    bench.the_other_goes_on()


def test_a_library_call_that_hangs_in_a_thread_keeps_no_process_alive(run: Callable[..., Bench]) -> None:
    let_go = threading.Event()

    class Hands(Odd):
        async def poll(self) -> Sequence[Seen]:
            await asyncio.to_thread(let_go.wait)
            return []

    bench = run(Hands)
    wait_until(lambda: bench.odd().timeouts >= 1, "the limit passes")
    assert bench.runner.stop(20.0) == ()
    assert all(t.daemon for t in threading.enumerate() if t.name == "receiver-call")
    let_go.set()


STUCK = """
import os, sys
from observatory.receivers.runner import Runner

class Stuck:
    name, period_seconds = "stuck", 0.01
    async def open(self, context):
        self.end, _ = os.pipe()
    async def poll(self):
        print("in it", flush=True)
        return os.read(self.end, 1)
    async def close(self): ...

runner = Runner({"stuck": Stuck}, "n0", lambda *_: None)
runner.start()
sys.stdin.readline()
print(runner.stop(0.1), flush=True)
"""


def test_a_process_ends_although_a_receiver_hangs() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "in it\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "('stuck',)\n"
        assert process.wait(60) == 0


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_receiver_that_raises_anything_is_tried_again(run: Callable[..., Bench], error: BaseException) -> None:
    class Raises(Odd):
        async def poll(self) -> Sequence[Seen]:
            raise error

    bench = run(Raises)
    wait_until(lambda: bench.odd().failures >= 3, "it is tried again")
    assert bench.odd().state is ReceiverState.FAILING
    assert type(error).__name__ in (bench.odd().reason or "")
    bench.the_other_goes_on()


def test_a_source_that_disappears_and_comes_back(run: Callable[..., Bench]) -> None:
    there = threading.Event()
    there.set()

    class Comes(Odd):
        async def open(self, context: ReceiverContext) -> None:
            if not there.is_set():
                raise ReceiverUnavailable("no such source", mend="plug it in")

        async def poll(self) -> Sequence[Seen]:
            if not there.is_set():
                raise ReceiverFailed("went away")
            return [observation("odd")]

    bench = run(Comes)
    wait_until(lambda: bench.odd().state is ReceiverState.WORKING, "it works")
    there.clear()
    wait_until(lambda: bench.odd().state is ReceiverState.UNAVAILABLE, "it is missed")
    assert bench.odd().mend == "plug it in"
    assert bench.odd().stale
    bench.the_other_goes_on()
    there.set()
    wait_until(lambda: bench.odd().state is ReceiverState.WORKING and not bench.odd().stale, "it works again")
    assert bench.odd().failures == 1


def test_a_polled_source_that_floods_is_cut_off_and_counted(run: Callable[..., Bench]) -> None:
    class Floods(Odd):
        async def poll(self) -> Sequence[Seen]:
            return [observation("odd")] * 1000

    bench = run(Floods, Settings(period_seconds=0.01, limits=Limits(most_per_poll=10)))
    wait_until(lambda: bench.odd().polls >= 3, "three polls")
    assert bench.odd().dropped >= 2 * 990
    assert all(len(batch) == 10 for batch in bench.taken.batches["odd"])
    bench.the_other_goes_on()


def test_a_source_of_events_that_floods_is_held_back(run: Callable[..., Bench]) -> None:
    class Floods:
        name: ClassVar[str] = "odd"

        async def open(self, context: ReceiverContext) -> None: ...

        async def events(self) -> AsyncIterator[Sequence[Seen]]:
            while True:
                yield [HardwareEvent(NODE, "text", "x", time.monotonic_ns(), "odd")] * 7

        async def close(self) -> None: ...

    began = time.monotonic()
    bench = run(Floods, Settings(limits=Limits(most_per_second=10)))
    wait_until(lambda: bench.odd().dropped > 0, "what is too much is counted")
    bench.the_other_goes_on()
    seconds = time.monotonic() - began
    assert bench.taken.count("odd") <= 10 * (seconds + 1)
    assert bench.odd().events == bench.taken.count("odd")


def test_a_source_that_ends_is_opened_again(run: Callable[..., Bench]) -> None:
    class Ends:
        name: ClassVar[str] = "odd"

        async def open(self, context: ReceiverContext) -> None: ...

        async def events(self) -> AsyncIterator[Sequence[Seen]]:
            yield [HardwareEvent(NODE, "text", "x", time.monotonic_ns(), "odd")]

        async def close(self) -> None: ...

    bench = run(Ends, QUICK)
    wait_until(lambda: bench.taken.count("odd") >= 3, "three times")
    assert bench.odd().failures >= 2


LIES: list[tuple[str, Any]] = [
    ("not_finite", lambda: observation("odd", math.nan)),
    ("not_finite", lambda: observation("odd", -math.inf)),
    ("wrong_type", lambda: observation("odd", "16")),  # type: ignore[arg-type]
    ("wrong_type", lambda: observation("odd", True)),
    ("wrong_type", lambda: ("link.width", 16)),
    ("wrong_type", lambda: HardwareEvent(NODE, "", "x", 1, "odd")),
    ("unknown_metric", lambda: observation("odd", 1.0, "link.colour")),
    ("negative", lambda: observation("odd", -1.0, "link.errors")),
    ("wrong_source", lambda: observation("nvml")),
    ("wrong_time", lambda: observation("odd", at_ns=time.monotonic_ns() + 10**15)),
    ("wrong_time", lambda: observation("odd", at_ns=1.5)),
    ("wrong_subject", lambda: observation("odd", subject="n0/gpu0")),
    ("wrong_subject", lambda: observation("odd", subject=Address("n0", AddressKind.PCI, "x" * 1000))),
    ("wrong_attributes", lambda: observation("odd", attributes={"error.type": 5})),
    ("wrong_attributes", lambda: observation("odd", attributes=[1])),
]


@pytest.mark.parametrize(("reason", "lie"), LIES)
def test_what_makes_no_sense_is_refused_and_counted(run: Callable[..., Bench], reason: str, lie: Any) -> None:
    class Lies(Odd):
        async def poll(self) -> Sequence[Seen]:
            return [observation("odd"), lie(), observation("odd", None)]

    bench = run(Lies)
    wait_until(lambda: bench.odd().polls >= 1, "a poll")
    assert set(bench.odd().refused) == {reason}
    wait_until(lambda: bench.taken.count("odd") >= 2, "the rest is delivered")
    assert [seen.value for seen in bench.taken.batches["odd"][0] if isinstance(seen, Observation)] == [1.0, None]


@pytest.mark.parametrize("answer", [None, "text", 5, iter([])])
def test_an_answer_that_is_no_sequence_is_a_failure(run: Callable[..., Bench], answer: object) -> None:
    class Answers(Odd):
        async def poll(self) -> Sequence[Seen]:
            return answer  # type: ignore[return-value]

    bench = run(Answers)
    wait_until(lambda: bench.odd().failures >= 1, "it fails")
    bench.the_other_goes_on()


def test_a_subscriber_that_raises_or_hangs_stops_no_receiver() -> None:
    let_go = threading.Event()
    calls: list[str] = []

    def deliver(name: str, batch: Sequence[Seen]) -> None:
        calls.append(name)
        if len(calls) == 1:
            raise RuntimeError("the first goes wrong")
        let_go.wait()

    runner = Runner({"steady": Steady}, "n0", deliver, settings={"steady": QUICK})
    runner.start()
    try:
        wait_until(lambda: runner.statuses()[0].dropped > 0, "what waits too long is dropped and counted")
        assert runner.statuses()[0].state is ReceiverState.WORKING
        assert runner.delivery_failures == 1
    finally:
        let_go.set()
        assert runner.stop(20.0) == ()
    assert runner.statuses()[0].state is ReceiverState.STOPPED


def test_broken_plug_ins_are_told_of_and_take_no_other_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[media_observatory.receivers]\n"
        "good = third_party_receivers:Good\nbad = third_party_receivers:Bad\nvalue = third_party_receivers:VALUE\n"
        "gone = third_party_receivers:Gone\nraises = third_party_raises:X\n"
    )
    (tmp_path / "third_party_raises.py").write_text("raise SyntaxWarning('odd')\n")
    (tmp_path / "third_party_receivers.py").write_text(
        "VALUE = 5\n"
        "class Good:\n"
        "    name = 'good'\n    period_seconds = 1.0\n"
        "    async def open(self, context): ...\n    async def poll(self): return []\n    async def close(self): ...\n"
        "class Bad:\n    name = 'bad'\n    async def open(self, context): ...\n    async def close(self): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = discover({"good", "bad", "value", "gone", "raises"})
    sys.modules.pop("third_party_receivers", None)
    assert set(found.receivers) == {"good"}
    assert set(found.broken) == {"bad", "value", "gone", "raises"}
    assert "needs one of poll and events" in found.broken["bad"]


def test_our_own_receivers_are_found() -> None:
    found = discover()
    assert found.broken == {}
