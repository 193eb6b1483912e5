"""Hints for other hosts: how they are recorded, encoded and decoded."""

from __future__ import annotations

import re

import pytest

from holdfast.store import notifications, queries, validation

MOVED, CAME = (notifications.Hint(kind, "talk") for kind in ("moved", "came"))
ARRIVED = notifications.Hint("arrived", "chat:1")


LONGEST = notifications.Hint("freed", "\U0001f480" * validation.MAX_ROUTE)


@pytest.mark.parametrize("hint", [MOVED, ARRIVED, notifications.LOST, notifications.Hint("moved", " a  b "), LONGEST])
def test_hint_is_decoded_by_all_except_its_sender(hint: notifications.Hint) -> None:
    (text,) = notifications.encode([hint], "0" * 16)
    assert notifications.decode(text, "you") == hint
    assert notifications.decode(text, "0" * 16) is None
    assert len(text.encode()) < 8_000  # the limit of PostgreSQL
    assert hint.is_about(hint.conversation_id)
    assert hint.is_about("another") is (hint is notifications.LOST)


@pytest.mark.parametrize(
    "text",
    ["", "x", "x moved ", "moved talk", "x stolen talk", "x MOVED talk", "x  moved talk", "x moved a\nb",
     "x moved \x1b[31m", f"x moved {'y' * (validation.MAX_ROUTE + 1)}", '{"kind": "moved"}'],
)  # fmt: skip
def test_invalid_hint_is_ignored(text: str) -> None:
    assert notifications.decode(text, "me") is None


def test_too_many_hints_become_one_for_everything() -> None:
    many = [notifications.Hint("moved", str(number)) for number in range(notifications.MAX_HINTS + 1)]
    assert [notifications.decode(text, "you") for text in notifications.encode(many, "me")] == [notifications.LOST]
    assert len(notifications.encode(many[1:], "me")) == notifications.MAX_HINTS


def test_changes_of_locked_conversations_routes_and_platforms_are_recorded() -> None:
    recorder = notifications.HintRecorder()
    recorder.record_lock((7, "talk", "owner"))
    for seq in (4, 5):
        recorder.record_change("message_insert", {"conversation": 7, "seq": seq})
    recorder.record_change("conversation_update", {"key": 7})
    recorder.record_change("inbox_insert", {"conversation": 7, "key": "the inbox key"})
    recorder.record_change("lease_insert", {"conversation": 7})
    recorder.record_change("message_insert", {"conversation": 8, "seq": 1})  # which was not locked
    recorder.record_change("arrival_insert", {"route": "chat:1", "platform": "far", "key": "k"})
    recorder.record_change("reply_insert", {"platform": "far", "key": None, "conversation": 7})
    assert recorder.hints == {MOVED, CAME, ARRIVED, notifications.Hint("outgoing", "far")}
    assert recorder.appended == {"talk": (4, 5)}


# Queries that change a log, a view, an inbox, the mail or a lease, and why some of them do not notify.
CHANGES = re.compile(
    r"\b(?:INTO (?:messages|inbox|hides|compactions|arrivals|outbox)|UPDATE (?:messages|conversations|hides)|"
    r"DELETE FROM (?:messages|conversations|leases|hides|compactions))\b"
)
SILENT = {
    "the head moves with it": {"hide_insert", "hide_shown", "compaction_insert"},
    "the conversation goes with it": {"erase_messages", "erase_compactions", "erase_hides"},
    "no client waits for it": {"fence_next", "title_set", "folder_set", "metadata_set", "message_redact"},
    "the store is being filled": {
        *("import_message", "import_moves", "import_fence", "import_compaction", "copy_inbox_entry"),
        *("copy_arrival", "copy_outgoing", "restore_counters", "restore_leases"),
    },
}


def test_every_changing_query_notifies_or_is_listed_as_silent() -> None:
    known = queries.load("postgres")
    changing = {name for name, sql in known.items() if CHANGES.search(sql)}
    silent = set().union(*SILENT.values())
    notifying = {*notifications._BY_CONVERSATION, *notifications._BY_PARAMETER}
    assert changing - silent - notifying == set(), "a new one has to be decided about"
    assert silent <= changing - notifying
    for name in notifications._BY_CONVERSATION:
        assert "%(conversation)s" in known[name] or "%(key)s" in known[name], "of which conversation?"
    for name, (_, value) in notifications._BY_PARAMETER.items():
        assert f"%({value})s" in known[name], "about what?"
