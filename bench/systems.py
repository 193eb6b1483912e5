"""The systems that are measured side by side: ours, the floor, and any peer someone adds.

The floor is what a program pays that only wants its text on the disk: one table, no index, one INSERT a
message, by the sqlite3 of the standard library. A peer is a class with the same few methods in SYSTEMS;
it is measured and printed wherever the floor is.
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
    """One store in one file; a conversation is made by its first append."""

    name: str

    def __init__(self, path: Path, sync: Sync = "FULL") -> None: ...

    def append(self, conversation: str, number: int) -> object:
        """One message, durable as asked when this returns."""

    def load(self, conversation: str) -> int:
        """Read everything as the system's users would; how many messages."""

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

    def load(self, conversation: str) -> int:  # noqa: ARG002 - the one conversation of its file
        return len(self._db.execute("SELECT role, content FROM messages ORDER BY id").fetchall())

    def close(self) -> None:
        self._db.close()


SYSTEMS: dict[str, type[System]] = {system.name: system for system in (Holdfast, Floor)}


def path_of(folder: Path, system: str, label: str) -> Path:
    """Every system has its own file: one process must not open a file with two SQLite libraries."""
    return folder / f"{label}-{system}.db"


@contextmanager
def opened(folder: Path, label: str, sync: Sync = "FULL") -> Iterator[dict[str, System]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(closing(system(path_of(folder, name, label), sync)))
            for name, system in SYSTEMS.items()
        }


# --- what is written ---------------------------------------------------------------------------------

LENGTH = 450
_WORDS = ("the", "store", "keeps", "every", "message", "once", "at", "its", "number", "and", "nobody", "forks", "it")


def _sentence(seed: int) -> str:
    chance = random.Random(seed)
    return " ".join(chance.choice(_WORDS) for _ in range(LENGTH))[:LENGTH]


_TEXTS = [_sentence(seed) for seed in range(64)]


def text(number: int) -> str:
    """450 bytes, ready made: making it must not be part of what is timed."""
    return _TEXTS[number & 63]
