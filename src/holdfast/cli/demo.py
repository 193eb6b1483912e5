"""`holdfast demo`: run the same race on naive tables and on the store, and compare the results.

Several processes compact one conversation and append to it at the same time. All figures are read back from the two
databases after the processes have ended. The naive tables are an id, a parent and a flag, as many programs keep them:
each statement is correct by itself.
"""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import resource_tracker
from typing import Any

import click

from holdfast import errors, safe_text, types
from holdfast.cli import console, lazy_group
from holdfast.store import db as store

FIRST = "start"
KEPT_MESSAGES = 3
"""The number of newest messages that a compaction leaves unchanged."""
ROWS = {
    "acknowledged": "messages acknowledged",
    "in_log": "still stored",
    "in_context": "known to the model",
    "lost": "lost to the model",
    "heads": "heads",
    "forks": "forks",
}


def measure(
    sessions: Sequence[tuple[str, str | None, bool, set[str]]], sent: set[str], context: Iterable[str]
) -> dict[str, Any]:
    """Return the figures of one database. Each message is a unique word, and a summary is the words it replaces."""
    known = {word for text in context for word in text.split()}
    children = collections.Counter(parent for _, parent, _, _ in sessions if parent is not None)
    return {
        "acknowledged": len(sent),
        "in_log": len(sent.intersection(set[str]().union(*(texts for *_, texts in sessions)))),
        "in_context": len(sent & known),
        "lost": len(sent - known),
        "heads": sum(live for _, _, live, _ in sessions),
        "forks": sum(count > 1 for count in children.values()),
        "sessions": [
            {"id": name, "parent": parent, "live": live, "messages": len(texts & sent)}
            for name, parent, live, texts in sessions
        ],
    }


# --- naive tables --------------------------------------------------------------------------------------


class NaiveTables:
    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None)

    def create(self) -> None:
        self._db.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY, parent TEXT, ended TEXT)")
        self._db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, text TEXT)")
        self._db.execute("INSERT INTO sessions VALUES (?, NULL, NULL)", (FIRST,))

    def head(self) -> str:
        row = self._db.execute("SELECT id FROM sessions ORDER BY ended IS NULL DESC, rowid DESC LIMIT 1").fetchone()
        return str(row[0])

    def append(self, session: str, texts: Sequence[str]) -> int:
        rows = [(session, text) for text in texts]
        self._db.executemany("INSERT INTO messages (session, text) VALUES (?, ?)", rows)
        return 0

    def read(self) -> tuple[str, list[str]]:
        return self.head(), self._texts(self.head())

    def compact(self, view: tuple[str, list[str]], child: str) -> str:
        session, texts = view
        cut = max(0, len(texts) - KEPT_MESSAGES)
        self._db.execute("UPDATE sessions SET ended = 'compression' WHERE id = ?", (session,))
        self._db.execute("INSERT INTO sessions VALUES (?, ?, NULL)", (child, session))
        self.append(child, [" ".join(texts[:cut]), *texts[cut:]])
        return "committed"

    def measure(self, sent: set[str]) -> dict[str, Any]:
        rows = self._db.execute("SELECT id, parent, ended FROM sessions ORDER BY rowid").fetchall()
        sessions = [(name, parent, ended is None, set(self._texts(name))) for name, parent, ended in rows]
        return measure(sessions, sent, self._texts(self.head()))

    def _texts(self, session: str) -> list[str]:
        return [
            row[0] for row in self._db.execute("SELECT text FROM messages WHERE session = ? ORDER BY id", (session,))
        ]

    def close(self) -> None:
        self._db.close()


# --- the store -----------------------------------------------------------------------------------------


class Store:
    def __init__(self, path: str) -> None:
        self._db = store.SessionDB(path)

    def create(self) -> None:
        self._db.create_session(FIRST, source="demo", title="The race")

    def head(self) -> str:
        return self._db.head(FIRST).id

    def append(self, session: str, texts: Sequence[str]) -> int:
        receipts = [self._db.append_message(session, role="user", content=text, uid=text) for text in texts]
        return sum(receipt.moved_from is not None for receipt in receipts)

    def read(self) -> types.Snapshot:
        return self._db.snapshot(FIRST)

    def compact(self, view: types.Snapshot, child: str) -> str:
        try:
            context = self._db.context(FIRST, upto=view.last_seq)
            cut = max(context.cut_seq, context.last_seq - KEPT_MESSAGES)
            summary = " ".join(str(message.content) for message in context if message.seq <= cut)
            self._db.commit_compaction(view, summary=summary, cut_seq=cut, child_id=child)
        except errors.Superseded:
            return "refused"
        return "committed"

    def measure(self, sent: set[str]) -> dict[str, Any]:
        transcript, found = self._db.transcript(FIRST), self._db.admin.fsck().violations
        violations = [f"{violation.promise}: {violation.detail}" for violation in found]
        if sorted(message.uid for message in transcript) != sorted(sent):
            violations.append("P1: the log differs from the acknowledged messages")
        stored = collections.defaultdict[str, set[str]](set)
        for message in transcript:
            stored[message.session_id].add(message.uid)
        # All sessions of the store: a stray session of another conversation must show up, too.
        listed = reversed(self._db.list_sessions(every=True, limit=100_000))
        sessions = [(each.id, each.parent_session_id, each.live, stored[each.id]) for each in listed]
        context = [str(message.content) for message in self._db.context(FIRST)]
        return {**measure(sessions, sent, context), "violations": violations}

    def close(self) -> None:
        self._db.close()


# --- the race ------------------------------------------------------------------------------------------

Side = type[NaiveTables] | type[Store]
SIDES: dict[str, Side] = {"naive": NaiveTables, "holdfast": Store}


def _call(side: Side, path: str, method: str, *arguments: Any) -> Any:
    """Open the database, call one method, and close it."""
    opened = side(path)
    try:
        return getattr(opened, method)(*arguments)
    finally:
        opened.close()


class Workers:
    """Worker processes that call methods of a database concurrently."""

    def __init__(self, processes: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pool = concurrent.futures.ProcessPoolExecutor(processes, spawn)
        # Workers inherit the blocked signal, so that only the main process handles Ctrl-C.
        resource_tracker.ensure_running()  # It would unblock the signal when it starts.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        for _ in range(processes):
            self.pool.submit(os.getpid)  # starts a process if no worker is idle
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self, side: Side, path: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results of the calls in order."""
        try:
            return [future.result() for future in [self.pool.submit(_call, side, path, *call) for call in calls]]
        except BrokenProcessPool:
            message = "A process of the demo ended unexpectedly. Run `holdfast demo` again."
            raise errors.HoldfastError(message) from None


def race(
    workers: Workers, side: Side, path: str, processes: int, rounds: int, seed: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Run all rounds on a new database. Appenders keep the session that was the head when the round began."""
    chance, compactors = random.Random(seed), (processes + 1) // 2
    acknowledged: list[str] = []
    followed, outcomes = 0, collections.Counter[str]()

    def appends(head: str) -> list[tuple[Any, ...]]:
        calls = []
        for number in range(compactors, processes):
            texts = [f"a{number + 1}.{len(acknowledged) + index}" for index in range(chance.randint(1, 3))]
            acknowledged.extend(texts)
            calls.append(("append", head, texts))
        return calls

    _call(side, path, "create")
    for round_ in range(1, rounds + 1):
        progress(round_)
        head = _call(side, path, "head")
        followed += sum(workers.run(side, path, appends(head)))
        views = workers.run(side, path, [("read",)] * compactors)
        followed += sum(workers.run(side, path, appends(head)))
        commits = [("compact", view, f"r{round_}.c{number}") for number, view in enumerate(views, 1)]
        results = workers.run(side, path, [*commits, *appends(head)])
        outcomes.update(results[:compactors])
        followed += sum(results[compactors:])
    measured: dict[str, Any] = _call(side, path, "measure", set(acknowledged))
    return {**measured, "compactions": dict(outcomes), "followed": followed}


# --- the command ---------------------------------------------------------------------------------------


@click.command(name="demo")
@lazy_group.as_json
@click.option("--processes", type=click.IntRange(3, 32), default=6, show_default=True, help="Number of processes.")
@click.option("--rounds", type=click.IntRange(1, 100), default=4, show_default=True, help="Number of compactions.")
@click.option("--seed", type=click.IntRange(0), help="Seed for the number of messages per step (default: random).")
@click.option("--keep", type=click.Path(file_okay=False), metavar="DIR", help="Keep both databases in this directory.")
@click.pass_obj
def command(
    out: console.Console, as_json: bool, processes: int, rounds: int, seed: int | None, keep: str | None
) -> int:
    """Run processes that compact one conversation and append to it at the same time.

    The race runs twice: on naive tables, which fork and lose messages, and on the store, which does not.
    """
    seed = random.randrange(100_000) if seed is None else seed
    sides: dict[str, dict[str, Any]] = {}
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that files are removed
    with ExitStack() as stack:
        folder = _reserve(keep) if keep else stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-"))
        workers = Workers(processes)
        stack.enter_context(workers.pool)
        stack.callback(out.progress, "")
        for name, side in SIDES.items():
            path = os.path.join(folder, f"{name}.db")

            def progress(number: int, name: str = name) -> None:
                out.progress(f"{name}: round {number} of {rounds}")

            sides[name] = race(workers, side, path, processes, rounds, seed, progress)
    ok, seconds = keeps_promises(sides["holdfast"], rounds), round(time.monotonic() - started, 3)
    if as_json:
        plan = {"processes": processes, "rounds": rounds, "seed": seed, "compactors": (processes + 1) // 2}
        out.json({"ok": ok, **plan, "seconds": seconds, **sides})
        return 0 if ok else 1
    out.prose(
        f"{(processes + 1) // 2} processes compacted one conversation while {processes // 2} appended to it: "
        f"{safe_text.count(rounds, 'round')}, seed {seed}."
    )
    _print(out, sides["naive"], sides["holdfast"], ok, seconds)
    return 0 if ok else 1


def _reserve(folder: str) -> str:
    """Create the directory for the databases; refuse one that has databases of an earlier run."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise errors.StoreUnusable(f"{folder} cannot keep the databases: {error.strerror}.") from error
    if os.path.exists(os.path.join(folder, "naive.db")):
        raise errors.StoreUnusable(f"{folder} already contains databases. Name another directory.")
    return folder


def keeps_promises(side: dict[str, Any], rounds: int) -> bool:
    """Return whether there is one head, no lost message, and one compaction per round."""
    broken = side["lost"] or side["forks"] or side["violations"] or side["heads"] != 1
    return not broken and side["compactions"].get("committed") == rounds == len(side["sessions"]) - 1


def _print(out: console.Console, naive: dict[str, Any], side: dict[str, Any], ok: bool, seconds: float) -> None:
    out.print()
    for row in [("", "naive tables", "Holdfast"), *((name, naive[key], side[key]) for key, name in ROWS.items())]:
        line = f"{row[0]:<21}  {row[1]:>12}  {row[2]:>8}"
        out.print(out.style(line, "bold") if not row[0] else line)
    out.print()
    for violation in side["violations"]:
        out.prose(f"broken: {violation}", "red")
    if not ok:
        out.print(out.style("The store did not keep its promises.", "red"))
        return
    made, refused = side["compactions"]["committed"], side["compactions"].get("refused", 0)
    out.prose(
        f"The store committed {safe_text.count(made, 'compaction')}, refused {refused}, and wrote "
        f"{safe_text.count(side['followed'], 'message')} for an ended session to the head."
    )
    out.print(out.style(f"One head, nothing lost. It took {seconds:.1f} s.", "green"))
