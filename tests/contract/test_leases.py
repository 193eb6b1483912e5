"""Leases: one holder at a time, tokens that only grow, and a clock that only decides who may take over."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from tests.contract.conftest import MakeDb
from tests.support import backends, conversations, polling


def test_lease_carries_the_snapshot_it_was_given_with(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    head = conversations.compact(db, "talk", 1)
    lease = db.acquire_lease("talk", "compact", "me", 12)
    assert lease.snapshot == types.Snapshot("talk", head.id, 2, 2)
    assert (lease.conversation_id, lease.purpose, lease.holder, lease.ttl) == ("talk", "compact", "me", 12)


def test_snapshot_is_that_of_the_moment_the_lease_was_given(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    conversations.say(db, "talk", "b")
    assert (lease.snapshot.last_seq, db.leases()[0].snap_seq) == (1, 1)


@pytest.mark.parametrize("purpose", ["compact", "turn"])
def test_held_lease_is_busy_for_others(db: SessionDB, clock: conversations.Clock, purpose: types.Purpose) -> None:
    conversations.begin(db, "talk")
    db.acquire_lease("talk", purpose, "one", 30)
    clock.advance(10)
    with pytest.raises(errors.Busy) as refusal:
        db.acquire_lease("talk", purpose, "two")
    assert (refusal.value.holder, refusal.value.expires_in) == ("one", 20)


def test_purposes_do_not_hinder_each_other(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    turn = db.acquire_lease("talk", "turn", "one")
    compaction = db.acquire_lease("talk", "compact", "two")
    db.renew_lease(turn)
    db.renew_lease(compaction)


def test_conversations_do_not_hinder_each_other(db: SessionDB) -> None:
    for name in ("one", "two"):
        conversations.begin(db, name)
        db.acquire_lease(name, "turn", f"holder of {name}")
    assert len(db.leases()) == 2


def test_any_session_id_names_the_same_lease(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    db.acquire_lease("talk", "turn", "one")
    with pytest.raises(errors.Busy):
        db.acquire_lease(head.id, "turn", "two")


def test_tokens_only_grow_whatever_the_purpose(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    tokens = []
    for purpose in ("compact", "turn", "compact", "turn"):
        lease = db.acquire_lease("talk", purpose, "me")
        tokens.append(lease.token)
        db.release_lease(lease)
    tokens.append(db.acquire_lease("talk", "turn", "one", 5).token)
    clock.advance(6)
    tokens.append(db.acquire_lease("talk", "turn", "two").token)
    assert tokens == sorted(set(tokens))


def test_expired_lease_is_taken_over(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk")
    old = db.acquire_lease("talk", "compact", "one", 30)
    clock.advance(29.9)
    with pytest.raises(errors.Busy):
        db.acquire_lease("talk", "compact", "two")
    clock.advance(0.1)
    assert db.leases()[0].state == "expired"
    new = db.acquire_lease("talk", "compact", "two")
    assert new.token > old.token
    with pytest.raises(errors.LeaseLost):
        db.renew_lease(old)


def test_same_holder_gets_a_new_token_and_its_old_one_is_dead(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    old = db.acquire_lease("talk", "compact", "me")
    new = db.acquire_lease("talk", "compact", "me")
    assert new.token > old.token
    with pytest.raises(errors.LeaseLost):
        db.renew_lease(old)
    with pytest.raises(errors.LeaseLost):
        db.commit_compaction(old, summary="gist", cut_seq=1)
    assert not db.release_lease(old)
    db.renew_lease(new)


def test_holders_without_a_name_are_different_holders(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.acquire_lease("talk", "turn")
    with pytest.raises(errors.Busy):
        db.acquire_lease("talk", "turn")


# --- renew and release ---------------------------------------------------------------------------------


def test_renewed_lease_outlives_its_first_time(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact", ttl=30)
    for _ in range(5):
        clock.advance(20)
        db.renew_lease(lease)
    assert db.commit_compaction(lease, summary="gist", cut_seq=1).live


def test_renewing_never_moves_what_the_holder_saw(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    conversations.say(db, "talk", "b")
    db.renew_lease(lease)
    assert db.leases()[0].snap_seq == 1


@pytest.mark.parametrize("loss", ["expired", "released", "deleted"])
def test_lost_lease_is_not_renewed(db: SessionDB, clock: conversations.Clock, loss: str) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact", ttl=30)
    if loss == "expired":
        clock.advance(30)
    elif loss == "released":
        db.release_lease(lease)
    else:
        db.delete_conversation("talk")
    with pytest.raises((errors.LeaseLost, errors.ConversationDeleted)):
        db.renew_lease(lease)


def test_expired_lease_is_lost_even_if_nobody_took_it(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn", ttl=30)
    clock.advance(31)
    with pytest.raises(errors.LeaseLost):
        db.renew_lease(lease)


def test_release_frees_the_lease_once(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn", "one")
    assert db.release_lease(lease)
    assert not db.release_lease(lease)
    db.acquire_lease("talk", "turn", "two")


def test_overtaken_holder_does_not_free_the_lease_of_another(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk")
    old = db.acquire_lease("talk", "turn", "one", 5)
    clock.advance(6)
    new = db.acquire_lease("talk", "turn", "two")
    assert not db.release_lease(old)
    db.renew_lease(new)


def test_lease_is_held_under_the_name_it_was_given_to(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn", "one")
    impostor = types.Lease(lease.snapshot, "turn", lease.token, "two", 30)
    with pytest.raises(errors.LeaseLost):
        db.renew_lease(impostor)


def test_neither_leases_nor_renewals_change_the_conversation(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db):
        lease = db.acquire_lease("talk", "compact")
        db.renew_lease(lease)
        db.release_lease(lease)


def test_lease_says_since_when_it_is_held(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    since = []
    for _ in range(2):
        lease = db.acquire_lease("talk", "compact", "me", 30)
        clock.advance(10)
        db.renew_lease(lease)
        since.append(db.leases()[0].acquired_at)
    assert since == [conversations.NOON, conversations.NOON + 10]


def test_ended_conversation_still_gives_leases(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.end_conversation("talk", "done")
    db.acquire_lease("talk", "turn")


def test_racing_holders_have_one_winner(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    outcomes = conversations.at_once(*(lambda n=n: db.acquire_lease("talk", "turn", f"holder {n}") for n in range(6)))
    winners = [outcome for outcome in outcomes if isinstance(outcome, types.Lease)]
    assert len(winners) == 1
    assert {loser.holder for loser in outcomes if isinstance(loser, errors.Busy)} == {winners[0].holder}


# --- holders that live and die ----------------------------------------------------------------------------


def test_leases_are_listed_with_who_holds_them(make_db: MakeDb) -> None:
    db = make_db()
    conversations.begin(db, "talk", "a")
    with conversations.held_elsewhere(db, "talk", "turn") as process:
        (held,) = db.leases()
        assert (held.conversation_id, held.purpose, held.holder, held.pid) == (
            "talk", "turn", "elsewhere", process.pid,
        )  # fmt: skip
        assert (held.state, held.expires_in, held.snap_seq) == ("held", 30.0, 1)


def test_live_holder_is_never_reclaimed_before_its_expiry(make_db: MakeDb, clock: conversations.Clock) -> None:
    db = make_db()
    conversations.begin(db, "talk")
    with conversations.held_elsewhere(db, "talk", ttl=30):
        clock.advance(29)
        with pytest.raises(errors.Busy) as refusal:
            db.acquire_lease("talk", "compact", "me")
        assert (refusal.value.holder, refusal.value.expires_in) == ("elsewhere", 1.0)
        clock.advance(1)
        assert db.acquire_lease("talk", "compact", "me").holder == "me"


def test_dead_holder_is_reclaimed_at_once(make_db: MakeDb) -> None:
    db = make_db()
    conversations.begin(db, "talk")
    with conversations.held_elsewhere(db, "talk", ttl=3600) as process:
        process.kill()
        process.wait()
        assert db.leases()[0].state == "dead"
        assert db.acquire_lease("talk", "compact", "me").token == 2


def test_holder_that_waits_to_be_buried_is_dead(make_db: MakeDb) -> None:
    db = make_db()
    conversations.begin(db, "talk")
    with conversations.held_elsewhere(db, "talk", ttl=3600) as process:
        process.kill()
        # Its output ends when it has died; only its parent's wait, which comes later, buries it.
        assert process.stdout.read() == ""
        polling.until(lambda: db.leases()[0].state == "dead")


def test_stopped_holder_is_alive(make_db: MakeDb) -> None:
    db = make_db()
    conversations.begin(db, "talk")
    with conversations.held_elsewhere(db, "talk") as process:
        conversations.stop(process)
        with pytest.raises(errors.Busy):
            db.acquire_lease("talk", "compact", "me")


def test_leases_run_on_the_machine_clock_when_none_is_given(make_db: MakeDb) -> None:
    db = make_db(clock=None)
    conversations.begin(db, "talk")
    with conversations.held_elsewhere(db, "talk", ttl=3600, now=None) as process:
        with pytest.raises(errors.Busy) as refusal:
            db.acquire_lease("talk", "compact", "me")
        assert 3500 < refusal.value.expires_in <= 3600
        process.kill()
        process.wait()
        db.acquire_lease("talk", "compact", "me")


def test_lease_of_this_process_survives_a_reopening(make_db: MakeDb) -> None:
    first = make_db()
    conversations.begin(first, "talk", "a")
    lease = first.acquire_lease("talk", "compact", "me")
    first.close()
    second = make_db()
    second.renew_lease(lease)
    assert second.commit_compaction(lease, summary="gist", cut_seq=1).live


# --- leases that cannot be had ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", backends.LEASE_BREAKS)
def test_broken_leases_are_an_error_of_their_own(db: SessionDB, how: str) -> None:
    conversations.begin(db, "talk", "a")
    backends.break_leases(db, how)
    with conversations.nothing_changes(db), pytest.raises(errors.LeasesUnavailable):
        db.acquire_lease("talk", "compact")


def test_lease_that_could_not_be_released_is_taken_again_by_its_process_only(make_db: MakeDb) -> None:
    db, other = make_db(), make_db()
    conversations.begin(db, "talk", "a")
    first = db.acquire_lease("talk", "turn")
    db.lease_failures.abandon(first, RuntimeError("broken"))
    with pytest.raises(errors.Busy):
        other.acquire_lease("talk", "turn")
    assert db.acquire_lease("talk", "turn").token > first.token
    with pytest.raises(errors.Busy):
        db.acquire_lease("talk", "turn")


@pytest.mark.parametrize(
    ("purpose", "holder", "ttl"),
    [
        ("sleep", "me", 30), (None, "me", 30), ([], "me", 30),
        ("turn", "", 30), ("turn", "a\nb", 30), ("turn", "x" * 201, 30), ("turn", 5, 30), ("turn", "\ud800", 30),
        ("turn", "me", 0), ("turn", "me", -1), ("turn", "me", 86_401), ("turn", "me", float("nan")),
        ("turn", "me", True), ("turn", "me", "30"), ("turn", "me", None),
    ],
)  # fmt: skip
def test_nonsense_is_refused(db: SessionDB, purpose: object, holder: object, ttl: object) -> None:
    conversations.begin(db, "talk")
    with pytest.raises(errors.InvalidArgument):
        db.acquire_lease("talk", purpose, holder, ttl)
    assert db.leases() == []


def test_lease_of_an_unknown_session_is_refused(db: SessionDB) -> None:
    with pytest.raises(errors.NoSuchSession):
        db.acquire_lease("nobody", "turn")
