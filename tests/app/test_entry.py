"""Ctrl-C at any moment of the start: no traceback."""

from __future__ import annotations

import signal
import time

import pytest

from tests.app.command import Workspace


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
