"""Closes at odd moments: clients that read slowly, stores that fail, two at once, and what nobody was told of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import AsyncSessionDB, events
from holdfast.compaction import hooks
from holdfast.rpc_server import open_sessions, session
from tests.agent import house, stage
from tests.terminal import calling
from tests.terminal.sitting import Dictated
from tests.terminal.test_server_leaving import ends, spoken, until_ended
from tests.terminal.test_sessions import failing, uids, until_none_is_left

# --- who reads slowly ----------------------------------------------------------------------------------


async def unread(desk: calling.Desk, client: calling.Caller, model: Dictated) -> str:
    """Three prompts of a client that stopped reading in the turn of the first; the session."""
    key: str = (await client.ask("session.create"))["session_id"]
    for uid in "abc":
        await client.ask("prompt.submit", session_id=key, text=uid, uid=uid)
    model.say("Once ")
    await client.until("message.delta")
    client.reads.clear()
    model.say("upon ")
    await client.sending.wait()
    return key


ENDS = [("a", "interrupted"), ("b", "dropped"), ("c", "dropped")]


def test_who_reads_late_is_told_every_end_before_its_close_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FLUSH_SECONDS", 0.0)
    model = Dictated()

    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        key = await unread(desk, client, model)
        closed = client.asking("session.close", session_id=key)
        await until_ended(desk.db, key)
        client.reads.set()
        assert (await closed)["result"] == {"session_id": key, "ended": True}
        assert sorted(uids(client)) == ENDS
        assert [*desk.server._sessions] == []

    calling.run(story, model=model)


def test_a_close_that_fails_loses_nothing_that_was_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FLUSH_SECONDS", 0.0)
    model = Dictated()

    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        key = await unread(desk, client, model)
        failing(desk.db, 1)
        closed = client.asking("session.close", session_id=key)
        (session,) = desk.server._sessions
        while not session.closing:
            await asyncio.sleep(0)
        await session.wait_closed()
        client.reads.set()
        assert (await closed)["error"]["data"] == {"type": "StoreBusy"}
        await session.subscription.drain()
        assert "upon " in [each["payload"]["text"] for each in client.told("message.delta")]
        assert sorted(uids(client)) == ENDS

    calling.run(story, model=model)


@pytest.mark.parametrize("how", ["the client vanishes", "the server ends"])
def test_who_never_reads_is_not_waited_for_at_the_end(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FLUSH_SECONDS", 0.0)
    model = Dictated()

    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        key = await unread(desk, client, model)
        client.asking("session.close", session_id=key)
        await until_ended(desk.db, key)
        if how == "the server ends":
            await desk.server.close()
        else:
            client.held = True
            await client.leave()
            desk._callers.remove(client)
        await until_none_is_left(desk)

    calling.run(story, model=model)


# --- who opens meanwhile -------------------------------------------------------------------------------


def test_opening_again_what_is_being_closed_keeps_nobody_from_opening_others() -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def closing(_: str) -> None:
        reached.set()
        await go.wait()

    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        key, other = await spoken(client), await spoken(client, "Other words")
        go.set()
        await client.ask("session.close", session_id=other)
        reached.clear()
        go.clear()
        closed = client.asking("session.close", session_id=key)
        await reached.wait()
        again = client.asking("session.resume", session_id=key)
        after = client.asking("prompt.submit", session_id=key, text="After", uid="u")
        assert (await client.ask("session.resume", session_id=other))["session_id"] == other
        assert (await client.ask("session.create"))["session_id"] not in (key, other)
        assert [each.done() for each in (again, after)] == [False, False]
        go.set()
        assert (await closed)["result"]["ended"]
        assert not (await again)["result"]["live"]
        assert (await after)["result"]["uid"] == "u"

    calling.run(story, ["a", "b", "c"], hooks=hooks.Hooks(closing=(closing,)))


# --- the last one ends it ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["both close", "the server ends"])
def test_of_two_who_leave_at_once_one_ends_it(how: str) -> None:
    told: list[str] = []

    async def closing(session_id: str) -> None:
        told.append(session_id)

    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        other = await desk.caller()
        key = await spoken(client)
        await other.ask("session.resume", session_id=key)
        if how == "both close":
            both = [each.asking("session.close", session_id=key) for each in (client, other)]
            assert sorted([(await each)["result"]["ended"] for each in both]) == [False, True]
        else:
            await desk.server.close()
        assert (told, await ends(desk.db, key)) == ([key], ["tui_close"])

    calling.run(story, ["a"], hooks=hooks.Hooks(closing=(closing,)))


# --- stores that fail ----------------------------------------------------------------------------------


def test_what_could_not_be_closed_for_one_who_vanished_is_tried_again_until_it_is() -> None:
    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        key = await spoken(client)
        failing(desk.db, 2 * open_sessions.CLOSE_ATTEMPTS)
        await client.leave()
        await until_none_is_left(desk)
        assert await ends(desk.db, key) == ["tui_close"]

    calling.run(story, ["a"], grace=0.0)


def test_who_vanished_and_could_not_be_closed_is_not_asked_any_more_until_somebody_takes_it_up() -> None:
    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        key = await spoken(client)
        await client.leave()
        (session,) = desk.server._sessions
        failing(desk.db, open_sessions.CLOSE_ATTEMPTS)
        await desk.server._sessions.close_all([session])
        result = await desk.home.door.submit(key, events.Submit("Do it."))
        assert (result.final_response, desk.home.shell.ran) == ("Then not.", [])
        back = await desk.caller()
        await back.ask("session.resume", session_id=key)
        await back.ask("prompt.submit", session_id=key, text="Do it now.", uid="it")
        await back.until("approval.request")

    calling.run(story, ["a", house.runs("true"), "Then not.", house.runs("false")])


def test_what_could_not_be_closed_leaves_nothing_running_when_the_server_has_ended() -> None:
    async def story(db: AsyncSessionDB) -> None:
        before = asyncio.all_tasks()
        async with calling.served(db, ["a"]) as desk:
            await spoken(await desk.caller())
            failing(db, 99)
        await asyncio.sleep(0)
        assert {each.get_name() for each in asyncio.all_tasks() - before} == set()

    stage.run(story)


# --- what nobody was told of ---------------------------------------------------------------------------


def test_a_prompt_that_is_refused_leaves_no_session_behind() -> None:
    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        assert (await calling.refusal(client.ask("prompt.submit", text=" "))).code == -32602
        await until_none_is_left(desk)
        refused, taken = (client.asking("prompt.submit", text=text) for text in (" ", "Hello"))
        assert (await refused)["error"]["code"] == -32602
        key = (await taken)["result"]["session_id"]
        assert (await client.until("message.complete"))["payload"]["status"] == "completed"
        assert [session.key for session in desk.server._sessions] == [key]

    calling.run(story, ["a"])


def test_a_session_that_was_spoken_to_before_its_opening_was_cancelled_stays_open() -> None:
    reached = asyncio.Event()

    async def story(desk: calling.Desk, client: calling.Caller) -> None:
        works = desk.db.conversation

        async def slow(_: str) -> Any:
            desk.db.conversation = works  # type: ignore[method-assign]
            reached.set()
            await asyncio.Event().wait()

        desk.db.conversation = slow  # type: ignore[method-assign]
        created = client.asking("session.create")
        sent = client.asking("prompt.submit", text="Hello", uid="u")
        await reached.wait()
        key = (await sent)["result"]["session_id"]
        client.cancel(created)
        assert (await created)["error"]["code"] == -32800
        assert (await client.until("message.complete", uid="u"))["payload"]["status"] == "completed"
        assert (await client.ask("session.close", session_id=key))["ended"]
        assert await ends(desk.db, key) == ["tui_close"]

    calling.run(story, ["a"])
