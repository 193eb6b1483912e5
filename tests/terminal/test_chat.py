"""The chat: people type while it answers, what they type counts in its order, and everything is seen once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import content_parts, events
from holdfast.chat import chat, input_line
from holdfast.terminal import event_text
from tests.support import agents, slash_commands
from tests.support.chat import ENTER, LEAVE, STOP, Sitting, sitting
from tests.support.screen import Screen


@asynccontextmanager
async def sat(**given: Any) -> AsyncIterator[Sitting]:
    """Open the chat on a store of its own."""
    async with agents.store() as db, sitting(db, **given) as sits:
        yield sits


async def said(sits: Sitting, conversation: str = "talk") -> list[tuple[str, str]]:
    log = await sits.home.db.transcript(conversation)
    return [(each.role, content_parts.text(each.content).partition("\n[")[0]) for each in log if each.role != "tool"]


# --- typing while it answers ---------------------------------------------------------------------------


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "NO_COLOR"])
async def test_what_is_typed_during_an_answer_stays_at_the_prompt_and_the_answer_appears_above_it(colour: bool) -> None:
    async with sat(colour=colour) as sits:
        sits.type(f"tell me{ENTER}")
        sits.model.say("Once **upon")
        await sits.sees("> tell me\nOnce **upon")
        sits.type("and then")
        await sits.sees("Once **upon\n\n> and then")
        sits.model.say("** a time.\n\nThere was")
        drawn = "Once upon a time." if colour else "Once **upon** a time."
        await sits.sees(f"> tell me\n{drawn}\n\nThere was\n\n> and then")
        sits.model.say(None)
        await sits.until(lambda: "answering" not in sits.line)
        assert sits.screen.shown.count("There was") == 1
        assert sits.line.startswith("> and then")


async def test_a_line_sent_during_an_answer_waits_and_is_answered_next_in_its_order() -> None:
    async with sat() as sits:
        sits.type(f"one{ENTER}")
        sits.model.say("First")
        await sits.sees("First")
        sits.type(f"two{ENTER}three{ENTER}")
        await sits.sees("Queued: two\n", "Queued: three\n", "2 queued")
        sits.model.say(" answer.", None, "Second answer.", None, "Third answer.", None)
        await sits.sees("Third answer.")
        await sits.idles()
        assert [words for role, words in await said(sits) if role == "user"] == ["one", "two", "three"]
        # Each question stands over its answer.
        shown = sits.screen.shown
        assert "\n\n> two\nSecond answer.\n\n> three\nThird answer.\n\n> " in shown
        assert "queued" not in sits.line


async def test_a_turn_that_runs_can_be_told_something_and_what_waits_can_be_dropped() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("Hm.\n\n")
        await sits.sees("Hm.")
        sits.type(f"/steer not that way{ENTER}")
        await sits.sees("The model gets this before its next step.")
        sits.type(f"later{ENTER}")
        await sits.sees("1 queued")
        sits.type(f"/queue{ENTER}")
        await sits.sees("1  later")
        sits.type(f"/queue drop 1{ENTER}")
        await sits.sees("Dropped: later")
        sits.model.say(None, "Otherwise, then.", None)
        await sits.sees("Otherwise, then.")
        assert any("not that way" in each for each in sits.model.told)
        await sits.idles()
        assert "> later" not in sits.screen.shown


async def test_stop_stops_the_turn_and_what_waits_goes_on() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("Half a")
        await sits.sees("Half a")
        sits.type(f"next{ENTER}/stop{ENTER}")
        await sits.sees("Interrupted. The conversation up to here is saved.", "> next\n")
        sits.model.say("Done.", None)
        await sits.sees("Done.")
        assert await said(sits) == [("user", "go"), ("assistant", "Half a"), ("user", "next"), ("assistant", "Done.")]


# --- leaving -------------------------------------------------------------------------------------------


async def test_ctrl_c_takes_back_what_is_typed_then_stops_the_turn_then_leaves() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("Half a")
        await sits.sees("Half a")
        sits.type("never mind")
        await sits.sees("> never mind")
        sits.type(STOP)
        await sits.until(lambda: "never" not in sits.line)
        sits.model.say(" word")
        await sits.sees("Half a word")  # It goes on.
        sits.type(STOP)
        await sits.sees("Interrupted.")
        await sits.idles()
        sits.type(STOP)
        await sits.sees(chat.LEAVE_WARNING)
        sits.type(STOP)
        await sits.ended


async def test_typing_after_the_warning_means_to_stay() -> None:
    async with sat() as sits:
        sits.type(STOP)
        await sits.sees(chat.LEAVE_WARNING)
        sits.type(f"/status{ENTER}")
        await sits.sees("turn          none")
        await sits.until(lambda: sits.chat.session.command is None)  # Until then, Ctrl-C would stop the command.
        sits.type(STOP)
        await sits.until(lambda: sits.screen.shown.count(chat.LEAVE_WARNING) == 2)
        assert not sits.ended.done()


async def test_ctrl_c_twice_leaves_a_turn_that_does_not_end() -> None:
    async with sat() as sits:
        stuck = asyncio.Event()

        async def hold() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                await stuck.wait()
            return ""

        sits.home.shell._go = hold
        sits.type(f"go{ENTER}")
        sits.model.run("sleep")
        await sits.sees("Allow?")
        sits.type(f"y{ENTER}")
        await sits.sees("Allowed")
        await sits.until(lambda: sits.home.shell.ran)
        sits.type(STOP)
        await sits.until(lambda: sits.chat.session.interrupting)
        sits.type(STOP)
        await sits.until(lambda: not sits.prompt._session.app.is_running)
        stuck.set()
        await sits.ended


async def test_whoever_leaves_in_the_middle_keeps_what_was_said_and_hears_what_was_not_sent() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("Half a")
        await sits.sees("Half a")
        sits.type(f"one{ENTER}two{ENTER}")
        await sits.sees("2 queued")
        sits.type(LEAVE)
        await sits.ended
        shown = sits.screen.shown
        assert "2 queued messages were not sent." in shown
        assert shown.rstrip().endswith("Half a\nInterrupted. The conversation up to here is saved.")
        assert await said(sits) == [("user", "go"), ("assistant", "Half a")]


async def test_ctrl_d_with_something_typed_does_not_leave() -> None:
    async with sat() as sits:
        sits.type(f"words{LEAVE}{LEAVE}{STOP}/status{ENTER}")
        await sits.sees("turn          none")
        assert not sits.ended.done()


@pytest.mark.parametrize("place", [(event_text.EventRenderer, "draw"), (Screen, "write")], ids=["page", "terminal"])
async def test_a_fault_of_the_screen_ends_the_chat_and_is_heard_of(
    monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError("gone")

    async with sat() as sits:
        monkeypatch.setattr(*place, fail)
        sits.type(f"/status{ENTER}")
        with pytest.raises(OSError, match="gone"):
            await sits.ended


async def test_internal_error_of_a_command_that_runs_meanwhile_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 30)
        sits.type(f"/compact here 1{ENTER}")
        await sits.until(lambda: sits.model.requests)

        async def fail(*_: object) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(sits.home.door, "send", fail)
        sits.type(f"/queue{ENTER}")
        with pytest.raises(RuntimeError, match="broken"):
            await asyncio.wait_for(sits.ended, 30)


# --- questions of tools --------------------------------------------------------------------------------


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pauses has paused at once."""
    monkeypatch.setattr(input_line, "TYPING_PAUSE_SECONDS", 0.0)


@pytest.mark.usefixtures("_hasty")
async def test_what_was_typed_before_a_question_is_no_answer_and_is_back_after_it() -> None:
    async with sat(columns=100) as sits:
        sits.type(f"go{ENTER}")
        await sits.until(lambda: sits.model.requests)
        sits.type("yes")
        await sits.sees("> yes")
        sits.model.run("make it")
        await sits.sees("Allow?")
        assert "yes" not in sits.line
        sits.type(ENTER)
        await sits.sees("Type y, c, a, n or d")
        assert sits.home.shell.ran == []
        await sits.until(lambda: sits.line.startswith("Allow?"))
        sits.type(f"n because{ENTER}")
        await sits.sees("Denied (at the terminal: no).")
        await sits.until(lambda: sits.line.startswith("> yes"))
        sits.model.say("Well.", None)
        await sits.sees("Well.")
        assert sits.home.shell.ran == []
        assert "They said: because" in sits.home.results[0]


async def test_whoever_is_in_the_middle_of_a_word_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the rest of it would be an answer."""
    monkeypatch.setattr(input_line, "TYPING_PAUSE_SECONDS", 1000.0)

    async with sat() as sits:
        sits.type(f"go{ENTER}")
        await sits.until(lambda: sits.model.requests)
        sits.type("wh")
        await sits.sees("> wh")
        sits.model.run("make it")
        await sits.sees("Run make it.")
        sits.type(f"y{ENTER}")
        await sits.sees("Queued: why")
        assert sits.home.shell.ran == []


@pytest.mark.usefixtures("_hasty")
async def test_keys_behind_an_answer_are_none_to_the_next_question() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.run("first")
        await sits.sees("Allow?")
        sits.type(f"y{ENTER}y{ENTER}")
        await sits.sees("Queued: y")
        sits.model.run("second")
        await sits.sees("Run second.", "Allow?")
        assert sits.home.shell.ran == ["first"]


async def test_answers_are_not_kept_among_what_was_typed(tmp_path: Any) -> None:
    history = tmp_path / "history"

    async with sat(history=str(history)) as sits:
        sits.type(f"go{ENTER}")
        sits.model.run("first")
        await sits.sees("Allow?")
        sits.type(f"n secret reason{ENTER}")
        await sits.sees("Denied")
        await sits.until(lambda: "go" in history.read_text())
        assert "secret" not in history.read_text()


@pytest.mark.parametrize("how", [STOP, LEAVE], ids=["stop", "leave"])
async def test_ctrl_c_and_ctrl_d_at_a_question_deny_it(how: str) -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.run("make it")
        await sits.sees("Allow?")
        sits.type(how)
        await sits.sees("Denied", "Interrupted.")
        assert sits.home.shell.ran == []
        if how == LEAVE:
            await sits.ended
        else:
            await sits.idles()


async def test_a_question_answered_elsewhere_gives_the_line_back() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.run("make it")
        await sits.sees("Allow?")
        sits.type("n")
        (question,) = sits.home.approvals.pending("talk")
        await sits.home.door.send("talk", events.Approve(question.asked.request_id, "once", "elsewhere"))
        await sits.sees("Allowed (elsewhere: once).")
        await sits.until(lambda: sits.line.startswith("> \n"))


# --- commands ------------------------------------------------------------------------------------------


async def test_a_slow_command_can_be_stopped_and_what_is_typed_behind_it_waits_for_it() -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 30)
        for stop in (STOP, f"/stop{ENTER}"):
            asked = len(sits.model.requests)
            sits.type(f"/compact here 1{ENTER}")
            await sits.until(lambda asked=asked: len(sits.model.requests) > asked)
            sits.type(f"behind it{ENTER}")
            await sits.sees("Queued: behind it", "1 queued")
            assert len(sits.model.requests) == asked + 1
            sits.type(stop)
            await sits.sees("stopped.", "> behind it")
            sits.model.say("Answered.", None)
            await sits.sees("Answered.")
            await sits.idles()
            sits.screen.lines[:] = [""] * len(sits.screen.lines)


async def test_what_waits_behind_a_command_can_be_looked_at_and_taken_back_and_whoever_quits_does_not_wait() -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 30)
        sits.type(f"/compact here 1{ENTER}")
        await sits.until(lambda: sits.model.requests)
        sits.type(f"first{ENTER}second{ENTER}/queue{ENTER}")
        await sits.sees("1  first\n2  second\n")
        sits.type(f"/queue drop 1{ENTER}/queue drop 7{ENTER}")
        await sits.sees("Dropped: first", "No message 7 is waiting", "1 queued")
        sits.type(f"/quit{ENTER}")
        await sits.ended
        assert "1 queued message was not sent." in sits.screen.shown


async def test_queued_message_is_not_announced_within_a_block_of_code() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("```\na = 1\n")
        await sits.sees("a = 1")
        sits.type(f"next{ENTER}")
        await sits.sees("1 queued")
        sits.model.say("b = 2\n```\n")
        await sits.sees("```\na = 1\nb = 2\n```\nQueued: next\n")
        sits.model.say(None, "```\nc = 3\n")
        await sits.sees("c = 3")
        sits.type(f"last{ENTER}")
        await sits.sees("1 queued")
        sits.model.say(None)  # The block has no end.
        await sits.sees("c = 3\nQueued: last\n")


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("/usr/bin/foo is broken", "/usr/bin/foo is broken"),
        ("//help me", "/help me"),
        ("// a\x1b\r// b", "// a\n// b"),
    ],
    ids=["path", "two slashes", "several lines"],
)
async def test_a_path_and_a_text_of_several_lines_are_messages_as_they_stand(typed: str, sent: str) -> None:
    async with sat() as sits:
        sits.model.say("Yes.", None)
        sits.type(f"{typed}{ENTER}")
        await sits.sees("Yes.")
        assert (await said(sits))[0] == ("user", sent)


async def test_lines_are_carried_out_one_after_the_other_where_the_one_before_led() -> None:
    async with sat() as sits:
        sits.model.say("Yes.", None)
        sits.type(f"/title First{ENTER}/new Second{ENTER}hello{ENTER}")
        shown = await sits.sees("Yes.", "Title: Second")
        assert shown.index("> /title") < shown.index("gets this title") < shown.index("> /new") < shown.index("> hello")
        assert [head.title for head in await sits.home.db.list_sessions()] == ["Second"]


async def test_an_answer_goes_on_in_the_conversation_that_was_left() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        sits.model.say("Half a")
        await sits.sees("Half a")
        sits.type(f"/new{ENTER}")
        await sits.sees("Half a\nThe reply continues there. Use /resume talk to go back.\nA new conversation")
        sits.model.say(" word.", None)
        await sits.until(lambda: not sits.home.door.running("talk"))
        assert "word" not in sits.screen.shown
        sits.type(f"/resume talk{ENTER}")
        await sits.sees("> go\nHalf a word.")


async def test_whoever_comes_back_does_not_see_what_was_taken_back() -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 3)
        sits.type(f"/undo{ENTER}")
        await sits.sees("Undone")
        sits.screen.lines[:] = [""] * len(sits.screen.lines)
        sits.type(f"/branch{ENTER}")
        await sits.sees("You are in the branch", "> q2\na2")
        assert "a3" not in sits.screen.shown


async def test_help_tells_the_keys_too() -> None:
    async with sat(columns=120, rows=60) as sits:
        sits.type(f"/help{ENTER}")
        await sits.sees("Alt-Enter starts a new line", "/queue lists")


# --- beside the talk -----------------------------------------------------------------------------------


async def test_a_notice_is_answered_at_once_while_nobody_types() -> None:
    async with sat() as sits:
        await slash_commands.exchanges(sits.home.db, 1)
        sits.model.say("Seen.", None)
        await sits.home.db.mail.add_inbox_entry("talk", "one", "process 1 ended", kind="process")
        sits.home.door.check_inbox("talk")
        await sits.sees("· process 1 ended\nSeen.")


async def test_how_long_an_answer_takes_is_told_until_it_is_there() -> None:
    async with sat() as sits:
        sits.type(f"go{ENTER}")
        await sits.sees("answering… ")
        sits.model.say("Well.", None)
        await sits.sees("Well.")
        await sits.idles()
