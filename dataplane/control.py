"""The control channel between supervisor and worker: JSON messages and file descriptors over a SOCK_SEQPACKET pair.

The pair is made by the supervisor and inherited, so the peer is authenticated by construction; handles to rings and
slabs travel only here, by SCM_RIGHTS. One datagram is one message: `{"type": ..., ...}`, at most 128 KiB, at most
MAX_FDS descriptors. The order of a start:

    worker      hello       protocol, ABI versions, pid
    supervisor  configure   what to run            + event ring, and the fabric (2) if any
    worker      port...     one per output port that has consumers            + ring, slabs
    worker      mapped...   after each: how long it took to make them, and their bytes
    worker      page...     one per input edge                                + consumer page
    worker      ready
    supervisor  output...   one per admitted consumer                         + its page
    supervisor  input...    one per input edge                                + ring, slabs of the producer
    supervisor  continue    where it goes on with the work of others          + what it has to know
    supervisor  start
    worker      mapped...   after each input: how long it took to map it
    worker      lost | dropped | warning | scratch | output | terminated      any number; it got SIGTERM: terminated
    worker      checkpoint  what another process needs to know to continue its work; the latest counts
    worker      source      sources: whether their input went away and is waited for
    worker      pool        every few seconds: how the pool of a port is used; also what of it could not be had
    worker      epoch       sources: their input made a jump; it waits for the number of the new epoch
    supervisor  epoch       that number
    supervisor  input       the ring that follows the one an edge has         + ring, slabs of the producer
    supervisor  output      a consumer more, or of the ring that follows      + its page
    supervisor  replace     a consumer died: another page takes its place     + that page
    worker      replaced    what it held, under drop_oldest
    supervisor  cut         another instance takes over an edge               + its page
    worker      cut | uncut from which sequence on; or that the ring has ended
    supervisor  hand_over   sources: end here, another instance goes on
    worker      warm        opened beside another instance, and ready to take over
    supervisor  begin       where the rings of such a worker start
    worker      begun
    supervisor  dismiss     the instance that was cut off has ended
    supervisor  admit       consumers of another job, all at one sequence     + their pages
    worker      admitted    at which
    supervisor  end         nothing more is for such consumers, all at one sequence
    worker      share_ended at which
    supervisor  let_go      such a consumer needs nothing any more
    supervisor  last        to a consumer of another job: where its share is cut off, its input ends
    worker      noted
    worker      done | failed                                                 the last one
    supervisor  stop                                                          sources: end early, finish what is begun
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from dataplane import _ring
from dataplane import errors as dataplane_errors
from dataplane.errors import DataplaneError, OperatorFailed
from observatory.model.errors import ExitCode

PROTOCOL = 2
END_SIGNAL = signal.SIGUSR1  # from the supervisor to a worker: throw everything away, at once
MAX_FDS = 64
MAX_MESSAGE_BYTES = 128 * 1024

_INT = struct.Struct("i")


class ControlClosed(DataplaneError):
    """The other end of the control channel is gone."""


class BadMessage(DataplaneError):
    """A message that is none of this protocol's: no JSON object with a type, or with too many descriptors."""


class Channel:
    """One end of a control channel. Received descriptors belong to the caller.

    Args:
        sock: a connected SOCK_SEQPACKET socket, which is this channel's from now on.
        most_fds: how many descriptors a message may bring; with more it is refused, and all of them are closed.
    """

    def __init__(self, sock: socket.socket, most_fds: int = MAX_FDS) -> None:
        self._socket = sock
        self._most_fds = most_fds

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """A channel and the socket for the other process to inherit."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_MESSAGE_BYTES)
        return Channel(ours), theirs

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, kind: str, *, fds: Sequence[int] = (), **fields: Any) -> None:
        """Send one message. Raises ControlClosed when nobody is there, DataplaneError when it is too big."""
        self._send(kind, _encode(kind, fds, fields), fds, 0)

    def try_send(self, kind: str, *, fds: Sequence[int] = (), **fields: Any) -> bool:
        """The same without ever waiting: False when the other end does not read what it was sent before."""
        try:
            self._send(kind, _encode(kind, fds, fields), fds, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _send(self, kind: str, data: bytes, fds: Sequence[int], flags: int) -> None:
        # Not socket.send_fds, which forgets its flags.
        handles = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        if self._socket.fileno() < 0:
            raise ControlClosed("this end of the control channel is closed")
        try:
            self._socket.sendmsg([data], handles, flags)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ControlClosed(f"cannot send {kind!r}: the other process is gone") from error

    def receive(self, timeout_seconds: float | None = None) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its descriptors; None after the timeout.

        Raises ControlClosed at the end, BadMessage for what is no message, DataplaneError when this process had no room
        for the descriptors.
        """
        self._socket.settimeout(timeout_seconds)
        try:
            data, fds, flags = self._receive_with_fds()
        except (TimeoutError, BlockingIOError):
            return None
        except ConnectionResetError as error:
            raise ControlClosed("the other process is gone") from error
        finally:
            self._socket.settimeout(None)
        if flags & socket.MSG_CTRUNC and len(fds) < self._most_fds:
            close_all(fds)
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise DataplaneError(
                f"a control message lost its file descriptors: this process may have {limit}",
                mend="allow more (ulimit -n 4096), or run fewer operators",
            )
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(fds)
            raise BadMessage("a control message is too long or brings too many descriptors")
        if not data:
            close_all(fds)
            raise ControlClosed("the other process is gone")
        try:
            return _decode(data), fds
        except BadMessage:
            close_all(fds)
            raise

    def _receive_with_fds(self) -> tuple[bytes, list[int], int]:
        """One datagram; its descriptors are closed on exec (socket.recv_fds of Python 3.11 drops that flag)."""
        room = socket.CMSG_LEN(self._most_fds * _INT.size)  # not CMSG_SPACE: its padding takes one more
        wanted = MAX_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(*wanted)
        except ConnectionResetError:
            # The other end left without reading all of ours: said once, before what it had said itself.
            data, ancillary, flags, _ = self._socket.recvmsg(*wanted)
        fds: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(payload) - len(payload) % _INT.size
                fds += [fd for (fd,) in _INT.iter_unpack(payload[:whole])]
        return data, fds, flags

    def expect(self, kind: str, timeout_seconds: float) -> tuple[dict[str, Any], list[int]]:
        """The next message, which must be of that kind. Raises DataplaneError otherwise or after the timeout."""
        received = self.receive(timeout_seconds)
        if received is None:
            raise DataplaneError(f"no {kind!r} message within {timeout_seconds:g} s")
        message, fds = received
        if message.get("type") != kind:
            close_all(fds)
            raise DataplaneError(f"expected a {kind!r} message, got {message.get('type')!r}")
        return message, fds

    def duplicate(self) -> Channel:
        """The same end under a descriptor of its own, which stays when this one is closed."""
        return Channel(self._socket.dup(), self._most_fds)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def _encode(kind: str, fds: Sequence[int], fields: Mapping[str, Any]) -> bytes:
    data = json.dumps({"type": kind, **fields}).encode()
    if len(data) > MAX_MESSAGE_BYTES or len(fds) > MAX_FDS:
        raise DataplaneError(f"control message {kind!r} is too big: {len(data)} bytes, {len(fds)} descriptors")
    return data


def _decode(data: bytes) -> dict[str, Any]:
    """The message; whoever wrote it may be broken or hostile."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"a control message is no JSON: {type(error).__name__}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadMessage("a control message is no JSON object with a type")
    return message


def check_hello(message: Mapping[str, Any], who: str) -> None:
    """Refuse a worker of another version. Raises DataplaneError."""
    ours = {name: layout["version"] for name, layout in _ring.layouts().items()}
    if message.get("protocol") != PROTOCOL:
        raise DataplaneError(
            f"worker {who} speaks version {message.get('protocol')} of the control protocol, this program {PROTOCOL}",
            mend="two versions of media-observatory are mixed: install one",
        )
    theirs = message.get("abi")
    if theirs != ours:
        differing = [name for name in ours if not isinstance(theirs, dict) or theirs.get(name) != ours[name]]
        raise DataplaneError(
            f"worker {who} has other layouts of shared memory than this program: {', '.join(differing) or 'more'}",
            mend="two versions of media-observatory are mixed: install one",
        )


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that nobody wanted."""
    for fd in fds:
        os.close(fd)


def error_of(message: Mapping[str, Any], operator: str | None = None) -> DataplaneError:
    """The error that another process sent as `failed`: same kind, words and exit code, its operator in front."""
    said = message["error"]
    kind = getattr(dataplane_errors, said["kind"], OperatorFailed)
    words = said["message"]
    if operator is not None and not words.startswith(f"{operator}:"):
        words = f"{operator}: {words}"
    error: DataplaneError = kind(words, file=said["file"], line=said["line"], mend=said["mend"])
    error.exit_code = ExitCode(message["exit_code"])
    return error
