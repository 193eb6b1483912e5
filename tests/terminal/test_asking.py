"""A message and the events of its turn: complete when it ends, and stopped whenever that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from holdfast import AIAgent, AsyncSessionDB, SessionDB, events, types
from holdfast.agent import runtime
from holdfast.model import ScriptedModel, port
from holdfast.terminal import asking
from tests.agent import stage

T = TypeVar("T")
HERE = "here"


class Endless(ScriptedModel):
    """Says one word, and then nothing more."""

    async def stream(self, request: port.Request) -> AsyncGenerator[port.Delta, None]:
        self.requests.append(request)
        yield port.Said("word")
        await asyncio.Event().wait()


def told(model: port.Model, story: Callable[[runtime.Runtime], Awaitable[T]]) -> T:
    async def tell() -> T:
        async with asyncio.timeout(60), AsyncSessionDB(SessionDB(":memory:")) as db:

            async def build(conversation_id: str) -> AIAgent:
                return AIAgent(db=db, model=model, session_id=conversation_id, skip_context_files=True)

            async with runtime.Runtime(db, build) as door:
                return await story(door)

    return asyncio.run(tell())


def test_everything_was_shown_when_the_result_is_there() -> None:
    seen: list[events.AnyEvent] = []

    async def story(door: runtime.Runtime) -> events.TurnResult | None:
        return await asking.Asking(door, HERE, seen.append).ask("hi")

    result = told(ScriptedModel(["Hello."]), story)
    assert result is not None
    assert result.final_response == "Hello."
    assert seen[-1] == events.TurnFinished(result)
    assert events.TextDelta("Hello.") in seen


@pytest.mark.parametrize("when", [None, events.TurnStarted, events.TextDelta], ids=["at once", "begun", "speaking"])
def test_it_can_be_stopped_at_any_moment(when: type | None) -> None:
    async def story(door: runtime.Runtime) -> events.TurnResult | None:
        def show(event: events.AnyEvent) -> None:
            assert not isinstance(event, events.Notice), event
            if when is not None and isinstance(event, when):
                asked.stop()

        asked = asking.Asking(door, HERE, show)
        if when is None:
            asked.stop()
        return await asked.ask("hi")

    result = told(Endless(), story)
    assert result is not None
    assert result.interrupted
    # One that was stopped before it began has stored nothing.
    assert [each.role for each in result.messages][:1] == (["user"] if when else [])


def test_one_that_waits_for_a_turn_elsewhere_can_be_stopped_and_writes_nothing() -> None:
    async def story(door: runtime.Runtime) -> tuple[events.TurnResult | None, int]:
        await door.db.create_session(HERE, source="test")
        elsewhere = await door.db.acquire_lease(HERE, "turn")

        def show(event: events.AnyEvent) -> None:
            if isinstance(event, events.TurnQueued):
                asked.stop()

        asked = asking.Asking(door, HERE, show)
        result = await asked.ask("hi")
        await door.db.release_lease(elsewhere)
        return result, (await door.db.conversation(HERE)).last_seq

    result, last_seq = told(ScriptedModel(["never"]), story)
    assert result is not None
    assert (result.exit_reason, result.messages, last_seq) == ("interrupted", (), 0)


def test_a_screen_that_fails_stops_the_turn_and_is_heard_of() -> None:
    model = Endless()

    async def story(door: runtime.Runtime) -> list[str]:
        def show(event: events.AnyEvent) -> None:
            if isinstance(event, events.TextDelta):
                raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            await asking.Asking(door, HERE, show).ask("hi")
        return [message.role for message in await door.db.transcript(HERE)]

    assert told(model, story) == ["user", "assistant"]


def test_a_notice_that_comes_in_during_the_turn_waits_for_somebody_who_sees_it() -> None:
    """Whoever asked is gone with the answer, and the program may be."""
    model = ScriptedModel([stage.calls("end"), "Done.", "Never."])

    async def tell(db: AsyncSessionDB) -> None:
        async def end(_: dict[str, Any]) -> types.Content:
            await db.receive(HERE, "one", "one ended")
            door.poke(HERE)
            return "ok"

        async def build(conversation_id: str) -> AIAgent:
            return stage.agent(db, model, session_id=conversation_id, tools=[stage.tool("end", end)])

        async with runtime.Runtime(db, build) as door:
            result = await asking.Asking(door, HERE, lambda _: None).ask("hi")
            while door._lanes:
                await asyncio.sleep(0)
        assert result is not None
        assert result.final_response == "Done."
        assert [each.key for each in await db.waiting(HERE)] == ["one"]
        assert len(model.requests) == 2

    stage.run(tell)


def test_a_fault_is_told_and_raised_to_nobody() -> None:
    seen: list[events.AnyEvent] = []

    async def story(door: runtime.Runtime) -> events.TurnResult | None:
        return await asking.Asking(door, HERE, seen.append).ask("hi")

    assert told(ScriptedModel([ZeroDivisionError()]), story) is None
    assert seen[-1] == events.Notice("The turn failed: ZeroDivisionError", "error")


def test_a_command_has_said_all_when_it_returns() -> None:
    seen: list[events.AnyEvent] = []

    async def story(door: runtime.Runtime) -> None:
        for line in ("/title Trip", "/title", "/bogus"):
            await asking.command(door, HERE, line, seen.append)

    told(ScriptedModel(), story)
    assert [type(event) for event in seen] == [events.Notice, events.Answer, events.Notice]
    assert seen[1] == events.Answer("Trip")
