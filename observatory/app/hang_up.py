"""SIGHUP in the first second of `observatory up`, while it imports: a wish to reload, and no reason to die.

A handler and not SIG_IGN, which the processes that it starts would inherit, and which looks like nohup.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

_came = False


def hold() -> None:
    """Remember SIGHUP from now on. Under nohup, where it is ignored, that stays so."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    on_terminal = os.isatty(2)

    def remember(number: int, _frame: FrameType | None) -> None:
        global _came
        if on_terminal and not terminal_there():  # it was closed, and so nobody wants this any more
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        _came = True

    signal.signal(signal.SIGHUP, remember)


def came() -> bool:
    """Whether one came while it was held; says so once."""
    global _came
    came, _came = _came, False
    return came


def terminal_there() -> bool:
    """Whether the terminal that this process was started on is still there."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
        return True
    return False
