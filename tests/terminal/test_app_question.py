"""Questions of tools on the full screen: what has to be known stands beside the answers, and only an answer is one."""

from __future__ import annotations

import time

import msgspec
import pytest
from textual.events import Key, Paste
from textual.widgets import Button, Static

from holdfast import events
from holdfast.tui import approval_panel
from tests.support.tui import sat

SCRIPT = events.ApprovalAsked(
    request_id="1",
    call_id="c",
    tool="shell",
    summary="Run a script of many lines, which is told at some length here, so that it wraps.",
    detail="\n".join(f"line {number} of a script" for number in range(30)),
    danger="It deletes files.",
    remembers="shell(make *)",
)


@pytest.mark.parametrize("size", [(100, 40), (80, 24), (60, 20), (40, 15), (24, 8)])
async def test_the_danger_and_all_answers_are_seen_however_long_a_script_is(size: tuple[int, int]) -> None:
    async with sat(size=size) as seat:
        await seat.ask(SCRIPT)
        await seat.until(lambda: seat.screen.approval.size.height)
        await seat.pilot.pause()
        panel, whole = seat.screen.approval.content_region, seat.screen.screen.region
        buttons = [each.region for each in seat.screen.query(Button)]
        assert len(buttons) == len([each for each in buttons if each.area]) == 4
        danger = seat.screen.query_one("#danger").region
        assert all(panel.contains_region(each) and whole.contains_region(each) for each in (*buttons, danger))
        assert not any(each.overlaps(danger) for each in buttons)
        await seat.pilot.press(*["down"] * 3)
        assert seat.screen.approval.scroll_y == 3
        assert [each.region for each in seat.screen.query(Button)] == buttons


async def test_a_key_that_was_pressed_before_the_question_appeared_is_no_answer_however_late_it_comes() -> None:
    async with sat() as seat:
        seat.screen.approval.grace_seconds = approval_panel.GRACE_SECONDS
        pressed = Key("y", "y")
        await seat.ask(SCRIPT)
        await seat.until(lambda: seat.screen.approval.has_focus)
        # What is drawn meanwhile takes longer than anybody is startled.
        time.sleep(approval_panel.GRACE_SECONDS + 0.05)
        seat.screen.post_message(pressed)
        await seat.until(lambda: seat.screen.prompt.text == "y")
        assert seat.screen.approval.requests


async def test_a_question_leaves_the_keyboard_to_whoever_walks_through_the_transcript() -> None:
    async with sat() as seat:
        seat.screen.transcript.focus()
        await seat.pilot.pause()
        await seat.ask(SCRIPT)
        await seat.pilot.press("n")
        assert seat.screen.transcript.has_focus
        assert seat.screen.approval.requests


@pytest.mark.parametrize("words", ["hey", "pasted"])
async def test_what_is_no_answer_is_written_and_none_of_its_letters_is_one(words: str) -> None:
    async with sat() as seat:
        await seat.ask(SCRIPT)
        await seat.until(lambda: seat.screen.approval.has_focus)
        if words == "pasted":
            seat.screen.post_message(Paste(words))
        else:
            await seat.pilot.press(*words)
        await seat.until(lambda: seat.screen.prompt.text == words)
        assert seat.screen.approval.requests


async def test_the_panel_shows_whether_it_has_the_keyboard() -> None:
    async with sat() as seat:
        await seat.ask(SCRIPT)
        panel = seat.screen.approval
        await seat.until(lambda: panel.styles.border_top[0] == "heavy")
        dangerous = panel.styles.border_top[1]
        await seat.pilot.press("escape")
        await seat.until(lambda: panel.styles.border_top[0] == "round")
        assert panel.styles.border_top[1] == dangerous


async def test_on_very_few_rows_the_meter_is_in_sight_and_nothing_scrolls_but_the_transcript() -> None:
    async with sat(size=(20, 5)) as seat:
        await seat.until(lambda: seat.screen._status_line.region.bottom == 5)
        assert not seat.screen._heading.display
        assert seat.screen.prompt.size.height >= 1
        assert seat.screen.transcript.size.height >= 1
        assert seat.screen.screen.max_scroll_y == 0
        await seat.pilot.resize_terminal(80, 24)
        await seat.until(lambda: seat.screen._heading.region.height == 1)


@pytest.mark.parametrize("startled", [60.0, 0.0])
async def test_a_click_is_an_answer_only_once_the_question_was_there_to_be_seen(startled: float) -> None:
    async with sat() as seat:
        seat.screen.approval.grace_seconds = startled
        await seat.ask(SCRIPT)
        await seat.until(lambda: seat.screen.query_one("#answer-y").region.area)
        given = list[str]()
        seat.screen.approval._answer = given.append  # type: ignore[method-assign]
        assert await seat.pilot.click("#answer-y")
        assert given == ([] if startled else ["y"])


async def test_a_second_question_does_not_take_back_the_keys_of_the_first() -> None:
    async with sat() as seat:
        panel = seat.screen.approval
        await seat.ask(SCRIPT)
        await seat.until(lambda: panel.has_focus)
        since = panel._shown_at
        await seat.ask(msgspec.structs.replace(SCRIPT, request_id="2"))
        assert "(1 more after this)" in str(panel.query_one("#what", Static).content)
        assert panel._shown_at == since
        seat.home.door.approvals.expire("talk", "1", "")
        await seat.screen.show_event(events.ApprovalSettled("1", True, "elsewhere"))
        assert panel._shown_at > since
