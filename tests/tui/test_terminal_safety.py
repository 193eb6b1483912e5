"""Stored text cannot act on the terminal: no control codes, no links and no markup are drawn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prompt_toolkit.completion import Completion
from rich.segment import Segment

from holdfast import AsyncSessionDB, content_parts, events, types
from holdfast.terminal import status_line
from holdfast.tui import context_meter, entry_rows, prompt_input
from tests.support.tui import TuiDriver, open_tui

MARKUP = "[red]x[/red] [@click=app.leave]y[/]"
EVIL = f"\x1b]52;c;aGk=\x07\x1b]8;;http://x\x1b\\go\x1b]8;;\x1b\\\x9b31m\x7f\x00\u202e\r{MARKUP}"


def segments(tui: TuiDriver) -> list[Segment]:
    return [segment for strip in tui.app.screen._compositor.render_strips() for segment in strip]


def text(tui: TuiDriver) -> str:
    return "".join(each.text for each in segments(tui))


def check_harmless(drawn: str) -> None:
    assert drawn
    assert not any(ord(each) < 0x20 or 0x7F <= ord(each) <= 0x9F or each == "\u202e" for each in drawn)


async def store_evil(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test", title="A title")
    call = types.ToolCall("c", f"look{EVIL}", {"at": EVIL})
    reasoning: types.Content = [{"type": "reasoning", "text": f"2 {EVIL}"}]
    notice: types.Content = [content_parts.notice(f"6 {EVIL}", "process")]
    messages = [
        types.NewMessage(role="user", content=f"1 {EVIL}"),
        types.NewMessage(role="assistant", content=reasoning, tool_calls=(call,)),
        types.NewMessage(role="tool", content=f"3 {EVIL}", tool_call_id="c"),
        types.NewMessage(role="assistant", content=f"4 {EVIL}", model=f"5 {EVIL}"),
        types.NewMessage(role="user", content=notice),
        types.NewMessage(role="assistant", content=f"7 [a link](http://x/) {EVIL}"),
    ]
    await db.append_messages("talk", messages)
    await db.create_session("other", source="test", title=MARKUP)


async def test_messages_notices_requests_and_titles_are_harmless() -> None:
    async with open_tui(store_evil, size=(110, 120)) as tui:
        shown = tui.app.transcript
        await tui.wait_for("7 a link")
        check_harmless(text(tui))
        shown._opened |= {(seq, place) for seq in range(1, 7) for place in range(3)}
        shown._redraw()
        await tui.wait_for("▾ reasoning", "▾ ✓ look")
        tui.app._add_notice("answer", EVIL)
        tui.app._add_notice("notice", EVIL, "error")
        await tui.ask(events.ApprovalAsked("1", "c", EVIL, EVIL, EVIL, EVIL, EVIL))
        await tui.until(lambda: tui.app.approval.has_class("shown"))
        await tui.pilot.pause()
        assert "[red]x[/red]" in text(tui)
        for _ in range(2):
            drawn = segments(tui)
            check_harmless(text(tui))
            assert not any(each.style and each.style.link for each in drawn)
            assert not any(each.style and "@click" in each.style.meta for each in drawn if "y[/]" in each.text)
            await tui.open_list()
            await tui.until(lambda: MARKUP in text(tui))


@pytest.mark.parametrize(
    "draw",
    [
        lambda form: context_meter.draw_status(status_line.ConversationStatus(EVIL, 1, 10, soft=5, hard=8), form).plain,
        lambda form: prompt_input.draw_choices([Completion(EVIL, display=EVIL, display_meta=EVIL)], 3),
        lambda form: entry_rows.draw_reply(EVIL, [], form)[0].text.plain,
    ],
    ids=["model in the status", "completion", "model of a reply"],
)
def test_names_are_harmless(draw: Callable[[entry_rows.RowFormat], str]) -> None:
    check_harmless(draw(entry_rows.RowFormat(200)))
