"""Connections that say nothing, the wrong thing, too much or too often: they end, and others do not notice."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataplane.exchange import Refused, Subscriber, handshake, server

from .exchange_stage import Intruder, Stage, hello, peer, stage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cam.sock"


@pytest.fixture
def scene(path: Path) -> Iterator[Stage]:
    with stage(path, slots=12) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for many tests: at the end the honest reader must have had every frame, whatever was tried."""
    with stage(tmp_path_factory.mktemp("exchange") / "cam.sock", slots=12) as made:
        yield made
        made.check()


BAD_FIRST_WORDS: list[bytes | dict[str, Any]] = [
    b"\0",
    b"{",
    b"[" * 60000,
    b'{"type":' * 9000,
    b"\xff\xfe",
    b"GET / HTTP/1.1\r\n\r\n",
    b'{"type": 1}',
    {"type": "welcome"},
    {"type": "leave"},
    {"type": "x" * 60000},
    hello(policy="newest"),
    hello(policy=["block"]),
    hello(policy=None),
    hello(hold=0),
    hello(hold=-1),
    hello(hold=True),
    hello(hold=1e300),
    hello(hold=10**30),
    hello(hold="1"),
    hello(padding="x" * 140_000),
]


@pytest.mark.parametrize("number", range(len(BAD_FIRST_WORDS)))
def test_first_words_that_make_no_sense(shared: Stage, number: int) -> None:
    with Intruder(shared.out.path) as intruder:
        intruder.send(BAD_FIRST_WORDS[number], intruder.page.fd)
        assert intruder.refused() == "malformed"
    shared.publish(5)


@pytest.mark.parametrize("words", [b"\0", b"[]", {"type": "hello"}, hello(), {"type": "dismissed"}, b"x" * 140_000])
def test_a_consumer_that_says_more_than_goodbye(shared: Stage, words: bytes | dict[str, Any]) -> None:
    with Intruder(shared.out.path) as intruder:
        intruder.enter()
        intruder.send(words)
        said = intruder.hears()
        assert (said["type"], said["code"]) == ("dismissed", "malformed")
        shared.publish(20)
        assert set(shared.codes) == {"malformed"}


def test_what_a_peer_wrote_is_shown_without_its_control_characters(scene: Stage, path: Path) -> None:
    with Intruder(path) as intruder:
        intruder.send({"type": "\x1b[2J\x07" + "x" * 1000}, intruder.page.fd)
        said = intruder.hears()
        assert "\x1b" not in said["message"]
        assert len(said["message"]) < 200
    scene.check()


def test_who_never_says_hello_is_not_waited_for(scene: Stage, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.3)
    with Intruder(path) as silent:
        scene.publish(5)
        assert silent.refused() == "timeout"
    scene.check()


def test_silent_connections_leave_room_for_others(scene: Stage, path: Path) -> None:
    """Five times as many as may be without a hello: the oldest of the process with the most goes for each new one."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with peer("say_nothing", path, 5 * server.MOST_UNGREETED) as flood:
        assert flood.hears() == {"connected": 5 * server.MOST_UNGREETED}
        open_now = len(os.listdir("/proc/self/fd")) - before  # noqa: PTH208
        assert open_now <= 2 * server.MOST_UNGREETED + 10  # each is a connection and a pidfd
        with Subscriber(path, wait_seconds=30) as frames:
            scene.publish(5)
            assert frames.take(30.0) is not None
        scene.publish(50)
        scene.check()


@pytest.mark.parametrize("how", ["close", "hello", "garbage", "handles"])
def test_a_flood_of_connections(scene: Stage, path: Path, how: str) -> None:
    """As fast as a process can. The publisher goes on meanwhile, and its thread serves others afterwards."""
    with peer("flood", path, how) as first, peer("flood", path, how) as second:
        assert first.hears()["ready"]
        assert second.hears()["ready"]
        ends = time.monotonic() + 2.0
        while time.monotonic() < ends:
            scene.publish(20)
        with Subscriber(path, wait_seconds=60):
            pass
    with Subscriber(path, wait_seconds=60) as frames:
        scene.publish()
        assert frames.take(30.0) is not None
    scene.check()


def test_a_user_who_connects_too_often_is_told_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTION_BURST_OF_USER", 3)
    monkeypatch.setattr(server, "CONNECTIONS_PER_SECOND_AND_USER", 0.5)
    with stage(path) as scene:
        said = []
        for _ in range(6):
            with Intruder(path) as intruder:
                said.append(intruder.hears_now(0.2).get("code"))
        assert said[:2] == [None, None]  # the honest reader had the first of three permits
        assert said[2:].count("busy") >= 2
        with pytest.raises(Refused, match="connects too often"):
            Subscriber(path)
        with Subscriber(path, wait_seconds=60):  # comes again until it is let in
            pass
        scene.check()


def test_a_publisher_without_descriptors_refuses_and_goes_on(path: Path) -> None:
    with peer("publish_with_few_descriptors", path, 6) as publisher:
        assert publisher.hears()["ready"]
        with peer("read", path, "block") as reader:
            assert reader.hears()["ready"]
            intruders, codes = [], []
            for _ in range(20):
                intruder = Intruder(path)
                said = intruder.hears_now(0.3)
                codes.append(said.get("code"))
                intruders.append(intruder)
            assert "descriptors" in codes
            assert set(codes) <= {None, "descriptors"}
            with pytest.raises(Refused) as refused:
                Subscriber(path)
            assert refused.value.code == "descriptors"
            assert "ulimit" in str(refused.value.mend)
            for intruder in intruders:
                intruder.close()
            with Subscriber(path, wait_seconds=60) as frames:
                assert frames.take(30.0) is not None
            publisher.process.kill()
            said = reader.hears()
            assert (said["gaps"], said["torn"], said["end"]) == (0, 0, "failed")


def test_a_table_that_is_full_of_descriptors_when_a_handle_comes(path: Path) -> None:
    """Accepted with the last descriptor, so that the page has no room: that connection is refused, not the service."""
    with peer("publish_with_few_descriptors", path, 2) as publisher:
        assert publisher.hears()["ready"]
        with Intruder(path) as intruder:
            intruder.send(hello(), intruder.page.fd)
            assert intruder.refused() == "descriptors"
        publisher.process.kill()


def test_a_consumer_that_reads_nothing_is_not_waited_for(scene: Stage, path: Path) -> None:
    with Intruder(path) as intruder:
        intruder.send(hello(hold=1), intruder.page.fd)
        scene.publish(50)
        scene.check()


def test_the_messages_say_what_the_docs_say() -> None:
    """A hello as another implementation would write it, from the documentation alone."""
    assert json.loads(json.dumps(hello())) == {
        "type": "hello",
        "protocol": 1,
        "layouts": handshake.layouts(),
        "policy": "drop_oldest",
        "hold": 1,
    }
    assert set(handshake.layouts()) == {"mo_ring_header", "mo_descriptor", "mo_consumer_page"}
