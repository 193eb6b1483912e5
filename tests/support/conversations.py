"""Short calls to fill and compare stores, a settable clock, threads that start at once, and a lease holder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast import SessionDB, errors, types
from holdfast.store import write_step

T = TypeVar("T")

NOON = 1_790_000_000.0
DAY = 86_400.0


def prepared(method: Any, *args: Any, **kwargs: Any) -> write_step.WriteStep[Any]:
    """Return the step that a shareable method would execute."""
    step: write_step.WriteStep[Any] = method.prepare(method.__self__, *args, **kwargs)
    return step


class Clock:
    """Unix seconds that stand still until a test moves them."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def begin(db: SessionDB, session_id: str = "talk", *contents: str, **more: Any) -> str:
    """Create a conversation with these user messages; return its id."""
    db.create_session(session_id, source="test", **more)
    say(db, session_id, *contents)
    return session_id


def begin_each(db: SessionDB, names: Iterable[str], *contents: str, **more: Any) -> None:
    for name in names:
        begin(db, name, *contents, **more)


def say(db: SessionDB, session_id: str, *contents: str) -> list[types.Receipt]:
    return [db.append_message(session_id, role="user", content=content) for content in contents]


def compact(db: SessionDB, session_id: str, cut_seq: int, summary: str = "summary", **more: Any) -> types.Session:
    return db.commit_compaction(db.acquire_lease(session_id, "compact"), summary=summary, cut_seq=cut_seq, **more)


def attach(db: SessionDB, session_id: str, *digests: str) -> types.Receipt:
    """Append a message that names these blobs."""
    return db.append_message(session_id, role="user", content=[{"type": "image", "blob": each} for each in digests])


def read_blob(db: SessionDB, digest: str) -> bytes:
    with db.blobs.open(digest) as file:
        return file.read()


def short(value: object) -> str:
    """Return a test id for a value: the same in every process, and short."""
    return repr(value)[:24] if isinstance(value, str | bytes | int | float | list) else type(value).__name__


def contents(messages: Iterable[types.Message]) -> list[types.Content]:
    return [message.content for message in messages]


def seen(db: SessionDB, session_id: str, upto: int | None = None) -> list[types.Content]:
    """Return the contents of the context."""
    return contents(db.context(session_id, upto))


def process(name: str, session_id: str, command: str = "make all") -> types.Process:
    return types.Process(
        id=name, conversation_id=session_id, command=command, folder="/work", started_at=5.0, place='{"pid":1}'
    )


def act(db: SessionDB, session_id: str) -> None:
    """Add one finished and one open record of every kind."""
    db.memory.add("o", "likes tea", source=session_id)
    db.pin(session_id, 1)
    db.mail.settle_inbox_entry(db.mail.add_inbox_entry(session_id, "first", "Something came in.").id, "completed", 1)
    db.mail.add_inbox_entry(session_id, "second", "Something else came in.")
    for name in ("ended", "running"):
        db.processes.record_start(process(name, session_id))
    db.processes.record_end("ended", "exited", 0, "It ended.")
    db.permissions.grant("o", "shell(git diff)", session_id=session_id, by="me")
    db.permissions.end_audit(db.permissions.begin_audit(session_id, "call", "shell", "git diff", True, "a rule"), True)
    db.permissions.begin_audit(session_id, "other", "shell", "rm -r /", False, "no approver")


def everything(db: SessionDB, *owners: str) -> object:
    """Return all that can be read of a store, or of these owners."""
    reads: list[Callable[[str], object]] = [db.conversation, db.transcript, db.hides, db.pins, db.compactions]
    reads += [db.routes, db.budget, db.mail.inbox_entries, db.processes.all, db.permissions.audit_log]
    reads += [lambda id_, owner=owner: db.permissions.grants(owner, id_) for owner in owners or ("", "o")]
    memories: list[object] = [db.memory.all(owner) for owner in owners or ("", "o")]
    return memories + [
        (session, contents(db.context(session.id)), [read(session.id) for read in reads])
        for session in db.list_sessions(every=True, limit=10_000)
        if not owners or session.owner in owners
    ]


@contextmanager
def nothing_changes(db: SessionDB) -> Iterator[None]:
    before = everything(db)
    yield
    assert everything(db) == before


def at_once(*calls: Callable[[], T]) -> list[T | errors.HoldfastError]:
    """Run calls in threads that start at one barrier; return their results and Holdfast errors."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T | errors.HoldfastError:
        barrier.wait()
        try:
            return call()
        except errors.HoldfastError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))
