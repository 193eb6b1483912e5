"""A transcript from messages: calls with their results, marks where compactions cut, what was taken back told apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import content_parts, types
from holdfast.tui import entries


def message(seq: int, role: types.Role, content: types.Content = "", **body: Any) -> types.Message:
    made = types.Body(content=content, **body)
    return types.Message(seq, f"u{seq}", "s", role, 0.0, msgspec.json.encode(made).decode())


def calling(seq: int, *ids: str) -> types.Message:
    return message(seq, "assistant", tool_calls=tuple(types.ToolCall(each, "look", {"at": each}) for each in ids))


def result(seq: int, id: str, content: str) -> types.Message:
    return message(seq, "tool", content, tool_call_id=id)


def compaction(epoch: int, cut: int, base: int | None = None) -> types.Compaction:
    return types.Compaction(epoch, base, "s", cut, cut, 1, 0.0, "summary")


def shape(found: list[entries.Entry]) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in found]


LOG = [
    message(1, "user", "hello"),
    calling(2, "a", "b"),
    result(3, "a", "fine"),
    result(4, "b", f"{content_parts.ERROR}it is gone"),
    message(5, "assistant", "done", model="m"),
]


def test_a_call_and_its_result_are_one_entry() -> None:
    found = entries.build_entries(LOG, entries.TranscriptRange(5))
    assert shape(found) == [
        ("user", "hello"),
        ("tool", "fine"),
        ("tool", f"{content_parts.ERROR}it is gone"),
        ("reply", "done"),
    ]
    assert [(each.name, each.ok) for each in found[1:3]] == [('look {"at":"a"}', True), ('look {"at":"b"}', False)]


def test_a_page_has_what_begins_in_it_also_where_the_result_stands_in_the_next() -> None:
    story = entries.TranscriptRange(5)
    assert shape(entries.build_entries(LOG, story, within=(1, 3))) == [
        ("user", "hello"),
        ("tool", "fine"),
        ("tool", f"{content_parts.ERROR}it is gone"),
    ]
    assert shape(entries.build_entries(LOG, story, within=(4, 5))) == [("reply", "done")]


def test_a_result_whose_call_is_far_away_stands_alone_and_a_call_without_a_result_has_none() -> None:
    assert shape(entries.build_entries([result(3, "a", "fine")], entries.TranscriptRange(3))) == [("tool", "fine")]
    (open_call,) = entries.build_entries([calling(2, "a")], entries.TranscriptRange(2))
    assert open_call.ok is None


def test_marks_stand_behind_the_message_they_cut_after_and_say_whether_they_hold() -> None:
    made = (compaction(2, 1), compaction(4, 2), compaction(6, 4, base=2))
    story = entries.TranscriptRange(5, compactions=made, active_epoch=6)
    marks = [each for each in entries.build_entries(LOG, story) if each.kind == "compaction"]
    assert [(each.epoch, each.text, each.hidden) for each in marks] == [
        (2, "compacted: messages 1 to 1", False),
        (4, "undone: the compaction of messages 1 to 2", True),
        (6, "compacted: a summary replaces messages 1 to 4", False),
    ]


def test_a_base_that_goes_in_circles_ends() -> None:
    assert entries.TranscriptRange(5, compactions=(compaction(2, 1, base=2),), active_epoch=2).active_epochs == {2}


def test_what_was_taken_back_is_there_and_told_apart_until_it_is_brought_back() -> None:
    taken = types.Hide(3, 5, 5, None)
    last = entries.build_entries(LOG, entries.TranscriptRange(5, hides=(taken,)))[-1]
    assert (last.text, last.hidden) == ("done", True)
    brought = types.Hide(3, 5, 5, 4)
    assert not entries.build_entries(LOG, entries.TranscriptRange(5, hides=(brought,)))[-1].hidden


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (types.Message(1, "u", "s", "user", 0.0, ""), "notice", "redacted"),
        (types.Message(1, "u", "s", "user", 0.0, "{broken"), "notice", "damaged"),
        (message(1, "user", [content_parts.notice("It ended.", "process")]), "program", "It ended."),
        (
            message(1, "user", [{"type": "text", "text": "see"}, {"type": "image", "url": "x"}]),
            "user",
            "see\n[image]",
        ),
        (message(1, "assistant", [{"type": "reasoning", "text": "hm"}]), "reasoning", "hm"),
    ],
)
def test_every_kind_of_message_has_its_entry(given: types.Message, kind: str, words: str) -> None:
    (found,) = entries.build_entries([given], entries.TranscriptRange(1))
    assert found.kind == kind
    assert words in found.text


def test_what_stands_beside_messages_has_its_place_behind_them() -> None:
    beside = {
        0: [entries.Entry((0, 1), "notice", "first")],
        1: [entries.Entry((1, 1), "answer", "then")],
    }
    assert shape(entries.build_entries(LOG[:1], entries.TranscriptRange(1), beside)) == [
        ("notice", "first"),
        ("user", "hello"),
        ("answer", "then"),
    ]
