"""Who is at the other end of a Unix socket, who may be, and how to learn that it died.

The kernel notes a process's credentials when it connects (or listens), and keeps them for that connection, whoever
holds it later. So what is guaranteed is: **the process that connected was allowed**. It can hand the connection on, as
it can hand on everything it was given; whoever uses it then acts in its name, and is dismissed when that process dies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77  # Linux 6.5
_UCRED = struct.Struct("3i")
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_MOST_GROUP_BYTES = 1024  # as much as Python's getsockopt takes: 256 groups


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, at the time it did. `pid` is None for one outside this PID namespace."""

    pid: int | None
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"pid {self.pid} of uid {self.uid}" if self.pid is not None else f"a process of uid {self.uid}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Whose processes may connect: those of our own user, of `uids`, and of members of `gids`. Root is not special."""

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    own: int = field(default_factory=os.geteuid)

    @classmethod
    def of(cls, uids: Iterable[int], gids: Iterable[int]) -> Allowed:
        """Our own user and these."""
        return cls(frozenset(uids), frozenset(gids))

    def admits(self, peer: Peer) -> bool:
        """Whether that process may connect."""
        return peer.uid == self.own or peer.uid in self.uids or not self.gids.isdisjoint({peer.gid, *peer.groups})

    @property
    def others(self) -> bool:
        """Whether anybody but our own user may."""
        return bool(self.gids or self.uids - {self.own})


def peer_of(connection: socket.socket) -> Peer:
    """Who connected (asked on the listening side) or listens (asked on the connecting side). Raises OSError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    groups: frozenset[int] = frozenset()
    with contextlib.suppress(OSError):  # more groups than fit, or none at all: only the first one counts then
        listed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUP_BYTES)
        groups = frozenset(gid for (gid,) in struct.iter_unpack("I", listed))
    return Peer(pid or None, uid, gid, groups)


def open_pidfd(connection: socket.socket, peer: Peer) -> int | None:
    """A descriptor that becomes readable when the peer dies; None when it is dead already or cannot be named here.

    Raises OSError when this process has no descriptor left.
    """
    try:
        fd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        return _pidfd_by_number(connection, peer)
    os.set_inheritable(fd, False)
    return fd


def _pidfd_by_number(connection: socket.socket, peer: Peer) -> int | None:
    """For kernels without SO_PEERPIDFD. A process whose connection is open after its number was looked up had not given
    that number up before; unless somebody else keeps the connection, whose end is then what counts.
    """
    if peer.pid is None:
        return None
    try:
        fd = os.pidfd_open(peer.pid)
    except ProcessLookupError:
        return None
    if _at_end(connection):
        os.close(fd)
        return None
    return fd


def _at_end(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def is_dead(pidfd: int, wait_seconds: float = 0.0) -> bool:
    """Whether that process has died, now or within the time given."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(wait_seconds * 1000))
