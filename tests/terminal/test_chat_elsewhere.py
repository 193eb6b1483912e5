"""The chat among several conversations, and several chats in one: nothing said is lost, or passed over in silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import errors, events, types
from holdfast.runtime import subscriptions
from tests.support import slash_commands
from tests.support.chat import ENTER, LEAVE, Sitting
from tests.terminal.test_chat import said, sat


@pytest.mark.parametrize("line", ["/resume", "/resume last"])
async def test_to_resume_without_a_name_means_the_most_recent_other_conversation(line: str) -> None:
    async with sat() as sits:
        sits.model.say("Yes.", None)
        sits.type(f"hello{ENTER}")
        await sits.sees("Yes.")
        await sits.idles()
        sits.type(f"{line}{ENTER}")
        await sits.sees("There is no other conversation to continue.")
        await slash_commands.exchanges(sits.home.db, 1, "other")
        sits.type(f"{line}{ENTER}")
        await sits.sees("The other · 2 messages")
        assert not sits.ended.done()


@pytest.mark.parametrize("line", ["/resume talk", "/resume The talk"])
async def test_to_resume_this_very_conversation_is_told_and_changes_nothing(line: str) -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 1)
        sits.type(f"{line}{ENTER}")
        await sits.sees("You are already in this conversation")
        sits.model.say("Still.", None)
        sits.type(f"here?{ENTER}")
        shown = await sits.sees("Still.")
        assert "The talk ·" not in shown


async def test_a_command_behind_one_that_moves_waits_for_it() -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 1)
        sits.type(f"/new{ENTER}/status{ENTER}")
        await sits.sees("> /status", "begins with your first message")


async def test_messages_from_elsewhere_are_shown_while_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 1)
        await sits.sees("2 new messages from elsewhere:\n> q1\na1")
        sits.model.say("Yes.", None)
        sits.type(f"mine{ENTER}")
        await sits.sees("Yes.")
        await sits.idles()
        await sits.home.db.append_messages("talk", [types.NewMessage(role="user", content="theirs")])
        await sits.sees("1 new message from elsewhere:\n> theirs")
        assert sits.screen.shown.count("elsewhere") == 2


async def test_whoever_leaves_hears_what_was_stopped_and_not_sent_in_conversations_left_before() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("Half a")
        await sits.sees("Half a")
        sits.type(f"behind{ENTER}/new{ENTER}")
        await sits.sees("The reply continues there")
        sits.type(LEAVE)
        await sits.ended
        shown = " ".join(sits.screen.shown.split())
        assert "1 queued message was not sent." in shown
        assert "The reply in talk was interrupted; its text so far is saved." in shown
        while sits.home.door.running("talk"):
            await asyncio.sleep(0)
        assert await said(sits) == [("user", "go"), ("assistant", "Half a")]


async def test_a_message_that_waited_while_one_was_elsewhere_stands_over_its_answer() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("Half a")
        await sits.sees("Half a")
        sits.type(f"and then?{ENTER}/new{ENTER}")
        await sits.sees("The reply continues there")
        sits.type(f"/resume talk{ENTER}")
        await sits.sees("talk · 1 message\n\n> go\n")
        sits.model.say(" word.", None, "Then this.", None)
        await sits.sees("> and then?\nThen this.")


async def test_what_was_said_here_from_elsewhere_is_shown_before_the_next_answer() -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 1)
        sits.model.say("Yes.", None)
        sits.type(f"mine{ENTER}")
        await sits.sees("Yes.")
        await sits.idles()
        theirs = [types.NewMessage(role="user", content="theirs"), types.NewMessage(role="assistant", content="Aha.")]
        await sits.home.db.append_messages("talk", theirs)
        sits.model.say("And yes.", None)
        sits.type(f"mine again{ENTER}")
        # Of the first, only the exchange that was there before this chat could have been new.
        await sits.sees("2 new messages from elsewhere:\n> theirs\nAha.\n\n> mine again\nAnd yes.")
        await sits.idles()
        assert sits.screen.shown.count("elsewhere") == 2


async def test_while_a_turn_elsewhere_is_waited_for_that_is_what_is_told() -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 1)
        lease = await sits.home.db.acquire_lease("talk", "turn")
        sits.type(f"go{ENTER}")
        shown = await sits.sees("is running elsewhere.", "waiting… ")
        assert "answering" not in shown
        assert lease.holder not in shown
        await sits.home.db.release_lease(lease)
        await sits.sees("answering… ")


# --- what is being shown is shown before one goes on ---------------------------------------------------


def gate(sits: Sitting, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Whoever shows what came from elsewhere is held up until this is set."""
    opened, transcript = asyncio.Event(), sits.home.db.transcript

    async def waits(*given: Any) -> list[types.Message]:
        await opened.wait()
        return await transcript(*given)

    monkeypatch.setattr(sits.home.db, "transcript", waits)
    return opened


@pytest.mark.parametrize("leaves", [LEAVE, f"/help{ENTER}"], ids=["leaving", "command"])
async def test_all_that_came_is_shown_before_one_leaves_and_before_a_command_is_over(
    monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    async with sat(columns=120, rows=80) as sits:
        await slash_commands.exchanges(sits.home.db, 1)
        opened = gate(sits, monkeypatch)
        sits.type(f"go{ENTER}")
        sits.model.say("Half a")
        await sits.until(sits.model.words.empty)
        sits.type(leaves)
        if leaves == LEAVE:
            await sits.until(lambda: not sits.home.door.running("talk"))
        else:
            await sits.until(lambda: (now := sits.chat.session.command) is not None and now.done())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not sits.ended.done()
        opened.set()
        if leaves == LEAVE:
            await sits.ended
            assert sits.screen.shown.rstrip().endswith("Half a\nInterrupted. The conversation up to here is saved.")
        else:
            shown = await sits.sees("Alt-Enter starts a new line")
            assert shown.index("/quit ") < shown.index("Alt-Enter")


async def test_what_came_last_in_a_conversation_is_shown_before_one_arrives_in_another() -> None:
    async with sat() as sits:
        sits.home.door._state("talk").emit(events.TextDelta("Late words"))
        await sits.chat.session.switch("other")
        await sits.until(lambda: sits.screen.shown.count("A new conversation") == 2)
        shown = await sits.sees("Late words")
        assert shown.index("Late words") < shown.rindex("A new conversation")


@pytest.mark.parametrize("fails", ["conversation", "transcript", "hides"])
async def test_where_the_store_fails_on_the_way_elsewhere_that_is_told_and_the_chat_goes_on(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> None:
        raise errors.StoreBusy("It is locked.")

    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 1, "other")
        with monkeypatch.context() as now:
            now.setattr(sits.home.db, fails, failing)
            await sits.chat.session.switch("other")
            await sits.sees("It is locked.")
        sits.model.say("Here I am.", None)
        sits.type(f"hello{ENTER}")
        shown = await sits.sees("Here I am.")
        assert "2 new messages from elsewhere" in shown
        assert not sits.ended.done()


async def test_a_tool_that_runs_where_one_was_is_not_shown_as_running_here() -> None:
    async with sat() as sits:
        sits.home.door._state("talk").emit(events.ToolStarted("c", "shell", '{"command": "sleep 20"}'))
        await sits.sees("sleep 20")
        assert sits.chat._renderer.open
        await sits.chat.session.switch("other")
        assert not sits.chat._renderer.open
        await sits.until(lambda: sits.screen.shown.count("A new conversation") == 2)
        assert sits.screen.shown.index("sleep 20") < sits.screen.shown.rindex("A new conversation")
