"""The chat: input while a reply streams, leaving, commands, and several conversations."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import errors
from holdfast.chat.chat import LEAVE_WARNING
from holdfast.terminal import event_text
from tests.support.chat import LEAVE, STOP, ChatDriver, open_chat
from tests.support.runtimes import add_exchanges
from tests.support.screen import Screen

INTERRUPTED = "Interrupted. The conversation up to here is saved."


async def start_reply(chat: ChatDriver, words: str = "Half a") -> None:
    chat.enter("go")
    chat.model.say(words)
    await chat.wait_for(words.strip())


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "NO_COLOR"])
async def test_input_stays_at_the_prompt_while_the_reply_appears_above_it(colour: bool) -> None:
    async with open_chat(colour=colour) as chat:
        await start_reply(chat, "Once **upon")
        chat.type("and then")
        await chat.wait_for("> go\nOnce **upon\n\n> and then")
        chat.model.say("** a time.\n\nThere was")
        drawn = "Once upon a time." if colour else "Once **upon** a time."
        await chat.wait_for(f"> go\n{drawn}\n\nThere was\n\n> and then")
        chat.model.say(None)
        await chat.until(lambda: "answering" not in chat.line)
        assert chat.shown.count("There was") == 1
        assert chat.line.startswith("> and then")


async def test_lines_sent_during_a_reply_are_answered_in_order_after_its_end_or_stop(chat: ChatDriver) -> None:
    await start_reply(chat)
    chat.enter("two", "three")
    await chat.wait_for("Queued: two\n", "Queued: three\n", "2 queued")
    chat.enter("/stop")
    await chat.wait_for(INTERRUPTED, "> two\n")
    chat.model.say("Second answer.", None, "Third answer.", None)
    await chat.wait_for("Third answer.")
    await chat.wait_idle()
    replies = ["Half a", "Second answer.", "Third answer."]
    assert [text for role, text in await chat.messages() if role == "user"] == ["go", "two", "three"]
    assert [text for role, text in await chat.messages() if role == "assistant"] == replies
    assert "\n\n> two\nSecond answer.\n\n> three\nThird answer.\n\n> " in chat.shown
    assert "queued" not in chat.line


async def test_ctrl_c_clears_the_line_then_interrupts_then_warns_then_leaves(chat: ChatDriver) -> None:
    await start_reply(chat)
    chat.type("never mind")
    await chat.wait_for("> never mind")
    chat.type(STOP)
    await chat.until(lambda: "never" not in chat.line)
    chat.model.say(" word")
    await chat.wait_for("Half a word")
    chat.type(STOP)
    await chat.wait_for("Interrupted.")
    await chat.wait_idle()
    chat.type(STOP)
    await chat.wait_for(LEAVE_WARNING)
    chat.type(f"words{LEAVE}{LEAVE}{STOP}")  # Ctrl-D does not leave with text, and typing means to stay.
    chat.enter("/status")
    await chat.wait_for("turn          none")
    await chat.until(lambda: chat.chat.session.command is None)  # Until then, Ctrl-C would stop the command.
    chat.type(STOP)
    await chat.until(lambda: chat.shown.count(LEAVE_WARNING) == 2)
    assert not chat.ended.done()
    chat.type(STOP)
    await chat.ended


async def test_second_ctrl_c_leaves_a_turn_that_does_not_end(chat: ChatDriver) -> None:
    stuck = asyncio.Event()

    async def hold() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await stuck.wait()
        return ""

    chat.shell._go = hold
    chat.enter("go")
    chat.model.run("sleep")
    await chat.wait_for("Allow?")
    chat.enter("y")
    await chat.until(lambda: chat.shell.ran)
    chat.type(STOP)
    await chat.until(lambda: chat.session.interrupting)
    chat.type(STOP)
    await chat.until(lambda: not chat.prompt._session.app.is_running)
    stuck.set()
    await chat.ended


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_leaving_keeps_the_text_and_reports_unsent_messages(chat: ChatDriver, elsewhere: bool) -> None:
    await start_reply(chat)
    chat.enter("behind")
    await chat.wait_for("1 queued")
    if elsewhere:
        chat.enter("/new")
        await chat.wait_for("The reply continues there")
    chat.type(LEAVE)
    await chat.ended
    shown = " ".join(chat.shown.split())
    assert "1 queued message was not sent." in shown
    if elsewhere:
        assert "The reply in talk was interrupted; its text so far is saved." in shown
    else:
        assert shown.endswith(f"Half a {INTERRUPTED}")
    await chat.runtime.wait_idle("talk")
    assert await chat.messages() == [("user", "go"), ("assistant", "Half a")]


@pytest.mark.parametrize("fault", ["page", "terminal"])
async def test_internal_error_ends_the_chat(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("gone")

    async with open_chat() as chat:
        monkeypatch.setattr(*((event_text.EventRenderer, "draw") if fault == "page" else (Screen, "write")), fail)
        chat.enter("/status")
        with pytest.raises(OSError, match="gone"):
            await asyncio.wait_for(asyncio.shield(chat.ended), 60)


async def test_slow_command_is_stopped_without_a_trace_and_lines_behind_it_wait(chat: ChatDriver) -> None:
    await add_exchanges(chat.db, 30)
    log = await chat.db.transcript("talk")
    for stop in (STOP, "/stop\r"):
        count = len(chat.model.requests)
        chat.enter("/compact here 1")
        await chat.until(lambda count=count: len(chat.model.requests) > count)
        chat.enter("behind it")
        await chat.wait_for("Queued: behind it", "1 queued")
        assert len(chat.model.requests) == count + 1
        chat.type(stop)
        await chat.wait_for("stopped.", "> behind it")
        chat.model.say("Answered.", None)
        await chat.wait_for("Answered.")
        await chat.wait_idle()
        chat.screen.lines[:] = [""] * len(chat.screen.lines)
    assert (await chat.db.transcript("talk"))[: len(log)] == log
    assert [each.id for each in await chat.db.sessions("talk")] == ["talk"]
    assert await chat.db.leases() == []


async def test_reply_continues_in_a_conversation_that_was_left(chat: ChatDriver) -> None:
    await start_reply(chat)
    chat.enter("and then?", "/new")
    await chat.wait_for("The reply continues there. Use /resume talk to go back.\nA new conversation")
    chat.model.say(" word")
    await chat.until(chat.model.words.empty)
    assert "word" not in chat.shown
    chat.enter("/resume talk")
    await chat.wait_for("talk · 1 message\n\n> go\n")
    chat.model.say(".", None, "Then this.", None)
    await chat.wait_for("> and then?\nThen this.")
    assert ("assistant", "Half a word.") in await chat.messages()


async def test_messages_of_other_processes_are_shown() -> None:
    async with open_chat(poll_seconds=0.01) as chat:
        await add_exchanges(chat.db, 1)
        await chat.wait_for("2 new messages from elsewhere:\n> q1\na1")
        chat.model.say("Yes.", None)
        chat.enter("mine")
        await chat.wait_for("Yes.")
        assert chat.shown.count("elsewhere") == 1


@pytest.mark.parametrize("method", ["conversation", "transcript", "hides"])
async def test_store_error_during_a_switch_is_shown(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise errors.StoreBusy("It is locked.")

    async with open_chat() as chat:
        await add_exchanges(chat.db, 1, "other")
        with monkeypatch.context() as patch:
            patch.setattr(chat.db, method, fail)
            await chat.session.switch("other")
            await chat.wait_for("It is locked.")
        chat.model.say("Here I am.", None)
        chat.enter("hello")
        assert "2 new messages from elsewhere" in await chat.wait_for("Here I am.")
        assert not chat.ended.done()
