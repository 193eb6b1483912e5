"""Approval requests in the chat: only an answer is one, and no typed word is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import events
from holdfast.chat import approval_prompt, input_line
from tests.support.chat import ENTER, LEAVE, STOP, ChatDriver, open_chat


async def request_approval(chat: ChatDriver) -> None:
    chat.enter("go")
    chat.model.run("make it")
    await chat.wait_for("Allow?")


@pytest.fixture
def _no_typing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is shown at once, although the user has just typed."""
    monkeypatch.setattr(input_line, "TYPING_PAUSE_SECONDS", 0.0)


@pytest.mark.usefixtures("_no_typing_pause")
async def test_text_typed_before_a_request_is_no_answer_and_restored_after_it() -> None:
    async with open_chat(columns=100) as chat:
        chat.enter("go")
        await chat.until(lambda: chat.model.requests)
        chat.type("yes")
        await chat.wait_for("> yes")
        chat.model.run("make it")
        await chat.wait_for("Allow?")
        assert "yes" not in chat.line
        chat.type(ENTER)
        await chat.wait_for("Type y, c, a, n or d")
        assert chat.shell.ran == []
        await chat.until(lambda: chat.line.startswith("Allow?"))
        chat.enter("n because")
        await chat.wait_for("Denied (at the terminal: no).")
        await chat.until(lambda: chat.line.startswith("> yes"))
        chat.model.say("Well.", None)
        await chat.wait_for("Well.")
        assert chat.shell.ran == []
        assert "They said: because" in chat.home.results[0]


async def test_request_does_not_interrupt_a_word_that_is_being_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_line, "TYPING_PAUSE_SECONDS", 1000.0)
    async with open_chat() as chat:
        chat.enter("go")
        await chat.until(lambda: chat.model.requests)
        chat.type("wh")
        await chat.wait_for("> wh")
        chat.model.run("make it")
        await chat.wait_for("Run make it.")
        chat.enter("y")
        await chat.wait_for("Queued: why")
        assert chat.shell.ran == []


@pytest.mark.usefixtures("_no_typing_pause")
async def test_keys_after_an_answer_do_not_answer_the_next_request(chat: ChatDriver) -> None:
    await request_approval(chat)
    chat.enter("y", "y")
    await chat.wait_for("Queued: y")
    chat.model.run("second")
    await chat.wait_for("Run second.", "Allow?")
    assert chat.shell.ran == ["make it"]


@pytest.mark.parametrize(
    ("line", "expected", "ran"),
    [
        ("/deny because of the tests", "Denied", []),
        ("/approve", "Allowed", ["make it"]),
        ("/quit", "Denied", []),
        (STOP, "Interrupted.", []),
        (LEAVE, "Denied", []),
    ],
)
async def test_commands_and_keys_answer_and_stop(line: str, expected: str, ran: list[str]) -> None:
    async with open_chat(columns=100) as chat:
        await request_approval(chat)
        chat.type(line if line in (STOP, LEAVE) else f"{line}{ENTER}")
        if line in ("/quit", LEAVE):
            await chat.ended
        await chat.wait_for(expected)
        if line in ("/deny because of the tests", "/approve"):
            chat.model.say("Well.", None)
            await chat.wait_for("Well.")
            await chat.wait_idle()
        assert chat.shell.ran == ran
        assert "because of the tests" in str(chat.home.results) or not line.startswith("/deny")


async def test_request_answered_elsewhere_restores_the_prompt(chat: ChatDriver) -> None:
    await request_approval(chat)
    chat.type("n")
    (request,) = chat.home.approvals.pending("talk")
    await chat.runtime.send("talk", events.Approve(request.asked.request_id, "once", "elsewhere"))
    await chat.wait_for("Allowed (elsewhere: once).")
    await chat.until(lambda: chat.line.startswith("> \n"))


async def test_other_words_are_restored_and_kept_in_the_history_but_answers_are_not(tmp_path: Path) -> None:
    history = tmp_path / "history"
    async with open_chat(columns=100, history=str(history)) as chat:
        await request_approval(chat)
        chat.enter("/queue")
        await chat.wait_for("No messages are waiting.")
        await chat.until(lambda: chat.line.startswith("Allow?"))
        assert "Type y" not in chat.shown
        chat.enter("what would it make?")
        await chat.wait_for("Type y, c, a, n or d")
        await chat.until(lambda: chat.line.startswith("Allow?"))
        assert "+what would it make?" in history.read_text()
        chat.enter("/usr/bin/make, I mean")
        await chat.until(lambda: chat.shown.count("Type y") == 2 and chat.line.startswith("Allow?"))
        chat.enter("n secret reason")
        await chat.wait_for("Denied (at the terminal: no).", "> what would it make?\n  /usr/bin/make, I mean")
        assert "secret" not in history.read_text()


@pytest.mark.parametrize(
    ("line", "answer", "reason"),
    [
        ("y", "once", ""),
        (" Yes ", "once", ""),
        ("c", "conversation", ""),
        ("always", "always", ""),
        ("n", "deny", ""),
        ("no, use make instead", "deny", "use make instead"),
    ],
)
def test_known_words_are_answers(line: str, answer: events.Answered, reason: str) -> None:
    assert approval_prompt.parse_reply(line, "q") == events.Approve("q", answer, "at the terminal", reason)


@pytest.mark.parametrize("line", ["", "yy", "yes please", "c u", "1", "/approve", "y\ta"])
def test_other_lines_are_no_answer(line: str) -> None:
    assert approval_prompt.parse_reply(line, "q") == approval_prompt.OtherLine(line)


def test_lasting_answers_are_offered_only_if_they_are_possible() -> None:
    asked = events.ApprovalAsked("q", "c", "shell", "Run it.", remembers="shell(ls)")
    assert "a always" in approval_prompt.question_text(asked)
    assert "always" not in approval_prompt.question_text(events.ApprovalAsked("q", "c", "shell", "Run it."))
