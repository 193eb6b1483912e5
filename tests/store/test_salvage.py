"""Salvage: readable rows are saved exactly, lost ones are listed, and the damaged file is not changed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import SessionDB, errors
from holdfast.salvage import page_reader, recovered_rows, salvage

PAGE = 4096


def furnish(path: Path) -> None:
    with SessionDB(path) as db:
        for name in ("one", "two"):
            db.create_session(name, source="cli", model="m", title=f"title of {name}", owner="me", folder=f"/{name}")
            db.set_session_metadata(name, {"of": name, "": ["\0"]})
            for number in range(1, 41):
                content, metadata = f"{name} {number} " * 60, {"number": number} if number % 2 else None
                db.append_message(name, role="user", content=content, uid=f"{name}:{number}", metadata=metadata)
            lease = db.acquire_lease(name, "compact", "me")
            db.commit_compaction(lease, summary=f"sum of {name}", cut_seq=10, pinned=[2], child_id=f"{name} on")
            db.append_message(name, role="assistant", content="x" * 20_000)
            db.hide(name, 20, 25)
            db.hide(name, 30)
            db.show(name)
            lease = db.acquire_lease(name, "compact", "me")
            db.commit_compaction(lease, summary="undone", cut_seq=15, child_id=f"{name} further")
            db.undo_compaction(name)
            db.update_budget(name, 0, {"attempts": [f"of {name}"] * 2_000})
        db.branch("one", 30, branch_id="branch")
        db.append_message("branch", role="user", content="in the branch")
        db.redact("two", 5)
        db.end_conversation("two", "done")
        db.bind_route("chat", "one", version=0)
        db.create_session("gone", source="cli")
        db.append_message("gone", role="user", content="a deleted text")
        db.delete_conversation("gone")
        blob = db.blobs.put(b"picture", "image/png")
        db.append_message("one", role="user", content=[{"type": "image", "blob": blob.digest}])


def exported(path: Path) -> list[dict[str, Any]]:
    """All that a store holds but the counters, which a salvage raises."""
    with SessionDB(path) as db:
        assert db.admin.fsck().ok
        out = io.StringIO()
        db.admin.export_to(out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    for line in lines:
        if line.get("kind") in ("conversation", "route", "sealed", "end"):
            line.update({name: None for name in ("epoch", "fence", "version", "digest") if name in line})
    return lines


@pytest.fixture
def damaged(path: Path) -> Path:
    furnish(path)
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new" / "store.db"


def spoil(path: Path, change: Callable[[bytearray], object]) -> bytes:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return bytes(data)


def wipe(path: Path, *pages: int, with_: int = 0) -> bytes:
    """Overwrite pages with one byte value; return the file."""

    def fill(data: bytearray) -> None:
        for number in pages:
            data[(number - 1) * PAGE : number * PAGE] = bytes([with_]) * PAGE

    return spoil(path, fill)


def pages_of(path: Path, table: str) -> dict[int, bytes]:
    """The pages of a table, by number, and their kinds of b-tree page."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT pageno, pagetype FROM dbstat WHERE name = ?", (table,)).fetchall()
    connection.close()
    return dict(rows)


# --- what goes over ------------------------------------------------------------------------------------------


def test_sound_store_is_salvaged_whole(damaged: Path, new: Path) -> None:
    with SessionDB(damaged) as db:
        db.memory.delete("o", db.memory.add("o", "likes nothing").id)
        known = [db.memory.add("o", "likes tea", source="one"), db.memory.add("", "likes rain")]
        known[0] = db.memory.update("o", known[0].id, "likes coffee")
        db.mail.add_inbox_entry("one", "k", "came in")
        db.permissions.grant("o", "shell(make)", by="me")
        db.permissions.begin_audit("one", "c", "shell", "make", True, "me")
        lease, snapshot = db.acquire_lease("one", "turn", "me"), db.snapshot("one")
    report = salvage.salvage(damaged, new)
    assert (report.lost, report.conversations, report.messages) == ((), 3, 84)
    assert exported(new) == exported(damaged)
    assert new.stat().st_mode & 0o777 == 0o600
    assert b"two 5 two 5" not in new.read_bytes()  # redacted, and still on an older page
    assert b"a deleted text" not in new.read_bytes()
    with SessionDB(new) as db:
        ((digest, *_),) = db.blobs.files.files()
        with db.blobs.open(digest) as file:
            assert (file.read(), db.blobs.get(digest).media_type) == (b"picture", "image/png")
        found = [*db.memory.all("o"), *db.memory.all("")]
        assert [(each.text, each.at, each.source) for each in found] == [
            (each.text, each.at, each.source) for each in known
        ]
        # Open work, grants and budgets are not salvaged; leases and snapshots are void.
        assert (db.mail.inbox_entries(), db.permissions.grants("o"), db.permissions.audit_log()) == ([], [], [])
        assert db.budget("one") == (0, {})
        with pytest.raises(errors.ConversationDeleted):
            db.create_session("gone", source="cli")
        with pytest.raises(errors.LeaseLost):
            db.append_message("one", role="user", content="stale", lease=lease)
        with pytest.raises(errors.Superseded):
            db.commit_compaction(snapshot, summary="stale", cut_seq=20)


def test_rows_are_recognised_without_their_table() -> None:
    """Rows of older versions lack the columns that came later; of equal rows, the one in its table is kept."""
    row = (None, "talk", "", "cli", None, 1.0, 1, 1, 3, 5, 0, *(None,) * 6, 2_900_000, "/work", '{"a":1}')
    for width in (17, 18, 19, 20):
        left = recovered_rows.RecoveredRows()
        left.gather([page_reader.RecoveredRow(None, 7, row[:width])])
        assert left.conversations == {7: (*row[:width], *(None,) * (20 - width))}
    rows = [page_reader.RecoveredRow("conversations", 7, row), page_reader.RecoveredRow(None, 7, row[:4] + row[4:])]
    rows[1] = rows[1]._replace(values=(*row[:4], "old", *row[5:]))
    for order in (rows, rows[::-1]):
        left = recovered_rows.RecoveredRows()
        left.gather(order)
        assert left.conversations[7].title is None


@pytest.mark.parametrize(
    ("column", "found", "lost", "kept"),
    [
        ("metadata", '{"b":2}', [], ({"b": 2}, "/work")),
        ("metadata", '{"b":', ["its metadata"], ({}, "/work")),
        ("metadata", "{" + "x" * 4000, ["its metadata"], ({}, "/work")),
        ("folder", "work", ["its folder"], ({"b": 2}, None)),
        ("folder", "/work/..", [], ({"b": 2}, "/")),
    ],
)
def test_damaged_column_costs_no_conversation(
    path: Path, new: Path, column: str, found: str, lost: list[str], kept: tuple[object, ...]
) -> None:
    with SessionDB(path) as db:
        db.create_session("talk", source="cli", title="Title", folder="/work", metadata={"b": 2})
        db.append_message("talk", role="user", content="a", metadata={"c": 3})
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE conversations SET {column} = ?", (found,))
    connection.close()
    assert [each.what for each in salvage.salvage(path, new).lost] == lost
    with SessionDB(new) as db:
        saved = db.conversation("talk")
        assert (saved.title, saved.last_seq, saved.metadata, saved.folder) == ("Title", 1, *kept)
        assert db.transcript("talk")[0].metadata == {"c": 3}


PARTS = ["first page", "root of the messages", "sqlite_autoindex_messages_1", "routes_by_conversation"]


@pytest.mark.parametrize("part", PARTS)
def test_damaged_first_or_inner_page_or_index_costs_nothing(damaged: Path, new: Path, part: str) -> None:
    should = exported(damaged)
    if part == "first page":
        before = wipe(damaged, 1)
        # The export begins with notes that are on this page.
        should = [line for line in should if line.get("kind") in ("message", "conversation")]
    elif part == "root of the messages":
        inner = [number for number, kind in pages_of(damaged, "messages").items() if kind == "internal"]
        before = wipe(damaged, *inner, with_=0xFF)
    else:
        before = wipe(damaged, *pages_of(damaged, part))
    report = salvage.salvage(damaged, new)
    assert damaged.read_bytes() == before
    have = exported(new)
    assert (have if part != "first page" else [line for line in have if line in should]) == should
    assert [lost for lost in report.lost if lost.conversation_id] == []


# --- losses --------------------------------------------------------------------------------------------------


def test_lost_message_summary_and_attachment_are_listed(damaged: Path, new: Path) -> None:
    spoil(damaged, lambda data: data.__setitem__(data.index(b"two 7 two 7"), ord("?")))
    spoil(damaged, lambda data: data.__setitem__(data.index(b"sum of one"), ord("S")))
    (picture,) = (path for path in Path(f"{damaged}.blobs").rglob("*") if path.is_file())
    picture.unlink()
    report = salvage.salvage(damaged, new)
    ranges = [(each.conversation_id, each.first_seq, each.last_seq) for each in report.lost if each.first_seq]
    assert (ranges, report.messages) == ([("two", 7, 7)], 83)
    lost = [(each.what, each.conversation_id) for each in report.lost]
    assert ("the summary that opened session 2", "one") in lost
    assert [id_ for what, id_ in lost if picture.name in what] == ["one"]
    with SessionDB(new) as db:
        log = db.transcript("two")
        assert log[6].content == "[This message was lost: the file it was in was damaged.]"
        assert [message.uid for message in log[:6]] == [f"two:{number}" for number in range(1, 7)]
        assert log[7].content == "two 8 " * 60
        assert (db.context("one").summary, len(db.transcript("one"))) == (None, 42)  # all messages are in the context
        assert db.context("two").summary == ""  # blanked by the redaction, as before
        assert [bad.promise for bad in db.admin.fsck().violations] == ["blobs"]


def test_noise_gives_an_empty_store_with_a_report(path: Path, tmp_path: Path, new: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 200)
    report = salvage.salvage(tmp_path / "noise", new)
    assert (report.conversations, report.messages) == (0, 0)
    assert any("the file holds no data of a store" in lost.what for lost in report.lost)
    SessionDB(path).close()
    assert salvage.salvage(path, tmp_path / "other.db").lost == ()


def test_salvage_is_refused_without_touching_any_file(damaged: Path, new: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("precious")
    with SessionDB(damaged) as db:
        with pytest.raises(errors.StoreBusy):
            salvage.salvage(damaged, new)
        db.append_message("one", role="user", content="unharmed")
        assert db.admin.fsck().ok
    with pytest.raises(errors.CopyRefused):
        salvage.salvage(damaged, tmp_path / "letter")
    with pytest.raises(errors.StoreUnusable):
        salvage.salvage(tmp_path / "missing", new)
    with pytest.raises(errors.InvalidArgument):
        salvage.salvage(damaged, "a\0b")
    assert (tmp_path / "letter").read_text() == "precious"
    assert not new.exists()


# --- the file format -----------------------------------------------------------------------------------------


def test_every_row_sqlite_has_is_carved_from_its_file(tmp_path: Path) -> None:
    """With other page sizes too, long rows, and a log that was not written back."""
    values = [(n, "ü" * (n * n), bytes(n), n * 1.5, -n, None) for n in range(1, 150, 3)]
    values.append((2**62, "x", b"", 0.5, -1, None))
    for size in (512, 4096, 65536):
        path = str(tmp_path / f"{size}.db")
        db = apsw.Connection(path)
        db.pragma("page_size", size)
        db.pragma("journal_mode", "wal")
        db.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b, c, d, e, f)")
        db.execute("CREATE TABLE w (a PRIMARY KEY, b, c, d, e, f) WITHOUT ROWID")
        for table in "tw":
            db.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?)", values)
        # The only connection, in a process that never opens the file as a store.
        book = page_reader.DamagedFile(Path(path).read_bytes(), page_reader.read_wal(Path(f"{path}-wal").read_bytes()))
        rows = list(book.read_rows())
        assert not book.damaged
        assert sorted(row.values for row in rows if row.table == "w") == values
        assert sorted((row.rowid, *row.values[1:]) for row in rows if row.table == "t") == values
        db.close()
