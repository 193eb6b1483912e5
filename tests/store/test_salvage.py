"""Salvage: what can be read goes over exactly, what cannot is listed exactly, the damaged file stays as it is."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import SessionDB, errors, reports
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
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    for line in told:
        if line.get("kind") in ("conversation", "route", "sealed", "end"):
            line.update({name: None for name in ("epoch", "fence", "version", "digest") if name in line})
    return told


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    furnish(tmp_path / "store.db")
    return tmp_path / "store.db"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new" / "store.db"


def spoil(path: Path, change: Callable[[bytearray], object]) -> bytes:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return bytes(data)


def pages_of(path: Path, table: str) -> dict[int, bytes]:
    """The pages of a table, by number, and their kinds of b-tree page."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT pageno, pagetype FROM dbstat WHERE name = ?", (table,)).fetchall()
    connection.close()
    return dict(rows)


def ranges(report: reports.SalvageReport) -> list[tuple[str | None, int | None, int | None]]:
    return [(lost.conversation_id, lost.first_seq, lost.last_seq) for lost in report.lost if lost.first_seq is not None]


# --- what goes over ------------------------------------------------------------------------------------------


def test_sound_store_goes_over_whole(damaged: Path, new: Path) -> None:
    told: list[tuple[int, int]] = []
    report = salvage.salvage(damaged, new, lambda done, total: told.append((done, total)))
    assert (report.lost, report.conversations, report.messages) == ((), 3, 84)
    assert exported(new) == exported(damaged)
    assert new.stat().st_mode & 0o777 == 0o600
    with SessionDB(new) as db, db.blobs.open(next(iter(db.blobs.files.files()))[0]) as file:
        assert file.read() == b"picture"
        assert db.blobs.get(next(iter(db.blobs.files.files()))[0]).media_type == "image/png"
        with pytest.raises(errors.ConversationDeleted):
            db.create_session("gone", source="cli")
        # What processes spent on the damaged store is theirs; here work begins anew.
        assert db.budget("one") == (0, {})


def test_memories_go_over_and_what_was_allowed_and_waited_does_not(damaged: Path, new: Path) -> None:
    with SessionDB(damaged) as db:
        db.memory.delete("o", db.memory.add("o", "likes nothing").id)
        known = [db.memory.add("o", "likes tea", source="one"), db.memory.add("", "likes rain")]
        known[0] = db.memory.update("o", known[0].id, "likes coffee")
        db.mail.add_inbox_entry("one", "k", "came in")
        db.permissions.grant("o", "shell(make)", by="me")
        db.permissions.begin_audit("one", "c", "shell", "make", True, "me")
    assert salvage.salvage(damaged, new).lost == ()
    with SessionDB(new) as db:
        found = [*db.memory.all("o"), *db.memory.all("")]
        assert [(each.text, each.at, each.source) for each in found] == [
            (each.text, each.at, each.source) for each in known
        ]
        assert (db.mail.inbox_entries(), db.permissions.grants("o"), db.permissions.audit_log()) == ([], [], [])


def test_work_begun_on_the_damaged_store_is_void_in_the_new_one(damaged: Path, new: Path) -> None:
    with SessionDB(damaged) as db:
        lease, work = db.acquire_lease("one", "turn", "me"), db.snapshot("one")
    salvage.salvage(damaged, new)
    with SessionDB(new) as db:
        with pytest.raises(errors.LeaseLost):
            db.append_message("one", role="user", content="stale", lease=lease)
        with pytest.raises(errors.Superseded):
            db.commit_compaction(work, summary="stale", cut_seq=20)


def test_store_without_its_first_page_goes_over(damaged: Path, new: Path) -> None:
    should = exported(damaged)
    before = spoil(damaged, lambda data: data.__setitem__(slice(0, PAGE), bytes(PAGE)))
    report = salvage.salvage(damaged, new)
    assert damaged.read_bytes() == before
    have = exported(new)
    for kind in ("message", "conversation"):
        assert [line for line in have if line.get("kind") == kind] == [
            line for line in should if line.get("kind") == kind
        ]
    assert [lost for lost in report.lost if lost.conversation_id] == []


def test_rows_of_older_versions_are_known_without_their_table() -> None:
    """They lack the columns that came later, whichever of them."""
    row = (None, "talk", "", "cli", None, 1.0, 1, 1, 3, 5, 0, *(None,) * 6, 2_900_000, "/work", '{"a":1}')
    for width in (17, 18, 19, 20):
        left = recovered_rows.RecoveredRows()
        left.gather([page_reader.RecoveredRow(None, 7, row[:width])])
        assert left.conversations == {7: (*row[:width], *(None,) * (20 - width))}


def test_of_equally_new_rows_the_one_its_table_leads_to_is_kept() -> None:
    old, new = ((None, "talk", "", "cli", title, 1.0, 1, 1, 3, 5, 0, *(None,) * 9) for title in ("old", "new"))
    rows = [page_reader.RecoveredRow("conversations", 7, new), page_reader.RecoveredRow(None, 7, old)]
    for order in (rows, rows[::-1]):
        left = recovered_rows.RecoveredRows()
        left.gather(order)
        assert left.conversations[7].title == "new"


@pytest.mark.parametrize(("found", "kept"), [('{"a":1}', {"a": 1}), ('{"a":', {}), ("{" + "x" * 4000, {})])
def test_salvage_keeps_metadata_unless_it_is_damaged(tmp_path: Path, new: Path, found: str, kept: object) -> None:
    with SessionDB(tmp_path / "store.db") as db:
        db.create_session("talk", source="cli", metadata={"b": 2})
        db.append_message("talk", role="user", content="a", metadata={"c": 3})
    broken = apsw.Connection(str(tmp_path / "store.db"))
    broken.execute("UPDATE conversations SET metadata = ?", (found,))
    broken.close()
    lost = [(each.what, each.conversation_id) for each in salvage.salvage(tmp_path / "store.db", new).lost]
    assert lost == ([] if kept else [("its metadata", "talk")])
    with SessionDB(new) as db:
        assert (db.conversation("talk").metadata, db.transcript("talk")[0].metadata) == (kept, {"c": 3})


@pytest.mark.parametrize("found", ["work", "/work/.."])
def test_a_damaged_folder_costs_no_conversation(tmp_path: Path, new: Path, found: str) -> None:
    with SessionDB(tmp_path / "store.db") as db:
        db.create_session("talk", source="cli", title="Title", folder="/work")
        db.append_message("talk", role="user", content="a")
    broken = apsw.Connection(str(tmp_path / "store.db"))
    broken.execute("UPDATE conversations SET folder = ?", (found,))
    broken.close()
    lost = [each.what for each in salvage.salvage(tmp_path / "store.db", new).lost]
    assert lost == {"work": ["its folder"], "/work/..": []}[found]
    with SessionDB(new) as db:
        told = db.conversation("talk")
        assert (told.title, told.last_seq, told.folder) == ("Title", 1, {"work": None, "/work/..": "/"}[found])


@pytest.mark.parametrize(
    "table", ["sqlite_autoindex_messages_1", "sqlite_autoindex_sessions_1", "routes_by_conversation"]
)
def test_damaged_index_costs_nothing(damaged: Path, new: Path, table: str) -> None:
    should = exported(damaged)
    for number in pages_of(damaged, table):
        spoil(
            damaged,
            lambda data, number=number: data.__setitem__(slice((number - 1) * PAGE, number * PAGE), bytes(PAGE)),
        )
    report = salvage.salvage(damaged, new)
    assert exported(new) == should
    assert [lost for lost in report.lost if lost.conversation_id] == []


def test_damaged_way_to_the_messages_costs_none_of_them(damaged: Path, new: Path) -> None:
    should = exported(damaged)
    (root,) = [number for number, kind in pages_of(damaged, "messages").items() if kind == "internal"]
    spoil(damaged, lambda data: data.__setitem__(slice((root - 1) * PAGE, root * PAGE), b"\xff" * PAGE))
    report = salvage.salvage(damaged, new)
    assert exported(new) == should
    assert ranges(report) == []


def test_metadata_goes_over_without_the_other_pages(damaged: Path, new: Path) -> None:
    """Only the leaves of conversations and messages are left, which no page leads to."""
    should = exported(damaged)
    tables = [pages_of(damaged, table) for table in ("conversations", "messages")]
    left = {number for pages in tables for number, kind in pages.items() if kind != "internal"}

    def wipe(data: bytearray) -> None:
        for number in set(range(1, len(data) // PAGE + 1)) - left:
            data[(number - 1) * PAGE : number * PAGE] = bytes(PAGE)

    spoil(damaged, wipe)
    salvage.salvage(damaged, new)
    found = [
        [line.get("metadata") for line in lines if line.get("kind") == "conversation"]
        for lines in (should, exported(new))
    ]
    assert found[0] == found[1]
    assert found[0][0] == {"of": "one", "": ["\0"]}
    with SessionDB(new) as db:
        assert [message.metadata for message in db.transcript("two")[:4]] == [{"number": 1}, {}, {"number": 3}, {}]


# --- what is lost --------------------------------------------------------------------------------------------


def test_lost_messages_are_listed_and_keep_their_numbers(damaged: Path, new: Path) -> None:
    text = b"two 7 two 7"
    spoil(damaged, lambda data: data.__setitem__(data.index(text), data[data.index(text)] ^ 1))
    report = salvage.salvage(damaged, new)
    assert ranges(report) == [("two", 7, 7)]
    assert report.messages == 83, "what stands for a lost message was not saved"
    with SessionDB(new) as db:
        log = db.transcript("two")
        assert log[6].content == "[This message was lost: the file it was in was damaged.]"
        assert [message.uid for message in log[:6]] == [f"two:{number}" for number in range(1, 7)]
        assert log[7].content == "two 8 " * 60
        assert db.admin.fsck().ok


def test_lost_page_of_messages_is_listed_as_ranges(damaged: Path, new: Path) -> None:
    leaf = [number for number, kind in pages_of(damaged, "messages").items() if kind == "leaf"][3]
    spoil(damaged, lambda data: data.__setitem__(slice((leaf - 1) * PAGE, leaf * PAGE), bytes(PAGE)))
    report = salvage.salvage(damaged, new)
    with SessionDB(new) as db:
        lost = {
            (name, message.seq)
            for name in ("one", "two", "branch")
            for message in db.transcript(name)
            if message.uid == f"lost-{message.seq}"
        }
        listed = {(name, seq) for name, low, high in ranges(report) for seq in range(low, high + 1)}
        assert lost
        assert {(name, seq) for name, seq in lost if name != "branch"} == listed
        assert db.conversation("one").last_seq == 42


def test_lost_summary_leaves_every_message_in_the_context(damaged: Path, new: Path) -> None:
    spoil(damaged, lambda data: data.__setitem__(data.index(b"sum of one"), ord("S")))
    report = salvage.salvage(damaged, new)
    assert ("the summary that opened session 2", "one") in [(lost.what, lost.conversation_id) for lost in report.lost]
    with SessionDB(new) as db:
        assert db.context("one").summary is None
        assert len(db.transcript("one")) == 42
        assert db.context("two").summary == ""  # blanked by the redaction, as before


def test_redacted_text_is_never_brought_back_from_an_older_page(damaged: Path, new: Path) -> None:
    salvage.salvage(damaged, new)
    assert b"two 5 two 5" not in new.read_bytes()
    assert b"a deleted text" not in new.read_bytes()
    with SessionDB(new) as db:
        assert db.transcript("two")[4].redacted


def test_lost_attachment_is_listed(damaged: Path, new: Path) -> None:
    (picture,) = (path for path in Path(f"{damaged}.blobs").rglob("*") if path.is_file())
    picture.unlink()
    (lost,) = salvage.salvage(damaged, new).lost
    assert lost.conversation_id == "one"
    assert picture.name in lost.what


def test_file_cut_in_half_gives_what_is_in_the_other_half(damaged: Path, new: Path) -> None:
    spoil(damaged, lambda data: data.__delitem__(slice(len(data) // 2, len(data))))
    report = salvage.salvage(damaged, new)
    assert report.lost
    with SessionDB(new) as db:
        for session in db.list_sessions():
            for message in db.transcript(session.id):
                assert message.uid.startswith(("lost-", "one:", "two:")) or len(message.content) > 100


def test_nothing_but_noise_gives_an_empty_store_and_says_so(tmp_path: Path, new: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 200)
    report = salvage.salvage(tmp_path / "noise", new)
    assert (report.conversations, report.messages) == (0, 0)
    assert any("the file holds no data of a store" in lost.what for lost in report.lost)


def test_empty_store_has_nothing_to_lose(tmp_path: Path, new: Path) -> None:
    SessionDB(tmp_path / "empty.db").close()
    report = salvage.salvage(tmp_path / "empty.db", new)
    assert (report.conversations, report.lost) == (0, ())


# --- what is refused -----------------------------------------------------------------------------------------


def test_store_in_use_is_refused(damaged: Path, new: Path) -> None:
    with SessionDB(damaged) as db:
        with pytest.raises(errors.StoreBusy):
            salvage.salvage(damaged, new)
        db.append_message("one", role="user", content="unharmed")
        assert db.admin.fsck().ok
    assert not new.exists()


def test_something_is_never_replaced(damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("precious")
    with pytest.raises(errors.CopyRefused):
        salvage.salvage(damaged, tmp_path / "letter")
    assert (tmp_path / "letter").read_text() == "precious"


def test_what_is_not_there_cannot_be_salvaged(tmp_path: Path, new: Path) -> None:
    with pytest.raises(errors.StoreUnusable):
        salvage.salvage(tmp_path / "missing", new)
    assert not new.exists()


@pytest.mark.parametrize("path", [None, 5, "", b"x", "a\0b"])
def test_salvage_needs_paths(damaged: Path, path: object) -> None:
    for paths in ((path, damaged), (damaged, path)):
        with pytest.raises(errors.InvalidArgument):
            salvage.salvage(*paths)


# --- the file format -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16_383, 16_384, 2**32, 2**56 - 1, 2**56, 2**63, 2**64 - 1])
def test_numbers_of_any_length_are_read(number: int) -> None:
    assert page_reader.read_varint(_varint(number), 0) == (number, len(_varint(number)))


def _varint(number: int) -> bytes:
    if number >= 1 << 56:
        head = number >> 8
        return bytes([head >> shift & 0x7F | 0x80 for shift in range(49, -1, -7)] + [number & 0xFF])
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F | 0x80)
    return bytes(reversed(groups))


def test_every_row_sqlite_has_is_carved_from_its_file(tmp_path: Path) -> None:
    """With other page sizes too, long rows, and a log that was not written back."""
    values = [(n, "ü" * (n * n), bytes(n), n * 1.5, -n, None) for n in range(1, 150)]
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
