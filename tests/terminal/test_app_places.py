"""Whoever reads further up goes on reading there: while an answer comes, when it is over, and as others speak."""

from __future__ import annotations

from holdfast.tui import transcript_pages
from tests.support.tui import long, sat


def test_rows_are_found_where_they_are_now_and_the_nearest_of_those_that_look_alike() -> None:
    rows = ["a", "b", "", "same", "", "same", "", "z"]

    def at(row: int) -> str:
        return rows[row] if row < len(rows) else ""

    assert transcript_pages.find_anchor(["b", "", "same"], 3, at) == 1
    assert transcript_pages.find_anchor(["same", ""], 4, at) == 5
    assert transcript_pages.find_anchor(["same", ""], 3, at) == 3
    assert transcript_pages.find_anchor(["nowhere"], 4, at) == 4


async def test_what_is_read_of_an_answer_stays_where_it_is_when_the_answer_is_over() -> None:
    async with sat(long(4)) as seat:
        shown = seat.screen.transcript
        await seat.type("run it")
        seat.model.run("make it")
        await seat.until(lambda: seat.screen.approval.has_focus)
        await seat.pilot.press("y")
        seat.model.say(*(f"part {number} **of many**\n\n" for number in range(60)))
        await seat.sees("part 59")
        shown.scroll_pages(-1)
        shown.scroll_pages(-1)
        before = shown.visible_rows
        assert any("part" in line for line in before)
        seat.model.say(*(f"part {number}\n\n" for number in range(60, 80)))
        await seat.until(lambda: any("part 79" in row.text.plain for row in shown._live_rows))
        assert shown.visible_rows == before
        seat.model.say(None)
        await seat.idles()
        assert "Allowed (at the terminal" in str(shown._notices)
        await seat.pilot.pause()
        assert shown.visible_rows == before


async def test_what_was_opened_while_it_ran_is_open_when_the_turn_is_over() -> None:
    async with sat(size=(100, 40)) as seat:
        await seat.type("run it")
        seat.model.run("make it")
        await seat.until(lambda: seat.screen.approval.has_focus)
        await seat.pilot.press("y")
        seat.model.say("Working.\n\n")
        await seat.sees("✓ shell", "Working.")
        seat.screen.transcript.focus()
        await seat.pilot.press("p", "enter")
        await seat.sees("▾ ✓ shell", "│ It ran.")
        seat.model.say("Done.", None)
        await seat.idles()
        await seat.sees("▾ ✓ shell", "│ It ran.", "Done.")
