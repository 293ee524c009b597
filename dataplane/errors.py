"""Errors of the dataplane.

MediaObservatoryError
└── DataplaneError
    ├── BadParameters          an operator's parameters, found before anything runs            (exit 2)
    ├── BadMedia               an input that cannot be opened, or has no video                 (exit 2)
    │   └── WrongAddress       an address at which no live source can ever come                (exit 2)
    ├── NoSuchOperator         nobody registered an operator of that name                      (exit 2)
    ├── NotEnoughMemory        the pools do not fit; the message shows the arithmetic          (exit 1)
    ├── OperatorFailed         an operator raised; carries its name                            (exit 1)
    ├── OutputFailed           an output cannot be written (disk full, no such folder)         (exit 1)
    ├── WorkerDied             a worker process ended without a word (signal or exit code)     (exit 1)
    ├── NoProcess              a process cannot be started: limits, memory, nobody answers     (exit 1)
    ├── ExchangeError          frames shared between processes that nobody supervises          (exit 1)
    │   ├── BadAddress         a path at which no exchange can or may be                       (exit 2)
    │   ├── AddressTaken       another living process serves there
    │   ├── NobodyServes       no publisher at that path
    │   ├── Refused            the publisher (or we) would not have it; `code` says why
    │   │   └── OtherVersion   the two programs have other layouts or protocols
    │   ├── Dismissed          let in once, turned out since
    │   ├── BrokenPublisher    what it wrote into shared memory cannot be
    │   ├── NoRoom             no slot became free in time
    │   └── TooManyHeld        more frames kept than were asked for
    ├── CannotJoin             operators that are shared take no further job now               (exit 1)
    ├── CannotMigrate          an operator cannot be moved to another process now              (exit 1)
    └── Stopped                asked to stop while waiting; never shown to people
"""

from __future__ import annotations

import errno
from typing import Self

from observatory.model.errors import ExitCode, MediaObservatoryError


class DataplaneError(MediaObservatoryError):
    """Base of everything the dataplane raises on purpose."""


class BadParameters(DataplaneError):
    """Operator parameters that cannot work."""

    exit_code = ExitCode.BAD_INPUT


class BadMedia(DataplaneError):
    """A media input that cannot be opened or has nothing for us in it."""

    exit_code = ExitCode.BAD_INPUT


class WrongAddress(BadMedia):
    """An address at which a live source can never come: taken, not of this machine, of an unknown kind."""


class NoSuchOperator(DataplaneError):
    """An operator name that no plug-in provides."""

    exit_code = ExitCode.BAD_INPUT


class NotEnoughMemory(DataplaneError):
    """The pools would not fit into memory."""


class OperatorFailed(DataplaneError):
    """An operator raised while running."""


class OutputFailed(DataplaneError):
    """An output could not be written."""


class WorkerDied(DataplaneError):
    """A worker process ended without saying why."""


class NoProcess(DataplaneError):
    """A process that cannot be started; what runs already goes on."""

    @classmethod
    def of(cls, error: OSError) -> Self:
        """Why the system gives no process, and what to do about it."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
            mend = "allow more open files (ulimit -n 4096), or run fewer operators"
        elif error.filename is not None:
            words = f"no process may be started, its log cannot be written: {error.strerror or error}"
            return cls(words, file=str(error.filename), mend="free space there, or make its folder again")
        else:
            mend = "allow more processes (ulimit -u; pids.max of a container), or free memory"
        return cls(f"no further process may be started: {error.strerror or error}", mend=mend)


class ExchangeError(DataplaneError):
    """Base of what can go wrong between publishers and subscribers (dataplane.exchange)."""


class BadAddress(ExchangeError):
    """A path at which no exchange can be, or where it would not be safe."""

    exit_code = ExitCode.BAD_INPUT


class AddressTaken(ExchangeError):
    """Another living process serves at that path."""


class NobodyServes(ExchangeError):
    """There is no publisher at that path."""


class Refused(ExchangeError):
    """One side would not deal with the other.

    `code` is one of credentials, version, policy, full, busy, descriptors, page, malformed, timeout, ended, closed: the
    words may change, the code does not.
    """

    def __init__(self, code: str, message: str, *, mend: str | None = None) -> None:
        super().__init__(message, mend=mend)
        self.code = code


class OtherVersion(Refused):
    """The two programs do not have the same layouts, or not the same protocol."""


class Dismissed(ExchangeError):
    """The publisher let this subscriber in and has turned it out since.

    What it still holds may be overwritten. `code` is one of held, stalled, malformed, silent.
    """

    def __init__(self, code: str, message: str, *, mend: str | None = None) -> None:
        super().__init__(message, mend=mend)
        self.code = code


class BrokenPublisher(ExchangeError):
    """What the publisher wrote into the shared memory cannot be: it is broken or hostile."""


class NoRoom(ExchangeError):
    """No slot became free within the time given."""


class TooManyHeld(ExchangeError):
    """A subscriber that still keeps as many frames as it asked for wants another one."""


class CannotJoin(DataplaneError):
    """Operators that several jobs share cannot be read by this one, or not any more."""


class CannotMigrate(DataplaneError):
    """An operator cannot be moved to another process, or not now; it works on where it is."""


class Stopped(DataplaneError):
    """Asked to stop while waiting for a slot or a frame."""
