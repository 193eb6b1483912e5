"""What another host does while a step waits for it: the step finds what there is now, and says so in its own words.

A step that waits for a lock is let go on only after the other one has done its worst.
"""

from __future__ import annotations

import threading

import pytest

from holdfast import NewConversation, NewMessage, SessionDB, errors
from holdfast.store import compactions, conversation_row, deletion, leases, log, sessions, titles
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.blobs import blobs
from holdfast.store.driver import Tx
from holdfast.store.mail import inbox
from holdfast.store.records import memory, processes
from tests.support import conversations, postgres, two_hosts

# --- what was looked at before the wait -----------------------------------------------------------------------


def test_a_process_that_was_told_of_meanwhile_is_not_told_of_again(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.one.processes.record_start(conversations.process("p", "talk"))

    def ends(tx: Tx) -> None:
        end = {"id": "p", "state": "exited", "exit_code": 0, "uid": "u", "at": conversations.NOON}
        assert processes.record_end(tx, end, "told first", conversations.NOON)

    assert pair.meanwhile(ends, lambda: pair.other.processes.record_end("p", "killed", None, "told second")) is False
    assert [each.text for each in pair.one.mail.inbox_entries()] == ["told first"]


def test_a_process_that_went_with_its_conversation_meanwhile_is_not_told_of(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.one.processes.record_start(conversations.process("p", "talk"))
    gone = pair.meanwhile(
        lambda tx: deletion.delete(tx, "talk", conversations.NOON),
        lambda: pair.other.processes.record_end("p", "killed", None, "told"),
    )
    assert gone is False


def test_a_command_that_was_redacted_meanwhile_is_not_told(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    call = {"id": "c", "name": "start", "arguments": '{"command": "KEY=1 make"}'}
    pair.one.append_message("talk", role="assistant", tool_calls=[call])
    pair.one.processes.record_start(conversations.process("p", "talk", "KEY=1 make"))
    ended = pair.meanwhile(
        lambda tx: deletion.redact(tx, "talk", 2, conversations.NOON),
        lambda: pair.other.processes.record_end("p", "exited", 0, "KEY=1 ended"),
    )
    assert ended is True
    assert "KEY" not in pair.one.mail.inbox_entries()[0].text


def orphan(pair: two_hosts.Pair) -> None:
    """A continuation that nothing stands behind, of long ago."""
    conversations.begin(pair.one, "talk", "a")
    pair.one.end_session("talk", "compression")
    pair.one.create_session("child", source="test", parent_session_id="talk")
    pair.one.append_message("child", role="user", content="b")
    pair.clock.advance(30 * conversations.DAY)


def test_an_orphan_that_is_written_to_meanwhile_is_not_ended(pair: two_hosts.Pair) -> None:
    orphan(pair)
    said = two_hosts.append(pair.one, "child", "still here")
    assert pair.meanwhile(said, pair.other.admin.finalize_orphaned_sessions) == 0
    assert pair.one.head("talk").live


def test_a_ghost_that_is_written_to_meanwhile_stays(pair: two_hosts.Pair) -> None:
    pair.one.create_session("ghost", source="test")
    pair.clock.advance(2 * conversations.DAY)
    said = two_hosts.append(pair.one, "ghost", "not one any more")
    assert pair.meanwhile(said, pair.other.admin.prune_empty_sessions) == 0
    assert len(pair.one.transcript("ghost")) == 1


def test_a_lease_that_is_taken_anew_meanwhile_is_not_freed(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.one.acquire_lease("talk", "turn", "before", 1)
    pair.clock.advance(2)
    who = leases.current_holder("after")
    assert (
        pair.meanwhile(lambda tx: leases.acquire(tx, "talk", "turn", who, 60), pair.other.admin.free_stale_leases) == 0
    )
    assert [lease.holder for lease in pair.one.leases()] == ["after"]


def test_stale_leases_of_a_conversation_deleted_meanwhile_hinder_nothing(pair: two_hosts.Pair) -> None:
    for name in ("talk", "other"):
        conversations.begin(pair.one, name, "a")
        pair.one.acquire_lease(name, "turn", "before", 1)
    pair.clock.advance(2)
    assert (
        pair.meanwhile(lambda tx: deletion.delete(tx, "talk", conversations.NOON), pair.other.admin.free_stale_leases)
        == 1
    )


def test_a_stale_turn_cannot_append_while_a_take_over_holds_the_row(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    stale = pair.other.acquire_lease("talk", "turn", "stale", 10)
    pair.clock.advance(11)
    who = leases.current_holder("next")
    refusal = pair.meanwhile(
        lambda tx: leases.acquire(tx, "talk", "turn", who, 60),
        lambda: pair.other.append_message("talk", role="assistant", content="late", lease=stale),
    )
    assert isinstance(refusal, errors.LeaseLost)
    assert pair.one.conversation("talk").last_seq == 1


@pytest.mark.parametrize("how", ["plain", "in a batch"])
def test_concurrent_retries_of_one_uid_are_one_message_and_leave_no_gap(pair: two_hosts.Pair, how: str) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.other.append_message("talk", role="user", content="so that its end is known")
    said = two_hosts.append(pair.one, "talk", "b", uid="u")
    again = NewMessage(role="user", content="b", uid="u")
    batch = [again] if how == "plain" else [again, NewMessage(role="user", content="c")]
    receipt = pair.meanwhile(said, lambda: pair.other.append_messages("talk", batch))[0]
    assert (receipt.seq, receipt.duplicate) == (3, True)
    assert pair.one.append_message("talk", role="user", content="next").seq == 3 + len(batch)


def test_an_append_whose_number_was_taken_meanwhile_gets_the_next(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.other.append_message("talk", role="user", content="b")
    receipt = pair.meanwhile(
        two_hosts.append(pair.one, "talk", "c"), lambda: pair.other.append_message("talk", role="user", content="d")
    )
    assert receipt.seq == 4
    assert conversations.contents(pair.one.transcript("talk")) == ["a", "b", "c", "d"]


def test_an_append_finds_the_head_that_moved_while_it_waited(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.other.append_message("talk", role="user", content="b")
    draft = compactions.make_draft(1, 2, "gist", (), None, None)
    seen = pair.one.snapshot("talk")
    receipt = pair.meanwhile(
        lambda tx: compactions.commit(tx, seen, "child", draft, conversations.NOON),
        lambda: pair.other.append_message("talk", role="user", content="c"),
    )
    assert (receipt.seq, receipt.session_id, receipt.moved_from, receipt.epoch) == (3, "child", "talk", 2)
    assert conversations.contents(pair.one.context("talk")) == ["gist", "b", "c"]


def test_a_strict_append_is_told_of_the_head_that_moved_while_it_waited(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.other.append_message("talk", role="user", content="b")
    draft = compactions.make_draft(1, 2, "gist", (), None, None)
    seen = pair.one.snapshot("talk")
    refusal = pair.meanwhile(
        lambda tx: compactions.commit(tx, seen, "child", draft, conversations.NOON),
        lambda: pair.other.append_message("talk", role="user", content="c", expect_head=True),
    )
    assert isinstance(refusal, errors.Superseded)
    assert refusal.head == "child"


# --- what only one may have -----------------------------------------------------------------------------------


def test_a_conversation_that_another_began_meanwhile_is_taken(pair: two_hosts.Pair) -> None:
    create = NewConversation(source="test")
    born = log.AppendRequest("talk", [NewMessage(role="user", content="a")], conversations.NOON, create=create)
    taken = pair.meanwhile(
        born, lambda: pair.other.begin_conversation("talk", NewMessage(role="user", content="b"), create)
    )
    assert isinstance(taken, errors.IdTaken)
    assert conversations.contents(pair.one.transcript("talk")) == ["a"]


def test_a_title_that_was_taken_meanwhile_is_told_as_such(pair: two_hosts.Pair) -> None:
    for name in ("talk", "other"):
        conversations.begin(pair.one, name, "a")
    taken = pair.meanwhile(
        lambda tx: titles.set_title(tx, "talk", "plan"), lambda: pair.other.set_session_title("other", "plan")
    )
    assert isinstance(taken, errors.TitleTaken)
    assert taken.conversation == "talk"


def test_branches_made_at_once_get_numbers_of_their_own(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a", title="plan")
    conversations.begin(pair.one, "other", "a")
    branch = pair.meanwhile(
        lambda tx: titles.set_title(tx, "other", "plan #2"), lambda: pair.other.branch("talk", branch_id="twig")
    )
    assert branch.title == "plan #3"


@pytest.mark.parametrize("version", [0, 1])
def test_a_route_that_was_bound_meanwhile_has_moved(pair: two_hosts.Pair, version: int) -> None:
    for name in ("talk", "other"):
        conversations.begin(pair.one, name, "a")
    if version:
        pair.one.bind_route("chat", "other", version=0)
    moved = pair.meanwhile(
        lambda tx: sessions.bind_route(tx, "chat", "talk", version, conversations.NOON),
        lambda: pair.other.bind_route("chat", "other", version=version),
    )
    assert isinstance(moved, errors.RouteMoved)
    assert (moved.conversation, moved.version) == ("talk", version + 1)


def test_a_key_that_came_in_elsewhere_meanwhile_is_reused(pair: two_hosts.Pair) -> None:
    for name in ("talk", "other"):
        conversations.begin(pair.one, name, "a")
    reused = pair.meanwhile(
        lambda tx: inbox.add_entry(tx, conversation_row.lock(tx, "talk"), "k", "notice", "text", conversations.NOON),
        lambda: pair.other.mail.add_inbox_entry("other", "k", "text"),
    )
    assert isinstance(reused, errors.IdTaken)


def test_what_two_remember_at_once_is_one_memory(pair: two_hosts.Pair) -> None:
    same = pair.meanwhile(
        lambda tx: memory.add(tx, "me", "likes tea", None, conversations.NOON),
        lambda: pair.other.memory.add("me", "likes tea"),
    )
    assert pair.one.memory.all("me") == [same]


def test_the_last_room_for_a_memory_is_given_once(pair: two_hosts.Pair) -> None:
    pair.one.driver.write("memory", lambda tx: [_remember(tx, number) for number in range(499)])
    full = pair.meanwhile(lambda tx: _remember(tx, 499), lambda: pair.other.memory.add("me", "one too many"))
    assert isinstance(full, errors.LimitReached)
    assert len(pair.one.memory.all("me")) == 500


def _remember(tx: Tx, number: int) -> None:
    tx.run(
        "memory_insert",
        owner="me",
        text=f"fact {number}",
        at=conversations.NOON,
        updated_at=conversations.NOON,
        source=None,
    )


def test_a_scheduled_backup_that_is_claimed_meanwhile_is_not_made_twice(pair: two_hosts.Pair) -> None:
    claim = backup_schedule.BackupClaim(conversations.NOON, 3600.0, None)
    assert pair.meanwhile(claim.acquire, lambda: pair.other.driver.write("claim", claim.acquire)) is False


# --- attachments ----------------------------------------------------------------------------------------------


def test_an_attachment_that_is_about_to_be_named_is_not_collected(pair: two_hosts.Pair) -> None:
    digest = pair.one.blobs.put(b"picture").digest
    pair.clock.advance(conversations.DAY + 1)

    def named(tx: Tx) -> None:
        tx.run("blob_known", digest=digest, size=7, media_type="image/png", at=pair.clock())

    assert pair.meanwhile(named, pair.other.blobs.collect).blobs == 0
    assert two_hosts.content(pair.one, digest) == b"picture"


def test_an_attachment_that_is_put_while_it_is_collected_is_there_afterwards(pair: two_hosts.Pair) -> None:
    digest = pair.one.blobs.put(b"picture").digest
    pair.clock.advance(conversations.DAY + 1)

    def collect(tx: Tx) -> None:
        assert blobs._collect(tx, pair.one.blobs.files, set(), {}, pair.clock(), set()).blobs == 1

    pair.meanwhile(collect, lambda: pair.other.blobs.put(b"picture"))
    assert two_hosts.content(pair.one, digest) == b"picture"


# --- many at once ---------------------------------------------------------------------------------------------


def test_steps_over_several_conversations_wait_in_one_order(pair: two_hosts.Pair) -> None:
    """Redactions from a branch and from its origin, prunes, and appends: nobody waits for one who waits for him."""
    conversations.begin(pair.one, "trunk", *"abcdefghij")
    for name in ("twig", "leaf"):
        pair.one.branch("trunk", branch_id=name)
    before = _deadlocks()
    for seq in range(1, 9):
        outcomes = conversations.at_once(
            lambda seq=seq: pair.one.redact("trunk", seq),
            lambda seq=seq: pair.other.redact("leaf", seq + 1),
            lambda seq=seq: pair.other.redact("twig", seq),
            lambda: pair.one.driver.write("test", lambda tx: conversation_row.lock_all(tx, ["leaf", "trunk", "twig"])),
        )
        assert not [each for each in outcomes if isinstance(each, BaseException)]
    assert _deadlocks() == before
    assert conversations.contents(pair.one.transcript("leaf")) == [""] * 9 + ["j"]


def _deadlocks() -> int:
    if postgres.admin().info.server_version >= 150000:  # older ones tell half a second late
        postgres.admin().execute("SELECT pg_stat_force_next_flush()")
    row = (
        postgres.admin().execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    )
    assert row is not None
    return int(row[0])


def test_locks_in_a_circle_are_undone_and_both_get_done(pair: two_hosts.Pair) -> None:
    for name in ("a", "b"):
        conversations.begin(pair.one, name)
    met = threading.Barrier(2, timeout=10)
    first = [True, True]

    def both(index: int, db: SessionDB, *names: str) -> None:
        def step(tx: Tx) -> None:
            conversation_row.lock(tx, names[0])
            if first[index]:
                first[index] = False
                met.wait()
            conversation_row.lock(tx, names[1])
            tx.run("title_set", key=conversation_row.lock(tx, names[0]).key, title=f"by {names[0]}")

        db.driver.write("test", step)

    outcomes = conversations.at_once(lambda: both(0, pair.one, "a", "b"), lambda: both(1, pair.other, "b", "a"))
    assert outcomes == [None, None]
    assert [pair.one.conversation(name).title for name in "ab"] == ["by a", "by b"]
