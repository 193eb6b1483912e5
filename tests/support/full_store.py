"""A store with something of everything in it, and all that a copy of it must hold."""

from __future__ import annotations

import io
import json
from typing import Any

from holdfast import SessionDB
from holdfast.store.transfer import copy_tables
from tests.support import conversations, mail

PICTURE = b"a picture"


def dump(db: SessionDB) -> list[Any]:
    """Return all that a store holds, except for the counters that every copy raises."""
    out = io.StringIO()
    db.admin.export_to(out)
    lines = [json.loads(line) for line in out.getvalue().split("\n") if line]
    kept = [line for line in lines if line.get("kind") not in ("sealed", "end")]
    for line in kept:
        for counter in ("epoch", "fence") if line.get("kind") == "conversation" else ("version",):
            line.pop(counter, None)
    return kept + [rows(db, table) for table in copy_tables.COPY_TABLES]


def rows(db: SessionDB, table: copy_tables.CopyTable) -> list[Any]:
    found = db.driver.read(lambda tx: list(table.rows(tx)))
    return [list(table.comparable(row, finished=True)) for row in found]


def fill(db: SessionDB, clock: conversations.Clock) -> None:
    """Add something of every kind, in every state."""
    picture = db.blobs.put(PICTURE, "image/png")
    db.blobs.put(b"not referenced yet")
    conversations.begin(db, "talk", "one", "two", "three", title="Talk")
    db.set_session_folder("talk", "/work/talk")
    db.set_session_metadata("talk", {"ticket": 4711, "": ["\0", None]})
    content = [{"type": "image", "blob": picture.digest}]
    db.append_message("talk", role="user", content=content, metadata={"rating": 0.5})
    conversations.act(db, "talk")
    db.update_budget("talk", 0, {"cost": 1})
    db.update_budget("talk", 1, {"cost": 2})
    db.bind_route("chat:1", "talk", version=0)
    db.bind_route("chat:2", "talk", version=0)
    db.bind_route("chat:2", None, version=1)
    db.hide("talk", 1, 2)
    conversations.compact(db, "talk", 3, pinned=[1])
    db.branch("talk", 2, branch_id="branch", title="Branch")
    clock.advance(1)
    conversations.begin(db, "redacted", "a secret")
    db.mail.settle_inbox_entry(db.mail.add_inbox_entry("redacted", "third", "a secret").id, "completed", 1)
    call = [{"id": "c", "name": "shell", "arguments": {"command": "make secret"}}]
    db.append_message("redacted", role="assistant", tool_calls=call)
    db.permissions.end_audit(db.permissions.begin_audit("redacted", "c", "shell", "make secret", True, "me"), False)
    db.processes.record_start(conversations.process("of a secret", "redacted", "make secret"))
    db.redact("redacted", 1)
    db.redact("redacted", 2)
    conversations.begin(db, "gone", "to be deleted")
    db.delete_conversation("gone")
    db.memory.delete("o", db.memory.add("o", "forgotten").id)
    db.permissions.revoke(db.permissions.grant("o", "write_file", by="me").id)
    db.admin.set_meta("noted", "by a person")
    db.acquire_lease("talk", "turn", "me")
    mail.correspond(db)
