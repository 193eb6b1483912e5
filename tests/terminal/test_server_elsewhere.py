"""What other processes do to a conversation that is open: its client is told, though it asks for nothing.

Where hints come they do it; where they do not, a look now and then. `another` is the store as another process has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast import AsyncSessionDB, SessionDB
from tests.support import agents, postgres, rpc_client
from tests.support.chat import Dictated
from tests.support.compaction import FakeSummarizer, compacting_agent, fill

OFTEN = 0.01
ALMOST = 50
"""Exchanges beyond the soft threshold."""

Story = Callable[[rpc_client.Desk, rpc_client.Caller, AsyncSessionDB], Awaitable[None]]


def run(story: Story, address: str, script: object = (), look: float = OFTEN) -> None:
    """Tell a story of a client that has `talk` open, and of another process."""

    async def told(db: AsyncSessionDB) -> None:
        await fill(db, ALMOST)
        async with AsyncSessionDB(SessionDB(address)) as another, rpc_client.served(db, script, look=look) as desk:
            client = await desk.caller()
            await client.ask("session.resume", session_id="talk")
            await story(desk, client, another)

    agents.run(told, address)


def test_a_compaction_and_what_becomes_of_it_are_told(shared: str) -> None:
    async def story(_: rpc_client.Desk, client: rpc_client.Caller, another: AsyncSessionDB) -> None:
        made = await compacting_agent(another, FakeSummarizer()).compress_context(force=True)
        moved = await client.until("session.info", previous="talk")
        assert (moved["session_id"], moved["payload"]["compacted_to"]) == (made.session_id, made.cut_seq)
        await another.undo_compaction("talk")
        assert (await client.until("session.info", compacted_to=0))["session_id"] == made.session_id

    run(story, shared)


def test_messages_titles_and_ends_are_told(shared: str) -> None:
    async def story(_: rpc_client.Desk, client: rpc_client.Caller, another: AsyncSessionDB) -> None:
        said = await another.append_message("talk", role="user", content="From elsewhere")
        await client.until("session.info", last_seq=said.seq)
        await another.set_session_title("talk", "Named elsewhere")
        await client.until("session.info", title="Named elsewhere")
        await another.end_conversation("talk", "elsewhere")
        await client.until("session.info", live=False)
        assert not client.told("error")

    run(story, shared)


def test_by_a_hint_it_is_told_without_a_look() -> None:
    async def story(_: rpc_client.Desk, client: rpc_client.Caller, another: AsyncSessionDB) -> None:
        heard = len(client.told("session.info"))
        # Who began to listen is known to the other process after a while.
        while len(client.told("session.info")) == heard:
            said = await another.append_message("talk", role="user", content="From elsewhere")
        assert client.told("session.info")[-1]["payload"]["last_seq"] <= said.seq

    run(story, postgres.fresh(), look=rpc_client.FOR_EVER)


def test_a_deletion_is_told_once(shared: str) -> None:
    async def story(desk: rpc_client.Desk, client: rpc_client.Caller, another: AsyncSessionDB) -> None:
        await another.delete_conversation("talk")
        told = await client.until("error")
        assert "deleted" in told["payload"]["text"]
        key = (await client.ask("session.create"))["session_id"]
        for text in ("One", "Two"):  # Time passes.
            await client.say(key, text)
            await desk.db.append_message(key, role="user", content="By the way")
            await client.until("session.info")
        assert client.told("error") == [told]

    run(story, shared, ["a", "b"])


async def looked(desk: rpc_client.Desk) -> None:
    """As now and then."""
    for session in desk.server._sessions:
        await session.subscription.check()
        await session.subscription.drain()


async def test_nothing_is_told_where_nothing_happens_and_own_turns_are_told_once() -> None:
    model = Dictated()

    async with rpc_client.client(model=model) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        other = (await client.ask("session.create"))["session_id"]
        model.say("a", None)
        await client.say(key, "Hello")
        count = len(client.told("session.info"))
        await client.ask("prompt.submit", session_id=key, text="Again", uid="u")
        await client.until("message.start")
        model.say("b")
        await client.until("message.delta")
        await looked(desk)
        model.say(None)
        await client.until("message.complete", uid="u")
        await looked(desk)
        assert not (await client.ask("session.info", session_id=other))["begun"]
        assert len(client.told("session.info")) == count + 1
