"""The approval panel: the danger and all answers are visible, and only a deliberate answer is one."""

from __future__ import annotations

import time

import msgspec
import pytest
from textual.events import Key, Paste
from textual.widgets import Button, Static

from holdfast import events
from tests.support.tui import TuiDriver, open_tui

SCRIPT = events.ApprovalAsked(
    request_id="1",
    call_id="c",
    tool="shell",
    summary="Run a script of many lines, described at some length here, so that it wraps.",
    detail="\n".join(f"line {number} of a script" for number in range(30)),
    danger="It deletes files.",
    remembers="shell(make *)",
)


async def test_request_is_answered_by_key_or_click_and_its_call_can_be_opened() -> None:
    async with open_tui(size=(100, 40)) as tui:
        await tui.type("run it")
        tui.model.run("make it")
        await tui.until(lambda: tui.app.approval.has_focus)
        await tui.pilot.press("y")
        tui.model.run("rm -rf /")
        await tui.until(lambda: tui.app.approval.has_class("dangerous"))
        assert not tui.app.query_one("#answer-a").display
        await tui.pilot.pause()
        await tui.pilot.click("#answer-n")
        tui.model.say("Working.\n\n")
        call = '▸ ✓ shell {"command": "make it"}  It ran.'
        shown = await tui.wait_for(call, "Allowed (at", "Denied (at", "Working.")
        assert tui.shell.ran == ["make it"]
        assert tui.app.prompt.has_focus
        row = next(n for n, line in enumerate(shown.splitlines()) if "✓ shell" in line)
        await tui.pilot.click("#transcript", offset=(10, row))
        await tui.wait_for("▾ ✓ shell", "│ It ran.")
        tui.app.transcript.focus()
        await tui.pilot.press("enter")
        await tui.wait_for("▸ ✓ shell")
        await tui.pilot.press("enter")
        await tui.wait_for("▾ ✓ shell")
        tui.model.say("Done.", None)
        await tui.wait_idle()
        await tui.wait_for("▾ ✓ shell", "│ It ran.", "Done.")


async def test_text_typed_when_the_request_appears_is_no_answer(tui: TuiDriver) -> None:
    await tui.type("run it")
    await tui.until(lambda: tui.model.requests)
    tui.app.prompt.put("wh")
    tui.model.run("make it")
    await tui.until(lambda: tui.app.approval.requests)
    await tui.pilot.press("y")
    assert tui.app.prompt.text == "why"
    tui.app.approval.grace_seconds = 60.0
    await tui.pilot.press("f6", "n")
    await tui.until(lambda: tui.app.prompt.text == "whyn")
    assert tui.app.approval.requests
    tui.app.approval.grace_seconds = 0.0
    await tui.pilot.press("f6", "c")
    tui.model.say("Done.", None)
    await tui.wait_idle()
    assert [each.rule for each in await tui.db.permissions.grants("", "talk")]


@pytest.mark.parametrize("size", [(100, 40), (60, 20), (24, 8)])
async def test_danger_and_all_answers_are_visible_next_to_a_long_script(size: tuple[int, int]) -> None:
    async with open_tui(size=size) as tui:
        await tui.ask(SCRIPT)
        await tui.until(lambda: tui.app.approval.size.height)
        await tui.pilot.pause()
        panel, whole = tui.app.approval.content_region, tui.app.screen.region
        buttons = [each.region for each in tui.app.query(Button)]
        assert len(buttons) == len([each for each in buttons if each.area]) == 4
        danger = tui.app.query_one("#danger").region
        assert all(panel.contains_region(each) and whole.contains_region(each) for each in (*buttons, danger))
        assert not any(each.overlaps(danger) for each in buttons)
        await tui.pilot.press(*["down"] * 3)
        assert tui.app.approval.scroll_y == 3
        assert [each.region for each in tui.app.query(Button)] == buttons


async def test_key_pressed_before_the_request_is_no_answer_however_late_it_arrives(tui: TuiDriver) -> None:
    tui.app.approval.grace_seconds = 0.02
    pressed = Key("y", "y")
    await tui.ask(SCRIPT)
    await tui.until(lambda: tui.app.approval.has_focus)
    time.sleep(0.03)  # The app draws for longer than the grace period.
    tui.app.post_message(pressed)
    await tui.until(lambda: tui.app.prompt.text == "y")
    assert tui.app.approval.requests


@pytest.mark.parametrize("grace", [60.0, 0.0])
async def test_click_is_an_answer_only_after_the_grace_period(tui: TuiDriver, grace: float) -> None:
    tui.app.approval.grace_seconds = grace
    await tui.ask(SCRIPT)
    await tui.until(lambda: tui.app.query_one("#answer-y").region.area)
    given = list[str]()
    tui.app.approval._answer = given.append  # type: ignore[method-assign]
    assert await tui.pilot.click("#answer-y")
    assert given == ([] if grace else ["y"])


@pytest.mark.parametrize("pasted", [False, True])
async def test_other_text_goes_to_the_prompt_and_is_no_answer(tui: TuiDriver, pasted: bool) -> None:
    panel = tui.app.approval
    await tui.ask(SCRIPT)
    await tui.until(lambda: panel.has_focus and panel.styles.border_top[0] == "heavy")
    dangerous = panel.styles.border_top[1]
    if pasted:
        tui.app.post_message(Paste("hey"))
    else:
        await tui.pilot.press(*"hey")
    await tui.until(lambda: tui.app.prompt.text == "hey")
    assert panel.requests
    await tui.until(lambda: panel.styles.border_top == ("round", dangerous))


async def test_request_does_not_take_the_focus_of_the_transcript(tui: TuiDriver) -> None:
    tui.app.transcript.focus()
    await tui.pilot.pause()
    await tui.ask(SCRIPT)
    await tui.pilot.press("n")
    assert tui.app.transcript.has_focus
    assert tui.app.approval.requests


async def test_second_request_restarts_the_grace_period_only_when_it_is_shown(tui: TuiDriver) -> None:
    panel = tui.app.approval
    await tui.ask(SCRIPT)
    await tui.until(lambda: panel.has_focus)
    since = panel._shown_at
    await tui.ask(msgspec.structs.replace(SCRIPT, request_id="2"))
    assert "(1 more after this)" in str(panel.query_one("#what", Static).content)
    assert panel._shown_at == since
    tui.runtime.approvals.expire("talk", "1", "")
    await tui.app.show_event(events.ApprovalSettled("1", True, "elsewhere"))
    assert panel._shown_at > since
