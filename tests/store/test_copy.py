"""A copy holds everything its source held when the copy began, whatever happened on the way."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from holdfast import SessionDB, errors, fault_points
from holdfast.store import store_meta
from holdfast.store.backup import backup
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.transfer import copy_tables
from tests.support import conversations, mail, postgres, random_histories

PICTURE = b"a picture"


def fresh(clock: conversations.Clock) -> SessionDB:
    return SessionDB(":memory:", clock=clock)


def served(clock: conversations.Clock) -> SessionDB:
    """A new store in PostgreSQL."""
    address = postgres.with_schema(postgres.dsn(), postgres.empty_schema())
    return SessionDB(address, clock=clock, durability="process-crash")


Make = Callable[[conversations.Clock], SessionDB]
WAYS = [(fresh, served), (served, fresh), (served, served)]
ways = pytest.mark.parametrize(("here", "there"), WAYS, ids=["to postgres", "from postgres", "between servers"])


def told(db: SessionDB) -> list[Any]:
    """All a store holds, line by line and row by row, but for the counters that every copy lets leap."""
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


def furnish(db: SessionDB, clock: conversations.Clock) -> None:
    """Of everything a store may have something, in every state it may be in."""
    picture = db.blobs.put(PICTURE, "image/png")
    db.blobs.put(b"named by nobody yet")
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


class Interrupted(BaseException):
    """What a hook raises where a process would have been killed."""


def interrupted(source: SessionDB, target: SessionDB, at: Callable[[str], bool]) -> bool:
    """A copy that ends at a point; whether it came there."""

    def hook(point: str) -> None:
        if at(point):
            raise Interrupted

    fault_points.hook = hook
    try:
        source.admin.copy_to(target.admin)
    except Interrupted:
        return True
    finally:
        fault_points.hook = None
    return False


@settings(max_examples=25)
@given(random_histories.HISTORIES)
def test_any_store_is_the_same_after_it_moved_twice(history: list[random_histories.Step]) -> None:
    clock = conversations.Clock()
    with fresh(clock) as first, fresh(clock) as second, fresh(clock) as third:
        random_histories.perform(first, history, clock)
        before = told(first)
        once, twice = first.admin.copy_to(second.admin), second.admin.copy_to(third.admin)
        assert told(first) == told(second) == told(third) == before
        assert once.digest == twice.digest
        assert twice.generation > once.generation
        assert third.admin.fsck().ok
        for session in third.list_sessions(limit=100):
            assert third.append_message(session.id, role="user", content="next").seq == session.last_seq + 1
        assert third.admin.fsck().ok


@ways
def test_everything_goes_from_one_database_to_the_other_and_back(here: Make, there: Make) -> None:
    clock = conversations.Clock()
    with here(clock) as source, there(clock) as target, here(clock) as back:
        furnish(source, clock)
        first = source.admin.copy_to(target.admin)
        second = target.admin.copy_to(back.admin)
        assert told(source) == told(target) == told(back)
        assert first.digest == second.digest
        assert target.admin.fsck().ok
        assert back.admin.fsck().ok
        for db in (target, back):
            assert db.memory.add("o", "new").id > max(memory.id for memory in source.memory.all("o"))
            assert db.admin.get_meta("noted") == "by a person"
            assert db.append_message("talk", role="user", content="next").seq == 6


@ways
@settings(max_examples=4)
@given(history=random_histories.HISTORIES)
def test_any_history_is_copied_between_databases(here: Make, there: Make, history: list[random_histories.Step]) -> None:
    clock = conversations.Clock()
    with here(clock) as source, there(clock) as target:
        random_histories.perform(source, history, clock)
        source.admin.copy_to(target.admin)
        assert told(target) == told(source)
        assert target.admin.fsck().ok


def test_a_backup_of_a_store_on_a_server_is_a_file_that_counts_on_from_there(tmp_path: Path) -> None:
    clock = conversations.Clock()
    with fresh(clock) as first, served(clock) as source, fresh(clock) as restored:
        furnish(first, clock)
        first.admin.copy_to(source.admin)  # so that its counters have leapt once before
        report = source.admin.backup(tmp_path / "kept.db")
        assert (report.messages, report.blobs, report.lost_blobs) == (8, 2, ())
        source.hide("talk", 4, 4)  # what was counted after the backup is not counted again
        last = source.conversation("talk").epoch
        restored.admin.restore(tmp_path / "kept.db")
        assert restored.conversation("talk").epoch > last
        assert int(restored.admin.get_meta("generation") or "") > int(source.admin.get_meta("generation") or "")
        source.show("talk")
        assert conversations.seen(restored, "talk") == conversations.seen(source, "talk")
        assert restored.admin.fsck().ok


def test_a_restore_into_a_server_that_was_killed_goes_on_and_never_over_what_is_there(tmp_path: Path) -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, served(clock) as target:
        furnish(source, clock)
        source.admin.backup(tmp_path / "kept.db")
        fault_points.hook = _raising_at("copy.checked")
        try:
            with pytest.raises(Interrupted):
                target.admin.restore(tmp_path / "kept.db")
        finally:
            fault_points.hook = None
        target.admin.restore(tmp_path / "kept.db")
        source.driver.write(
            "restore", backup.settle_open_mail
        )  # what was under way is not sent by the one that was restored
        assert told(target) == told(source)
        with pytest.raises(errors.CopyRefused):
            target.admin.restore(tmp_path / "kept.db")
        assert told(target) == told(source)


def _raising_at(wanted: str) -> Callable[[str], None]:
    def hook(point: str) -> None:
        if point == wanted:
            raise Interrupted

    return hook


def live_on(db: SessionDB, clock: conversations.Clock) -> None:
    """Of everything a furnished store has, something goes on, changes places or goes."""
    clock.advance(100)
    for inbound in db.mail.inbox_entries("talk"):
        db.mail.settle_inbox_entry(inbound.id, "completed", 2)
    db.processes.record_end("running", "killed", None, "It was killed.")
    db.processes.record_start(conversations.process("later", "talk"))
    db.permissions.end_audit(db.permissions.begin_audit("talk", "late", "shell", "ls", True, "me"), True)
    call = [{"id": "call", "name": "shell", "arguments": {"command": "make all"}}]
    db.redact("talk", db.append_message("talk", role="assistant", tool_calls=call).seq)
    first, second = db.memory.all("o")[0], db.memory.add("o", "second")
    db.memory.update("o", first.id, "in between")
    db.memory.update("o", second.id, first.text)
    db.memory.update("o", first.id, "second")
    db.permissions.revoke(db.permissions.grants("o", "talk")[0].id)
    db.unpin("talk", 1)
    db.pin("talk", 2)
    db.update_budget("talk", db.budget("talk")[0], {"cost": 3})
    db.bind_route("chat:1", None, version=db.route("chat:1").version)
    titles = [db.conversation(name).title for name in ("talk", "branch")]
    db.set_session_title("branch", None)
    db.set_session_title("talk", titles[1])
    db.set_session_title("branch", titles[0])
    db.set_session_folder("talk", None)
    db.set_session_folder("branch", "/work/other")
    db.delete_conversation("redacted")
    db.blobs.collect(0)
    mail.go_on(db)


@pytest.mark.parametrize("make", [fresh, served])
def test_rows_that_changed_since_they_were_added_are_copied_as_they_are(make: Make) -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, make(clock) as target:
        furnish(source, clock)
        before = told(source)
        live_on(source, clock)
        unchanged = [now for was, now in zip(before[-15:], told(source)[-15:], strict=True) if was == now]
        assert unchanged == [], "every table has changed"
        source.admin.copy_to(target.admin)
        assert told(target) == told(source)
        assert target.admin.fsck().ok


def test_everything_a_store_has_goes_over(tmp_path: Path) -> None:
    clock = conversations.Clock()
    with SessionDB(tmp_path / "a.db", clock=clock) as source, SessionDB(tmp_path / "b.db", clock=clock) as target:
        furnish(source, clock)
        empty = [table.name for table in copy_tables.COPY_TABLES if not rows(source, table)]
        assert empty == []
        report = source.admin.copy_to(target.admin)
        assert told(target) == told(source)
        assert (report.conversations, report.already_there, report.lost_blobs) == (4, False, ())
        digest = next(part["blob"] for part in target.transcript("talk")[3].content)
        with target.blobs.open(digest) as content:
            assert content.read() == PICTURE
        assert target.admin.get_meta("noted") == "by a person"
        assert target.admin.fsck().ok
        assert target.search("three")[0].seq == 3


def test_numbers_that_were_given_out_are_not_given_out_again() -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, fresh(clock) as target:
        furnish(source, clock)
        source.admin.copy_to(target.admin)
        assert target.memory.add("o", "new").id == source.memory.add("o", "new").id
        assert target.permissions.grant("o", "new", by="me").id == source.permissions.grant("o", "new", by="me").id


def test_nothing_from_before_the_copy_can_match_after_it() -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, fresh(clock) as target:
        furnish(source, clock)
        lease, snapshot = source.acquire_lease("branch", "compact"), source.snapshot("branch")
        source.admin.copy_to(target.admin)
        assert target.leases() == []
        with pytest.raises(errors.LeaseLost):
            target.commit_compaction(lease, summary="old", cut_seq=1)
        with pytest.raises(errors.Superseded):
            target.commit_compaction(snapshot, summary="old", cut_seq=1)
        with pytest.raises(errors.RouteMoved):
            target.bind_route("chat:1", None, version=source.route("chat:1").version)
        assert not target.update_budget("talk", source.budget("talk")[0], {"cost": 3})
        assert int(target.admin.get_meta("generation") or "") > int(source.admin.get_meta("generation") or "")


def test_a_copy_stopped_at_any_point_goes_on_to_the_same_end() -> None:
    clock = conversations.Clock()
    passed: list[str] = []
    with fresh(clock) as source:
        furnish(source, clock)
        wanted = told(source)
        with fresh(clock) as target:
            source.admin.copy_to(target.admin)  # the first copy of a store gives it a name
        with fresh(clock) as target:
            assert not interrupted(source, target, lambda point: bool(passed.append(point)))
        assert {"copy.import_message", "copy.copy_inbox_entry", "copy.restore_counters", "blob.kept"} <= set(passed)
        # Of each name the first time it is passed, and the last.
        ends = {passed.index(name) for name in passed} | {len(passed) - 1 - passed[::-1].index(name) for name in passed}
        for number in sorted(ends):
            count = itertools.count()
            with fresh(clock) as target:
                assert interrupted(source, target, lambda _, count=count, number=number: next(count) == number)
                report = source.admin.copy_to(target.admin)
                assert told(target) == wanted, passed[number]
                assert report.already_there == (number == len(passed) - 1)
                assert target.admin.fsck().ok


def test_the_second_run_of_a_finished_copy_only_compares() -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, fresh(clock) as target:
        furnish(source, clock)
        first = source.admin.copy_to(target.admin)
        second = source.admin.copy_to(target.admin)
        assert second.already_there
        assert (second.rows, second.generation) == (0, first.generation)
        conversations.say(target, "talk", "used since")
        with pytest.raises(errors.CopyUnfinished) as caught:
            source.admin.copy_to(target.admin)
        assert caught.value.finished
        assert caught.value.differing == ("talk",)


@pytest.mark.parametrize(
    "fill",
    [
        lambda db: conversations.begin(db, "mine", "hello"),
        lambda db: db.memory.add("me", "likes tea"),
        lambda db: db.blobs.put(b"x"),
        lambda db: db.bind_route("chat", None, version=0),
        lambda db: db.permissions.grant("me", "shell", by="me"),
    ],
)
def test_a_store_that_holds_something_else_is_left_alone(fill: Callable[[SessionDB], object]) -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, fresh(clock) as target:
        conversations.begin(source, "talk", "hello")
        fill(target)
        before = told(target)
        with pytest.raises(errors.CopyRefused):
            source.admin.copy_to(target.admin)
        assert told(target) == before


def test_a_copy_of_another_store_is_not_gone_on_with() -> None:
    clock, later = conversations.Clock(), conversations.Clock()
    later.advance(1)
    with fresh(clock) as source, fresh(later) as other, fresh(clock) as target:
        conversations.begin(source, "talk", "hello")
        conversations.begin(other, "other", "hello")
        assert interrupted(source, target, lambda point: point == "copy.checked")
        with pytest.raises(errors.CopyRefused):
            other.admin.copy_to(target.admin)


def test_a_store_is_not_copied_into_itself(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "a.db") as one, SessionDB(tmp_path / "a.db") as other:
        with pytest.raises(errors.CopyRefused):
            one.admin.copy_to(other.admin)
        with pytest.raises(errors.CopyRefused):
            one.admin.copy_to(one.admin)


def test_an_empty_store_that_two_addresses_lead_to_is_not_copied_into_itself() -> None:
    address = postgres.fresh()
    with (
        SessionDB(address) as here,
        SessionDB(f"{address}&application_name=another") as there,
        pytest.raises(errors.CopyRefused, match="the same store"),
    ):
        here.admin.copy_to(there.admin)


def test_a_store_that_can_only_be_read_is_copied_and_left_as_it_was() -> None:
    address = postgres.fresh()
    with SessionDB(address) as first:
        first.create_session("talk", source="test")
        first.append_message("talk", role="user", content="hello")
    only_read = address.replace("options=", "options=-cdefault_transaction_read_only%3Don%20")
    with SessionDB(only_read) as source, SessionDB(":memory:") as target:
        assert source.admin.copy_to(target.admin).messages == 1
        assert source.admin.get_meta(store_meta.STORE_ID) is None
        # Named since, it is still the one the copy is of.
        with SessionDB(address) as first:
            backup_schedule.identify_store(first.driver)
        assert source.admin.copy_to(target.admin).already_there


@pytest.mark.parametrize("make", [str, lambda _: postgres.fresh()], ids=["file", "postgres"])
def test_writes_made_after_the_copy_began_are_not_in_it(tmp_path: Path, make: Callable[[Path], str]) -> None:
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


@pytest.mark.parametrize("point", ["copy.import_message", "copy.committing"])
def test_an_interrupted_copy_starts_over_with_the_state_of_then(point: str) -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, fresh(clock) as target:
        furnish(source, clock)
        reached = iter([False, True] if point == "copy.committing" else [True])  # the first commit is the mark
        assert interrupted(source, target, lambda name: name == point and next(reached))
        assert target.admin.is_unfinished_copy()
        assert target.list_sessions() == []
        conversations.say(source, "talk", "later")
        source.delete_conversation("redacted")
        source.admin.copy_to(target.admin)
        assert told(target) == told(source)
        assert not target.admin.is_unfinished_copy()


def test_an_unverified_copy_is_finished_only_while_its_source_is_the_same() -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, fresh(clock) as target:
        furnish(source, clock)
        assert interrupted(source, target, lambda point: point == "copy.written")
        conversations.say(source, "branch", "later")
        with pytest.raises(errors.CopyUnfinished, match="Delete it and copy again") as caught:
            source.admin.copy_to(target.admin)
        assert caught.value.differing == ("branch",)
        assert not caught.value.finished
        assert target.admin.is_unfinished_copy()


def test_data_written_to_an_unfinished_copy_is_kept_and_reported() -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, fresh(clock) as target:
        conversations.begin(source, "talk", "hello")
        assert interrupted(source, target, lambda point: point == "copy.checked")
        conversations.begin(target, "mine", "hello")
        with pytest.raises(errors.CopyUnfinished) as caught:
            source.admin.copy_to(target.admin)
        assert caught.value.differing == ("mine",)
        assert conversations.seen(target, "mine") == ["hello"]


def test_a_damaged_source_is_not_passed_on() -> None:
    clock = conversations.Clock()
    with fresh(clock) as source, fresh(clock) as target:
        conversations.begin(source, "talk", "hello")
        source.driver._writer.execute("DROP TRIGGER message_is_only_redacted")
        source.driver._writer.execute('UPDATE messages SET body = \'{"content":"other"}\'')
        with pytest.raises(errors.StoreCorrupt):
            source.admin.copy_to(target.admin)


def test_an_attachment_the_source_has_lost_is_told_of(tmp_path: Path) -> None:
    clock = conversations.Clock()
    with SessionDB(tmp_path / "a.db", clock=clock) as source, SessionDB(tmp_path / "b.db", clock=clock) as target:
        digest = source.blobs.put(PICTURE).digest
        source.blobs.files.remove(digest)
        assert source.admin.copy_to(target.admin).lost_blobs == (digest,)


def test_progress_counts_up_to_all_messages() -> None:
    clock = conversations.Clock()
    told_: list[tuple[int, int]] = []
    with fresh(clock) as source, fresh(clock) as target:
        furnish(source, clock)
        source.admin.copy_to(target.admin, lambda done, total: told_.append((done, total)))
    assert told_[-1][0] == told_[-1][1] == 8
    assert [done for done, _ in told_[:3]] == sorted(done for done, _ in told_[:3])


def test_every_note_of_a_store_is_either_its_own_or_goes_over() -> None:
    """A new note has to be decided about: is it true of a copy?"""
    assert {key for key in store_meta.RESERVED if store_meta.is_copied(key)} == store_meta.LASTING
    with fresh(conversations.Clock()) as db:
        conversations.begin(db, "talk", "hello")
        conversations.act(db, "talk")
        db.admin.run_upkeep_once()
        db.memory.delete("o", db.memory.all("o")[0].id)
        assert {key for key, _ in db.driver.read(lambda tx: tx.all("copy_meta"))} <= store_meta.RESERVED
