"""A copy holds everything its source held when the copy began, after every interruption."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from holdfast import SessionDB, errors, fault_points
from holdfast.store import store_meta
from holdfast.store.backup import backup
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.transfer import copy_tables
from tests.store.conftest import killed_at
from tests.support import backends, conversations, full_store, postgres, random_histories


def in_memory(clock: conversations.Clock) -> SessionDB:
    return SessionDB(":memory:", clock=clock)


def in_postgres(clock: conversations.Clock) -> SessionDB:
    return SessionDB(postgres.fresh(), clock=clock, durability="process-crash")


Make = Callable[[conversations.Clock], SessionDB]
WAYS = {
    "to postgres": (in_memory, in_postgres),
    "from postgres": (in_postgres, in_memory),
    "between servers": (in_postgres, in_postgres),
}


@pytest.fixture
def source(clock: conversations.Clock) -> SessionDB:
    db = in_memory(clock)
    conversations.begin(db, "talk", "hello")
    return db


@pytest.fixture
def filled(clock: conversations.Clock) -> SessionDB:
    db = in_memory(clock)
    full_store.fill(db, clock)
    return db


@pytest.fixture
def target(clock: conversations.Clock) -> SessionDB:
    return in_memory(clock)


# --- copied content ----------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(random_histories.HISTORIES)
def test_any_store_is_the_same_after_two_copies(history: list[random_histories.Step]) -> None:
    clock = conversations.Clock()
    with in_memory(clock) as first, in_memory(clock) as second, in_memory(clock) as third:
        random_histories.perform(first, history, clock)
        before = full_store.dump(first)
        once, twice = first.admin.copy_to(second.admin), second.admin.copy_to(third.admin)
        assert full_store.dump(first) == full_store.dump(second) == full_store.dump(third) == before
        assert once.digest == twice.digest
        assert twice.generation > once.generation
        for session in third.list_sessions(limit=100):
            assert third.append_message(session.id, role="user", content="next").seq == session.last_seq + 1
        assert third.admin.fsck().ok


@pytest.mark.parametrize(("here", "there"), WAYS.values(), ids=WAYS)
def test_everything_is_copied_to_another_database_and_back(here: Make, there: Make, clock: conversations.Clock) -> None:
    with here(clock) as source, there(clock) as target, here(clock) as back:
        full_store.fill(source, clock)
        assert [table.name for table in copy_tables.COPY_TABLES if not full_store.rows(source, table)] == []
        lost, progress = source.blobs.put(b"to be lost").digest, list[tuple[int, int]]()
        backends.lose_blob(source, lost)
        first = source.admin.copy_to(target.admin, lambda *each: progress.append(each))
        second = target.admin.copy_to(back.admin)
        assert full_store.dump(source) == full_store.dump(target) == full_store.dump(back)
        assert (first.conversations, first.already_there, first.lost_blobs) == (4, False, (lost,))
        assert first.digest == second.digest
        assert progress[-1] == (8, 8)
        for db in (target, back):
            assert db.memory.add("o", "new").id > max(memory.id for memory in source.memory.all("o"))
            assert db.permissions.grant("o", "new", by="me").id > 0
            assert db.admin.get_meta("noted") == "by a person"
            assert db.append_message("talk", role="user", content="next").seq == 6
            assert db.search("three")[0].seq == 3
            digest = next(part["blob"] for part in db.transcript("talk")[3].content)
            assert conversations.read_blob(db, digest) == full_store.PICTURE


def test_leases_snapshots_and_versions_of_the_source_are_void_in_the_copy(filled: SessionDB, target: SessionDB) -> None:
    lease, snapshot = filled.acquire_lease("branch", "compact"), filled.snapshot("branch")
    filled.admin.copy_to(target.admin)
    assert target.leases() == []
    with pytest.raises(errors.LeaseLost):
        target.commit_compaction(lease, summary="old", cut_seq=1)
    with pytest.raises(errors.Superseded):
        target.commit_compaction(snapshot, summary="old", cut_seq=1)
    with pytest.raises(errors.RouteMoved):
        target.bind_route("chat:1", None, version=filled.route("chat:1").version)
    assert not target.update_budget("talk", filled.budget("talk")[0], {"cost": 3})
    assert int(target.admin.get_meta("generation") or "") > int(filled.admin.get_meta("generation") or "")


@pytest.mark.parametrize("make", [str, lambda _: postgres.fresh()], ids=["file", "postgres"])
def test_writes_after_the_copy_began_are_not_in_it(tmp_path: Path, make: Callable[[Path], str]) -> None:
    address = make(tmp_path / "a.db")
    with SessionDB(address) as source, SessionDB(address) as writer, SessionDB(tmp_path / "b.db") as target:
        conversations.begin(source, "talk", "hello")
        conversations.begin(source, "other", "hello")

        def write(done: int, total: int) -> None:
            conversations.say(writer, "talk", f"later {done}")
            conversations.say(writer, "other", f"later {done}")
            writer.memory.add("o", f"later {done}")

        assert source.admin.copy_to(target.admin, write).messages == 2
        assert conversations.seen(target, "talk") == conversations.seen(target, "other") == ["hello"]
        assert target.memory.all("o") == []
        assert target.admin.fsck().ok
        assert len(conversations.seen(source, "talk")) == 3


def test_read_only_store_is_copied_and_not_changed(address: str, target: SessionDB) -> None:
    with SessionDB(address) as first:
        conversations.begin(first, "talk", "hello")
        read_only = address.replace("options=", "options=-cdefault_transaction_read_only%3Don%20")
        with SessionDB(read_only) as source:
            assert source.admin.copy_to(target.admin).messages == 1
            assert source.admin.get_meta(store_meta.STORE_ID) is None
            # With an id, it is still the source of the copy.
            backup_schedule.identify_store(first.driver)
            assert source.admin.copy_to(target.admin).already_there


# --- interruptions -----------------------------------------------------------------------------------------------


def test_killed_restore_into_postgres_goes_on(filled: SessionDB, clock: conversations.Clock, tmp_path: Path) -> None:
    filled.admin.backup(tmp_path / "kept.db")
    with in_postgres(clock) as target:
        with killed_at("copy.checked"):
            target.admin.restore(tmp_path / "kept.db")
        target.admin.restore(tmp_path / "kept.db")
        filled.driver.write("restore", backup.settle_open_mail)  # the restored store does not send open mail
        assert full_store.dump(target) == full_store.dump(filled)
        with pytest.raises(errors.CopyRefused):
            target.admin.restore(tmp_path / "kept.db")
        assert full_store.dump(target) == full_store.dump(filled)


@pytest.mark.parametrize("point", ["copy.import_message", "copy.committing"])
def test_interrupted_copy_starts_over_with_the_current_state(filled: SessionDB, target: SessionDB, point: str) -> None:
    with killed_at(point, times=2 if point == "copy.committing" else 1):  # the first commit is the mark
        filled.admin.copy_to(target.admin)
    assert target.admin.is_unfinished_copy()
    assert target.list_sessions() == []
    conversations.say(filled, "talk", "later")
    filled.delete_conversation("redacted")
    filled.admin.copy_to(target.admin)
    assert full_store.dump(target) == full_store.dump(filled)
    assert not target.admin.is_unfinished_copy()


@pytest.mark.parametrize("written_to", ["source", "target"])
def test_unverified_copy_is_not_finished_after_a_change(source: SessionDB, target: SessionDB, written_to: str) -> None:
    with killed_at("copy.checked"):
        source.admin.copy_to(target.admin)
    conversations.begin(source if written_to == "source" else target, "mine", "hello")
    with pytest.raises(errors.CopyUnfinished, match="Delete it and copy again") as caught:
        source.admin.copy_to(target.admin)
    assert (caught.value.differing, caught.value.finished) == (("mine",), False)
    assert target.admin.is_unfinished_copy()
    assert bool(target.get_session("mine")) == (written_to == "target")


# --- refusals ----------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[SessionDB], object]] = {
    "talk": lambda db: conversations.say(db, "talk", "used since"),
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
def test_second_run_of_a_finished_copy_finds_every_difference(source: SessionDB, target: SessionDB, table: str) -> None:
    first = source.admin.copy_to(target.admin)
    second = source.admin.copy_to(target.admin)
    assert (second.already_there, second.rows, second.generation) == (True, 0, first.generation)
    CHANGES[table](target)
    with pytest.raises(errors.CopyUnfinished) as caught:
        source.admin.copy_to(target.admin)
    assert caught.value.finished
    assert table in caught.value.differing


@pytest.mark.parametrize("kind", ["memories", "blobs", "grants"])
def test_store_with_other_content_is_left_alone(source: SessionDB, target: SessionDB, kind: str) -> None:
    CHANGES[kind](target)
    before = full_store.dump(target)
    with pytest.raises(errors.CopyRefused):
        source.admin.copy_to(target.admin)
    assert full_store.dump(target) == before


def test_unfinished_copy_of_another_store_is_refused(source: SessionDB, target: SessionDB) -> None:
    later = conversations.Clock(conversations.NOON + 1)
    with in_memory(later) as other:
        conversations.begin(other, "other", "hello")
        with killed_at("copy.checked"):
            source.admin.copy_to(target.admin)
        with pytest.raises(errors.CopyRefused):
            other.admin.copy_to(target.admin)


def test_store_is_not_copied_into_itself(tmp_path: Path, address: str) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    with SessionDB(one) as source:
        backup_schedule.identify_store(source.driver)
    shutil.copy(one, other)
    for targets in ((one, one), (one, other), (address, f"{address}&application_name=another")):
        with SessionDB(targets[0]) as here, SessionDB(targets[1]) as there:
            with pytest.raises(errors.CopyRefused, match="same store"):
                here.admin.copy_to(there.admin)
            assert there.admin.get_meta(store_meta.COPY_OF) is None


def test_damaged_source_is_not_copied(source: SessionDB, target: SessionDB) -> None:
    backends.drop_triggers(source)
    backends.rewrite_bodies(source, b'{"content":"other"}')
    with pytest.raises(errors.StoreCorrupt):
        source.admin.copy_to(target.admin)


def test_damaged_copy_is_not_finished(source: SessionDB, target: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(point: str) -> None:
        if point == "copy.written":
            backends.raw(target, "DROP TRIGGER IF EXISTS tombstone_is_immutable")

    monkeypatch.setattr(fault_points, "hook", hook)
    with pytest.raises(errors.CopyDamaged, match="tombstone_is_immutable"):
        source.admin.copy_to(target.admin)
    assert target.admin.get_meta(store_meta.COPIED_AT) is None


def test_every_reserved_note_is_either_copied_or_not(source: SessionDB) -> None:
    """Each new note needs a decision: is it true of a copy?"""
    assert {key for key in store_meta.RESERVED if store_meta.is_copied(key)} == store_meta.LASTING
    conversations.act(source, "talk")
    source.admin.run_upkeep_once()
    source.memory.delete("o", source.memory.all("o")[0].id)
    assert {key for key, _ in source.driver.read(lambda tx: tx.all("copy_meta"))} <= store_meta.RESERVED
