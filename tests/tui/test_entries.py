"""Entries of a transcript: calls with their results, marks of compactions, and undone messages."""

from __future__ import annotations

import pytest

from holdfast import content_parts, types
from holdfast.tui.entries import Entry, TranscriptRange, build_entries
from tests.support.messages import message


def compaction(epoch: int, cut: int, base: int | None = None) -> types.Compaction:
    return types.Compaction(epoch, base, "s", cut, cut, 1, 0.0, "summary")


def shape(found: list[Entry]) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in found]


CALLS = message(2, "assistant", tool_calls=tuple(types.ToolCall(each, "look", {"at": each}) for each in "ab"))
FAILED = f"{content_parts.ERROR}it is gone"
LOG = [
    message(1, "user", "hello"),
    CALLS,
    message(3, "tool", "fine", tool_call_id="a"),
    message(4, "tool", FAILED, tool_call_id="b"),
    message(5, "assistant", "done", model="m"),
]
SHAPE = [("user", "hello"), ("tool", "fine"), ("tool", FAILED), ("reply", "done")]


def test_call_and_result_are_one_entry_of_the_page_of_the_call() -> None:
    whole = TranscriptRange(5)
    found = build_entries(LOG, whole)
    assert shape(found) == SHAPE
    assert [(each.name, each.ok) for each in found[1:3]] == [('look {"at":"a"}', True), ('look {"at":"b"}', False)]
    assert shape(build_entries(LOG, whole, within=(1, 3))) == SHAPE[:3]
    assert shape(build_entries(LOG, whole, within=(4, 5))) == SHAPE[3:]
    assert shape(build_entries([LOG[2]], TranscriptRange(3))) == [("tool", "fine")]
    assert [each.ok for each in build_entries([CALLS], TranscriptRange(2))] == [None, None]


def test_marks_follow_the_message_they_cut_after_and_show_whether_they_are_active() -> None:
    made = (compaction(2, 1), compaction(4, 2), compaction(6, 4, base=2))
    found = build_entries(LOG, TranscriptRange(5, compactions=made, active_epoch=6))
    assert [(each.epoch, each.text, each.hidden) for each in found if each.kind == "compaction"] == [
        (2, "compacted: messages 1 to 1", False),
        (4, "undone: the compaction of messages 1 to 2", True),
        (6, "compacted: a summary replaces messages 1 to 4", False),
    ]


@pytest.mark.parametrize("shown_again", [None, 4])
def test_undone_messages_are_hidden_until_they_are_restored(shown_again: int | None) -> None:
    last = build_entries(LOG, TranscriptRange(5, hides=(types.Hide(3, 5, 5, shown_again),)))[-1]
    assert (last.text, last.hidden) == ("done", shown_again is None)


IMAGE: types.Content = [{"type": "text", "text": "see"}, {"type": "image", "url": "x"}]


@pytest.mark.parametrize(
    ("stored", "kind", "words"),
    [
        (types.Message(1, "u", "s", "user", 0.0, ""), "notice", "redacted"),
        (types.Message(1, "u", "s", "user", 0.0, "{broken"), "notice", "damaged"),
        (message(1, "user", [content_parts.notice("It ended.", "process")]), "program", "It ended."),
        (message(1, "user", IMAGE), "user", "see\n[image]"),
        (message(1, "assistant", [{"type": "reasoning", "text": "hm"}]), "reasoning", "hm"),
    ],
)
def test_every_kind_of_message_has_an_entry(stored: types.Message, kind: str, words: str) -> None:
    (found,) = build_entries([stored], TranscriptRange(1))
    assert found.kind == kind
    assert words in found.text
