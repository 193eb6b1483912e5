"""Compactions: their results, what stops them, requests that run meanwhile, and the new key of the session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import events
from holdfast.compaction import hooks
from tests.support import rpc_client
from tests.support.compaction import FakeSummarizer, blocked_summary, compacting_agent, fill
from tests.support.rpc_client import Harness, RpcClient

OVER_HARD, OVER_SOFT = 90, 50
"""Exchanges beyond the hard threshold, and beyond the soft one."""
STOPPED = "The compaction was stopped."
METHODS: dict[str, dict[str, Any]] = {
    "session.compress": {"session_id": "talk"},
    "command.exec": {"session_id": "talk", "line": "/compact"},
}


async def test_compaction_reports_its_outcome_and_every_client_is_informed() -> None:
    async with rpc_client.connect(summarizer=FakeSummarizer()) as (server, client):
        other = await server.connect()
        await fill(server.db, OVER_SOFT)
        for each in (client, other):
            await each.call("session.resume", session_id="talk")
        made = await client.call("session.compress", session_id="talk", focus="pier 3", keep_exchanges=3)
        assert (made["outcome"], made["cut_seq"], made["after"] < made["before"]) == ("compacted", 94, True)
        for each in (client, other):
            assert (await each.wait_for("status", kind="compacted"))["session_id"] == made["session_id"]
        assert (await client.call("session.info", session_id="talk"))["compacted_to"] == 94
        assert (await client.call("session.branch", session_id="talk"))["compacted_to"] == 94
        again = await client.call("session.compress", session_id="talk", keep_exchanges=3)
        assert (again["outcome"], again["session_id"]) == ("nothing_to_do", made["session_id"])


@pytest.mark.parametrize("stop", ["session.interrupt", "/stop", "$/cancelRequest", "session.close"])
@pytest.mark.parametrize("method", METHODS)
async def test_compaction_can_be_stopped(method: str, stop: str) -> None:
    summary, started, _ = blocked_summary()
    async with rpc_client.connect(["ok"], summarizer=FakeSummarizer(summary), background=False) as (server, client):
        await fill(server.db, OVER_SOFT)
        await client.call("session.resume", session_id="talk")
        made = client.request(method, **METHODS[method])
        await started.wait()
        if stop == "$/cancelRequest":
            client.cancel(made)
        else:
            given = {"line": stop} if stop == "/stop" else {}
            stopped = await client.call("command.exec" if given else stop, session_id="talk", **given)
        response = await made
        if stop == "$/cancelRequest":
            assert response["error"]["code"] == -32800
        elif method == "session.compress":
            assert (response["result"]["outcome"], response["result"]["reason"]) == ("failed", STOPPED)
        else:
            assert response["result"]["output"][-1] == {"level": "warning", "text": STOPPED}
        assert await server.db.get_compression_lock_holder("talk") is None
        assert len(await server.db.sessions("talk")) == 1
        if stop == "session.close":
            assert (stopped["ended"], await server.end_reasons("talk")) == (True, ["tui_close"])
        else:
            assert not (await client.call("session.interrupt", session_id="talk"))["interrupted"]
            assert (await client.prompt("talk", "Hello"))["payload"]["text"] == "ok"


@pytest.mark.parametrize("method", METHODS)
async def test_other_requests_do_not_wait_for_a_compaction(method: str) -> None:
    summary, started, proceed = blocked_summary()
    given = {"summarizer": FakeSummarizer(summary), "background": False}
    async with rpc_client.connect(["ok"] * 40, **given) as (server, client):
        await fill(server.db, OVER_SOFT)
        await client.call("session.resume", session_id="talk")
        made = client.request(method, **METHODS[method])
        await started.wait()
        # More than are run at once: if they waited, no other request would be answered.
        sent = [client.request("prompt.submit", session_id="talk", text=f"{n}", uid=f"{n}") for n in range(40)]
        await client.call("session.options", session_id="talk", options={"columns": 50})
        await client.call("session.title", session_id="talk", title="Named")
        await client.call("command.exec", session_id="talk", line="/queue")
        assert all("result" in response for response in await asyncio.gather(*sent))
        await client.wait_for("message.complete", uid="39")
        assert not made.done()
        proceed.set()
        result = (await made)["result"]
        if method == "session.compress":
            assert result["outcome"] == "compacted"
        else:
            assert [line["level"] for line in result["output"]] == ["info", "info"]
            assert "Compacted up to" in result["output"][-1]["text"]


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
