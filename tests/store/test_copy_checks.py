"""A copy is called finished only when both sides tell the same and the target is sound; and never of a store itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, fault_points
from holdfast.store import store_meta
from holdfast.store.backup import schedule as backup_schedule
from tests.support import conversations

CHANGES: dict[str, Callable[[SessionDB], object]] = {
    "memories": lambda db: db.memory.add("o", "only here"),
    "grants": lambda db: db.permissions.grant("o", "shell", by="me"),
    "routes": lambda db: db.bind_route("chat", "talk", version=0),
    "blobs": lambda db: db.blobs.put(b"only here"),
    "inbox": lambda db: db.mail.add_inbox_entry("talk", "key", "only here"),
    "audit": lambda db: db.permissions.begin_audit("talk", "call", "shell", "ls", True, "me"),
    "processes": lambda db: db.processes.record_start(conversations.process("p", "talk")),
    "tombstones": lambda db: [conversations.begin(db, "gone", "a"), db.delete_conversation("gone")],
}


@pytest.mark.parametrize("table", CHANGES)
def test_a_row_that_only_one_side_has_is_found_in_whichever_table_it_is(table: str) -> None:
    with SessionDB(":memory:") as source, SessionDB(":memory:") as target:
        conversations.begin(source, "talk", "hello")
        source.admin.copy_to(target.admin)
        CHANGES[table](target)
        with pytest.raises(errors.CopyUnfinished) as caught:
            source.admin.copy_to(target.admin)
        assert table in caught.value.differing


def test_a_copy_that_is_not_sound_is_not_called_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionDB(":memory:") as source, SessionDB(":memory:") as target:
        conversations.begin(source, "talk", "hello")

        def hook(point: str) -> None:
            if point == "copy.written":
                target.driver._writer.execute("DROP TRIGGER IF EXISTS tombstone_is_immutable")

        monkeypatch.setattr(fault_points, "hook", hook)
        with pytest.raises(errors.CopyDamaged, match="tombstone_is_immutable"):
            source.admin.copy_to(target.admin)
        assert target.admin.get_meta(store_meta.COPIED_AT) is None


def test_a_store_is_known_as_itself_by_more_than_its_path(tmp_path: Path) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    with SessionDB(one) as source:
        backup_schedule.identify_store(source.driver)  # which gives it a name
    shutil.copy(one, other)
    with SessionDB(one) as source, SessionDB(other) as target:
        with pytest.raises(errors.CopyRefused, match="same store"):
            source.admin.copy_to(target.admin)
        assert target.admin.get_meta(store_meta.COPY_OF) is None
