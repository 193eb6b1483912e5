"""The prompt at the end of the screen: drawn in one write below the output, and found again after a resize."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chat import ChatDriver, open_chat

PARAGRAPH = "one two three four five six seven eight nine ten " * 4


@pytest.mark.parametrize("columns", [30, 47, 100])
@pytest.mark.parametrize("is_notified", [True, False])
async def test_open_text_is_shown_once_after_a_resize(chat: ChatDriver, columns: int, is_notified: bool) -> None:
    chat.enter("go")
    chat.model.say(f"Before.\n\n{PARAGRAPH}")
    await chat.wait_for("ten\n\n> ")
    chat.screen.resize(columns, 20)
    if is_notified:
        chat.prompt._session.app._on_resize()
    chat.model.say("finis.", None)
    await chat.wait_for("finis.")
    shown = "".join((await chat.wait_idle()).split())
    assert shown.count("onetwothree") == 4
    assert [shown.count(text) for text in ("Before.", ">go", "Anewconversation")] == [1, 1, 1]


async def test_end_of_a_block_taller_than_the_terminal_is_shown_and_then_all_of_it() -> None:
    async with open_chat(rows=12) as chat:
        chat.enter("go")
        chat.model.say("| n |\n|---|\n" + "".join(f"| r{number}r |\n" for number in range(50)))
        shown = await chat.wait_for("r49r")
        assert "r10r" not in shown
        assert chat.line.startswith("> ")
        chat.model.say(None)
        await chat.wait_idle()
        assert [chat.shown.count(f"r{number}r") for number in range(50)] == [1] * 50


PIECES = ["word ", "\n", "\n\n", "```\n", "- ", "| a |\n", "|---|\n", "漢字 ", "\U0001f389 ", "x" * 30]


@settings(max_examples=10)
@given(st.lists(st.sampled_from(PIECES), max_size=30), st.integers(12, 60), st.integers(5, 20))
def test_any_reply_is_drawn_once_above_the_prompt(pieces: list[str], columns: int, rows: int) -> None:
    async def check() -> None:
        async with open_chat(columns, rows) as chat:
            chat.enter("go")
            chat.model.say(*pieces, "\n\nwxend", None)
            await chat.wait_for("wxend")
            shown = "".join((await chat.wait_idle()).split())
            assert [shown.count(text) for text in ("wxend", ">go", "Anewconversation")] == [1, 1, 1]

    asyncio.run(check())
