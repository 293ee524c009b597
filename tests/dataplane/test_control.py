"""The control channel: messages and descriptors between supervisor and worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from dataplane.control import MAX_FDS, MAX_MESSAGE_BYTES, BadMessage, Channel, ControlClosed
from dataplane.errors import DataplaneError


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_message_and_descriptors_arrive_together(ends: tuple[Channel, Channel]) -> None:
    read, write = os.pipe()
    ends[0].send("port", port="video", slot_bytes=[4096], fds=[write])
    os.close(write)
    received = ends[1].receive(1.0)
    assert received is not None
    message, fds = received
    assert message == {"type": "port", "port": "video", "slot_bytes": [4096]}
    os.write(fds[0], b"x")
    assert os.read(read, 1) == b"x"
    assert not os.get_inheritable(fds[0])
    os.close(fds[0])
    os.close(read)


def test_silence_is_none_and_not_an_error(ends: tuple[Channel, Channel]) -> None:
    assert ends[0].receive(0.0) is None
    assert ends[0].receive(0.01) is None


def test_messages_keep_their_borders_and_order(ends: tuple[Channel, Channel]) -> None:
    for number in range(20):
        ends[0].send("lost", pts=number, reason="x" * number)
    got = [ends[1].receive(1.0) for _ in range(20)]
    assert [m[0]["pts"] for m in got if m] == list(range(20))


def test_peer_gone_is_said(ends: tuple[Channel, Channel]) -> None:
    ends[0].send("done", frames=1)
    ends[0].close()
    received = ends[1].receive(1.0)
    assert received is not None
    assert received[0]["type"] == "done"  # what was said before the end is still heard
    with pytest.raises(ControlClosed):
        ends[1].receive(1.0)
    with pytest.raises(ControlClosed):
        ends[1].send("stop")


def test_unexpected_message_closes_its_descriptors(ends: tuple[Channel, Channel]) -> None:
    read, write = os.pipe()
    ends[0].send("page", fds=[write])
    os.close(write)
    with pytest.raises(DataplaneError, match="expected a 'hello' message, got 'page'"):
        ends[1].expect("hello", 1.0)
    assert os.read(read, 1) == b""  # the only other end was the one that travelled
    os.close(read)


def test_too_big_is_refused_before_sending(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(DataplaneError, match="too big"):
        ends[0].send("warning", message="x" * MAX_MESSAGE_BYTES)
    with pytest.raises(DataplaneError, match="too big"):
        ends[0].send("port", fds=[0] * (MAX_FDS + 1))
    assert ends[1].receive(0.0) is None


def test_truncated_descriptors_are_an_error() -> None:
    """A peer that sends more than we take must not slip some of it through."""
    ours, theirs = Channel.pair()
    read, write = os.pipe()
    with theirs:
        socket.send_fds(theirs, [b'{"type": "port"}'], [write] * (MAX_FDS + 20))
        os.close(write)
        with pytest.raises(BadMessage, match="too many descriptors"):
            ours.receive(1.0)
        assert os.read(read, 1) == b""  # those that came through were closed
    os.close(read)
    ours.close()


@pytest.mark.parametrize(
    "data",
    [b"\0", b"{", b"[]", b"null", b'"hello"', b"{}", b'{"type": 7}', b"\xff\xfe\xfd", b"[" * 60000, b'{"a":' * 20000,
     b'{"type": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_what_is_no_message_is_said_and_leaves_no_descriptor(data: bytes) -> None:
    ours, theirs = Channel.pair()
    read, write = os.pipe()
    with theirs:
        socket.send_fds(theirs, [data], [write])
        os.close(write)
        with pytest.raises(BadMessage, match="no JSON"):
            ours.receive(1.0)
        assert os.read(read, 1) == b""
        theirs.send(b'{"type": "hello"}')  # the next one is a message again
        assert ours.receive(1.0) == ({"type": "hello"}, [])
    os.close(read)
    ours.close()


def test_more_descriptors_than_allowed_are_refused_and_closed() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours = Channel(one, most_fds=1)
    read, write = os.pipe()
    with other:
        socket.send_fds(other, [b'{"type": "hello"}'], [write])
        received = ours.receive(1.0)
        assert received is not None
        assert len(received[1]) == 1
        os.close(received[1][0])
        socket.send_fds(other, [b'{"type": "hello"}'], [write, write])
        os.close(write)
        with pytest.raises(BadMessage, match="too many descriptors"):
            ours.receive(1.0)
        assert os.read(read, 1) == b""
    os.close(read)
    ours.close()


def test_last_words_are_heard_though_ours_were_not_read(ends: tuple[Channel, Channel]) -> None:
    """The kernel reports the unread message as a reset, before what the other end had said."""
    ends[0].send("hello")
    ends[1].send("refused", code="busy")
    ends[1].close()
    assert ends[0].receive(1.0) == ({"type": "refused", "code": "busy"}, [])
    with pytest.raises(ControlClosed):
        ends[0].receive(1.0)


def test_try_send_never_waits(ends: tuple[Channel, Channel]) -> None:
    sent = 0
    while ends[0].try_send("warning", message="x" * 60000):
        sent += 1
    assert 0 < sent < 100
    assert ends[1].receive(1.0) is not None
    assert ends[0].try_send("stop")
