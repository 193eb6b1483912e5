"""Ctrl-Z: back to the shell, which brings it back with `fg`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

from textual.app import App, SuspendNotSupported

NOWHERE = "No shell started this, so none could bring it back."


def step_out(app: App[Any]) -> None:
    """Leave the terminal to the shell until that gives it back."""
    if can_come_back():
        with suppress(SuspendNotSupported), app.suspend():
            until_in_front()
    else:
        app.notify(NOWHERE, timeout=3)


def can_come_back() -> bool:
    """Whether a shell made a job of this: then its group is another than that of whoever leads the session."""
    return hasattr(signal, "SIGTSTP") and os.getpgrp() != os.getsid(0)


def until_in_front() -> None:
    """Stand still until the terminal is this job's again, also where it was told to go on in the background."""
    terminal = sys.__stdin__.fileno() if sys.__stdin__ else 0
    # It goes on without a handler, too. Textual's own may run late, and would start the screen a second time.
    before = signal.signal(signal.SIGCONT, signal.SIG_DFL)
    try:
        while True:
            # All of the job: a program between the shell and this one would wait for it, and the shell for that.
            os.killpg(0, signal.SIGSTOP)
            if os.tcgetpgrp(terminal) == os.getpgrp():
                return
    finally:
        signal.signal(signal.SIGCONT, before)
