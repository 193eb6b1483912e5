"""Changes of an open conversation by other processes: its client is informed without a request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast import AsyncSessionDB, SessionDB
from tests.support import agents, postgres, rpc_client
from tests.support.compaction import compacting_agent, fill
from tests.support.rpc_client import Harness, RpcClient


@asynccontextmanager
async def open_twice(
    address: str, script: object = (), poll: float = 0.01
) -> AsyncIterator[tuple[rpc_client.Harness, rpc_client.RpcClient, AsyncSessionDB]]:
    """Open `talk` with a client, and the store once more as another process has it."""
    async with agents.store(address) as db, AsyncSessionDB(SessionDB(address)) as another:
        await fill(db, 50)
        async with rpc_client.serve(db, script, poll=poll) as server:
            client = await server.connect()
            await client.call("session.resume", session_id="talk")
            yield server, client, another


async def test_messages_titles_compactions_ends_and_deletions_are_sent(shared: str) -> None:
    async with open_twice(shared, ["a"]) as (_, client, another):
        stored = await another.append_message("talk", role="user", content="From elsewhere")
        await client.wait_for("session.info", last_seq=stored.seq)
        await another.set_session_title("talk", "Named elsewhere")
        await client.wait_for("session.info", title="Named elsewhere")
        made = await compacting_agent(another).compress_context(force=True)
        moved = await client.wait_for("session.info", previous="talk")
        assert (moved["session_id"], moved["payload"]["compacted_to"]) == (made.session_id, made.cut_seq)
        await another.undo_compaction("talk")
        assert (await client.wait_for("session.info", compacted_to=0))["session_id"] == made.session_id
        await another.end_conversation("talk", "elsewhere")
        await client.wait_for("session.info", live=False)
        assert not client.events_of("error")
        await another.delete_conversation("talk")
        sent = await client.wait_for("error")
        assert "deleted" in sent["payload"]["text"]
        key = await client.start_conversation()  # Meanwhile the store is polled again.
        stored = await another.append_message(key, role="user", content="By the way")
        await client.wait_for("session.info", last_seq=stored.seq)
        assert client.events_of("error") == [sent]


async def test_notification_of_the_database_needs_no_poll() -> None:
    async with open_twice(postgres.fresh(), poll=rpc_client.FOREVER) as (_, client, another):
        before = len(client.events_of("session.info"))
        # The other process learns of a new listener with some delay.
        while len(client.events_of("session.info")) == before:
            stored = await another.append_message("talk", role="user", content="From elsewhere")
        assert client.events_of("session.info")[-1]["payload"]["last_seq"] <= stored.seq


async def check_now(server: rpc_client.Harness) -> None:
    """Poll the store for every session."""
    for session in server.sessions:
        await session.subscription.check()
        await session.subscription.drain()


async def test_own_turns_are_sent_once_and_unchanged_sessions_not_at_all(server: Harness, client: RpcClient) -> None:
    server.model.say("a", None)
    key, other = await client.start_conversation(), await client.create()
    count = len(client.events_of("session.info"))
    await client.call("prompt.submit", session_id=key, text="Again", uid="u")
    await client.wait_for("message.start")
    server.model.say("b")
    await client.wait_for("message.delta")
    await check_now(server)
    server.model.say(None)
    await client.wait_for("message.complete", uid="u")
    await check_now(server)
    assert not (await client.call("session.info", session_id=other))["begun"]
    assert len(client.events_of("session.info")) == count + 1
