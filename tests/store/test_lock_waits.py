"""A step that waited for another host acts on what that host committed, and reports it in its own words."""

from __future__ import annotations

import threading

import pytest

from holdfast import SessionDB, errors
from holdfast.store import conversation_row, deletion, leases, store_meta
from holdfast.store.driver import Tx
from tests.support import conversations, postgres, two_hosts

NOON = conversations.NOON


@pytest.fixture
def talks(pair: two_hosts.Pair) -> two_hosts.Pair:
    """Two hosts, of which both have appended to `talk`; there is a conversation `other`, too."""
    conversations.begin(pair.one, "talk", "a", title="plan")
    conversations.begin(pair.one, "other", "a")
    pair.other.append_message("talk", role="user", content="b")
    return pair


def test_stale_turn_cannot_append_while_a_take_over_holds_the_row(talks: two_hosts.Pair) -> None:
    stale = talks.other.acquire_lease("talk", "turn", "stale", 10)
    talks.clock.advance(11)
    holder = leases.current_holder("next")
    outcome = talks.meanwhile(
        lambda tx: leases.acquire(tx, "talk", "turn", holder, 60),
        lambda: talks.other.append_message("talk", role="user", content="late", lease=stale),
    )
    assert isinstance(outcome, errors.LeaseLost)
    assert talks.one.conversation("talk").last_seq == 2


def test_end_of_a_process_waits_for_a_redaction_and_repeats_no_redacted_text(talks: two_hosts.Pair) -> None:
    call = {"id": "c", "name": "start", "arguments": '{"command": "KEY=1 make"}'}
    talks.one.append_message("talk", role="assistant", tool_calls=[call])
    talks.one.processes.record_start(conversations.process("p", "talk", "KEY=1 make"))
    assert talks.meanwhile(
        lambda tx: deletion.redact(tx, "talk", 3, NOON),
        lambda: talks.other.processes.record_end("p", "killed", None, "KEY=1 ended"),
    )
    assert ["KEY" in each.text for each in talks.one.mail.inbox_entries()] == [False]


def test_orphan_or_ghost_that_is_written_to_is_kept(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "talk", "a")
    pair.one.end_session("talk", "compression")
    pair.one.create_session("child", source="test", parent_session_id="talk")
    pair.one.append_message("child", role="user", content="b")
    pair.one.create_session("ghost", source="test")
    pair.clock.advance(30 * conversations.DAY)
    append = two_hosts.append(pair.one, "child", "still here")
    assert pair.meanwhile(append, pair.other.admin.finalize_orphaned_sessions) == 0
    assert pair.one.head("talk").live
    append = two_hosts.append(pair.one, "ghost", "not empty any more")
    assert pair.meanwhile(append, pair.other.admin.prune_empty_sessions) == 0
    assert len(pair.one.transcript("ghost")) == 1


def test_steps_over_several_conversations_lock_them_in_one_order(pair: two_hosts.Pair) -> None:
    conversations.begin(pair.one, "trunk", *"abcdef")
    for name in ("twig", "leaf"):
        pair.one.branch("trunk", branch_id=name)
    before = _deadlocks()
    for seq in range(1, 5):
        outcomes = conversations.at_once(
            lambda seq=seq: pair.one.redact("trunk", seq),
            lambda seq=seq: pair.other.redact("leaf", seq + 1),
            lambda seq=seq: pair.other.redact("twig", seq),
            lambda: pair.one.driver.write("test", lambda tx: conversation_row.lock_all(tx, ["leaf", "trunk", "twig"])),
        )
        assert not [each for each in outcomes if isinstance(each, BaseException)]
    assert _deadlocks() == before
    assert conversations.contents(pair.one.transcript("leaf")) == [""] * 5 + ["f"]


def _deadlocks() -> int:
    if postgres.admin().info.server_version >= 150000:  # older servers report half a second late
        postgres.admin().execute("SELECT pg_stat_force_next_flush()")
    found = postgres.admin().execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    ((count,),) = found.fetchall()
    return int(count)


def test_deadlocked_steps_are_repeated_and_both_succeed(pair: two_hosts.Pair) -> None:
    conversations.begin_each(pair.one, ("a", "b"))
    met = threading.Barrier(2, timeout=60)
    first = [True, True]

    def lock_both(index: int, db: SessionDB, *names: str) -> None:
        def step(tx: Tx) -> None:
            conversation_row.lock(tx, names[0])
            if first[index]:
                first[index] = False
                met.wait()
            conversation_row.lock(tx, names[1])
            tx.run("title_set", key=conversation_row.lock(tx, names[0]).key, title=f"by {names[0]}")

        db.driver.write("test", step)

    lock_both_orders = (lambda: lock_both(0, pair.one, "a", "b"), lambda: lock_both(1, pair.other, "b", "a"))
    assert conversations.at_once(*lock_both_orders) == [None, None]
    assert [pair.one.conversation(name).title for name in "ab"] == ["by a", "by b"]


def test_second_profile_set_at_once_gets_the_first(pair: two_hosts.Pair) -> None:
    found = pair.meanwhile(
        lambda tx: store_meta.get_or_set_profile(tx, "first"), lambda: pair.other.admin.get_or_set_profile("second")
    )
    assert found == pair.one.admin.get_or_set_profile("third") == "first"
