"""A subscriber's end of one connection: the handshake, and a thread that notices what becomes of the publisher."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from dataplane import _ring
from dataplane.control import BadMessage, Channel, ControlClosed, close_all
from dataplane.errors import BrokenPublisher, DataplaneError, Dismissed, ExchangeError, NobodyServes, Refused
from dataplane.exchange import address
from dataplane.exchange.credentials import Allowed, Peer, is_dead, open_pidfd, peer_of
from dataplane.exchange.handshake import HANDSHAKE_SECONDS, MOST_SLABS, Hello, Welcome, said_in

NEVER = 1 << 62  # a sequence that is not reached: a dead producer's ring ends at its tail
DEATH_SECONDS = 1.0  # between the end of a connection and the end of the process that had it
WORD_SECONDS = 1.0  # how long a dismissal that shows in the ring waits for its reason


class Connection:
    """Connected, let in and attached; `close` gives everything back.

    Args:
        path: of the publisher's socket.
        hello: what is asked for.
        allowed: whose publishers are believed.

    Raises:
        NobodyServes, BadAddress, Refused, OtherVersion, BrokenPublisher.
    """

    def __init__(self, path: str | os.PathLike[str], hello: Hello, allowed: Allowed) -> None:
        sock = address.connect(path)
        self._channel = Channel(sock, most_fds=1 + MOST_SLABS)
        self._pidfd: int | None = None
        self.consumer = _ring.RingConsumer(hello.policy)
        try:
            self.peer = peer_of(sock)
            _check(self.peer, allowed, path)
            self._pidfd = _pidfd_of(sock, self.peer)
            self.welcome = self._shake_hands(hello)
        except BaseException:
            self._release()
            raise
        self._dismissal: Dismissed | None = None
        self._heard = threading.Event()  # nothing more will be said
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="exchange", daemon=True)
        self._thread.start()

    def _shake_hands(self, hello: Hello) -> Welcome:
        with contextlib.suppress(ControlClosed):  # refused at once: what it said is still there
            self._channel.send("hello", fds=[self.consumer.page_fd], **hello.fields())
        try:
            received = self._channel.receive(2 * HANDSHAKE_SECONDS)
        except ControlClosed as error:
            raise Refused("closed", "the publisher closed the connection without a word") from error
        except BadMessage as error:
            raise BrokenPublisher(f"what the publisher answers makes no sense: {error}") from error
        except DataplaneError as error:
            raise Refused("descriptors", str(error), mend="allow more (ulimit -n 4096)") from error
        if received is None:
            raise Refused(
                "timeout",
                f"the publisher did not answer within {2 * HANDSHAKE_SECONDS:g} s",
                mend="is it stopped (SIGSTOP, a debugger)? does something else listen there?",
            )
        message, fds = received
        try:
            welcome = Welcome.read(message, fds)
            self._attach(fds, welcome.slot_bytes)
        finally:
            close_all(fds)
        return welcome

    def _attach(self, fds: Sequence[int], slot_bytes: Sequence[int]) -> None:
        try:
            self.consumer.attach(fds[0], fds[1:], slot_bytes)
        except _ring.RingError as error:
            raise BrokenPublisher(f"the publisher's memory cannot be used: {error}") from error

    # -- watching ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until the publisher has died, has turned us out, or we leave."""
        poll = select.poll()
        ends = [self._channel.fileno(), self._wake, *([] if self._pidfd is None else [self._pidfd])]
        for fd in ends:
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake in ready:
                return
            if self._channel.fileno() in ready and self._hears_more():
                continue
            self._end()
            return

    def _hears_more(self) -> bool:
        """Read one message; False when there will be none."""
        try:
            received = self._channel.receive(0.0)
        except (DataplaneError, OSError):
            return False
        if received is None:
            return True
        message, fds = received
        close_all(fds)
        if message["type"] == "dismissed":
            code, words, mend = said_in(message)
            self._dismissal = Dismissed(code, f"the publisher turned us out: {words}", mend=mend)
            return False
        return True

    def _end(self) -> None:
        """Let the reader come to an end, whose reason the ring says itself unless the publisher died.

        A connection that ends before the ring does is a failure, too. The process that had it is dead a moment later.
        """
        if self._dismissal is None and self._pidfd is not None:
            is_dead(self._pidfd, DEATH_SECONDS)  # until then it may still publish
        self._heard.set()
        with contextlib.suppress(_ring.RingError):  # closed meanwhile
            self.consumer.end_at(NEVER, "failed")

    def dismissal(self) -> Dismissed | None:
        """Why we were turned out, if we were."""
        if self._dismissal is None:
            if not self.consumer.dismissed:
                return None
            self._heard.wait(WORD_SECONDS)
        return self._dismissal or Dismissed("silent", "the publisher turned us out without a word")

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave. Frames that are still held stay readable, but may be overwritten."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)
        with contextlib.suppress(DataplaneError, OSError):
            self._channel.try_send("leave")
        self._release()

    def _release(self) -> None:
        self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def connect(
    path: str | os.PathLike[str], hello: Hello, allowed: Allowed, wait_seconds: float | None, stop: threading.Event
) -> Connection:
    """A connection, tried again for `wait_seconds` (None: for ever) while nobody is there or it is busy.

    Raises what Connection raises, and ExchangeError when `stop` was set.
    """
    deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
    pause = 0.02
    while True:
        try:
            return Connection(path, hello, allowed)
        except ExchangeError as error:
            if not may_change(error) or (deadline is not None and time.monotonic() >= deadline):
                raise
        if stop.wait(pause):
            raise ExchangeError("closed while waiting for the publisher")
        pause = min(2 * pause, 0.5)


def may_change(error: ExchangeError) -> bool:
    """Whether trying again a little later may help."""
    if isinstance(error, Refused):
        return error.code in ("busy", "descriptors", "ended", "closed", "timeout")
    return isinstance(error, NobodyServes)


def _pidfd_of(sock: socket.socket, peer: Peer) -> int | None:
    try:
        return open_pidfd(sock, peer)
    except OSError as error:
        words = f"no descriptor is left to watch the publisher: {error.strerror}"
        raise Refused("descriptors", words, mend="allow more (ulimit -n 4096)") from error


def _check(peer: Peer, allowed: Allowed, path: str | os.PathLike[str]) -> None:
    """What a publisher of somebody else's writes is not to be trusted; it may sit at a path where ours used to be."""
    if not allowed.admits(peer):
        raise Refused(
            "credentials",
            f"{peer} publishes at {os.fspath(path)}, not one of ours",
            mend=f"if that is right: Subscriber(..., allow_uids=[{peer.uid}])",
        )
