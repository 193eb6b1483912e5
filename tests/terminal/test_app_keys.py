"""The keyboard of the full screen: what is typed goes where it is meant to, whatever lies over what."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.events import Paste
from textual.widgets import Input

from holdfast import AsyncSessionDB, errors
from holdfast.agent import commands
from holdfast.tui import app, compaction_view, conversation_list
from tests.faults import agent_processes
from tests.support.tui import Seat, long, sat, seated


async def listed(seat: Seat) -> Input:
    await seat.pilot.press("ctrl+o")
    await seat.until(lambda: isinstance(seat.screen.screen, conversation_list.ConversationScreen))
    await seat.until(lambda: isinstance(seat.screen.focused, Input))
    return seat.screen.screen.query_one(Input)


# --- what lies over the screen -------------------------------------------------------------------------


async def test_keys_of_the_screen_do_nothing_under_the_list() -> None:
    async with sat(long(4)) as seat:
        seat.screen.prompt.put("a draft")
        words = await listed(seat)
        await seat.pilot.press("f6", "a", "b", "ctrl+p", "ctrl+o", "left", "ctrl+d")
        assert words.value == "a"
        assert len(seat.screen.screen_stack) == 2
        assert not seat.screen._exit
        await seat.pilot.press("ctrl+c")
        assert words.value == ""
        await seat.pilot.press("ctrl+c")
        await seat.until(lambda: not seat.screen.has_modal)
        assert seat.screen.prompt.text == "a draft"
        assert seat.screen.prompt.has_focus


async def test_a_question_under_the_list_is_not_answered_from_there() -> None:
    async with sat(long(4)) as seat:
        await seat.type("run it")
        await seat.until(lambda: seat.model.requests)
        await listed(seat)
        seat.model.run("make it")
        await seat.until(lambda: seat.screen.approval.requests)
        await seat.pilot.press("f6", "y")
        assert seat.screen.approval.requests
        await seat.pilot.press("ctrl+c", "ctrl+c")
        await seat.until(lambda: not seat.screen.has_modal)
        await seat.pilot.press("f6", "n")
        seat.model.say("So be it.", None)
        await seat.idles()
        assert seat.home.shell.ran == []


async def test_ctrl_c_closes_an_opened_mark_and_the_palette() -> None:
    async def past(db: AsyncSessionDB) -> None:
        await long(60)(db)
        await db.commit_compaction(await db.acquire_lease("talk", "compact"), summary="Counting.", cut_seq=55)

    async with sat(past, size=(100, 40)) as seat:
        await seat.sees("number 60 of many")
        seat.screen.transcript.focus()
        await seat.pilot.press("p", "enter")
        await seat.until(lambda: isinstance(seat.screen.screen, compaction_view.CompactionScreen))
        await seat.pilot.press("ctrl+c")
        await seat.until(lambda: not seat.screen.has_modal)
        await seat.pilot.press("ctrl+p")
        await seat.until(lambda: CommandPalette.is_open(seat.screen))
        await seat.pilot.press("ctrl+c")
        await seat.until(lambda: not seat.screen.has_modal)
        assert not seat.screen._exit


# --- what is meant for the prompt ----------------------------------------------------------------------


async def test_a_click_into_the_transcript_leaves_the_keyboard_to_the_prompt() -> None:
    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        await seat.pilot.click("#transcript", offset=(10, 2))
        await seat.pilot.press("p", "a", "n")
        assert seat.screen.prompt.text == "pan"


async def test_what_means_nothing_in_the_transcript_is_written_and_so_is_what_is_pasted() -> None:
    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        seat.screen.transcript.focus()
        await seat.pilot.press("n", "h", "e", "n")
        assert seat.screen.prompt.text == "hen"
        seat.screen.transcript.focus()
        await seat.pilot.pause()
        seat.screen.post_message(Paste(" and\nmore"))
        await seat.until(lambda: seat.screen.prompt.text == "hen and\nmore")


# --- leaving -------------------------------------------------------------------------------------------


async def test_once_more_is_over_when_its_notice_is_or_when_something_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sat() as seat:
        await seat.pilot.press("ctrl+c", "x", "ctrl+c", "ctrl+c")
        assert not seat.screen._exit
        monkeypatch.setattr(app, "WARNING_SECONDS", 0.01)
        seat.screen.session.cancel_warning()
        await seat.pilot.press("ctrl+c")
        await seat.until(lambda: not seat.screen.session._warned)
        await seat.pilot.press("ctrl+c")
        assert not seat.screen._exit


async def test_the_end_of_one_warning_is_not_that_of_the_next() -> None:
    async with sat() as seat:
        await seat.pilot.press("ctrl+c")
        first = seat.screen._warning_timer
        await seat.pilot.press("x", "ctrl+c", "ctrl+c")
        assert seat.screen.session._warned
        assert first._task is None
        assert seat.screen._warning_timer._task is not None


@pytest.mark.parametrize("where", ["transcript", "prompt"])
async def test_what_is_marked_is_copied_once_and_the_next_ctrl_c_stops_the_answer(where: str) -> None:
    async with sat() as seat:
        await seat.type("go")
        seat.model.say("Words to copy\n\n")
        await seat.sees("Words to copy")
        if where == "transcript":
            seat.screen.screen.text_select_all()
        else:
            seat.screen.prompt.put("draft")
            seat.screen.prompt.select_all()
        await seat.pilot.press("ctrl+c")
        assert ("Words to copy" if where == "transcript" else "draft") in seat.screen.clipboard
        await seat.pilot.press(*["ctrl+c"] * (1 if where == "transcript" else 2))
        await seat.until(lambda: not seat.home.door.running("talk"))


async def test_what_is_marked_beneath_the_list_does_not_keep_it_open() -> None:
    async with sat(long(4)) as seat:
        seat.screen.prompt.put("draft")
        seat.screen.prompt.select_all()
        await listed(seat)
        await seat.pilot.press("ctrl+c")
        await seat.until(lambda: not seat.screen.has_modal)


async def test_a_signal_from_outside_ends_it_with_the_code_of_one_interrupted(db: AsyncSessionDB) -> None:
    async with seated(db) as seat:
        os.kill(os.getpid(), signal.SIGINT)
        await seat.until(lambda: seat.screen._exit)
    assert seat.screen.return_code == 130


# --- commands that do not wait -------------------------------------------------------------------------


async def much(db: AsyncSessionDB) -> None:
    await asyncio.to_thread(agent_processes.fill, db.db, "talk", 20)


async def test_what_waits_behind_a_command_is_listed_at_once_and_the_palette_stops_the_command() -> None:
    async with sat(much, size=(80, 60)) as seat:
        await seat.type("/compact here 1")
        await seat.until(lambda: seat.model.requests)
        await seat.type("a message")
        await seat.type("/queue")
        await seat.sees("→ /queue", "1  a message")
        await seat.type("/queue drop 1")
        await seat.sees("Dropped: a message")
        next(seat.screen.run_command(each) for each in commands.list_commands(seat.home.door) if each.name == "stop")
        await seat.sees("stopped.")
        assert seat.home.door.busy() == []


async def test_to_stop_what_is_done_already_is_not_swallowed() -> None:
    async with sat() as seat:
        talk = seat.screen.session
        talk.command = asyncio.create_task(asyncio.sleep(0))
        await talk.command
        talk.enter("/stop")
        await seat.sees("Nothing is running.")


async def test_help_tells_the_keys() -> None:
    async with sat(size=(120, 60)) as seat:
        await seat.type("/help")
        await seat.sees("Ctrl-J starts a new line", "F6")


# --- the prompt ----------------------------------------------------------------------------------------


async def test_what_was_typed_is_brought_back_once_each_also_from_an_earlier_day(
    tmp_path: Path, db: AsyncSessionDB
) -> None:
    path = tmp_path / "history"
    path.write_text("\n# before\n+earlier\n")
    async with seated(db, history=str(path)) as seat:
        await seat.type("/status")
        await seat.type("/usage")
        seen = list[str]()
        for _ in range(4):
            await seat.pilot.press("up")
            seen.append(seat.screen.prompt.text)
        assert seen == ["/usage", "/status", "earlier", "earlier"]


async def test_arrows_walk_the_rows_of_a_long_line_before_they_bring_back_others() -> None:
    async with sat() as seat:
        await seat.type("/usage")
        prompt = seat.screen.prompt
        prompt.put("word " * 40)
        await seat.pilot.pause()
        rows = prompt.wrapped_document.height
        assert rows > 2
        await seat.pilot.press(*["up"] * (rows - 1))
        assert prompt.text == "word " * 40
        await seat.pilot.press("up")
        assert prompt.text == "/usage"
        await seat.pilot.press("x", "down")
        assert prompt.text == "word " * 40
        await seat.pilot.press(*["up"] * rows)
        assert prompt.text == "/usagex"


class Locked:
    """A store that nothing can be written to, which shows once it is `tried`."""

    def __init__(self) -> None:
        self.tried = asyncio.Event()

    async def refuse(self, *_: object, **__: object) -> None:
        await self.tried.wait()
        raise errors.StoreBusy("It stayed locked.")


async def test_a_message_that_could_not_be_stored_is_at_the_prompt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Locked()

    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        monkeypatch.setattr(seat.home.db, "acquire_lease", store.refuse)
        await seat.type("precious words")
        assert seat.screen.prompt.text == ""
        store.tried.set()
        await seat.sees("It stayed locked.")
        await seat.until(lambda: seat.screen.prompt.text == "precious words")
        store.tried.clear()
        await seat.pilot.press("enter")
        seat.screen.prompt.put("other words")
        store.tried.set()
        await seat.until(lambda: seat.shown.count("It stayed locked.") == 2)
        await seat.sees("Not sent: precious words")
        assert seat.screen.prompt.text == "other words"


@pytest.mark.parametrize("line", ["//help me", "///odd", "/a/path.txt"])
async def test_of_several_that_could_not_be_stored_none_is_lost_and_none_becomes_a_command(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Locked()

    async with sat(long(4), size=(80, 40)) as seat:
        await seat.sees("number 4 of many")
        monkeypatch.setattr(seat.home.db, "acquire_lease", store.refuse)
        for each in (line, "second words", "third words"):
            await seat.type(each)
        await seat.until(lambda: len(seat.home.door.waiting("talk")) == 2)
        await seat.screen.session.switch("other")
        await seat.screen.session.switch("talk")
        store.tried.set()
        await seat.sees("Not sent: second words", "Not sent: third words")
        assert seat.screen.prompt.text == line


async def test_what_could_not_be_stored_in_a_conversation_that_was_left_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Locked()

    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        monkeypatch.setattr(seat.home.db, "acquire_lease", store.refuse)
        await seat.type("precious words")
        await seat.until(lambda: seat.home.door.running("talk"))
        await seat.screen.session.switch("other")
        store.tried.set()
        await seat.sees("Not sent: precious words")
        assert seat.screen.prompt.text == ""


async def test_a_draft_that_a_command_of_the_palette_replaces_is_brought_back_with_the_arrows() -> None:
    async with sat() as seat:
        seat.screen.prompt.put("my long draft")
        seat.screen.run_command(next(each for each in commands.list_commands(seat.home.door) if each.name == "search"))
        assert seat.screen.prompt.text == "/search "
        await seat.pilot.press("up")
        assert seat.screen.prompt.text == "my long draft"
        await seat.pilot.press("down")
        assert seat.screen.prompt.text == "/search "
