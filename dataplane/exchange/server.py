"""The thread of a publisher that lets consumers in and notices that they go.

Whatever a peer does, it must cost the publishing thread next to nothing: every wait here is for events of all
connections together, every send gives up at once, connections and handshakes are bounded in number and time, and
connecting itself is paced (in all, and per user), because each one costs some of the interpreter's time. What is wrong
with one connection ends that connection, with a reason, and no other.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from dataplane.control import BadMessage, Channel, ControlClosed, close_all
from dataplane.errors import DataplaneError, Refused
from dataplane.exchange.credentials import NO_DESCRIPTORS, Allowed, Peer, open_pidfd, peer_of
from dataplane.exchange.handshake import HANDSHAKE_SECONDS, Hello, Welcome, refused_fields
from dataplane.exchange.pace import Pace
from dataplane.exchange.roster import Dismissal, Member, Roster

MOST_UNGREETED = 32  # connections that have not said hello yet
CONNECTIONS_PER_SECOND, CONNECTION_BURST = 400.0, 64
CONNECTIONS_PER_SECOND_AND_USER, CONNECTION_BURST_OF_USER = 50.0, 100
ACCEPTED_AT_ONCE = 16
WARNINGS_PER_SECOND, WARNING_BURST = 0.2, 10
LOOK_SECONDS = 0.25
NO_DESCRIPTOR_SECONDS = 0.1  # how long nobody is accepted when there is no descriptor left at all
MOST_USERS = 256

log = logging.getLogger("dataplane.exchange")


class _Connection:
    """One connection: ungreeted until its hello came in time, a consumer from then on."""

    __slots__ = ("channel", "deadline", "member", "peer", "pidfd")

    def __init__(self, channel: Channel, peer: Peer, pidfd: int | None) -> None:
        self.channel = channel
        self.peer = peer
        self.pidfd = pidfd
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self.member: Member | None = None


class Server:
    """Serves one listening socket until it is closed.

    Args:
        listener: the socket, non-blocking; its owner closes it, after this.
        allowed: whose processes may connect.
        welcome: what everybody is told who was let in.
        handles: the descriptors that go with it: ring and slabs.
    """

    def __init__(self, listener: socket.socket, allowed: Allowed, welcome: Welcome, handles: Sequence[int]) -> None:
        self._listener = listener
        self._allowed = allowed
        self._welcome = welcome
        self._handles = list(handles)
        self._roster: Roster | None = None
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._by_channel: dict[Channel, _Connection] = {}
        self._pace = Pace(CONNECTIONS_PER_SECOND, CONNECTION_BURST)
        self._paces: dict[int, Pace] = {}
        self._warnings = Pace(WARNINGS_PER_SECOND, WARNING_BURST)
        self._resume_at: float | None = None  # the listener is not looked at before
        self._turned_out: deque[tuple[Member, Dismissal]] = deque()
        self._looked_at = 0.0
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)

    def start(self, roster: Roster) -> None:
        """Begin to let consumers in."""
        self._roster = roster
        self._thread.start()

    def turned_out(self, member: Member, dismissal: Dismissal) -> None:
        """The roster has dismissed that consumer; its connection ends. From any thread, without waiting."""
        self._turned_out.append((member, dismissal))
        self._poke()

    def close(self) -> None:
        """End all connections and the thread."""
        self._closing = True
        self._poke()
        if self._thread.ident is not None:
            self._thread.join()
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        os.close(self._wake)
        if self._spare is not None:
            os.close(self._spare)

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wake, 1)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(self._patience()):
                act: Callable[[], None] = key.data
                try:
                    act()
                except Exception:  # a mistake of ours must not end the service of everybody else
                    log.exception("exchange: unexpected error")
            self._expire()
            self._look()

    def _patience(self) -> float | None:
        ends = [c.deadline for c in self._connections if c.member is None]
        if len(ends) < len(self._connections):
            ends.append(self._looked_at + LOOK_SECONDS)
        if self._resume_at is not None:
            ends.append(self._resume_at)
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._turned_out:
            member, dismissal = self._turned_out.popleft()
            self._report(member, dismissal)
            connection = self._by_channel.get(member.channel)
            if connection is not None:
                self._drop(connection)

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in [c for c in self._connections if c.member is None and c.deadline <= now]:
            self._refuse(connection, Refused("timeout", f"no hello within {HANDSHAKE_SECONDS:g} s"))
        if self._resume_at is not None and self._resume_at <= now:
            self._resume_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _look(self) -> None:
        now = time.monotonic()
        if self._roster is None or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        self._roster.look()
        for uid in [uid for uid, pace in self._paces.items() if pace.full]:
            del self._paces[uid]

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._pace.take():
                self._pause(self._pace.wait_seconds)
                return
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_DESCRIPTORS:
                    self._without_descriptors()
                    return
                continue  # that one has gone again
            self._greet(sock)

    def _pause(self, seconds: float) -> None:
        if self._resume_at is None:
            self._selector.unregister(self._listener)
            self._resume_at = time.monotonic() + seconds

    def _without_descriptors(self) -> None:
        """Give up the spare descriptor to tell one peer why it is refused: else it would wait in the queue for ever."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):
                sock, _ = self._listener.accept()
                _say_no(Channel(sock), _no_descriptors())
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._pause(NO_DESCRIPTOR_SECONDS)

    def _greet(self, sock: socket.socket) -> None:
        channel = Channel(sock, most_fds=1)
        try:
            peer = peer_of(sock)
            self._check(peer)
            pidfd = open_pidfd(sock, peer)
        except Refused as refusal:
            _say_no(channel, refusal)
            return
        except OSError as error:
            _say_no(channel, _no_descriptors() if error.errno in NO_DESCRIPTORS else _gone(error))
            return
        connection = _Connection(channel, peer, pidfd)
        self._connections.add(connection)
        self._by_channel[channel] = connection
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._hear(connection))
        if pidfd is not None:
            self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._bury(connection))

    def _check(self, peer: Peer) -> None:
        """Raises Refused for a process that may not connect, or not so often."""
        if not self._allowed.admits(peer):
            raise Refused(
                "credentials",
                f"this publisher of uid {self._allowed.own} is not for {peer}",
                mend=f"let its user in: Publisher(..., allow_uids=[{peer.uid}])",
            )
        pace = self._paces.get(peer.uid)
        if pace is None:
            if len(self._paces) >= MOST_USERS:
                self._paces.pop(next(iter(self._paces)))
            pace = self._paces[peer.uid] = Pace(CONNECTIONS_PER_SECOND_AND_USER, CONNECTION_BURST_OF_USER)
        if not pace.take():
            raise Refused("busy", f"uid {peer.uid} connects too often", mend="try again a little later")
        ungreeted = [connection for connection in self._connections if connection.member is None]
        if len(ungreeted) >= MOST_UNGREETED:
            # The process that has the most of them loses its oldest: it is not the one that says hello at once.
            busiest = Counter(connection.peer.pid for connection in ungreeted).most_common(1)[0][0]
            oldest = min((c for c in ungreeted if c.peer.pid == busiest), key=lambda c: c.deadline)
            self._refuse(oldest, Refused("busy", "too many connections that say nothing"))

    # -- listening -----------------------------------------------------------------------------------------------------

    def _hear(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return  # dropped since the events were asked for
        try:
            received = connection.channel.receive(0.0)
        except ControlClosed:
            self._leave(connection, "gone", "closed its connection without a word")
            return
        except BadMessage as error:
            self._turn_away(connection, Refused("malformed", str(error)))
            return
        except DataplaneError:
            self._turn_away(connection, _no_descriptors())
            return
        except OSError as error:
            self._turn_away(connection, _gone(error))
            return
        if received is None:
            return
        message, fds = received
        try:
            if connection.member is None:
                self._let_in(connection, Hello.read(message, fds), fds[0])
            elif message["type"] == "leave":
                self._leave(connection, "left", "said goodbye")
            else:
                raise Refused("malformed", f"a consumer has nothing to say but 'leave', not {message['type'][:40]!r}")
        except Refused as refusal:
            self._turn_away(connection, refusal)
        finally:
            close_all(fds)

    def _let_in(self, connection: _Connection, hello: Hello, page_fd: int) -> None:
        assert self._roster is not None
        member = self._roster.admit(connection.peer, hello, page_fd, connection.channel)
        connection.member = member
        fields = {**self._welcome.fields(), "hold": hello.hold}
        try:
            if connection.channel.try_send("welcome", fds=self._handles, **fields):
                return
            reason = "does not read what it is sent"
        except (ControlClosed, OSError) as error:
            reason = f"cannot be answered: {error}"
        self._leave(connection, "silent", reason)

    def _bury(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._leave(connection, "gone", "its process died")

    # -- ending --------------------------------------------------------------------------------------------------------

    def _turn_away(self, connection: _Connection, refusal: Refused) -> None:
        if connection.member is None:
            self._refuse(connection, refusal)
        else:
            self._leave(connection, "malformed", str(refusal), refusal.mend)

    def _refuse(self, connection: _Connection, refusal: Refused) -> None:
        log.debug("exchange: %s refused: %s", connection.peer, refusal)
        self._drop(connection, refusal)

    def _leave(self, connection: _Connection, code: str, words: str, mend: str | None = None) -> None:
        if (member := connection.member) is not None:
            assert self._roster is not None
            if (dismissal := self._roster.remove(member, code, words, mend)) is not None:
                self._report(member, dismissal)
        self._drop(connection)

    def _report(self, member: Member, dismissal: Dismissal) -> None:
        # Who comes again and again must not fill a log; `dismissals` has them all.
        loud = dismissal.code not in ("left", "gone") and self._warnings.take()
        level = logging.WARNING if loud else logging.DEBUG
        log.log(level, "exchange: %s dismissed (%s): %s", member.peer, dismissal.code, dismissal.message)

    def _drop(self, connection: _Connection, refusal: Refused | None = None) -> None:
        self._connections.discard(connection)
        self._by_channel.pop(connection.channel, None)
        self._selector.unregister(connection.channel)
        if connection.pidfd is not None:
            self._selector.unregister(connection.pidfd)
            os.close(connection.pidfd)
        if refusal is None:
            connection.channel.close()
        else:
            _say_no(connection.channel, refusal)


def _say_no(channel: Channel, refusal: Refused) -> None:
    with contextlib.suppress(ControlClosed, OSError):
        channel.try_send("refused", **refused_fields(refusal))
    channel.close()


def _no_descriptors() -> Refused:
    return Refused(
        "descriptors", "the publisher has no file descriptors left", mend="allow it more (ulimit -n 4096); try again"
    )


def _gone(error: OSError) -> Refused:
    return Refused("malformed", f"the connection does not work: {os.strerror(error.errno or errno.EIO)}")
