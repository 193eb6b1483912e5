"""Lists of conversations, and the resolution of ids, prefixes and titles that a person types."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from tests.support import conversations
from tests.support.conversations import Clock


def ids(sessions: list) -> list[str]:
    return [session.id for session in sessions]


def test_list_has_the_heads_most_recently_active_first(db: SessionDB, clock: Clock) -> None:
    """Minutes, hours and days apart; one without a message, one from a clock that was ahead, one that was resumed."""
    conversations.begin(db, "ahead", "a")
    for number, seconds in enumerate((0, 1, 599, 600, 7_000, 90_000)):
        clock.now = conversations.NOON + seconds
        conversations.begin(db, f"c{number}", "hello", folder="/one" if number % 3 else "/two")
    clock.now = conversations.NOON + 3_000
    db.create_session("empty", source="test")
    clock.now = conversations.NOON - 5_000
    conversations.say(db, "ahead", "back")
    clock.now = conversations.NOON + 95_000
    conversations.say(db, "c1", "again")
    order = ["c1", "c5", "c4", "empty", "c3", "c2", "c0", "ahead"]
    in_folder = [name for name in order if name not in ("c0", "c3")]
    assert ids(db.list_sessions()) == order
    assert db.list_sessions()[0].active_at == clock.now
    for limit in range(1, 9):
        assert ids(db.list_sessions(limit=limit)) == order[:limit]
        assert ids(db.list_sessions(limit=2, skip=limit)) == order[limit : limit + 2]
        assert ids(db.list_sessions(folder="/one", limit=2, skip=limit)) == in_folder[limit : limit + 2]
    assert db.list_sessions(limit=0) == []
    assert db.resolve("last").id == "c1"
    head = conversations.compact(db, "c1", 1)
    assert ids(db.list_sessions(limit=2)) == [head.id, "c5"]
    assert ids(db.list_sessions(every=True, limit=2)) == [head.id, "c1"]


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


def test_id_or_unique_prefix_of_any_session_is_the_head(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.commit_compaction(db.snapshot("talk"), summary="s", cut_seq=1, child_id="talk-continued")
    for text in ("talk", "talk-continued", "tal", "talk-c"):
        assert db.resolve(text).id == "talk-continued"
    conversations.begin(db, "talk-2")
    assert db.resolve("talk").id == "talk-continued", "a whole id wins over longer ones"
    with pytest.raises(errors.Ambiguous) as refusal:
        db.resolve("tal")
    assert refusal.value.candidates == ("talk", "talk-2")
    assert (refusal.value.text, "talk, talk-2" in str(refusal.value)) == ("tal", True)
    conversations.begin_each(db, ("a%b", "a_b", "axb", "a'b"))
    for text in ("a%", "a_", "a'"):
        assert db.resolve(text).id == text + "b"


def test_title_is_resolved_however_it_is_spaced(db: SessionDB) -> None:
    conversations.begin(db, "one", title="two  words", owner="anna")
    assert db.resolve("two words").id == db.resolve(" two   words ").id == "one"
    conversations.begin(db, "two", title="two words", owner="ben")
    assert db.resolve("two words", owner="ben").id == "two"
    with pytest.raises(errors.Ambiguous) as refusal:
        db.resolve("two words")
    assert refusal.value.candidates == ("one", "two")
    conversations.begin(db, "three", title="two")
    conversations.begin(db, "four", title="thr")
    assert db.resolve("two").id == "two", "an id wins over a title"
    assert db.resolve("thr").id == "four", "a title wins over a prefix"


def test_title_is_resolved_by_a_part_of_it_on_request(db: SessionDB) -> None:
    for name, title in (("a", "Second one"), ("b", "The second trip"), ("c", "SECOND"), ("d", "Third"), ("e", None)):
        db.create_session(name, source="test", title=title)
    near = {text: db.resolve(text, near=True).id for text in ("second", "second  O", "trip", "THIRD", "d")}
    assert near == {"second": "c", "second  O": "a", "trip": "b", "THIRD": "d", "d": "d"}
    with pytest.raises(errors.Ambiguous) as several:
        db.resolve("con", near=True)
    assert set(several.value.candidates) == {"a", "b", "c"}
    for text in ("second", "trip", "con"):  # destructive commands need the whole title
        with pytest.raises(errors.NoSuchSession):
            db.resolve(text)


def test_last_is_the_most_recently_active_unless_it_is_a_title(db: SessionDB, clock: Clock) -> None:
    with pytest.raises(errors.NoSuchSession):
        db.resolve("last")
    conversations.begin(db, "one", "a")
    clock.advance(1)
    conversations.begin(db, "two", "a", owner="you")
    assert (db.resolve("last").id, db.resolve("last", owner="").id) == ("two", "one")
    conversations.begin(db, "three", title="last")
    assert db.resolve("last").id == "three"


def test_owner_resolves_only_conversations_of_their_own(db: SessionDB) -> None:
    conversations.begin(db, "secret-1", owner="you", title="plan")
    for text in ("secret-1", "secret", "plan"):
        assert db.resolve(text, owner="you").id == "secret-1"
    # Neither a conversation nor its deletion is disclosed to another owner of the same store.
    for _ in range(2):
        for text in ("secret-1", "secret", "plan", "unknown"):
            with pytest.raises(errors.NoSuchSession) as refusal:
                db.resolve(text, owner="me")
            assert not isinstance(refusal.value, errors.ConversationDeleted)
        if db.get_session("secret-1"):
            db.delete_conversation("secret-1")
    for owner in (None, ""):
        with pytest.raises(errors.ConversationDeleted):
            db.resolve("secret-1", owner=owner)
