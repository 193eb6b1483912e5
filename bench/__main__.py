"""`python -m bench`: every section in turn, progress on stderr, the report on stdout."""

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
    fire,
    gateway,
    group,
    history,
    postgres,
    postgres_notify,
    program,
    report,
    retention,
    search,
    tui,
    writers,
)
from bench.figures import Figure
from bench.scale import FULL, QUICK, Scale
from holdfast.store.sqlite import paths as sqlite_paths

Section = Callable[[Scale, Path], Iterator[Figure]]

SECTIONS: dict[str, tuple[str, Section]] = {
    "append": ("One writer, one durable append per transaction, 450-byte messages", append.figures),
    "history": ("Compaction and the length of a conversation", history.figures),
    "writers": ("Several processes on one file, FULL", writers.figures),
    "group": ("Group commit, FULL", group.figures),
    "fire": ("Compaction under fire", fire.figures),
    "retention": ("What ten compactions without a model keep of 2,000 messages", retention.figures),
    "search": ("Search, beside plain bm25 with stemming on the same chats", search.figures),
    "agent": ("The agent, beside a model that answers at once", agent.figures),
    "gateway": ("The gateway on the loopback, beside a model that answers at once", gateway.figures),
    "postgres": ("The store on PostgreSQL, fsync and synchronous_commit on", postgres.figures),
    "postgres_notify": ("Hints over PostgreSQL, between processes", postgres_notify.figures),
    "tui": ("The full screen", tui.figures),
    "program": ("The program", program.figures),
    "acp": ("The editor's agent, until an editor can go on", acp.figures),
}


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = _arguments(arguments)
    scale = QUICK if chosen.quick else FULL
    began, load = time.monotonic(), _load()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=chosen.dir) as folder:
        machine = _machine(folder)
        tables = {SECTIONS[name][0]: _measured(name, scale, folder) for name in chosen.only or SECTIONS}
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
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether every line works, not how fast")
    parser.add_argument("--dir", help="where the stores are put (a real disk, or figures mean nothing)")
    return parser.parse_args(given)


def _measured(name: str, scale: Scale, folder: str) -> list[Figure]:
    print(f"bench: {name} …", file=sys.stderr, flush=True)
    place_of_its_own = Path(folder) / name
    place_of_its_own.mkdir(mode=0o700)
    return list(SECTIONS[name][1](scale, place_of_its_own))


def _machine(folder: str) -> dict[str, str]:
    kind = sqlite_paths.filesystem(os.path.realpath(folder))
    return {
        "Python": platform.python_version(),
        "SQLite": f"{apsw.sqlite_lib_version()} (floor {sqlite3.sqlite_version})",
        "cores": str(os.cpu_count()),
        "disk": f"{kind}, which forgets: give --dir" if kind in ("tmpfs", "ramfs") else kind,
    }


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?"


if __name__ == "__main__":
    main()
