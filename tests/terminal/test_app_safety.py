"""Stored text cannot act on the terminal: whatever is drawn has no codes and no links, wherever it comes from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prompt_toolkit.completion import Completion
from rich.segment import Segment

from holdfast import AsyncSessionDB, content_parts, events, types
from holdfast.terminal import event_text, status_line
from holdfast.tui import context_meter, conversation_list, entry_rows, prompt_input
from tests.support.tui import Seat, sat

EVIL = (
    "\x1b]52;c;aGk=\x07\x1b]8;;http://x\x1b\\go\x1b]8;;\x1b\\\x9b31m\x7f\x00\u202e\r[red]x[/red] [@click=app.leave]y[/]"
)


def segments(seat: Seat) -> Iterator[Segment]:
    for strip in seat.screen.screen._compositor.render_strips():
        yield from strip


def harmless(drawn: str) -> None:
    assert drawn
    assert not any(ord(each) < 0x20 or 0x7F <= ord(each) <= 0x9F or each == "\u202e" for each in drawn)


async def past(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test", title="A title")
    call = types.ToolCall("c", f"look{EVIL}", {"at": EVIL})
    await db.append_messages(
        "talk",
        [
            types.NewMessage(role="user", content=f"1 {EVIL}"),
            types.NewMessage(
                role="assistant", content=[{"type": "reasoning", "text": f"2 {EVIL}"}], tool_calls=(call,)
            ),
            types.NewMessage(role="tool", content=f"3 {EVIL}", tool_call_id="c"),
            types.NewMessage(role="assistant", content=f"4 {EVIL}", model=f"5 {EVIL}"),
            types.NewMessage(role="user", content=[content_parts.notice(f"6 {EVIL}", "process")]),
            types.NewMessage(role="assistant", content=f"7 [a link](http://x/) {EVIL}"),
        ],
    )


@pytest.mark.parametrize("opened", [False, True])
async def test_no_message_result_notice_or_question_acts_on_the_terminal(opened: bool) -> None:
    async with sat(past, size=(110, 120)) as seat:
        await seat.sees("7 a link")
        shown = seat.screen.transcript
        if opened:
            shown._opened |= {(seq, place) for seq in range(1, 7) for place in range(3)}
            shown._redraw()
            await seat.sees("▾ reasoning", "▾ ✓ look")
        seat.screen._add_notice("answer", EVIL)
        seat.screen._add_notice("notice", EVIL, "error")
        asked = events.ApprovalAsked("1", "c", EVIL, EVIL, EVIL, EVIL, EVIL)
        await seat.ask(asked)
        await seat.until(lambda: seat.screen.approval.has_class("shown"))
        await seat.pilot.pause()
        drawn = list(segments(seat))
        harmless("".join(each.text for each in drawn))
        assert not any(each.style and each.style.link for each in drawn)
        # Markup of theirs is text as any other: nothing that a click would do.
        words = "".join(each.text for each in drawn)
        assert "[red]x[/red]" in words
        assert not any(each.style and "@click" in each.style.meta for each in drawn if "y[/]" in each.text)


@pytest.mark.parametrize(
    "words",
    [
        lambda pen: context_meter.draw_status(status_line.ConversationStatus(EVIL, 1, 10, soft=5, hard=8), pen).plain,
        lambda pen: prompt_input.draw_choices([Completion(EVIL, display=EVIL, display_meta=EVIL)], 3),
        lambda pen: entry_rows.draw_reply(EVIL, [], pen)[0].text.plain,
    ],
    ids=["model in the line", "candidate", "model of an answer"],
)
def test_nor_does_a_name(words: object) -> None:
    harmless(words(entry_rows.RowFormat(200, marks=event_text.Marks())))  # type: ignore[operator]


async def test_nor_does_the_list_of_conversations() -> None:
    async def several(db: AsyncSessionDB) -> None:
        await past(db)
        await db.create_session("other", source="test", title="[red]x[/red] [@click=app.leave]y[/]")

    async with sat(several, size=(110, 30)) as seat:
        await seat.pilot.press("ctrl+o")
        await seat.until(lambda: isinstance(seat.screen.screen, conversation_list.ConversationScreen))
        await seat.until(lambda: "[@click=app.leave]y[/]" in "".join(each.text for each in segments(seat)))
        harmless("".join(each.text for each in segments(seat)))
        assert not any(each.style and "@click" in each.style.meta for each in segments(seat) if "y[/]" in each.text)
