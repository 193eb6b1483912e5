"""Single bits of the database file flipped: no read may be silently wrong.

Whoever reads a damaged store reads what was written, or gets a typed error, or fsck names the damage.
That holds for what the promises are about: the log, the context with its summaries, hides, lineage and
routes. Times and labels (source, model, title, reason of an end) have no digest and are left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import steps, zygote

ENOUGH_MEMORY = 2 * 1024**3
ENOUGH_TIME = 60


def furnish(db: SessionDB) -> None:
    """Every kind of row, and a log of some length."""
    for number in range(6):
        c = f"conversation {number}"
        steps.say(db, c, 12)
        db.bind_route(f"chat:{number}", c, version=0)
        lease = db.acquire_lease(c, "compact", "me")
        db.commit_compaction(lease, summary=f"what was said in {c} " * 10, cut_seq=5, pinned=[2], child_id=f"{c} on")
        for later in range(10):
            db.append_message(c, role="assistant", content="answer " * 60, uid=f"{c}:later{later}")
        db.hide(c, 20, 21)
        db.branch(c, 15, branch_id=f"{c} branch")
        db.append_message(f"{c} branch", role="user", content="in the branch")
    db.redact("conversation 1", 7)
    db.end_conversation("conversation 2", "done")
    db.delete_conversation("conversation 3 branch")


def contents(db: SessionDB) -> Any:
    """What people and models read, in an order that no time decides."""
    found: list[Any] = [db.routes()]
    for session in sorted(db.list_sessions(every=True, limit=1000), key=lambda session: str(session.id)):
        context = db.context(session.id)
        found.append([session.id, session.conversation_id, session.ordinal, session.parent_session_id, session.live])
        found.append([session.first_seq, session.last_seq, context.epoch, context.last_seq, db.hides(session.id)])
        found.append([_said(message) for message in (*db.transcript(session.id), *context)])
        found.append([(made.epoch, made.cut_seq, made.summary, made.pinned) for made in db.compactions(session.id)])
    return json.loads(json.dumps(found, default=msgspec.to_builtins))


def _said(message: types.Message) -> Any:
    return [message.seq, message.uid, message.session_id, message.role, message.content]


def look(stage: zygote.Stage) -> dict[str, str]:
    """A task: what became of reading (same, other, or an error's name), and whether fsck noticed."""
    # A damaged file may send whoever reads it round in circles: then this child ends, and that is the finding.
    resource.setrlimit(resource.RLIMIT_AS, (ENOUGH_MEMORY, ENOUGH_MEMORY))
    signal.alarm(ENOUGH_TIME)
    with open(stage.args["contents"], encoding="utf-8") as file:
        should = json.load(file)

    def read(db: SessionDB) -> str:
        return "same" if contents(db) == should else "other"

    def check(db: SessionDB) -> str:
        return "ok" if db.admin.fsck().ok else "noticed"

    return {"read": _tried(stage.path, read), "fsck": _tried(stage.path, check)}


def _tried(path: str, call: Any) -> str:
    try:
        with SessionDB(path) as db:
            return str(call(db))
    except errors.HoldfastError as error:
        return type(error).__name__


class Bench:
    """A sound store to be damaged again and again."""

    def __init__(self, folder: str, running: zygote.Zygote) -> None:
        self._running = running
        self._damaged, self._contents = f"{folder}/damaged.db", f"{folder}/contents.json"
        with SessionDB(f"{folder}/sound.db") as db:
            furnish(db)
            assert db.admin.fsck().ok
            with open(self._contents, "w", encoding="utf-8") as file:
                json.dump(contents(db), file)
        # Nobody has it open now, so it is one file.
        with open(f"{folder}/sound.db", "rb") as sound:
            self.sound = sound.read()

    def flip(self, bit: int) -> str | None:
        """What is wrong after one bit was flipped; None when nobody is deceived."""
        damaged = bytearray(self.sound)
        damaged[bit // 8] ^= 1 << bit % 8
        with self._written(damaged) as path:
            outcome = self._running.run(look, path, {"contents": self._contents})
        where = f"bit {bit % 8} of byte {bit // 8}"
        if outcome.state != "exited" or outcome.error:
            return f"{where}: {outcome.state} {outcome.error}"
        if outcome.value == {"read": "other", "fsck": "ok"}:
            return f"{where}: read otherwise, and nobody noticed"
        return None

    @contextlib.contextmanager
    def _written(self, data: bytes | bytearray) -> Iterator[str]:
        with open(self._damaged, "wb") as file:
            file.write(data)
        yield self._damaged
        for suffix in ("", "-wal", "-shm", "-journal", ".queue"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._damaged + suffix)


def flips(bench: Bench, chance: random.Random, count: int) -> list[str]:
    bits = [chance.randrange(len(bench.sound) * 8) for _ in range(count)]
    return [problem for problem in map(bench.flip, bits) if problem]
