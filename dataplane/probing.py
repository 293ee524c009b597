"""Opening an input to see what is in it, in a process of its own: a file that kills the demuxer kills nothing else.

The process is forked by the nursery, as workers are; it answers over its control channel and ends:

    probe process   probed   the Probe as JSON
                    failed   error, exit code, as a worker's `failed`
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dataplane.control import Channel, ControlClosed, error_of
from dataplane.errors import BadMedia, Stopped
from dataplane.operators.base import Probe, SourceRequest
from dataplane.operators.registry import operator_type
from dataplane.process import NurseryProcess
from observatory.model.errors import MediaObservatoryError

LISTEN_SECONDS = 0.1

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
        DataplaneError: what the operator raised; BadMedia where the process was killed by its input.
        Stopped: cancelled.
    """
    channel, theirs = Channel.pair()
    with contextlib.closing(channel), tempfile.NamedTemporaryFile() as log:
        with theirs:
            asked = {"op": op, "params": dict(params), "request": asdict(request)}
            pid, pidfd = nursery.spawn(theirs, Path(log.name), probe=asked)
        try:
            return _PROBE.validate_python(_hear(channel, cancelled, request))
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            nursery.exit_status(pid)


def _hear(channel: Channel, cancelled: Callable[[], bool], request: SourceRequest) -> dict[str, Any]:
    while True:
        try:
            received = channel.receive(LISTEN_SECONDS)
        except ControlClosed:
            raise BadMedia(
                "opening it killed the process that tried", file=request.input, mend="this file is damaged, or worse"
            ) from None
        if received is not None:
            message = received[0]
            if message["type"] == "failed":
                raise error_of(message)
            found: dict[str, Any] = message["probe"]
            return found
        if cancelled():
            raise Stopped("stopped while an input was being opened")


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
