"""Print line and branch coverage per package: `python -m tests.support.coverage_table FILE` (JSON of coverage.py)."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path, PurePath

SOURCE = "src/holdfast/"


def main(report: Path) -> None:
    totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, file in json.loads(report.read_text("utf-8"))["files"].items():
        parts = PurePath(name.partition(SOURCE)[2]).parts
        counts = {key: value for key, value in file["summary"].items() if isinstance(value, int)}
        for package in (parts[0] if len(parts) > 1 else "modules of holdfast", "all"):
            totals[package].update(counts)
    print(f"{'package':<20} {'lines':>7} {'covered':>8} {'branches':>9} {'covered':>8}")
    for package in sorted(totals, key=lambda name: (name == "all", name)):
        row = totals[package]
        lines, branches = row["num_statements"], row["num_branches"]
        print(
            f"{package:<20} {lines:>7,} {_percent(row['covered_lines'], lines):>8} "
            f"{branches:>9,} {_percent(row['covered_branches'], branches):>8}"
        )


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
