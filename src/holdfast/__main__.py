"""Run the command line with `python -m holdfast`."""

from __future__ import annotations

from holdfast import cli

if __name__ == "__main__":
    cli.main()
