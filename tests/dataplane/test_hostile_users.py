"""Processes of other users, and connections that change hands. Becoming another user takes root: skipped without."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.exchange import Publisher, Refused, Subscriber, credentials
from dataplane.exchange.credentials import Allowed, Peer

from .exchange_stage import FRAME_BYTES, Intruder, Stage, hello, peer, publish, stage, until

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users may look into."""
    made = Path(tempfile.mkdtemp(prefix="exchange-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def scene(folder: Path) -> Iterator[Stage]:
    with stage(folder / "cam.sock") as made:
        yield made


@needs_root
def test_another_user_does_not_get_past_the_mode(scene: Stage, folder: Path) -> None:
    with peer("connect_as", folder / "cam.sock", NOBODY) as stranger:
        said = stranger.hears()
        assert said["outcome"] == "BadAddress"
        assert "Permission denied" in said["words"]
    scene.publish(5)
    scene.check()


@needs_root
def test_another_user_does_not_get_past_the_credentials(scene: Stage, folder: Path) -> None:
    (folder / "cam.sock").chmod(0o666)
    with peer("connect_as", folder / "cam.sock", NOBODY) as stranger:
        said = stranger.hears()
        assert (said["outcome"], said["code"]) == ("Refused", "credentials")
        assert f"uid {NOBODY}" in said["words"]
    scene.publish(5)
    scene.check()


@needs_root
@pytest.mark.parametrize("by", ["allow_uids", "allow_gids"])
def test_a_user_or_group_that_is_let_in(folder: Path, by: str) -> None:
    path = folder / "cam.sock"
    users = {by: [NOBODY]}
    with (
        Publisher(path, frame_bytes=FRAME_BYTES, **users) as out,  # type: ignore[arg-type]
        peer("connect_as", path, NOBODY) as stranger,
    ):
        assert out.wait_for_consumers(1, 60)
        (state,) = out.consumers
        assert (state.pid, state.uid) == (stranger.process.pid, NOBODY)
        publish(out, 0)
        assert stranger.hears() == {"outcome": "frame", "whole": True}


@needs_root
def test_others_are_not_let_in_with_them(folder: Path) -> None:
    path = folder / "cam.sock"
    with Publisher(path, frame_bytes=FRAME_BYTES, allow_uids=[NOBODY - 1], allow_gids=[NOBODY - 2]) as out:
        with peer("connect_as", path, NOBODY) as stranger:
            assert stranger.hears()["code"] == "credentials"
        with peer("connect_as", path, NOBODY - 1) as stranger:
            assert out.wait_for_consumers(1, 60)
            publish(out, 0)
            assert stranger.hears()["outcome"] == "frame"


@needs_root
def test_a_publisher_of_another_user_is_not_believed(folder: Path) -> None:
    """It may sit where ours used to be: in /tmp, once ours has gone."""
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    path = theirs / "cam.sock"
    with peer("publish_as", path, NOBODY) as publisher:
        assert publisher.hears()["ready"]
        with pytest.raises(Refused, match=f"of uid {NOBODY} publishes at") as refused:
            Subscriber(path)
        assert refused.value.code == "credentials"
        assert f"allow_uids=[{NOBODY}]" in str(refused.value.mend)
        with pytest.raises(Refused, match="is not for"):  # believed, but it does not want us
            Subscriber(path, allow_uids=[NOBODY])


@needs_root
def test_a_connection_that_is_handed_on_stays_the_one_of_who_connected(scene: Stage, folder: Path) -> None:
    """What is guaranteed: the process that connected was allowed. Whoever has its connection acts in its name, for as
    long as it lives: its death ends what was handed on, too.
    """
    (folder / "cam.sock").chmod(0o666)
    with peer("hand_on", folder / "cam.sock", NOBODY) as owner:
        said = owner.hears() | owner.hears()
        assert said["answer"] == "welcome"
        user = os.pidfd_open(said["child"])
        try:
            until(lambda: len(scene.out.consumers) == 2)
            (state,) = [state for state in scene.out.consumers if state.pid != scene.reader_pid]
            assert (state.pid, state.uid) == (owner.process.pid, 0)
            scene.publish(30)
            owner.process.kill()
            until(lambda: len(scene.out.consumers) == 1)  # though the other one still has the connection
            assert scene.codes == ["gone"]
            assert not credentials.is_dead(user)
        finally:
            signal.pidfd_send_signal(user, signal.SIGKILL)
            os.close(user)
    scene.publish(5)
    scene.check()


def test_what_a_peer_says_of_itself_does_not_count(scene: Stage, folder: Path) -> None:
    with Intruder(folder / "cam.sock") as intruder:
        intruder.send(hello(pid=1, uid=12345), intruder.page.fd)
        assert intruder.hears()["type"] == "welcome"
        (state,) = [state for state in scene.out.consumers if state.pid != scene.reader_pid]
        assert (state.pid, state.uid) == (os.getpid(), os.geteuid())
        scene.check()


def test_without_the_kernels_pidfd_of_a_peer(scene: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.5 it is opened by number, and the connection looked at again."""
    monkeypatch.setattr(credentials, "_SO_PEERPIDFD", 9999)
    with peer("hold", folder / "cam.sock", "drop_oldest") as other:
        assert other.hears()["ready"]
        scene.publish(3)
        assert other.hears() == {"held": 1}
        other.process.kill()
        until(lambda: scene.codes == ["gone"])
    scene.check()


def test_a_number_whose_process_is_gone_gives_no_pidfd() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one:
        assert credentials._pidfd_by_number(one, Peer(2**22 - 1, 0, 0)) is None
        assert credentials._pidfd_by_number(one, Peer(None, 0, 0)) is None
        fd = credentials._pidfd_by_number(one, Peer(os.getpid(), 0, 0))
        assert fd is not None
        assert not credentials.is_dead(fd)
        os.close(fd)
        other.close()  # its owner may be gone, and the number somebody else's
        assert credentials._pidfd_by_number(one, Peer(os.getpid(), 0, 0)) is None


def test_who_is_allowed() -> None:
    own = Allowed(own=1000)
    assert own.admits(Peer(1, 1000, 5))
    assert not own.admits(Peer(1, 0, 0))  # root is not special: it can get in anyway, but has to say so
    assert not own.others
    some = Allowed(frozenset({7}), frozenset({20}), own=1000)
    assert some.others
    assert some.admits(Peer(1, 7, 5))
    assert some.admits(Peer(1, 8, 20))
    assert some.admits(Peer(1, 8, 5, frozenset({4, 20})))
    assert not some.admits(Peer(1, 8, 5, frozenset({4})))
