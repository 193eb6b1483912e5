"""Start-up of the program: `holdfast --version`, relative to a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import timing
from bench.figures import Figure, at_most
from bench.scale import Scale


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    program = Path(sys.executable).parent / "holdfast"

    def start(*command: str) -> timing.Operation:
        return lambda _: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

    bare, ours = start(sys.executable, "-c", "pass"), start(str(program), "--version")
    timing.interleave({"bare": bare, "holdfast": ours}, 1)
    taken = timing.medians(timing.interleave({"bare": bare, "holdfast": ours}, scale.starts))
    baseline = ("bare interpreter", taken["bare"] * 1e3)
    yield Figure("version", "holdfast --version", "ms", taken["holdfast"] * 1e3, baseline, at_most(2.5))
