"""The full screen among several conversations: each is shown as what it is, and an answer goes on wherever one is."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, events, types
from holdfast.runtime import subscriptions
from holdfast.tui import app, entries
from tests.support.tui import Seat, long, sat


async def to(seat: Seat, name: str) -> None:
    await seat.type(f"/resume {name}")
    await seat.until(lambda: seat.screen.conversation_id == name and seat.screen.session.subscription is not None)


async def with_other(db: AsyncSessionDB) -> None:
    await long(4)(db)
    await db.create_session("other", source="test")
    await db.append_messages("other", [types.NewMessage(role="user", content=f"other {n}") for n in range(30)])


async def test_whoever_comes_back_sees_what_waits_and_keeps_seeing_what_streams_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "POLL_SECONDS", 0.01)

    async with sat(with_other, size=(80, 60)) as seat:
        looks = 0
        look = seat.screen.status.poll

        async def counted(conversation_id: str) -> None:
            nonlocal looks
            looks += 1
            await look(conversation_id)

        await seat.type("tell me")
        seat.model.say("alpha\n\n")
        await seat.sees("alpha")
        await seat.type("and another")
        await to(seat, "other")
        await to(seat, "talk")
        await seat.sees("and another")
        seat.model.say("gamma\n\n")
        await seat.sees("gamma")
        seat.screen.status.poll = counted  # type: ignore[method-assign]
        await seat.until(lambda: looks > 3)
        assert "gamma" in seat.shown
        seat.model.say("delta", None, "It is the last.", None)
        await seat.sees("It is the last.")
        await seat.idles()
        assert seat.shown.count("gamma") == seat.shown.count("alpha") == 1


async def test_a_turn_whose_end_nobody_heard_of_is_over_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        await seat.screen.show_event(events.TurnStarted("talk", "talk", "hello", 5))
        seat.screen._add_notice("notice", "Careful.")
        await seat.until(lambda: seat.screen._turn_seq is None and seat.screen._live.is_empty)
        await seat.sees("Careful.")


async def test_one_ctrl_c_stops_the_answer_that_is_come_back_to() -> None:
    async with sat(with_other) as seat:
        await seat.type("go on")
        seat.model.say("Slowly")
        await seat.sees("Slowly")
        await to(seat, "other")
        await seat.type("and here")
        await seat.until(lambda: len(seat.model.requests) == 2)
        await seat.pilot.press("ctrl+c")
        await seat.until(lambda: not seat.home.door.running("other"))
        assert seat.screen.session.interrupting
        await to(seat, "talk")
        await seat.pilot.press("ctrl+c")
        assert not seat.screen._exit
        await seat.until(lambda: not seat.home.door.running("talk"))


async def test_what_happened_last_in_a_conversation_is_never_told_as_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with sat(with_other) as seat:
        screen, told = seat.screen, list[tuple[int, str]]()
        tell = screen.transcript.extend

        async def noted(added: entries.TranscriptRange, *, turn_over: bool = False) -> None:
            told.append((added.last, screen.transcript.read.args[0]))  # type: ignore[attr-defined]
            await tell(added, turn_over=turn_over)

        await seat.type("go")
        seat.model.say("Words")
        await seat.sees("Words")
        monkeypatch.setattr(screen.transcript, "extend", noted)
        async with screen._read_lock:
            seat.model.say(None)
            await seat.until(lambda: not seat.home.door.running("talk"))
            moving = asyncio.create_task(screen.session.switch("other"))
            await seat.until(lambda: screen.session.subscription is None)
            assert screen.conversation_id == "talk"
        await moving
        await seat.sees("other 29")
        assert (6, "talk") in told
        assert all(last == 6 for last, where in told if where == "talk")
