"""Originals for a person: all a message holds, by number, with what was left out said."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.agent.commands import context

CALL = types.ToolCall("x", "write_file", '{"path": "a.py", "text": "print(1)"}')


async def told(db: AsyncSessionDB, count: int) -> None:
    await db.create_session("talk", source="test")
    await db.append_messages("talk", [types.NewMessage(role="user", content=f"text {n + 1}") for n in range(count)])


async def test_calls_images_and_attachments_are_shown_with_what_was_said(db: AsyncSessionDB) -> None:
    await told(db, 0)
    image = {"type": "image", "media_type": "image/png", "data": "aaaa" * 300}
    said = [{"type": "note", "text": "It is Monday."}, {"type": "text", "text": "Look: "}, image]
    await db.append_message("talk", role="user", content=said)
    await db.append_message("talk", role="assistant", tool_calls=[CALL])
    kept = (await db.blobs.put(b"long", "text/plain")).digest
    output = [{"type": "text", "text": "begins"}, {"type": "output", "blob": kept}]
    await db.append_message("talk", role="tool", content=output, tool_call_id="x")
    assert (await context.find_originals(db, "talk", "1-3")).splitlines() == [
        "[1 user] Look: ",
        "[image/png, 900 bytes]",
        f"[2 assistant] [calls write_file {CALL.arguments}]",
        "[3 tool] begins",
        f"[output, attachment {kept}]",
    ]
    by_words = await context.find_originals(db, "talk", "look")
    assert "[1 user] Look: \n[image/png, 900 bytes]" in by_words


async def test_a_range_is_cut_at_50_messages_and_says_how_to_go_on(db: AsyncSessionDB) -> None:
    await told(db, 120)
    for asked, first, last, rest in (
        ("1-120", 1, 50, "51-120"),
        ("3-999", 3, 52, "53-120"),
        ("1-51", 1, 50, "51-51"),
    ):
        *lines, end = (await context.find_originals(db, "talk", asked)).splitlines()
        assert lines == [f"[{n} user] text {n}" for n in range(first, last + 1)]
        assert end == f"[The first 50 messages; /recall {rest} shows the others.]"
    for asked, count in (("1-50", 50), ("71-120", 50), ("71-999", 50), ("120-120", 1), ("7", 1)):
        lines = (await context.find_originals(db, "talk", asked)).splitlines()
        assert len(lines) == count
        assert "] text " in lines[-1]
    assert await context.find_originals(db, "talk", "121") == "Nothing was found."


@pytest.mark.parametrize("argument", ["", "0", "0-3", "3-1"])
async def test_what_is_the_number_of_no_message_is_refused_in_plain_words(argument: str, db: AsyncSessionDB) -> None:
    await told(db, 3)
    with pytest.raises(errors.InvalidArgument, match=r"^(Message numbers start at 1|/recall takes the number)"):
        await context.find_originals(db, "talk", argument)
