"""While a tool asks: commands are carried out, and no word is taken for an answer, or lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chat import ENTER, Sitting
from tests.terminal.test_chat import sat


async def asked(sits: Sitting) -> None:
    sits.type(f"go{ENTER}")
    sits.model.run("make it")
    await sits.sees("Allow?")


@pytest.mark.parametrize(
    ("line", "comes", "ran"),
    [
        ("/deny because of the tests", "Denied", []),
        ("/approve", "Allowed", ["make it"]),
        ("/stop", "Interrupted.", []),
    ],
)
async def test_commands_answer_and_stop(line: str, comes: str, ran: list[str]) -> None:
    async with sat(columns=100) as sits:
        await asked(sits)
        sits.type(f"{line}{ENTER}")
        await sits.sees(f"> {line}\n", comes)
        if line != "/stop":
            sits.model.say("Well.", None)
            await sits.sees("Well.")
        await sits.idles()
        assert sits.home.shell.ran == ran
        assert "because of the tests" in str(sits.home.results) or not line.startswith("/deny")


async def test_a_command_that_is_no_answer_leaves_the_question_open() -> None:
    async with sat(columns=100) as sits:
        await asked(sits)
        sits.type(f"/queue{ENTER}")
        await sits.sees("No messages are waiting.")
        await sits.until(lambda: sits.line.startswith("Allow?"))
        sits.type(f"y{ENTER}")
        await sits.until(lambda: sits.home.shell.ran == ["make it"])
        assert "Type y" not in sits.screen.shown


async def test_to_quit_denies_and_leaves() -> None:
    async with sat() as sits:
        await asked(sits)
        sits.type(f"/quit{ENTER}")
        await sits.ended
        assert sits.home.shell.ran == []


async def test_other_words_are_at_the_prompt_after_the_question_and_among_what_was_typed(tmp_path: Path) -> None:
    history = tmp_path / "history"

    async with sat(columns=100, history=str(history)) as sits:
        await asked(sits)
        sits.type(f"what would it make?{ENTER}")
        await sits.sees("Type y, c, a, n or d")
        # Nobody is in the middle of it: the question is there again at once.
        await sits.until(lambda: sits.line.startswith("Allow?"))
        assert "+what would it make?" in history.read_text()
        sits.type(f"/usr/bin/make, I mean{ENTER}")
        await sits.until(lambda: sits.screen.shown.count("Type y") == 2 and sits.line.startswith("Allow?"))
        sits.type(f"n{ENTER}")
        await sits.sees("Denied (at the terminal: no).", "> what would it make?\n  /usr/bin/make, I mean")
