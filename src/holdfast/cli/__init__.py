"""The program. `--version` answers before anything else is loaded."""

from __future__ import annotations

import importlib
import os
import sys

import holdfast


def main() -> None:
    """What the `holdfast` command runs."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"holdfast {holdfast.__version__}")
        return
    try:
        signal = importlib.import_module("signal")
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # In the middle of loading, an exception may end up anywhere; nothing is open yet that it could harm.
            signal.signal(signal.SIGINT, _leave)
        program = importlib.import_module("holdfast.cli.program")
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        program.run()
    except KeyboardInterrupt:
        sys.exit(130)


def _leave(*_: object) -> None:
    os._exit(130)
