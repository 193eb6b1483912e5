"""The full screen: answers stream in, questions are asked, what is folded opens, and any length opens at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from textual.command import CommandPalette
from textual.events import Paste
from textual.widgets import Input, OptionList

from holdfast import AsyncSessionDB, config, errors, events, types
from holdfast.agent import commands
from holdfast.cli import console, tui
from holdfast.runtime import subscriptions
from holdfast.tui import compaction_view, suspend, theme, transcript
from tests.faults import agent_processes
from tests.support.tui import long, sat

# --- talking -------------------------------------------------------------------------------------------


async def test_an_answer_streams_in_as_markdown_and_is_read_from_the_log_when_it_is_over() -> None:
    async with sat() as seat:
        await seat.sees("A new conversation")
        await seat.type("tell me")
        seat.model.say("Once **upon")
        await seat.sees(" ▌ tell me", "Once **upon")
        seat.model.say("** a time.\n\n- one\n")
        await seat.sees("Once upon a time.", "- one")
        seat.model.say(None)
        await seat.idles()
        shown = await seat.sees("Title: tell me")
        assert shown.count("Once upon a time.") == shown.count("tell me\n\n   Holdfast") == 1
        assert seat.line("heading") == "tell me · 2 messages"
        assert seat.screen.transcript.range.last == 2


async def test_what_is_sent_during_an_answer_is_seen_waiting_and_is_answered_next() -> None:
    async with sat() as seat:
        await seat.type("one")
        seat.model.say("First")
        await seat.sees("First")
        await seat.type("two")
        await seat.sees("queued\n ▌ two")
        await seat.until(lambda: "1 queued" in seat.line("status"))
        seat.model.say(".", None, "Second.", None)
        await seat.idles()
        shown = await seat.sees("First.", "Second.")
        assert "waits" not in shown
        assert [each.role for each in await seat.home.db.transcript("talk")] == ["user", "assistant"] * 2


async def test_ctrl_c_takes_back_what_is_written_then_stops_the_answer_then_leaves() -> None:
    async with sat() as seat:
        await seat.type("tell me")
        seat.model.say("Once upon")
        await seat.sees("Once upon")
        seat.screen.prompt.put("not to be sent")
        await seat.pilot.press("ctrl+c")
        assert seat.screen.prompt.text == ""
        await seat.pilot.press("ctrl+c")
        await seat.sees("Interrupted. The conversation up to here is saved.", "Once upon")
        await seat.idles()
        await seat.pilot.press("ctrl+c")
        assert seat.screen.is_running
        await seat.pilot.press("ctrl+c")
        await seat.until(lambda: seat.screen._exit)


async def test_a_command_answers_beside_the_talk_and_a_new_conversation_begins_elsewhere() -> None:
    async with sat() as seat:
        await seat.type("hello")
        seat.model.say("Hi.", None)
        await seat.idles()
        await seat.type("/title Greetings")
        await seat.until(lambda: seat.line("heading") == "Greetings · 2 messages")
        await seat.type("/new")
        await seat.sees("A new conversation")
        assert "Hi." not in seat.shown
        await seat.type("/resume Greetings")
        await seat.sees("Hi.")
        assert seat.screen.conversation_id == "talk"


async def test_what_others_say_in_the_same_conversation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        await seat.home.db.append_message("talk", role="user", content="from elsewhere")
        await seat.sees("from elsewhere")
        await seat.home.db.append_message("talk", role="assistant", content="from there as well")
        await seat.type("and here")
        seat.model.say("So it is.", None)
        await seat.idles()
        shown = await seat.sees("from elsewhere", "So it is.")
        assert shown.index("from there as well") < shown.index("and here") < shown.index("So it is.")
        assert shown.count("and here") == 1


async def test_a_question_that_was_never_answered_says_so_when_it_is_come_back_to() -> None:
    async with sat(long(5)) as seat:
        await seat.sees("number 5 of many", "Unfinished: no reply to this is stored. Use /retry to ask again.")


# --- questions of tools --------------------------------------------------------------------------------


async def test_a_question_is_answered_with_a_key_or_a_click_and_the_call_opens_and_closes() -> None:
    async with sat(size=(100, 40)) as seat:
        await seat.type("run it")
        seat.model.run("make it")
        await seat.until(lambda: seat.screen.approval.has_focus)
        await seat.pilot.press("y")
        seat.model.run("rm -rf /")
        await seat.until(lambda: seat.screen.approval.has_class("dangerous"))
        assert not seat.screen.query_one("#answer-a").display
        await seat.pilot.pause()
        await seat.pilot.click("#answer-n")
        seat.model.say("Done.", None)
        await seat.idles()
        shown = await seat.sees('▸ ✓ shell {"command": "make it"}  It ran.', "Allowed (at", "Denied (at", "Done.")
        assert seat.home.shell.ran == ["make it"]
        assert seat.screen.prompt.has_focus
        row = next(n for n, line in enumerate(shown.splitlines()) if "✓ shell" in line)
        await seat.pilot.click("#transcript", offset=(10, row))
        await seat.sees("▾ ✓ shell", "│ It ran.")
        seat.screen.transcript.focus()
        await seat.pilot.press("enter")
        await seat.sees("▸ ✓ shell")


async def test_what_is_being_written_is_no_answer_nor_what_was_typed_as_the_question_appeared() -> None:
    async with sat() as seat:
        await seat.type("run it")
        await seat.until(lambda: seat.model.requests)
        seat.screen.prompt.put("wh")
        seat.model.run("make it")
        await seat.until(lambda: seat.screen.approval.requests)
        await seat.pilot.press("y")
        assert seat.screen.prompt.text == "why"
        seat.screen.approval.grace_seconds = 60.0
        await seat.pilot.press("f6", "n")
        await seat.until(lambda: seat.screen.prompt.text == "whyn")
        assert seat.screen.approval.requests
        seat.screen.approval.grace_seconds = 0.0
        await seat.pilot.press("f6", "c")
        seat.model.say("Done.", None)
        await seat.idles()
        assert [each.rule for each in await seat.home.db.permissions.grants("", "talk")]


# --- long conversations --------------------------------------------------------------------------------


async def test_ten_thousand_messages_open_at_their_end_and_only_what_is_seen_is_read() -> None:
    async with sat(long(10_000)) as seat:
        shown, asked = seat.screen.transcript, list[tuple[int, int]]()
        await seat.sees("number 10000 of many")
        assert len(list(seat.screen.screen.walk_children())) < 30
        assert len(shown._pages) <= 4
        assert shown.virtual_size.height > 10_000
        read = shown.read

        async def counted(after: int, upto: int) -> object:
            asked.append((after, upto))
            return await read(after, upto)

        shown.read = cast("transcript.ReadMessages", counted)
        shown.focus()
        await seat.pilot.press("home")
        await seat.sees(" ▌ number 1 of many")
        await seat.pilot.press("pagedown")
        await seat.sees("number 9 of many")
        await seat.pilot.press("end")
        await seat.sees("number 10000 of many")
        assert sum(upto - after for after, upto in asked) < 500


@pytest.mark.parametrize("uneven", [False, True])
async def test_scrolling_up_shows_every_message_once_and_in_its_order(uneven: bool) -> None:
    async with sat(long(200, uneven)) as seat:
        await seat.sees("number 200 of many")
        shown, seen = seat.screen.transcript, list[str]()
        while shown.scroll_y > 0:
            await seat.until(lambda: all(page in shown._pages for page in shown._seen()))
            seen = [line for line in shown.visible_rows if "number" in line and line not in seen] + seen
            shown.scroll_pages(-1)
        seen = [line for line in shown.visible_rows if "number" in line and line not in seen] + seen
        await seat.pilot.press("pagedown")
        assert shown.scroll_y > 0
        assert [line.strip(" ▌") for line in seen] == [f"number {n} of many" for n in range(1, 201)]


async def test_after_a_resize_the_end_stays_at_the_end_and_a_place_further_up_stays_in_sight() -> None:
    async with sat(long(200)) as seat:
        await seat.sees("number 200 of many")
        await seat.pilot.resize_terminal(40, 16)
        await seat.sees("number 200 of many")
        seat.screen.transcript.scroll_to(y=150, animate=False)
        await seat.until(lambda: any("number" in line for line in seat.screen.transcript.visible_rows))
        top = next(line for line in seat.screen.transcript.visible_rows if "number" in line)
        await seat.pilot.resize_terminal(100, 30)
        await seat.sees(top.strip(" ▌"))


async def test_another_conversation_opens_at_its_end_whichever_place_the_last_one_was_left_at() -> None:
    async def both(db: AsyncSessionDB) -> None:
        await long(60)(db)
        await db.branch("talk", 40, branch_id="other")

    async with sat(both) as seat:
        await seat.sees("number 60 of many")
        await seat.type("/resume other")
        await seat.sees("number 40 of many", "number 39 of many")
        seat.screen.transcript.focus()
        await seat.pilot.press("home")
        await seat.sees("number 1 of many")
        seat.screen.prompt.focus()
        await seat.type("/resume talk")
        await seat.sees("number 60 of many")


# --- compactions ---------------------------------------------------------------------------------------


async def compacted_past(db: AsyncSessionDB) -> None:
    await long(60)(db)
    work = await db.acquire_lease("talk", "compact")
    await db.commit_compaction(work, summary="## Goal\n\nCount **on**.", cut_seq=55)


@pytest.mark.parametrize("size", [(100, 40), (60, 40)])
async def test_a_mark_opens_to_what_was_compacted_and_the_summary_side_by_side(size: tuple[int, int]) -> None:
    async with sat(compacted_past, size=size) as seat:
        await seat.sees("messages 1 to 55")
        seat.screen.transcript.focus()
        await seat.pilot.press("p", "enter")
        await seat.until(lambda: isinstance(seat.screen.screen, compaction_view.CompactionScreen))
        both = seat.screen.screen.query(transcript.Transcript)
        originals, summary = both.first(), both.last()
        await seat.until(lambda: any("number 1 of many" in line for line in originals.visible_rows))
        await seat.until(lambda: any("Count on." in line for line in summary.visible_rows))
        side_by_side = originals.region.y == summary.region.y
        assert side_by_side == (size[0] >= compaction_view.NARROW_COLUMNS)
        await seat.pilot.press("end")
        await seat.until(lambda: any("number 55 of many" in line for line in originals.visible_rows))
        await seat.pilot.press("escape")
        await seat.until(lambda: len(seat.screen.screen_stack) == 1)


async def test_a_compaction_under_way_is_seen_as_progress_and_then_as_its_mark() -> None:
    async def past(db: AsyncSessionDB) -> None:
        await asyncio.to_thread(agent_processes.fill, db.db, "talk", 20)

    async with sat(past, size=(90, 60)) as seat:
        await seat.type("/compact here 1")
        await seat.until(lambda: seat.screen._progress.has_class("shown"))
        await seat.until(lambda: "Compacting: summarizing 36 messages, about " in seat.line("progress"))
        assert "waits" not in seat.shown
        seat.model.say("short", None, "short", None)  # It is refused, and an extract made instead.
        await seat.sees("Compacted up to message 38", "compacted: a summary replaces messages 1 to 38")
        await seat.until(lambda: not seat.screen._progress.has_class("shown"))
        assert "1 compaction" in seat.line("heading")


# --- finding -------------------------------------------------------------------------------------------


async def test_the_palette_lists_what_the_registry_has_and_carries_it_out() -> None:
    async with sat() as seat:
        await seat.pilot.press("ctrl+p")
        await seat.until(lambda: CommandPalette.is_open(seat.screen))
        found = seat.screen.screen.query_one(OptionList)
        named = {f"/{each.name} {each.argument}".rstrip() for each in commands.list_commands(seat.home.door)}
        await seat.until(lambda: found.option_count >= len(named))
        assert named <= {str(each.prompt).partition("\n")[0] for each in found.options}
        seat.screen.screen.query_one(Input).value = "ask the same again"  # of its description
        await seat.until(lambda: found.option_count and "/retry" in str(found.options[0].prompt))
        seat.screen.screen.query_one(Input).value = "/title"
        await seat.until(lambda: found.option_count and "/title [TEXT]" in str(found.options[0].prompt))
        await seat.pilot.press("enter")
        await seat.sees("→ /title", "has no title")
        for each in commands.list_commands(seat.home.door):
            if each.name == "steer":
                seat.screen.run_command(each)
        assert seat.screen.prompt.text == "/steer "


async def test_tab_completes_commands_and_arrows_bring_back_what_was_typed() -> None:
    async with sat() as seat:
        await seat.type("/titl", "tab")
        await seat.until(lambda: seat.screen.prompt.text == "/title ")
        await seat.type("/comp", "tab")
        await seat.until(lambda: "/compress" in seat.line("candidates"))
        seat.screen.prompt.put("")
        await seat.type("/usage")
        await seat.sees("→ /usage")
        await seat.pilot.press("up")
        assert seat.screen.prompt.text == "/usage"
        await seat.pilot.press("down")
        assert seat.screen.prompt.text == ""
        await seat.type("two", "ctrl+j", "l", "i", "n", "e", "s", "enter")
        await seat.sees(" ▌ two\n ▌ lines")


async def test_tab_completes_paths_before_the_cursor_as_the_chat_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("report-may.md", "report-june.md", "other"):
        Path(name).touch()
    Path("plans").mkdir()
    Path("plans", "[a] b.txt").touch()

    async with sat() as seat:
        prompt = seat.screen.prompt
        await seat.type("read pl", "tab")
        await seat.until(lambda: prompt.text == "read plans/")
        await seat.pilot.press("tab")
        await seat.until(lambda: prompt.text == "read plans/[a] b.txt")
        await seat.type("read re and tell me", *["left"] * 12, "tab")
        await seat.until(lambda: prompt.text == "read report- and tell me")
        await seat.until(lambda: seat.line("candidates") == "report-june.md\nreport-may.md")
        await seat.pilot.press("m", "tab")
        await seat.until(lambda: prompt.text == "read report-may.md and tell me")
        assert seat.line("candidates") == ""
        prompt.put("two\nlines ot")
        await seat.pilot.press("tab")
        await seat.until(lambda: prompt.text == "two\nlines other")
        assert prompt.has_focus


async def test_a_path_that_is_pasted_or_dropped_is_a_message_and_no_command() -> None:
    async with sat() as seat:
        await seat.until(lambda: seat.screen.prompt.has_focus)
        seat.screen.post_message(Paste("/home/me/a picture.png"))
        await seat.until(lambda: seat.screen.prompt.text == "/home/me/a picture.png")
        await seat.pilot.press("enter")
        seat.model.say("I see.", None)
        await seat.sees("▌ /home/me/a picture.png", "I see.")


async def test_of_more_than_there_is_room_for_the_number_is_told(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"file{number:02}").touch()

    async with sat() as seat:
        await seat.type(f"{tmp_path}/f", "tab")
        await seat.until(lambda: "file00" in seat.line("candidates"))
        assert seat.line("candidates").splitlines() == [*(f"file{n:02}" for n in range(7)), "and 13 more"]
        await seat.until(lambda: seat.screen._candidates.size.height == 8)


async def test_where_no_shell_could_bring_it_back_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspend.os, "getsid", lambda _: suspend.os.getpgrp())

    async with sat() as seat:
        await seat.pilot.press("ctrl+z")
        await seat.until(lambda: [each.message for each in seat.screen._notifications] == [suspend.NO_SHELL])


# --- looks ---------------------------------------------------------------------------------------------


async def test_light_and_dark_are_two_looks_of_the_same_and_the_meter_has_both_thresholds() -> None:
    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        before = seat.screen.transcript.theme_styles
        await seat.pilot.press("ctrl+t")
        assert seat.screen.theme == theme.LIGHT
        await seat.until(lambda: seat.screen.transcript.theme_styles != before)
        await seat.until(lambda: seat.line("status").count("┃") == 2)
        here = seat.screen.status.status
        assert 0 < (here.used or 0) < here.soft < here.hard < here.window


async def test_tasks_begin_in_the_usual_order_whatever_textual_prefers() -> None:
    async with sat():
        began = list[str]()

        async def job() -> None:
            began.append("job")

        made = asyncio.create_task(job())
        began.append("whoever made it")
        await made
        assert began == ["whoever made it", "job"]
        assert asyncio.get_running_loop().get_task_factory() is None


def test_without_its_part_the_program_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.util, "find_spec", lambda _: None)
    with pytest.raises(errors.HoldfastError, match=r"pip install 'holdfast\[tui\]'"):
        tui.command.main([], obj=console.Console(config.load(files=False), None), standalone_mode=False)


async def test_every_event_there_is_has_its_place_on_the_screen() -> None:
    async with sat(size=(90, 30)) as seat:
        result = events.TurnResult(
            final_response="",
            messages=(),
            api_calls=0,
            completed=False,
            failed=True,
            partial=False,
            interrupted=False,
            error="It broke.",
            exit_reason="failed",
            usage=types.Usage(),
            session_id="talk",
            conversation_id="talk",
        )
        for event in (
            events.TurnQueued("other"),
            events.TurnStarted("talk", "talk", "hello", 1),
            events.ReasoningDelta("Let me"),
            events.ReasoningDelta(" think."),
            events.ToolStarted("c", "look", "{}"),
            events.ToolProgress("c", "half"),
            events.Notice("Careful.", "warning"),
            events.TextDelta("So"),
        ):
            await seat.screen.show_event(event)
        await seat.sees("running elsewhere", "reasoning: Let me think.", "look   half", "Careful.", "So")
        await seat.screen.show_event(events.TurnFinished(result))
        await seat.sees("Careful.", "It broke.")
