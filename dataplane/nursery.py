"""The nursery: a process that has imported everything a worker needs, and forks workers on request.

Starting an interpreter and importing libav, NumPy and the operators costs most of a second of CPU time; a fork costs
milliseconds, now and whenever a worker has to be started again. The nursery has one thread and opens no codec, so that
forking it is safe. It dies with the supervisor (the kernel sees to it), and its workers die with it.

    nursery     ready                                                 once, when all is imported
    supervisor  spawn    [probe: what to open, see dataplane.probing] + the worker's control socket, its log
    nursery     born     pid                                          + its pidfd
    nursery     refused  error, exit code, as a worker's `failed`     no process: the limits do not allow it
    nursery     exited   pid, status (as os.waitstatus_to_exitcode)   when it has been collected

Each `spawn` gets one `born` or `refused`, in the order of asking.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
from typing import Any, NoReturn

from dataplane import _ring
from dataplane.control import Channel, ControlClosed, close_all
from dataplane.errors import DataplaneError, NoProcess, NoSuchOperator
from dataplane.operators.registry import operator_names, operator_type

LOG_FDS = (1, 2)


class Nursery:
    """The nursery's own side: an event loop over requests and ends of workers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> None:
        """Fork workers and report their ends until the supervisor closes the channel."""
        self._channel.send("ready")
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._channel:
                    self._obey()
                else:
                    self._collect(key.fd, key.data)

    def _obey(self) -> None:
        fds: list[int] = []
        try:
            received = self._channel.receive(0.0)
            if received is None:
                return
            message, fds = received
            control, log = fds
            self._fork(control, log, message.get("probe"))
        except ControlClosed:
            raise
        except DataplaneError as error:
            self._refuse(error)
        except OSError as error:
            self._refuse(NoProcess.of(error))
        finally:
            close_all(fds)

    def _fork(self, control: int, log: int, probe: dict[str, Any] | None) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(control, log, probe)
        pidfd = None
        try:
            pidfd = os.pidfd_open(pid)
            self._selector.register(pidfd, selectors.EVENT_READ, pid)
            self._channel.send("born", pid=pid, fds=[pidfd])
        except BaseException:  # nobody will ever know it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if pidfd is not None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(pidfd)
                os.close(pidfd)
            raise

    def _refuse(self, error: DataplaneError) -> None:
        self._channel.send("refused", error=error.as_dict(), exit_code=int(error.exit_code))

    def _collect(self, pidfd: int, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._channel.send("exited", pid=pid, status=os.waitstatus_to_exitcode(status))

    def _become_worker(self, control: int, log: int, probe: dict[str, Any] | None) -> NoReturn:
        """In the child: keep the control socket and the log, and nothing else of the nursery's."""
        code = 1
        try:
            os.setpgid(0, 0)  # Ctrl-C in a terminal is for the supervisor to hear
            for fd in LOG_FDS:
                os.dup2(log, fd)
            os.close(log)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            from dataplane.probing import run_probe
            from dataplane.worker import run_worker

            _ring.die_with_parent(self._pid)
            channel = Channel(socket.socket(fileno=control))
            code = run_worker(channel) if probe is None else run_probe(channel, probe)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)  # not the nursery's own way out


def main() -> int:
    """Entry point of the nursery process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its workers report it
    parser = argparse.ArgumentParser(prog="dataplane.nursery", description=__doc__)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    try:
        _ring.die_with_parent(arguments.parent)
    except _ring.RingError:
        return 0  # it is gone already: nobody needs workers
    importlib.import_module("dataplane.worker")
    importlib.import_module("dataplane.probing")
    for name in operator_names():
        with contextlib.suppress(NoSuchOperator):  # a broken plug-in matters to those who use it: their worker says so
            operator_type(name)
    gc.collect()
    gc.freeze()  # what is here is shared with all workers: the collector shall not touch, and so copy, its pages
    with contextlib.suppress(ControlClosed):  # the supervisor is done
        Nursery(Channel(socket.socket(fileno=arguments.control_fd))).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
