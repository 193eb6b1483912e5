"""What others say in a conversation is told, whatever is hinted and whatever fails on the way."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import errors, types
from holdfast.acp import replay
from holdfast.acp import session as sessions
from holdfast.store import hints
from tests.acp import seat


def test_what_is_hinted_to_nobody_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "EVERY", 0.01)

    async def story(editor: seat.Editor) -> None:
        here = await editor.new()
        # As with a database that tells of what other processes write, and this is none.
        editor.program.db.hearing.hears = True
        await editor.prompt(here, "hello")
        await editor.program.db.append_message(here, role="user", content="from the terminal")
        await editor.until("user_message_chunk")
        assert editor.text("user_message_chunk") == "from the terminal"

    seat.run(story, ["A"])


def test_what_is_said_while_a_session_is_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(editor: seat.Editor) -> None:
        db = editor.program.db
        here = await editor.new()
        await editor.prompt(here, "hello")
        db.hearing.hears = True
        hides = db.hides

        async def meanwhile(*given: Any) -> list[types.Hide]:
            db.hides = hides  # type: ignore[method-assign]
            await db.append_message(here, role="user", content="from the terminal")
            return await hides(*given)

        db.hides = meanwhile  # type: ignore[method-assign]
        await editor.ask("session/load", sessionId=here, cwd="/", mcpServers=[])
        await seat.so(lambda: "from the terminal" in editor.text("user_message_chunk"))

    monkeypatch.setattr(sessions, "EVERY", 3600.0)
    seat.run(story, ["A"])


def test_a_store_that_fails_in_the_middle_of_a_look_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PAGE", 1)
    monkeypatch.setattr(sessions, "EVERY", 3600.0)

    async def story(editor: seat.Editor) -> None:
        db, asked = editor.program.db, list[tuple[Any, ...]]()
        here = await editor.new()
        await editor.prompt(here, "hello")
        for words in ("one ", "two ", "three"):
            await db.append_message(here, role="user", content=words)
        transcript = db.transcript

        async def fails_once(*given: Any) -> list[types.Message]:
            asked.append(given)
            if len(asked) == 2:
                raise errors.StoreBusy
            return await transcript(*given)

        db.transcript = fails_once  # type: ignore[method-assign]
        db.hearing._spread(hints.Hint("moved", here))
        await seat.so(lambda: len(asked) == 2)
        db.hearing._spread(hints.Hint("moved", here))
        await seat.so(lambda: editor.text("user_message_chunk").endswith("three"))
        assert editor.text("user_message_chunk") == "one two three"

    seat.run(story, ["A"])
