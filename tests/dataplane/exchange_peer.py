"""The other processes of the exchange's tests: `python exchange_peer.py ROLE PATH [ARGUMENT...]`.

What a process has to say it prints: one JSON document a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import socket
import sys
import time

from dataplane.exchange import Frame, Publisher, RingEnded, Subscriber
from tests.dataplane.exchange_stage import BOTH, FRAME_BYTES, ForgedPage, Intruder, hello, is_whole, publish


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


def read(path: str, policy: str, hold: str = "2") -> None:
    """Read to the end, check every byte, and say what came."""
    seen, gaps, torn = 0, 0, 0
    end = "?"
    with Subscriber(path, policy=policy, hold=int(hold), wait_seconds=30) as frames:  # type: ignore[arg-type]
        say(ready=True)
        try:
            while True:
                frame = frames.take(600)
                assert frame is not None
                with frame:
                    seen += 1
                    gaps += frame.lost_before or 0
                    torn += not is_whole(frame)
        except RingEnded as error:
            end = error.reason
    say(seen=seen, gaps=gaps, torn=torn, end=end)


def dawdle(path: str, pause: str) -> None:
    """Read everything under `block`, each frame after a pause."""
    seen = 0
    with Subscriber(path, policy="block", hold=1) as frames:
        say(ready=True)
        for frame in frames:
            with frame:
                time.sleep(float(pause))
                seen += 1
    say(seen=seen, end="end_of_stream")


def hold(path: str, policy: str, count: str = "1") -> None:
    """Take some frames and keep them, until killed."""
    kept: list[Frame] = []
    with Subscriber(path, policy=policy, hold=int(count)) as frames:  # type: ignore[arg-type]
        say(ready=True)
        while len(kept) < int(count):
            frame = frames.take(60)
            assert frame is not None
            kept.append(frame)
        say(held=len(kept))
        time.sleep(600)


def scribble(path: str, policy: str, seed: str) -> None:
    """Write random words all over a page of our own while the publisher reads it, until killed."""
    chance = random.Random(int(seed))
    intruder = Intruder(path)
    intruder.enter(policy)
    words = intruder.page.words
    tails = [0, 1, 2, 2**63, 2**64 - 1, 2**64 - 2, 2**32, 1000]
    say(ready=True)
    for _ in range(10**9):
        index = chance.randrange(len(words))
        words[index] = chance.choice(tails) if chance.random() < 0.5 else chance.getrandbits(64)
        if chance.random() < 0.001 and intruder.dismissed():
            intruder = Intruder(path)
            intruder.enter(policy)
            words = intruder.page.words
            say(again=True)


def say_nothing(path: str, count: str) -> None:
    """Connect that often, say nothing, and stay."""
    quiet: list[Intruder] = []
    while len(quiet) < int(count):
        quiet.append(Intruder(path))
    say(connected=len(quiet))
    time.sleep(600)


def flood(path: str, how: str) -> None:
    """Connect as often as possible, until killed."""
    page = ForgedPage("drop_oldest")
    say(ready=True)
    while True:
        with contextlib.suppress(OSError), Intruder(path) as intruder:
            if how == "hello":
                intruder.send(hello(), page.fd)
            elif how == "garbage":
                intruder.send(os.urandom(1000), page.fd)
            elif how == "handles":
                intruder.send(hello(), *[page.fd] * 200)


def publish_with_few_descriptors(path: str, spare: str) -> None:
    """Publish for ever, with room for only so many descriptors more."""
    with Publisher(path, frame_bytes=FRAME_BYTES, slots=64, grants=BOTH) as out:
        for index in range(10):
            publish(out, index)
        highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))  # noqa: PTH208
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + int(spare), highest + int(spare)))
        say(ready=True)
        index = 10
        while True:
            publish(out, index)
            index += 1
            time.sleep(0.01)


def publish_for_ever(path: str, pause: str = "0") -> None:
    """Until killed."""
    with Publisher(path, frame_bytes=FRAME_BYTES, slots=16, grants=BOTH) as out:
        say(ready=True)
        out.wait_for_consumers()
        index = 0
        while True:
            publish(out, index)
            index += 1
            time.sleep(float(pause))


def publish_some(path: str, count: str) -> None:
    """Publish, then end in order."""
    with Publisher(path, frame_bytes=FRAME_BYTES, slots=64, grants=BOTH) as out:
        say(ready=True)
        out.wait_for_consumers()
        for index in range(int(count)):
            publish(out, index)
    say(done=True)


def publish_and_stay(path: str, count: str) -> None:
    """Publish, then neither publish nor end, until killed."""
    with Publisher(path, frame_bytes=FRAME_BYTES, slots=64, grants=BOTH) as out:
        say(ready=True)
        out.wait_for_consumers()
        for index in range(int(count)):
            publish(out, index)
        say(published=out.published)
        time.sleep(600)


def connect_as(path: str, uid: str) -> None:
    """Try to subscribe as another user, and say how it went."""
    become(int(uid))
    try:
        with Subscriber(path, allow_uids=[0]) as frames:
            frame = frames.take(30)
            assert frame is not None
            say(outcome="frame", whole=is_whole(frame))
    except Exception as error:
        say(outcome=type(error).__name__, code=getattr(error, "code", None), words=str(error))


def publish_as(path: str, uid: str) -> None:
    """Serve as another user, until killed."""
    become(int(uid))
    with Publisher(path, frame_bytes=FRAME_BYTES, allow_gids=[int(uid)]):
        say(ready=True)
        time.sleep(600)


def hand_on(path: str, uid: str) -> None:
    """Connect, give the connection to a child that is another user and says hello over it, and stay."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _, (handed,), _, _ = socket.recv_fds(theirs, 1, 1)
        become(int(uid))
        connection = socket.socket(fileno=handed)
        connection.settimeout(30.0)
        socket.send_fds(connection, [json.dumps(hello()).encode()], [ForgedPage("drop_oldest").fd])
        say(answer=json.loads(connection.recv(1 << 17))["type"])
    else:
        theirs.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(path)
            socket.send_fds(ours, [b"x"], [connection.fileno()])
        say(child=child)
    time.sleep(600)


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
