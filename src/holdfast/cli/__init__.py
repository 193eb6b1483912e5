"""The program. `--version` answers before anything else is loaded."""

from __future__ import annotations

import importlib
import sys

import holdfast


def main() -> None:
    """What the `holdfast` command runs."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"holdfast {holdfast.__version__}")
        return
    try:
        importlib.import_module("holdfast.cli.program").run()
    except KeyboardInterrupt:  # while loading
        sys.exit(130)
