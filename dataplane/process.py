"""Processes as the supervisor sees them: the nursery, and the workers that come from it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dataplane.control import Channel, ControlClosed, close_all, error_of
from dataplane.errors import DataplaneError, NoProcess, Stopped, WorkerDied
from dataplane.operators.places import hold

LOG_TAIL_BYTES = 2000
IMPORT_SECONDS = 60.0  # until a nursery has imported everything, on a machine that is busy or swaps
ANSWER_SECONDS = 5.0  # then it only forks
WAIT_SLICE_SECONDS = 0.1  # longest sleep before asking whether anybody still wants the answer


class Forked:
    """A process that the nursery forked. Its pidfd belongs to who asked for it.

    `status` is as os.waitstatus_to_exitcode has it, None while it is not known; `nursery_end` says in words how the
    nursery ended, when that is what killed it.
    """

    __slots__ = ("nursery_end", "pid", "pidfd", "status")

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.status: int | None = None
        self.nursery_end: str | None = None


class _Question:
    """A request to fork, until it is answered; nobody may want the answer by then."""

    __slots__ = ("answer", "wanted")

    def __init__(self) -> None:
        self.answer: Forked | DataplaneError | None = None
        self.wanted = True


class NurseryProcess:
    """The supervisor's side of the nursery: starts it, asks it for workers, hears of their ends.

    Starting it returns at once; it imports while the caller goes on. When it is gone (and its workers with it), the
    next request starts another one: `restarts` counts them. A context manager; any thread may ask it, and nobody waits
    for a nursery that does not answer.

    One thread starts every nursery and hears all it says. The kernel kills a nursery when the *thread* that started it
    ends, so that must be one that stays.
    """

    def __init__(self) -> None:
        self.restarts = 0
        self._changed = threading.Condition()  # guards all that follows
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None  # to the nursery that lives
        self._ready = False
        self._asked_for = True
        self._closing = False
        self._ends = 0  # how many nurseries ended, or could not be started
        self._end = ""  # of the last one, in words
        self._questions: list[_Question] = []  # answered in their order
        self._children: dict[int, Forked] = {}
        self._keeper = threading.Thread(target=self._keep, name="nursery", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int | None:
        """Of the nursery that lives; None when there is none now."""
        with self._changed:
            return None if self._channel is None or self._process is None else self._process.pid

    # -- for any thread --------------------------------------------------------------------------------------------

    def spawn(
        self, control: socket.socket, log_fd: int, cancelled: Callable[[], bool] = lambda: False, **role: Any
    ) -> Forked:
        """Start a worker (or what `role` says, see dataplane.nursery); its standard error goes to `log_fd`.

        `cancelled` is looked at while waiting.

        Raises:
            NoProcess: the system allows no further one, or the nursery does not answer.
            WorkerDied: the nursery is gone, and the one that was started in its place as well.
            Stopped: cancelled.
        """
        fds = [control.fileno(), log_fd]
        with contextlib.suppress(ControlClosed):
            return self._ask(fds, role, cancelled)
        try:
            return self._ask(fds, role, cancelled)
        except ControlClosed:
            raise WorkerDied(
                f"the process that starts workers {self._end}", mend="SIGKILL without your doing: out of memory?"
            ) from None

    def exit_status(self, forked: Forked) -> int | None:
        """The exit status of a process whose pidfd says that it ended (negative: the signal that killed it).

        None when the nursery, its parent, does not say it.
        """
        with self._changed:
            self._await(lambda: forked.status is not None, ANSWER_SECONDS)
            return forked.status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the nursery; its workers have ended before."""
        with self._changed:
            self._closing = True
            if self._process is not None:
                self._process.kill()
            self._changed.notify_all()
        self._keeper.join()

    # -- with the lock held ----------------------------------------------------------------------------------------

    def _await(
        self, met: Callable[[], bool], timeout_seconds: float, cancelled: Callable[[], bool] = lambda: False
    ) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not met():
            if cancelled():
                raise Stopped("stopped while a process was being started")
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(min(left, WAIT_SLICE_SECONDS))
        return True

    def _ask(self, fds: Sequence[int], role: dict[str, Any], cancelled: Callable[[], bool]) -> Forked:
        """Raises ControlClosed when the nursery ends meanwhile."""
        with self._changed:
            channel = self._living(cancelled)
            question = _Question()
            try:
                self._put(channel, question, fds, role)
                self._await(lambda: question.answer is not None, ANSWER_SECONDS, cancelled)
                answer, question.answer = question.answer, None
            finally:
                question.wanted = False
                if isinstance(question.answer, Forked):  # it came with the interrupt
                    _kill(question.answer)
            if answer is None:
                raise self._silent()
            if isinstance(answer, Forked):
                return answer
            raise answer

    def _living(self, cancelled: Callable[[], bool]) -> Channel:
        """The channel to a nursery that has imported all; started when there is none."""
        if self._closing:
            raise ControlClosed("nobody starts workers any more")
        if self._channel is None:
            self._asked_for = True
            self._changed.notify_all()
        ends = self._ends
        if not self._await(lambda: self._ready or self._ends > ends, IMPORT_SECONDS, cancelled):
            raise self._silent()
        if self._channel is None or not self._ready:
            raise ControlClosed(f"the process that starts workers {self._end}")
        return self._channel

    def _put(self, channel: Channel, question: _Question, fds: Sequence[int], role: dict[str, Any]) -> None:
        poll = select.poll()
        poll.register(channel, select.POLLOUT)
        if not poll.poll(0):  # hundreds of requests wait there: one more might block
            raise self._silent()
        try:
            channel.send("spawn", fds=fds, **role)
        except ControlClosed:
            pass  # the keeper is about to see it, and answers
        except OSError as error:
            raise NoProcess.of(error) from None
        self._questions.append(question)

    def _silent(self) -> NoProcess:
        pid = "" if self._process is None else f" (pid {self._process.pid})"
        return NoProcess(
            f"the process that starts workers{pid} does not answer",
            mend="is it stopped (`ps -o stat -p PID`; kill -CONT PID)? If you kill it, all workers end with it",
        )

    def _answer(self, answer: Forked | DataplaneError) -> None:
        """To the oldest question."""
        question = self._questions.pop(0)
        if question.wanted:
            question.answer = answer
            self._changed.notify_all()
        elif isinstance(answer, Forked):
            _kill(answer)

    # -- the keeper's thread ---------------------------------------------------------------------------------------

    def _keep(self) -> None:
        while self._demanded():
            try:
                process, channel = self._start()
            except OSError as error:
                self._note_end(f"cannot be started: {error.strerror or error}")
                continue
            self._listen(channel)
            process.kill()  # it may have closed its end without ending
            end = f"(pid {process.pid}) {how_ended(process.wait())}"
            channel.close()
            self._note_end(end)

    def _demanded(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._asked_for or self._closing)
            return not self._closing

    def _start(self) -> tuple[subprocess.Popen[bytes], Channel]:
        channel, theirs = Channel.pair()
        with theirs:
            ends = ["--control-fd", str(theirs.fileno()), "--parent", str(os.getpid())]
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "dataplane.nursery", *ends],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                    env={"SVT_LOG": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
                )
            except BaseException:
                channel.close()
                raise
        with self._changed:
            self.restarts += self._process is not None
            self._process, self._channel = process, channel
            self._asked_for = False
            if self._closing:
                process.kill()
        return process, channel

    def _listen(self, channel: Channel) -> None:
        """Hear all that one nursery says, until it is gone."""
        while True:
            try:
                received = channel.receive()
            except (ControlClosed, OSError):
                return
            except DataplaneError as error:  # for want of room for its descriptor: only an answer has one
                with self._changed:
                    self._answer(error)
                continue
            if received is not None:
                with self._changed:
                    self._note(*received)

    def _note(self, message: dict[str, Any], fds: list[int]) -> None:
        match message["type"]:
            case "ready":
                self._ready = True
            case "born":
                forked = self._children[message["pid"]] = Forked(message["pid"], fds[0])
                self._answer(forked)
            case "refused":
                self._answer(error_of(message))
            case "exited" if message["pid"] in self._children:
                self._children.pop(message["pid"]).status = message["status"]
            case _:
                close_all(fds)
        self._changed.notify_all()

    def _note_end(self, words: str) -> None:
        """A nursery is gone, or there never was one: so are its workers, the kernel sees to it."""
        with self._changed:
            self._channel = None
            self._ready = self._asked_for = False
            self._ends += 1
            self._end = words
            for forked in self._children.values():
                forked.status, forked.nursery_end = -signal.SIGKILL, words
            self._children.clear()
            while self._questions:
                self._answer(ControlClosed(f"the process that starts workers {words}"))
            self._changed.notify_all()


def _kill(forked: Forked) -> None:
    """End a process that nobody wants any more, without waiting for that."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(forked.pidfd, signal.SIGKILL)
    os.close(forked.pidfd)


def how_ended(status: int | None) -> str:
    """How a process with that exit status ended (negative: the signal that killed it)."""
    if status is None:
        return "ended, how is not known"
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    return f"ended by itself with exit code {status}"


def signal_name(number: int) -> str:
    """Its name; real-time signals have none in Python."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_words(said: bytes) -> str:
    """The last lines that a process wrote to its standard error, on one line."""
    lines = said[-LOG_TAIL_BYTES:].decode(errors="replace").split("\n")
    return " / ".join(line.strip() for line in lines[-4:] if line.strip())


class WorkerProcess:
    """A started worker. `state` is starting, running, done, failed, dead (to be succeeded) or quarantined.

    `after`: the dead one that it succeeds; its log goes on, and its temporary files are in use by this one now.
    `beside`: the living one that it may take over from; they write to one log.
    """

    def __init__(
        self,
        operator: str,
        nursery: NurseryProcess,
        log: Path,
        cancelled: Callable[[], bool] = lambda: False,
        after: WorkerProcess | None = None,
        beside: WorkerProcess | None = None,
    ) -> None:
        try:
            self.channel, theirs = Channel.pair()
        except OSError as error:
            raise NoProcess.of(error) from None
        try:
            with theirs, log.open("wb" if after is None and beside is None else "ab") as stream:
                self._forked = nursery.spawn(theirs, stream.fileno(), cancelled)
        except OSError as error:
            self.channel.close()
            raise NoProcess.of(error) from None
        except BaseException:
            self.channel.close()
            raise
        self.pid, self.pidfd = self._forked.pid, self._forked.pidfd
        self.operator = operator
        self.state = "starting"
        self.restarts = 0
        self.frames = 0
        self.cpu_seconds: float | None = None
        self.listening = True
        self.buried = False  # its end was seen
        self.scratch: list[Path] = []
        self._held: dict[Path, int] = {}
        self._nursery = nursery
        self._log = log
        if beside is not None:
            self.restarts = beside.restarts
        if after is not None:
            self.restarts = after.restarts + 1
            self.inherit(after)

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        return not self.wait(0.0)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal unless the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for the process to end; False after the timeout."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(timeout_seconds * 1000))

    def reap(self) -> str:
        """How a process that has ended did so, in words."""
        how = how_ended(self._nursery.exit_status(self._forked))
        end = self._forked.nursery_end
        return how if end is None else f"{how}, with the process that starts workers, which {end}"

    def log_tail(self) -> str:
        """The last lines of its standard error, on one line."""
        with contextlib.suppress(OSError):
            return last_words(self._log.read_bytes())
        return ""

    def note_scratch(self, path: Path) -> None:
        """A temporary file that the worker made, or may make.

        It is in use from now on, also when the worker has died: another one may go on with it. Raises nothing.
        """
        if path not in self.scratch:
            self.scratch.append(path)
        with contextlib.suppress(OSError):
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            before, self._held[path] = self._held.get(path), opened
            if before is not None:
                os.close(before)
            hold(opened)

    def inherit(self, other: WorkerProcess) -> None:
        """The temporary files of another one are in use by this one now."""
        self.restarts = max(self.restarts, other.restarts)
        self.scratch += [path for path in other.scratch if path not in self.scratch]
        close_all([other._held.pop(path) for path in list(other._held) if path in self._held])
        self._held |= other._held
        other.scratch, other._held = [], {}

    def remove_scratch(self) -> None:
        """Remove the temporary files it had reported."""
        for path in self.scratch:
            path.unlink(missing_ok=True)

    def close(self, *, log_goes_on: bool = False) -> None:
        """Free descriptors; remove a log in which nothing was said, unless another process writes on there."""
        self.listening = False
        os.close(self.pidfd)
        self.channel.close()
        close_all(list(self._held.values()))
        self._held.clear()
        if log_goes_on:
            return
        with contextlib.suppress(OSError):
            if self._log.stat().st_size == 0:
                self._log.unlink()
