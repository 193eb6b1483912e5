"""The full-screen app: replies, keys, commands, the prompt, and messages that could not be stored."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Input, OptionList

from holdfast import AsyncSessionDB, errors
from holdfast.agent import commands
from tests.support import compaction
from tests.support.tui import TuiDriver, numbered, open_tui


async def start_reply(tui: TuiDriver, words: str = "Once upon") -> None:
    await tui.type("tell me")
    tui.model.say(words)
    await tui.wait_for(words.strip())


async def test_reply_streams_as_markdown_and_a_queued_message_is_answered_next(tui: TuiDriver) -> None:
    await tui.wait_for("A new conversation")
    await start_reply(tui, "Once **upon")
    await tui.wait_for(" ▌ tell me", "Once **upon")
    tui.model.say("** a time.\n\n- one\n")
    await tui.wait_for("Once upon a time.", "- one")
    await tui.type("two")
    await tui.wait_for("queued\n ▌ two")
    await tui.until(lambda: "1 queued" in tui.text_of("status"))
    tui.model.say(None, "Second.", None)
    await tui.wait_idle()
    shown = await tui.wait_for("Title: tell me", "Second.")
    assert shown.count("Once upon a time.") == shown.count("tell me\n\n   Holdfast") == 1
    assert tui.text_of("heading") == "tell me · 4 messages"
    await tui.type("/new")
    assert "Second." not in await tui.wait_for("A new conversation")
    assert [each.role for each in await tui.db.transcript("talk")] == ["user", "assistant"] * 2


async def test_messages_of_other_processes_are_shown_in_order() -> None:
    async with open_tui(numbered(5), poll_seconds=0.01) as tui:
        await tui.wait_for("number 5 of many", "Unfinished: no reply to this is stored. Use /retry to ask again.")
        await tui.db.append_message("talk", role="assistant", content="from elsewhere")
        await tui.wait_for("from elsewhere")
        await tui.type("and here")
        tui.model.say("So it is.", None)
        await tui.wait_idle()
        shown = await tui.wait_for("from elsewhere", "So it is.")
        assert shown.index("from elsewhere") < shown.index("and here") < shown.index("So it is.")
        assert shown.count("and here") == 1


async def test_ctrl_c_clears_the_prompt_then_interrupts_then_leaves(tui: TuiDriver) -> None:
    await start_reply(tui)
    tui.app.prompt.put("not to be sent")
    await tui.pilot.press("ctrl+c")
    assert tui.app.prompt.text == ""
    await tui.pilot.press("ctrl+c")
    await tui.wait_for("Interrupted. The conversation up to here is saved.", "Once upon")
    await tui.wait_idle()
    await tui.pilot.press("ctrl+c", "x", "ctrl+c", "ctrl+c")  # A key ends the first warning.
    assert tui.app.return_code is None
    await tui.pilot.press("ctrl+c")
    await tui.until(lambda: tui.app.return_code is not None)


async def test_ctrl_c_copies_a_selection_first(tui: TuiDriver) -> None:
    await start_reply(tui, "Words to copy\n\n")
    tui.app.screen.text_select_all()
    await tui.pilot.press("ctrl+c")
    assert "Words to copy" in tui.app.clipboard
    assert tui.runtime.running("talk")
    await tui.pilot.press("ctrl+c")
    await tui.until(lambda: not tui.runtime.running("talk"))


async def test_sigint_ends_the_app_with_the_code_of_an_interrupt() -> None:
    async with open_tui() as tui:
        assert asyncio.get_running_loop().get_task_factory() is None  # Textual's would change the order of tasks.
        os.kill(os.getpid(), signal.SIGINT)
        await tui.until(lambda: tui.app.return_code is not None)
    assert tui.app.return_code == 130


async def test_keys_of_the_app_do_nothing_under_the_list_of_conversations() -> None:
    async with open_tui(numbered(4)) as tui:
        await tui.type("run it")
        await tui.until(lambda: tui.model.requests)
        tui.app.prompt.put("a draft")
        tui.app.prompt.select_all()
        words = await tui.open_list()
        tui.model.run("make it")
        await tui.until(lambda: tui.app.approval.requests)
        await tui.pilot.press("f6", "a", "y", "ctrl+p", "ctrl+o", "left", "ctrl+d")
        assert words.value == "a"
        assert (len(tui.app.screen_stack), tui.app.return_code) == (2, None)
        assert tui.app.approval.requests
        await tui.pilot.press("ctrl+c", "ctrl+c")
        await tui.until(lambda: not tui.app.has_modal)
        assert tui.app.prompt.text == "a draft"
        await tui.pilot.press("f6", "n")
        tui.model.say("So be it.", None)
        await tui.wait_idle()
        assert tui.shell.ran == []


async def test_palette_lists_and_runs_commands_and_keeps_the_draft(tui: TuiDriver) -> None:
    every = {each.name: each for each in commands.list_commands(tui.runtime)}
    await tui.pilot.press("ctrl+p")
    await tui.until(lambda: CommandPalette.is_open(tui.app))
    found, words = tui.app.screen.query_one(OptionList), tui.app.screen.query_one(Input)
    named = {f"/{each.name} {each.argument}".rstrip() for each in every.values()}
    await tui.until(lambda: found.option_count >= len(named))
    assert named <= {str(each.prompt).partition("\n")[0] for each in found.options}
    for value, first in (("ask the same again", "/retry"), ("/title", "/title [TEXT]")):
        words.value = value
        await tui.until(lambda first=first: found.option_count and first in str(found.options[0].prompt))
    await tui.pilot.press("enter")
    await tui.wait_for("→ /title", "has no title")
    tui.app.prompt.put("my long draft")
    tui.app.run_command(every["steer"])
    assert tui.app.prompt.text == "/steer "
    for key, text in (("up", "my long draft"), ("down", "/steer ")):
        await tui.pilot.press(key)
        assert tui.app.prompt.text == text


async def store_long_conversation(db: AsyncSessionDB) -> None:
    await compaction.fill(db, 20)


async def test_compaction_shows_its_progress_and_then_its_mark() -> None:
    async with open_tui(store_long_conversation, size=(90, 60)) as tui:
        await tui.type("/compact here 1")
        await tui.until(lambda: "Compacting: summarizing 36 messages, about " in tui.text_of("progress"))
        assert tui.app._progress.has_class("shown")
        tui.model.say("short", None, "short", None)  # It is refused, and an extract made instead.
        await tui.wait_for("Compacted up to message 38", "compacted: a summary replaces messages 1 to 38")
        await tui.until(lambda: not tui.app._progress.has_class("shown"))
        assert "1 compaction" in tui.text_of("heading")


async def test_tab_completes_commands_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("[a] b.txt", *(f"file{n:02}" for n in range(20))):
        Path(name).touch()
    async with open_tui() as tui:
        prompt = tui.app.prompt
        for typed, completed in (("/titl", "/title "), ("two\nlines [", "two\nlines [a] b.txt")):
            await tui.type(typed, "tab")
            await tui.until(lambda completed=completed: prompt.text == completed)
        await tui.type("see f", "tab")
        rows = [*(f"file{n:02}" for n in range(7)), "and 13 more"]
        await tui.until(lambda: tui.text_of("candidates").splitlines() == rows)
        assert prompt.has_focus


async def test_arrows_walk_the_rows_of_the_prompt_and_then_the_history(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("\n# before\n+earlier\n")
    async with open_tui(history=str(path)) as tui:
        prompt = tui.app.prompt
        await tui.type("/status")
        await tui.type("/usage")
        for text in ("/usage", "/status", "earlier", "earlier"):
            await tui.pilot.press("up")
            assert prompt.text == text
        await tui.pilot.press(*["down"] * 3)
        prompt.put("word " * 40)
        await tui.pilot.pause()
        await tui.pilot.press(*["up"] * (prompt.wrapped_document.height - 1))
        assert prompt.text == "word " * 40
        await tui.pilot.press("up")
        assert prompt.text == "/usage"
        await tui.type("two", "ctrl+j", "l", "enter")
        await tui.wait_for(" ▌ two\n ▌ l")


@pytest.mark.parametrize(
    ("line", "draft", "returns"), [("//help me", "", True), ("/a/path.txt", "other words", True), ("words", "", False)]
)
async def test_unstored_message_is_kept(line: str, draft: str, returns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_tui(numbered(4), size=(80, 40)) as tui:
        await tui.wait_for("number 4 of many")
        proceed = asyncio.Event()

        async def fail(*_: object, **__: object) -> None:
            await proceed.wait()
            raise errors.StoreBusy("It stayed locked.")

        monkeypatch.setattr(tui.db, "acquire_lease", fail)
        for each in (line, "second words", "third words"):
            await tui.type(each)
        await tui.until(lambda: len(tui.runtime.waiting("talk")) == 2)
        await tui.app.session.switch("other")
        if returns:
            await tui.app.session.switch("talk")
        tui.app.prompt.put(draft)
        proceed.set()
        restored = returns and not draft
        await tui.wait_for(*([] if restored else [f"Not sent: {line}"]), "Not sent: second words", "third words")
        assert tui.app.prompt.text == (line if restored else draft)
