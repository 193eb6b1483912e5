"""The command line. `--version` is handled before anything else is imported."""

from __future__ import annotations

import importlib
import os
import sys

import holdfast


def main() -> None:
    """Run the `holdfast` command."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"holdfast {holdfast.__version__}")
        return
    try:
        signal = importlib.import_module("signal")
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # An exception raised during imports could be swallowed. Nothing is open yet, so exit at once.
            signal.signal(signal.SIGINT, _exit)
        program = importlib.import_module("holdfast.cli.program")
        if signal.getsignal(signal.SIGINT) is _exit:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        program.run()
    except KeyboardInterrupt:
        sys.exit(130)


def _exit(*_: object) -> None:
    os._exit(130)
