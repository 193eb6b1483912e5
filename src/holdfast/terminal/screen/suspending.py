"""Ctrl-Z: back to the shell, which brings it back with `fg`."""

from __future__ import annotations

import os
import signal
import sys

NOWHERE = "No shell started this, so none could bring it back."


def can_come_back() -> bool:
    """Whether a shell made a job of this: then its group is another than that of whoever leads the session."""
    return hasattr(signal, "SIGTSTP") and os.getpgrp() != os.getsid(0)


def until_in_front() -> None:
    """Stand still until the terminal is this job's again, also where it was told to go on in the background."""
    terminal = sys.__stdin__.fileno() if sys.__stdin__ else 0
    while True:
        # All of the job: a program between the shell and this one would wait for it, and the shell for that.
        os.killpg(0, signal.SIGSTOP)
        if os.tcgetpgrp(terminal) == os.getpgrp():
            return
