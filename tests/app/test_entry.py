"""Signals at any moment of the start: Ctrl-C without a traceback, SIGHUP without an end."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.app.command import Workspace
from tests.app.test_up import finish, snapshot, until


@pytest.mark.parametrize("after_seconds", [0.03, 0.06, 0.1, 0.2, 0.4])
def test_interrupted_while_it_starts(workspace: Workspace, after_seconds: float) -> None:
    with workspace.started("run", "--frames", 1000) as process:
        time.sleep(after_seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    # Before our first line runs, Python itself answers with a traceback and exit code 1: not ours to mend.
    if after_seconds >= 0.4:
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in err
    else:
        assert process.returncode != 0


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for it, as the kernel sees it (proc(5), SigCgt)."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_reload_that_is_asked_for_too_early_is_not_the_end(workspace: Workspace) -> None:
    with workspace.started("up", "--no-pipeline", "--no-web") as process:
        loaded = False
        while not loaded and not catches(process.pid, signal.SIGHUP):
            assert process.poll() is None
            loaded = "_pydantic_core" in Path(f"/proc/{process.pid}/maps").read_text()
        assert catches(process.pid, signal.SIGHUP), "its imports have begun, and SIGHUP would still end it"
        process.send_signal(signal.SIGHUP)
        until(lambda: snapshot(workspace) is not None, process)
        started = [pid for pid in workspace.processes() if pid != process.pid]
        assert started, "the process that starts workers"
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in started]
        assert all(not int(text.split("SigIgn:")[1].split()[0], 16) & 1 for text in texts), "it takes SIGHUP as usual"
        assert finish(process, signal.SIGTERM)[0] == 0


def test_under_nohup_it_stays_ignored(workspace: Workspace) -> None:
    script = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from observatory.app import hang_up; hang_up.hold()\n"
        "signal.raise_signal(signal.SIGHUP)\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and not hang_up.came()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_came_early_is_told_once(workspace: Workspace) -> None:
    script = (
        "import signal; from observatory.app import hang_up; hang_up.hold()\n"
        "signal.raise_signal(signal.SIGHUP)\n"
        "assert [hang_up.came(), hang_up.came()] == [True, False]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stderr=subprocess.PIPE)


def test_a_terminal_that_is_closed_ends_what_has_only_begun(workspace: Workspace) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", "from observatory.app import hang_up as h; h.hold(); print('held'); input(); input()"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
        env={**workspace.environment, "PYTHONUNBUFFERED": "1"},
    ) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGHUP)  # a reload: the terminal is there
        os.write(ours, b"go on\n")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        os.close(ours)
        assert process.wait(30) == -signal.SIGHUP
