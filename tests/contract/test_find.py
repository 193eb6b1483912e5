"""Finding conversations: lists for people, and what a person means by a few letters."""

from __future__ import annotations

import psycopg
import pytest

from holdfast import SessionDB, errors
from holdfast.store import queries
from tests.support import backends, conversations


def ids(sessions: list) -> list[str]:
    return [session.id for session in sessions]


# --- lists -------------------------------------------------------------------------------------------------


def test_list_shows_heads_the_most_recently_active_first(db: SessionDB, clock: conversations.Clock) -> None:
    for name in ("one", "two", "three"):
        clock.advance(1)
        conversations.begin(db, name, "a")
    clock.advance(1)
    conversations.say(db, "one", "b")
    head = conversations.compact(db, "two", 1)
    listed = db.list_sessions()
    assert ids(listed) == ["one", "three", head.id]
    assert listed[0].active_at == clock.now


def test_conversation_without_messages_is_as_active_as_it_is_new(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "one", "a")
    clock.advance(1)
    conversations.begin(db, "two")
    assert ids(db.list_sessions()) == ["two", "one"]


def test_list_of_every_session_has_the_ended_ones_too(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    assert ids(db.list_sessions(every=True)) == [head.id, "talk"]


def test_list_is_filtered_by_owner_source_and_life(db: SessionDB) -> None:
    db.create_session("one", source="cli", owner="me")
    db.create_session("two", source="chat", owner="me")
    db.create_session("three", source="chat", owner="you")
    db.end_conversation("two", "done")
    assert sorted(ids(db.list_sessions(owner="me"))) == ["one", "two"]
    assert sorted(ids(db.list_sessions(source="chat"))) == ["three", "two"]
    assert ids(db.list_sessions(live=False)) == ["two"]
    assert sorted(ids(db.list_sessions(live=True))) == ["one", "three"]
    assert ids(db.list_sessions(owner="you", source="chat", live=True)) == ["three"]
    assert db.list_sessions(owner="nobody") == []


def test_pages_of_a_list_make_up_the_list(db: SessionDB) -> None:
    for number in range(7):
        conversations.begin(db, str(number))
    pages = [ids(db.list_sessions(limit=3, skip=skip)) for skip in (0, 3, 6, 9)]
    assert [name for page in pages for name in page] == ids(db.list_sessions())
    assert [len(page) for page in pages] == [3, 3, 1, 0]
    assert db.list_sessions(limit=0) == []


@pytest.mark.parametrize(
    "bad",
    [{"limit": -1}, {"skip": -1}, {"limit": "5"}, {"limit": 2**70}, {"skip": 1.5}, {"limit": True},
     {"owner": 5}, {"source": b"x"}, {"live": "yes"}, {"every": 2}],
)  # fmt: skip
def test_nonsense_in_a_list_is_refused(db: SessionDB, bad: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.list_sessions(**bad)


# --- what a person means -------------------------------------------------------------------------------------


def test_id_of_any_session_means_the_head(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    assert db.resolve("talk").id == db.resolve(head.id).id == head.id


def test_unique_prefix_of_any_session_means_the_head(db: SessionDB) -> None:
    conversations.begin(db, "alpha", "a")
    head = db.commit_compaction(db.snapshot("alpha"), summary="s", cut_seq=1, child_id="beta")
    conversations.begin(db, "gamma")
    assert db.resolve("al").id == db.resolve("be").id == head.id


def test_ambiguous_prefix_lists_the_candidates(db: SessionDB) -> None:
    for name in ("talk-1", "talk-2", "other"):
        conversations.begin(db, name)
    with pytest.raises(errors.Ambiguous) as refusal:
        db.resolve("talk")
    assert refusal.value.candidates == ("talk-1", "talk-2")
    assert (refusal.value.text, "talk-1, talk-2" in str(refusal.value)) == ("talk", True)


def test_sessions_of_one_conversation_are_not_ambiguous(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.commit_compaction(db.snapshot("talk"), summary="s", cut_seq=1, child_id="talk-continued")
    assert db.resolve("tal").id == "talk-continued"


def test_whole_id_wins_over_longer_ones(db: SessionDB) -> None:
    for name in ("talk", "talk-2"):
        conversations.begin(db, name)
    assert db.resolve("talk").id == "talk"


def test_title_means_its_conversation_however_it_is_spaced(db: SessionDB) -> None:
    conversations.begin(db, "talk", title="my  plan")
    assert db.resolve("my plan").id == db.resolve(" my   plan ").id == "talk"


def test_whoever_looks_finds_a_title_by_other_capitals_or_a_part(db: SessionDB) -> None:
    for name, title in (("a", "Second one"), ("b", "The second trip"), ("c", "SECOND"), ("d", "Third"), ("e", None)):
        db.create_session(name, source="test", title=title)
    near = {text: db.resolve(text, near=True).id for text in ("second", "second  O", "trip", "THIRD", "d")}
    assert near == {"second": "c", "second  O": "a", "trip": "b", "THIRD": "d", "d": "d"}
    with pytest.raises(errors.Ambiguous) as several:
        db.resolve("con", near=True)
    assert set(several.value.candidates) == {"a", "b", "c"}
    for text in ("second", "trip", "con"):  # Who removes has to name it.
        with pytest.raises(errors.NoSuchSession):
            db.resolve(text)


def test_id_wins_over_a_title_and_a_title_over_a_prefix(db: SessionDB) -> None:
    conversations.begin(db, "one", title="two")
    conversations.begin(db, "two", title="thr")
    conversations.begin(db, "three")
    assert db.resolve("two").id == "two"
    assert db.resolve("thr").id == "two"


def test_last_means_the_most_recently_active(db: SessionDB, clock: conversations.Clock) -> None:
    with pytest.raises(errors.NoSuchSession):
        db.resolve("last")
    conversations.begin(db, "one", "a")
    clock.advance(1)
    conversations.begin(db, "two", "a", owner="you")
    assert (db.resolve("last").id, db.resolve("last", owner="").id) == ("two", "one")
    conversations.begin(db, "three", title="last")
    assert db.resolve("last").id == "three"


def test_owner_sees_only_their_own(db: SessionDB) -> None:
    conversations.begin(db, "secret-1", owner="you", title="plan")
    for text in ("secret-1", "secret", "plan"):
        with pytest.raises(errors.NoSuchSession):
            db.resolve(text, owner="me")
        assert db.resolve(text, owner="you").id == "secret-1"


def test_what_fits_nothing_is_said(db: SessionDB) -> None:
    conversations.begin(db, "gone", "a")
    db.delete_conversation("gone")
    with pytest.raises(errors.NoSuchSession):
        db.resolve("nothing like it")
    with pytest.raises(errors.ConversationDeleted):
        db.resolve("gone")


def test_letters_that_mean_something_to_databases_mean_nothing_here(db: SessionDB) -> None:
    for name in ("a%b", "a_b", "axb", "a'b"):
        conversations.begin(db, name)
    for name in ("a%", "a_", "a'"):
        assert db.resolve(name).id == name + "b"


@pytest.mark.parametrize("text", ["", "  ", None, 5, b"talk", ["talk"], "\ud800", "a\0b", "a\nb"])
def test_what_no_person_types_is_refused(db: SessionDB, text: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.resolve(text)


def test_a_title_is_found_whoever_owns_it_and_named_when_several_do(db: SessionDB) -> None:
    db.create_session("one", source="test", title="Trip", owner="anna")
    assert db.resolve("Trip").id == "one"
    db.create_session("two", source="test", title="Trip", owner="ben")
    assert db.resolve("Trip", owner="ben").id == "two"
    with pytest.raises(errors.Ambiguous) as caught:
        db.resolve("Trip")
    assert caught.value.candidates == ("one", "two")


def test_the_latest_are_listed_in_order_however_long_ago_the_others_were(
    db: SessionDB, clock: conversations.Clock
) -> None:
    """Minutes, hours and days apart; one without a message, one from a clock that was ahead, one that went on."""
    conversations.begin(db, "ahead", "a")
    for number, seconds in enumerate((0, 1, 599, 600, 7_000, 90_000)):
        clock.now = conversations.NOON + seconds
        conversations.begin(db, f"c{number}", "hello")
    clock.now = conversations.NOON + 3_000
    db.create_session("empty", source="test")
    clock.now = conversations.NOON - 5_000
    conversations.say(db, "ahead", "back")
    clock.now = conversations.NOON + 95_000
    conversations.say(db, "c1", "again")
    order = ["c1", "c5", "c4", "empty", "c3", "c2", "c0", "ahead"]
    assert ids(db.list_sessions()) == order
    for limit in range(1, 9):
        assert ids(db.list_sessions(limit=limit)) == order[:limit]
        assert ids(db.list_sessions(limit=2, skip=limit)) == order[limit : limit + 2]
    assert db.resolve("last").id == "c1"


def test_a_list_of_the_latest_looks_at_no_others(db: SessionDB) -> None:
    conversations.begin(db, "talk", "hello")
    wanted = {"owner": None, "source": None, "live": None, "folder": "/work", "every": False}
    asked = {**wanted, "limit": 1, "skip": 0, "most": 1}
    if backends.in_postgres(db):
        with psycopg.connect(db.driver.target) as connection:
            connection.execute("SET enable_seqscan = off")  # so few rows would be read as a whole
            plan = connection.execute("EXPLAIN " + queries.load("postgres")["sessions_list"], asked).fetchall()
    else:
        plan = db.driver._writer.execute("EXPLAIN QUERY PLAN " + queries.load("sqlite")["sessions_list"], asked)
    told = " ".join(str(row[-1]) for row in plan)
    assert told.count("conversations_by_activity") == 3, told
