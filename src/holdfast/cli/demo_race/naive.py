"""The naive side of the race: the tables most agents begin with, and how they are used.

Sessions and messages, no constraints between them. A compaction reads the session, has a summary made,
ends the session, and then, in a second transaction, makes a child with the summary and the newest
messages it had read. Whoever writes, writes to the session it saw last. Nothing here is made to fail:
every statement does what it says, and each alone looks right.
"""

from __future__ import annotations

import sqlite3

from holdfast.cli.demo_race import values

SCHEMA = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, parent TEXT, ended TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, text TEXT);
"""
PATIENCE = 30.0


def create(path: str) -> None:
    db = _connect(path)
    db.executescript(SCHEMA)
    db.execute("INSERT INTO sessions VALUES (?, NULL, NULL)", (values.FIRST,))
    db.close()


def racer(path: str, role: values.Role, name: str, number: int) -> values.Racer:  # noqa: ARG001
    return Appender(path, name) if role == "appender" else Compactor(path, name)


class Appender:
    """Writes to the session it saw when the round began."""

    def __init__(self, path: str, name: str) -> None:
        self._db = _connect(path)
        self._name = name
        self._session = values.FIRST
        self._written = 0

    def take(self, order: values.Order) -> values.Answer:
        if order.step == "talk":
            self._session = _newest(self._db)
        return values.Answer(tuple(self._write() for _ in range(order.messages)))

    def _write(self) -> str:
        self._written += 1
        text = values.label(self._name, self._written)
        self._db.execute("INSERT INTO messages (session, text) VALUES (?, ?)", (self._session, text))
        return text

    def close(self) -> None:
        self._db.close()


class Compactor:
    """Reads, summarizes, ends the parent, makes a child: in two transactions."""

    def __init__(self, path: str, name: str) -> None:
        self._db = _connect(path)
        self._name = name
        self._session = values.FIRST
        self._texts: list[str] = []

    def take(self, order: values.Order) -> values.Answer:
        if order.step == "read":
            self._session = _newest(self._db)
            self._texts = _texts(self._db, self._session)
        elif order.step == "commit":
            self._compact(f"r{order.round}.{self._name}")
            return values.Answer(outcome="committed")
        return values.Answer()

    def _compact(self, child: str) -> None:
        cut = max(0, len(self._texts) - values.KEPT)
        kept = [values.summary(self._texts[:cut]), *self._texts[cut:]]
        self._db.execute("UPDATE sessions SET ended = 'compression' WHERE id = ?", (self._session,))
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT INTO sessions VALUES (?, ?, NULL)", (child, self._session))
        self._db.executemany("INSERT INTO messages (session, text) VALUES (?, ?)", [(child, text) for text in kept])
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


def measured(path: str, acknowledged: tuple[str, ...], answers: list[values.Answer]) -> values.Result:
    """What the database has, read back after every process has gone."""
    db = _connect(path)
    said = set(acknowledged)
    places = [
        values.Place(name, parent, ended is None, frozenset(_texts(db, name)) & said)
        for name, parent, ended in db.execute("SELECT id, parent, ended FROM sessions ORDER BY rowid").fetchall()
    ]
    known = values.words(_texts(db, _newest(db)))
    db.close()
    outcomes = {"committed": sum(answer.outcome == "committed" for answer in answers)}
    logged = frozenset(text for place in places for text in place.messages)
    return values.Result(acknowledged, logged, known, places, outcomes)


def _newest(db: sqlite3.Connection) -> str:
    """Where the conversation goes on: the newest session that has not ended, else the newest of all."""
    row = db.execute("SELECT id FROM sessions ORDER BY ended IS NULL DESC, rowid DESC LIMIT 1").fetchone()
    return str(row[0])


def _texts(db: sqlite3.Connection, session: str) -> list[str]:
    return [row[0] for row in db.execute("SELECT text FROM messages WHERE session = ? ORDER BY id", (session,))]


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
