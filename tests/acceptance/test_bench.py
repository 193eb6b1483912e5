"""A quick run of the benchmarks measures every figure. No time is judged here."""

from __future__ import annotations

import json
import math
import subprocess
import sys

LINES = {
    "append.full.p50", "append.full.p99", "append.full.rate", "append.full.drift", "append.full.alone",
    "append.normal.p50", "append.normal.p99", "append.normal.rate",
    "file.size", "load.transcript", "load.context",
    "compaction.commit.0", "compaction.commit.1", "compaction.flat",
    "context.size.0", "context.size.1", "context.past.0", "context.past.1", "context.past.2",
    "fsck", "opening",
    "writers.rate", "writers.fair", "writers.worst", "open.p99", "open.worst",
    "shared.lost", "shared.refused", "shared.worst",
    "group", "fire", "version", "acp.greeted", "acp.bare", "acp.opened",
    "search-append", "agent.turn", "agent.summary", "agent.extract", "agent.wire", "agent.flat", "agent.first",
    "agent.memory", "agent.servers", "tui.first", "tui.floor", "tui.heavy", "tui.frame", "tui.top",
    *(f"{store}gateway.{line}" for store in ("", "pg.")
      for line in ("p50", "p99", "worst", "rate", "flooded", "memory")),
    *(f"{store}platforms.{name}.{line}" for store in ("", "pg.")
      for name in ("telegram", "discord", "slack", "email", "matrix") for line in ("p50", "rate")),
    *(f"platforms.{name}.memory" for name in ("telegram", "discord", "slack", "email", "matrix")),
    "pg.append.p50", "pg.append.p99", "pg.load.transcript", "pg.load.context",
    "pg.own.rate", "pg.own.p99", "pg.own.fair", "pg.own.worst", "pg.own.gain",
    "pg.one.rate", "pg.one.p99", "pg.one.fair", "pg.one.worst", "pg.one.lost",
    "pg.group", "pg.compaction.commit.0", "pg.compaction.commit.1", "pg.compaction.flat",
    "pg.search.3", "pg.search.20", "pg.copy.in", "pg.copy.out",
    "hints.p50", "hints.p99", "hints.missed", "hints.price",
    "retention.context.2000", "retention.context.8000", "retention.asked", "retention.recall",
}  # fmt: skip

COUNTED = dict.fromkeys(("shared.lost", "shared.refused", "hints.missed", "pg.one.lost"), 0)
COUNTED |= {"fire": 15, "retention.recall": 200}


def test_quick_bench_measures_every_line() -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, check=True)
    lines = {line["key"]: line for line in json.loads(done.stdout)["figures"]}
    assert set(lines) >= LINES
    for key in LINES:
        line = lines[key]
        if key in COUNTED:
            assert line["holdfast"] == COUNTED[key], line
        else:
            assert math.isfinite(line["holdfast"]), line
            assert line["holdfast"] > 0, line
