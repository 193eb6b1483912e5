"""Ctrl-Z: suspend the program until the shell resumes it with `fg`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

from textual.app import App, SuspendNotSupported

NO_SHELL = "Cannot suspend: the program was not started by a shell with job control."


def suspend_app(app: App[Any]) -> None:
    """Give the terminal to the shell until the job is in the foreground again."""
    if has_job_control():
        with suppress(SuspendNotSupported), app.suspend():
            stop_until_foreground()
    else:
        app.notify(NO_SHELL, timeout=3)


def has_job_control() -> bool:
    """Return whether a shell runs this as a job: then its process group is not that of the session leader."""
    return hasattr(signal, "SIGTSTP") and os.getpgrp() != os.getsid(0)


def stop_until_foreground() -> None:
    """Stop the process group until it owns the terminal, also after it was continued in the background."""
    terminal = sys.__stdin__.fileno() if sys.__stdin__ else 0
    # Textual's own handler may run late and would start the screen a second time.
    before = signal.signal(signal.SIGCONT, signal.SIG_DFL)
    try:
        while True:
            # The whole group: a program between the shell and this one would otherwise wait for it, and the shell too.
            os.killpg(0, signal.SIGSTOP)
            if os.tcgetpgrp(terminal) == os.getpgrp():
                return
    finally:
        signal.signal(signal.SIGCONT, before)
