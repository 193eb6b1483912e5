"""Long, seeded fault runs: `python -m tests.chaos --seed S --rounds N` (empty: a new seed, 5,000 rounds).

Every part prints its progress. All problems are printed at the end, with the seed, and the exit code is 1. `--only`
selects parts.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.chaos import parts
from tests.faults import zygote
from tests.support import memory_folders, postgres

ROUNDS = 5_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", default="", help="any text; empty: a new one")
    parser.add_argument("--rounds", type=lambda text: int(text or ROUNDS), default=ROUNDS, help=f"empty: {ROUNDS:,}")
    parser.add_argument("--only", action="append", choices=list(parts.PARTS), help="a part; may be given again")
    options = parser.parse_args()
    seed, names = options.seed or f"{random.SystemRandom().getrandbits(32):08x}", options.only or list(parts.PARTS)
    postgres.begin_run()
    print(f"seed {seed}", flush=True)
    began, problems = time.monotonic(), list[str]()
    for name in names:
        with zygote.start() as running, memory_folders.folder() as folder:
            run = parts.Run(name, running, Path(folder), random.Random(f"{seed} {name}"), options.rounds)
            parts.PARTS[name](run)
            print(f"{name}: done, {len(run.problems)} problems", flush=True)
            problems += run.problems
    print(f"{len(problems)} problems in {time.monotonic() - began:.0f} s: {', '.join(names)}; seed {seed}")
    for line in problems[:100]:
        print(f"  {line}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
