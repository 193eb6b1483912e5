"""Metadata survives every way from one store to another, on either database."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB
from holdfast.types import ToolCall
from tests.support import conversations, postgres

METADATA: dict[str, Any] = {
    "ticket": 4711, "tags": ["a", "ü", "\u2028"], "nested": {"deep": [None, True, 0.5, -(2**63)]}, "": "\0",
}  # fmt: skip
PICTURE = b"a picture"
LARGEST = {"x": "é" * 2044}


def furnish(db: SessionDB) -> None:
    picture = db.blobs.put(PICTURE, "image/png")
    db.create_session("talk", source="test", metadata=METADATA)
    db.append_message("talk", role="user", content="one", metadata={**METADATA, "blob": picture.digest})
    db.append_message("talk", role="assistant", tool_calls=[ToolCall("c", "look")], metadata=LARGEST)
    db.append_message("talk", role="tool", content="found", tool_call_id="c")
    db.append_message("talk", role="user", content="a secret", metadata={"a": "secret"})
    db.redact("talk", 4)
    conversations.compact(db, "talk", 1)
    db.branch("talk", 2, branch_id="branch")
    db.set_session_metadata("branch", {"ticket": None, "of": "branch"})
    db.create_session("largest", source="test", metadata=LARGEST)
    db.create_session("cleared", source="test", metadata={"a": 1})
    db.set_session_metadata("cleared", {"a": None})
    conversations.begin(db, "plain", "a")


def metadata_of(db: SessionDB) -> dict[str, Any]:
    """Return the metadata of every conversation and message, and the bodies as stored."""
    ids = sorted({session.conversation_id for session in db.list_sessions(limit=100)})
    return {id_: [db.conversation(id_).metadata, [(m.metadata, m.body) for m in db.transcript(id_)]] for id_ in ids}


def copy(source: SessionDB, target: SessionDB, _: Path) -> None:
    source.admin.copy_to(target.admin)


def restore(source: SessionDB, target: SessionDB, folder: Path) -> None:
    source.admin.backup(folder / "backup.db")
    target.admin.restore(folder / "backup.db")


def import_export(source: SessionDB, target: SessionDB, folder: Path) -> None:
    source.admin.export_to(folder / "export.jsonl")
    assert target.admin.import_from(folder / "export.jsonl").ok


def import_archive(source: SessionDB, target: SessionDB, folder: Path) -> None:
    """Prune everything; a branch leaves before its origin."""
    for name in ("branches", "origins"):
        plan = source.admin.plan_prune(max_bytes=0)
        assert source.admin.prune(plan, folder / f"{name}.jsonl").removed
    for name in ("origins", "branches"):
        assert target.admin.import_from(folder / f"{name}.jsonl").ok


def open_file(folder: Path) -> SessionDB:
    folder.mkdir()
    return SessionDB(folder / "store.db", durability="process-crash")


def open_postgres(_: Path) -> SessionDB:
    return SessionDB(postgres.fresh(), durability="process-crash")


OPEN: dict[str, Callable[[Path], SessionDB]] = {"file": open_file, "postgres": open_postgres}


@pytest.mark.parametrize("carry", [copy, restore, import_export, import_archive])
@pytest.mark.parametrize(("here", "there"), list(itertools.product(OPEN, OPEN)))
def test_metadata_survives(
    tmp_path: Path, here: str, there: str, carry: Callable[[SessionDB, SessionDB, Path], None]
) -> None:
    with OPEN[here](tmp_path / "source") as source, OPEN[there](tmp_path / "target") as target:
        furnish(source)
        before = metadata_of(source)
        carry(source, target, tmp_path)
        assert metadata_of(target) == before
        assert before["talk"][0] == METADATA
        (first, _), *rest = before["talk"][1]
        assert [metadata for metadata, _ in rest] == [LARGEST, {}, {}]
        assert (before["branch"][0]["of"], before["cleared"][0], before["plain"][0]) == ("branch", {}, {})
        assert target.head("talk").metadata == METADATA
        assert target.set_session_metadata("talk", dict.fromkeys(METADATA)) == {}
        digest = first.pop("blob")
        assert first == METADATA
        assert target.blobs.collect(0).blobs == 0
        with target.blobs.open(digest) as file:
            assert file.read() == PICTURE
        assert target.admin.fsck().ok
