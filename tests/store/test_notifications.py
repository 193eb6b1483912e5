"""Hints as they are noted, sent and read: what anybody may send is believed only as far as it makes one look."""

from __future__ import annotations

import re

import pytest

from holdfast.store import notifications, queries, validation

MOVED, CAME, FREED = (notifications.Hint(kind, "talk") for kind in ("moved", "came", "freed"))
ARRIVED = notifications.Hint("arrived", "chat:1")


@pytest.mark.parametrize(
    "hint", [MOVED, CAME, FREED, ARRIVED, notifications.LOST, notifications.Hint("moved", "an id  with spaces ")]
)
def test_a_hint_is_read_as_it_was_written_by_everybody_but_its_sender(hint: notifications.Hint) -> None:
    (text,) = notifications.encode([hint], "me")
    assert notifications.decode(text, "you") == hint
    assert notifications.decode(text, "me") is None


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "x", "x moved", "x moved ", "moved talk", "x stolen talk", "x MOVED talk", "x  moved talk",
        "x moved a\nb", "x moved \x00", "x moved \x1b[31m", f"x moved {'y' * (validation.MAX_ROUTE + 1)}",
        "x freed " + "z" * 7_000, '{"kind": "moved"}', "\u202e moved \u202e",
    ],
)  # fmt: skip
def test_what_is_no_hint_of_ours_is_ignored(text: str) -> None:
    assert notifications.decode(text, "me") is None


def test_very_many_at_once_are_one_that_says_look_at_all() -> None:
    many = [notifications.Hint("moved", str(number)) for number in range(notifications.MAX_HINTS + 1)]
    assert [notifications.decode(text, "you") for text in notifications.encode(many, "me")] == [notifications.LOST]
    assert len(notifications.encode(many[1:], "me")) == notifications.MAX_HINTS


def test_every_hint_fits_into_what_postgresql_sends() -> None:
    (text,) = notifications.encode([notifications.Hint("freed", "\U0001f480" * validation.MAX_ROUTE)], "0" * 16)
    assert len(text.encode()) < 8_000


@pytest.mark.parametrize("hint", [MOVED, notifications.LOST])
def test_what_was_lost_may_be_about_any_conversation(hint: notifications.Hint) -> None:
    assert hint.is_about("talk")
    assert hint.is_about("another") is (hint is notifications.LOST)


def test_only_what_somebody_may_wait_for_is_noted_and_only_of_conversations_that_were_there() -> None:
    noted = notifications.HintRecorder()
    noted.record_lock((7, "talk", "owner"))
    for seq in (4, 5):
        noted.record_change("message_insert", {"conversation": 7, "seq": seq})
    noted.record_change("conversation_update", {"key": 7})
    noted.record_change("inbox_insert", {"conversation": 7, "key": "the inbox key"})
    noted.record_change("lease_insert", {"conversation": 7})
    noted.record_change("message_insert", {"conversation": 8, "seq": 1})
    assert noted.hints == {MOVED, CAME}
    assert noted.appended == {"talk": (4, 5)}


def test_what_arrives_and_what_goes_out_is_noted_by_route_and_platform() -> None:
    noted = notifications.HintRecorder()
    noted.record_change("arrival_insert", {"route": "chat:1", "platform": "far", "key": "k"})
    noted.record_change("reply_insert", {"platform": "far", "key": None, "conversation": 7})
    assert noted.hints == {ARRIVED, notifications.Hint("outgoing", "far")}


# What a log, a view, an inbox, the mail or a lease is changed by, and why nobody is told of it by the query itself.
CHANGES = re.compile(
    r"\b(?:INTO (?:messages|inbox|hides|compactions|arrivals|outbox)|UPDATE (?:messages|conversations|hides)|"
    r"DELETE FROM (?:messages|conversations|leases|hides|compactions))\b"
)
SILENT = {
    "the head moves with it": {"hide_insert", "hide_shown", "compaction_insert"},
    "the conversation goes with it": {"erase_messages", "erase_compactions", "erase_hides"},
    "nobody waits for it": {"fence_next", "title_set", "folder_set", "metadata_set", "message_redact"},
    "nobody has a store open that is being filled": {
        *("import_message", "import_moves", "import_fence", "import_compaction", "copy_inbox_entry"),
        *("copy_arrival", "copy_outgoing", "restore_counters", "restore_leases"),
    },
}


def test_every_query_that_changes_what_somebody_may_wait_for_tells_or_is_known_not_to() -> None:
    known = queries.load("postgres")
    changing = {name for name, sql in known.items() if CHANGES.search(sql)}
    silent = set().union(*SILENT.values())
    told = {*notifications._BY_CONVERSATION, *notifications._BY_PARAMETER}
    assert changing - silent - told == set(), "a new one has to be decided about"
    assert silent <= changing - told
    for name in notifications._BY_CONVERSATION:
        assert "%(conversation)s" in known[name] or "%(key)s" in known[name], "of which conversation?"
    for name, (_, value) in notifications._BY_PARAMETER.items():
        assert f"%({value})s" in known[name], "about what?"
