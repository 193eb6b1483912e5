"""Run the benchmarks. Progress is written to stderr, the report to stdout."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from bench import (
    acp,
    agent,
    append,
    concurrent_compaction,
    concurrent_writers,
    conversation_length,
    gateway,
    group_commit,
    platforms,
    postgres,
    postgres_notify,
    report,
    retention,
    search,
    startup,
    tui,
)
from bench.figures import Figure
from bench.scale import FULL, QUICK, Scale
from holdfast.store.sqlite import paths as sqlite_paths

Section = Callable[[Scale, Path], Iterator[Figure]]

SECTIONS: dict[str, tuple[str, Section]] = {
    "append": ("One writer, one durable append per transaction, 450-byte messages", append.figures),
    "conversation_length": ("Compaction by the length of a conversation", conversation_length.figures),
    "concurrent_writers": ("Several processes on one file, FULL", concurrent_writers.figures),
    "group_commit": ("Group commit, FULL", group_commit.figures),
    "concurrent_compaction": ("Compaction with concurrent appends", concurrent_compaction.figures),
    "retention": ("Facts kept by ten compactions of 2,000 messages without a model", retention.figures),
    "search": ("Search, relative to plain bm25 with stemming on the same chats", search.figures),
    "agent": ("The agent, with a model that answers at once", agent.figures),
    "gateway": ("The gateway with a platform in memory and a model that answers at once", gateway.figures),
    "platforms": ("Chat platforms, relative to the loopback socket", platforms.figures),
    "postgres": ("The store on PostgreSQL, fsync and synchronous_commit on", postgres.figures),
    "postgres_notify": ("Notifications between processes over PostgreSQL", postgres_notify.figures),
    "tui": ("The full screen", tui.figures),
    "startup": ("Start-up of the program", startup.figures),
    "acp": ("Start-up of the agent for editors (ACP)", acp.figures),
}


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = _arguments(arguments)
    scale = QUICK if chosen.quick else FULL
    began, load = time.monotonic(), _load()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=chosen.dir) as folder:
        machine = _machine(folder)
        tables = {SECTIONS[name][0]: _measure(name, scale, folder) for name in chosen.only or SECTIONS}
    machine |= {"load": f"{load} to {_load()}", "took": f"{time.monotonic() - began:.0f} s"}
    if chosen.json:
        figures = [figure.as_json() for lines in tables.values() for figure in lines]
        print(json.dumps({"machine": machine, "figures": figures}, indent=2, ensure_ascii=False))
    else:
        print(report.text(machine, tables))


def _arguments(given: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--only", metavar="NAME", action="append", choices=list(SECTIONS), help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes: check that every figure can be measured")
    parser.add_argument("--dir", help="folder of the stores; it must be on a real disk")
    return parser.parse_args(given)


def _measure(name: str, scale: Scale, folder: str) -> list[Figure]:
    print(f"bench: {name} …", file=sys.stderr, flush=True)
    section_folder = Path(folder) / name
    section_folder.mkdir(mode=0o700)
    return list(SECTIONS[name][1](scale, section_folder))


def _machine(folder: str) -> dict[str, str]:
    kind = sqlite_paths.filesystem(os.path.realpath(folder))
    return {
        "Python": platform.python_version(),
        "SQLite": f"{apsw.sqlite_lib_version()} (floor {sqlite3.sqlite_version})",
        "cores": str(os.cpu_count()),
        "disk": f"{kind}, which is not durable: use --dir" if kind in ("tmpfs", "ramfs") else kind,
    }


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?"


if __name__ == "__main__":
    main()
