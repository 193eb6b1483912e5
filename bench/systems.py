"""The systems that are compared: Holdfast, the floor, and peers that are added here.

The floor is the minimum for storing text: one table without an index and one INSERT per message, with the sqlite3 of
the standard library. A peer is a class with the same methods in SYSTEMS; it is measured and printed with the floor.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import holdfast

Sync = Literal["FULL", "NORMAL"]
ROLES: tuple[Literal["user", "assistant"], ...] = ("user", "assistant")


class System(Protocol):
    """One store in one file; the first append creates a conversation."""

    name: str

    def __init__(self, path: Path, sync: Sync = "FULL") -> None: ...

    def append(self, conversation: str, number: int) -> object:
        """Append one message, which is durable as configured when this returns."""

    def load(self, conversation: str) -> int:
        """Read all messages as users of the system do; return their number."""

    def close(self) -> None: ...


class Holdfast:
    name = "holdfast"

    def __init__(self, path: Path, sync: Sync = "FULL") -> None:
        durability = "power-loss" if sync == "FULL" else "process-crash"
        self.db = holdfast.SessionDB(path, durability=durability, write_timeout=60)
        self._made: set[str] = set()

    def append(self, conversation: str, number: int) -> object:
        if conversation not in self._made:
            self._made.add(conversation)
            if self.db.get_session(conversation) is None:
                self.db.create_session(conversation, source="bench")
        return self.db.append_message(conversation, role=ROLES[number & 1], content=text(number))

    def load(self, conversation: str) -> int:
        return len(self.db.transcript(conversation))

    def close(self) -> None:
        self.db.close()


class Floor:
    name = "floor"

    def __init__(self, path: Path, sync: Sync = "FULL") -> None:
        self._db: Any = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {sync}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, session TEXT, role TEXT, content TEXT)"
        )

    def append(self, conversation: str, number: int) -> object:
        return self._db.execute(
            "INSERT INTO messages (session, role, content) VALUES (?, ?, ?)",
            (conversation, ROLES[number & 1], text(number)),
        )

    def load(self, conversation: str) -> int:  # noqa: ARG002 -- its file has one conversation
        return len(self._db.execute("SELECT role, content FROM messages ORDER BY id").fetchall())

    def close(self) -> None:
        self._db.close()


SYSTEMS: dict[str, type[System]] = {system.name: system for system in (Holdfast, Floor)}


def path_of(folder: Path, system: str, label: str) -> Path:
    """Return the file of a system: one process must not open a file with two SQLite libraries."""
    return folder / f"{label}-{system}.db"


@contextmanager
def open_all(folder: Path, label: str, sync: Sync = "FULL") -> Iterator[dict[str, System]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(closing(system(path_of(folder, name, label), sync)))
            for name, system in SYSTEMS.items()
        }


# --- messages ----------------------------------------------------------------------------------------

LENGTH = 450
_WORDS = (
    "the",
    "store",
    "keeps",
    "every",
    "message",
    "once",
    "at",
    "its",
    "number",
    "and",
    "no",
    "process",
    "forks",
    "it",
)


def _sentence(seed: int) -> str:
    chance = random.Random(seed)
    return " ".join(chance.choice(_WORDS) for _ in range(LENGTH))[:LENGTH]


_TEXTS = [_sentence(seed) for seed in range(64)]


def text(number: int) -> str:
    """Return a text of 450 bytes. It is generated before the measurement."""
    return _TEXTS[number & 63]
