"""Closes at odd moments: clients that read slowly, stores that fail, two at once, and what nobody was told of."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB
from holdfast.compaction import hooks
from holdfast.rpc_server import session
from holdfast.runtime import subscriptions
from tests.support import rpc_client
from tests.support.chat import Dictated
from tests.terminal.test_server_leaving import ends, spoken, until_ended
from tests.terminal.test_sessions import failing, uids, until_none_is_left

# --- who reads slowly ----------------------------------------------------------------------------------


async def unread(desk: rpc_client.Desk, client: rpc_client.Caller, model: Dictated) -> str:
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


async def test_who_reads_late_is_told_every_end_before_its_close_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "FLUSH_SECONDS", 0.0)
    model = Dictated()

    async with rpc_client.client(model=model) as (desk, client):
        key = await unread(desk, client, model)
        closed = client.asking("session.close", session_id=key)
        await until_ended(desk.db, key)
        client.reads.set()
        assert (await closed)["result"] == {"session_id": key, "ended": True}
        assert sorted(uids(client)) == ENDS
        assert [*desk.server._sessions] == []


@pytest.mark.parametrize("how", ["the client vanishes", "the server ends"])
async def test_who_never_reads_is_not_waited_for_at_the_end(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "FLUSH_SECONDS", 0.0)
    model = Dictated()

    async with rpc_client.client(model=model) as (desk, client):
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


# --- who opens meanwhile -------------------------------------------------------------------------------


async def test_opening_again_what_is_being_closed_keeps_nobody_from_opening_others() -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def closing(_: str) -> None:
        reached.set()
        await go.wait()

    async with rpc_client.client(["a", "b", "c"], hooks=hooks.Hooks(closing=(closing,))) as (_, client):
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


# --- the last one ends it ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["both close", "the server ends"])
async def test_of_two_who_leave_at_once_one_ends_it(how: str) -> None:
    told: list[str] = []

    async def closing(session_id: str) -> None:
        told.append(session_id)

    async with rpc_client.client(["a"], hooks=hooks.Hooks(closing=(closing,))) as (desk, client):
        other = await desk.caller()
        key = await spoken(client)
        await other.ask("session.resume", session_id=key)
        if how == "both close":
            both = [each.asking("session.close", session_id=key) for each in (client, other)]
            assert sorted([(await each)["result"]["ended"] for each in both]) == [False, True]
        else:
            await desk.server.close()
        assert (told, await ends(desk.db, key)) == ([key], ["tui_close"])


# --- stores that fail ----------------------------------------------------------------------------------


async def test_conversation_of_a_disconnected_client_is_ended_in_another_attempt() -> None:
    async with rpc_client.client(["a"], grace=0.0) as (desk, client):
        key = await spoken(client)
        failing(desk.db, session.END_ATTEMPTS - 1)
        await client.leave()
        await until_none_is_left(desk)
        assert await ends(desk.db, key) == ["tui_close"]


async def test_server_shuts_down_although_the_store_cannot_end_a_conversation(db: AsyncSessionDB) -> None:
    before = asyncio.all_tasks()
    async with rpc_client.served(db, ["a"]) as desk:
        await spoken(await desk.caller())
        failing(db, 99)
    await asyncio.sleep(0)
    assert {each.get_name() for each in asyncio.all_tasks() - before} == set()
