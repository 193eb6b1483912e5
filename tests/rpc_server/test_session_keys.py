"""The key of a session is the head of its conversation, and a client is informed before it can use an old one."""

from __future__ import annotations

from holdfast import events
from holdfast.compaction import hooks
from tests.support import rpc_client
from tests.support.compaction import FakeSummarizer, blocked_summary, compacting_agent, fill
from tests.support.rpc_client import Harness, RpcClient

OVER_HARD, OVER_SOFT = 90, 50
"""Exchanges beyond the hard threshold, and beyond the soft one."""


async def test_background_compaction_moves_the_key_and_is_not_interrupted() -> None:
    summary, started, proceed = blocked_summary()
    async with rpc_client.connect(["ok"], summarizer=FakeSummarizer(summary)) as (server, client):
        await fill(server.db, OVER_SOFT)
        await client.call("session.resume", session_id="talk")
        assert (await client.prompt("talk", "Hello"))["session_id"] == "talk"
        await started.wait()
        assert not (await client.call("session.interrupt", session_id="talk"))["interrupted"]
        proceed.set()
        moved = await client.wait_for("session.info", previous="talk")
        assert moved["session_id"] == (await server.db.head("talk")).id
        await client.wait_for("status", kind="compacted")


async def test_key_moved_by_another_process_is_sent_with_the_next_request() -> None:
    async with rpc_client.connect(["ok"]) as (server, client):
        await fill(server.db, OVER_SOFT)
        await client.call("session.resume", session_id="talk")
        made = await compacting_agent(server.db).compress_context(force=True)
        assert (await client.call("session.info", session_id="talk"))["session_id"] == made.session_id != "talk"
        assert (await client.wait_for("session.info"))["payload"]["previous"] == "talk"


async def test_key_never_moves_back_to_an_outdated_head() -> None:
    async with rpc_client.connect(summarizer=FakeSummarizer()) as (server, client):
        await fill(server.db, OVER_SOFT)
        await client.call("session.resume", session_id="talk")
        runtime = server.runtime
        client.reading.clear()
        runtime.publish("talk", events.Notice("The client is reading this for a long time."))
        own = await runtime.agents.get("talk")
        made = await own.compress_context(force=True, emit=lambda event: runtime.publish("talk", event))
        await server.db.end_session(made.session_id, "elsewhere")
        head = (await server.db.resume("talk")).id
        client.reading.set()
        await client.wait_for("status", kind="compacted")
        # Both notices, then the key and the result of the compaction.
        assert [each["session_id"] for each in client.events[1:]] == ["talk", "talk", head, head]
        assert made.session_id not in ("talk", head)


async def test_close_after_a_compaction_ends_the_continuation_once(store: str) -> None:
    closed_keys: list[str] = []

    async def closing(session_id: str) -> None:
        closed_keys.append(session_id)

    given = {"summarizer": FakeSummarizer(), "hooks": hooks.Hooks(closing=(closing,)), "target": store}
    async with rpc_client.connect(["ok"], **given) as (server, client):
        await fill(server.db, OVER_HARD)
        await client.call("session.resume", session_id="talk")
        await client.prompt("talk", "Hello")
        closed = await client.call("session.close", session_id="talk")
        parent, head = await server.db.sessions("talk")
        assert closed == {"session_id": head.id, "ended": True}
        assert (parent.end_reason, head.end_reason) == ("compression", "tui_close")
        assert (await client.refusal("session.close", session_id="talk")).code == -32002
        assert len(await server.db.sessions("talk")) == 2
    assert closed_keys == [head.id]


async def test_session_without_a_message_leaves_no_row(server: Harness, client: RpcClient) -> None:
    opened = await client.call("session.create", title="A plan", options={"columns": 40})
    key = opened["session_id"]
    assert (opened["begun"], opened["pending_title"]) == (False, "A plan")
    await client.call("session.history", session_id=key)
    await client.call("session.title", session_id=key, title="Another")
    await client.call("command.exec", session_id=key, line="/status")
    assert await client.call("session.close", session_id=key) == {"session_id": key, "ended": False}
    assert await server.has_no_row(key)
    assert await server.db.list_sessions(every=True) == []
    assert server.runtime.wanted_title(key) is None
