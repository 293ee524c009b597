"""Opening an input to see what is in it, in a process of its own: a file that kills the demuxer kills nothing else.

The process is forked by the nursery, as workers are; it answers over its control channel and ends:

    probe process   probed   the Probe as JSON
                    failed   error, exit code, as a worker's `failed`
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from dataplane.control import Channel, ControlClosed, error_of
from dataplane.errors import BadMedia, DataplaneError, Stopped, WorkerDied
from dataplane.operators.addresses import without_secrets
from dataplane.operators.base import Probe, SourceRequest
from dataplane.operators.registry import operator_type
from dataplane.process import NurseryProcess, how_ended, last_words
from observatory.model.errors import MediaObservatoryError

LISTEN_SECONDS = 0.1
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals that a process brings upon itself."""

_PROBE = TypeAdapter(Probe)
_REQUEST = TypeAdapter(SourceRequest)


def probe_apart(
    nursery: NurseryProcess,
    op: str,
    params: Mapping[str, Any],
    request: SourceRequest,
    cancelled: Callable[[], bool] = lambda: False,
) -> Probe:
    """What `operator_type(op).probe` says, asked in a process of its own; `cancelled` is looked at while waiting.

    Raises:
        DataplaneError: what the operator raised; BadMedia where the process crashed on its input; WorkerDied where
            somebody ended it.
        Stopped: cancelled.
    """
    channel, theirs = Channel.pair()
    with contextlib.closing(channel), os.fdopen(os.memfd_create("probe log"), "r+b") as log:
        with theirs:
            asked = {"op": op, "params": dict(params), "request": asdict(request)}
            probe = nursery.spawn(theirs, log.fileno(), cancelled, probe=asked)
        try:
            return _PROBE.validate_python(_hear(channel, cancelled))
        except ControlClosed:
            status = nursery.exit_status(probe)
            log.seek(0)
            raise _death(status, request, log.read()) from None
        finally:
            # Not waited for: what reads from a dead disk or mount does not end before that answers.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(probe.pidfd, signal.SIGKILL)
            os.close(probe.pidfd)


def _hear(channel: Channel, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """What the probe found. Raises ControlClosed when it ends without a word."""
    while True:
        received = channel.receive(LISTEN_SECONDS)
        if received is not None:
            message = received[0]
            if message["type"] == "failed":
                raise error_of(message)
            found: dict[str, Any] = message["probe"]
            return found
        if cancelled():
            raise Stopped("stopped while an input was being opened")


def _death(status: int | None, request: SourceRequest, said: bytes) -> DataplaneError:
    """Why a probe ended without a word: its input's doing, or somebody else's."""
    file = without_secrets(request.input) if request.input else None
    tail = last_words(said)
    words = how_ended(status) + (f"; its last words: {tail}" if tail else "")
    if status is not None and -status in CRASHES:
        return BadMedia(
            f"opening it killed the process that tried: it {words}",
            file=file,
            mend="what is there is damaged, or worse: convert it with another program first",
        )
    mend = "without your doing: out of memory? Then try again"
    return WorkerDied(f"the process that opened it {words}", file=file, mend=mend)


def run_probe(channel: Channel, asked: Mapping[str, Any]) -> int:
    """The whole life of the probing process; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        kind = operator_type(asked["op"])
        found = kind.probe(kind.Params.model_validate(asked["params"]), _REQUEST.validate_python(asked["request"]))
        channel.send("probed", probe=_PROBE.dump_python(found, mode="json"))
    except MediaObservatoryError as error:
        channel.send("failed", error=error.as_dict(), exit_code=int(error.exit_code))
    except Exception as error:  # of the operator's making; its words are all that is known
        known = BadMedia(f"{type(error).__name__}: {error}", file=asked["request"]["input"])
        channel.send("failed", error=known.as_dict(), exit_code=int(known.exit_code))
    return 0
