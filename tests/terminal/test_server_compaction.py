"""Compactions that a client asks for: what becomes of them, who can stop them, and what a branch stands on."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.compaction import compress, hooks
from tests.support import approvals, rpc_client
from tests.support.compaction import FakeSummarizer, blocked_summary, fill

ALMOST = 50
"""Exchanges beyond the soft threshold."""
STOPPED = "The compaction was stopped."

ASKED = {
    "session.compress": {"session_id": "talk"},
    "command.exec": {"session_id": "talk", "line": "/compact"},
}
STOPS = {
    "session.interrupt": {"session_id": "talk"},
    "command.exec": {"session_id": "talk", "line": "/stop"},
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("ask", ASKED)
async def test_whoever_has_it_open_can_stop_it(ask: str, stop: str) -> None:
    slow, reached, _ = blocked_summary()

    async with rpc_client.client(["ok"], summarizer=FakeSummarizer(slow), background=False) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        made = client.asking(ask, **ASKED[ask])
        await reached.wait()
        stopped = await client.ask(stop, **STOPS[stop])
        assert stopped["interrupted" if stop == "session.interrupt" else "ok"]
        result = rpc_client.result(await made)
        if ask == "session.compress":
            assert (result["outcome"], result["reason"]) == ("failed", STOPPED)
        else:
            assert result["output"][-1] == {"level": "warning", "text": STOPPED}
        assert not (await client.ask("session.interrupt", session_id="talk"))["interrupted"]
        assert await desk.db.get_compression_lock_holder("talk") is None
        assert len(await desk.db.sessions("talk")) == 1
        assert (await client.say("talk", "Hello"))["payload"]["text"] == "ok"


async def test_a_stop_that_comes_when_it_is_written_stops_nothing_and_everybody_is_told() -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def after(_: str) -> None:
        reached.set()
        await go.wait()

    async with rpc_client.client(summarizer=FakeSummarizer(), background=False, hooks=hooks.Hooks(after=(after,))) as (
        desk,
        client,
    ):
        await fill(desk.db, ALMOST)
        other = await desk.caller()
        for each in (client, other):
            await each.ask("session.resume", session_id="talk")
        made = client.asking("session.compress", session_id="talk")
        await reached.wait()
        assert not (await client.ask("session.interrupt", session_id="talk"))["interrupted"]
        go.set()
        assert (await made)["result"]["outcome"] == "compacted"
        head = (await desk.db.head("talk")).id
        assert (await other.until("status", kind="compacted"))["session_id"] == head != "talk"


async def test_a_close_stops_it() -> None:
    slow, reached, _ = blocked_summary()

    async with rpc_client.client(summarizer=FakeSummarizer(slow), background=False) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        made = client.asking("session.compress", session_id="talk")
        await reached.wait()
        agent = desk.home.door.agents.peek("talk")
        assert agent is not None
        assert (await client.ask("session.close", session_id="talk"))["ended"]
        assert not agent.context_window.is_compacting
        assert (await made)["result"]["reason"] == STOPPED


@pytest.mark.parametrize("ask", ASKED)
async def test_what_was_ended_is_not_summed_up_in_vain(ask: str) -> None:
    writer = FakeSummarizer()

    async with rpc_client.client(["ok"], summarizer=writer, background=False) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        await client.ask("session.close", session_id="talk")
        await client.ask("session.resume", session_id="talk")
        refused = await client.ask(ask, **ASKED[ask])
        if ask == "session.compress":
            assert (refused["outcome"], refused["reason"]) == ("nothing_to_do", compress.ENDED)
        else:
            assert refused["output"][-1]["text"] == compress.ENDED
        assert writer.requests == []
        await client.say("talk", "Hello")
        assert (await client.ask("session.compress", session_id="talk"))["outcome"] == "compacted"


@pytest.mark.parametrize("ask", ASKED)
async def test_nothing_waits_for_it(ask: str) -> None:
    slow, reached, go = blocked_summary()

    async with rpc_client.client(["ok"] * 40, summarizer=FakeSummarizer(slow), background=False) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        made = client.asking(ask, **ASKED[ask])
        await reached.wait()
        # More than are worked on at once: were they to wait, nothing else would be answered, either.
        sent = [client.asking("prompt.submit", session_id="talk", text=f"{n}", uid=f"{n}") for n in range(40)]
        await client.ask("session.options", session_id="talk", options={"columns": 50})
        await client.ask("session.title", session_id="talk", title="Named")
        await client.ask("command.exec", session_id="talk", line="/queue")
        assert all("result" in answer for answer in await asyncio.gather(*sent))
        await client.until("message.complete", uid="39")
        assert not made.done()
        go.set()
        result = rpc_client.result(await made)
        if ask == "session.compress":
            assert result["outcome"] == "compacted"
        else:
            assert [line["level"] for line in result["output"]] == ["info", "info"]
            assert "Compacted up to" in result["output"][-1]["text"]


async def test_what_waits_for_permission_is_permitted_meanwhile() -> None:
    slow, reached, go = blocked_summary()

    async with rpc_client.client(
        [approvals.runs("true"), "Done."], summarizer=FakeSummarizer(slow), background=False
    ) as (
        desk,
        client,
    ):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        await client.ask("prompt.submit", session_id="talk", text="Do it.", uid="it")
        await client.until("approval.request")
        made = client.asking("session.compress", session_id="talk")
        await reached.wait()
        assert (await client.ask("command.exec", session_id="talk", line="/approve"))["ok"]
        assert (await client.until("message.complete", uid="it"))["payload"]["text"] == "Done."
        go.set()
        assert "result" in await made


async def test_an_interrupt_leaves_what_is_made_beside_the_turns() -> None:
    slow, reached, go = blocked_summary()

    async with rpc_client.client(["ok"], summarizer=FakeSummarizer(slow)) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        await client.say("talk", "Hello")
        await reached.wait()
        assert not (await client.ask("session.interrupt", session_id="talk"))["interrupted"]
        go.set()
        await client.until("status", kind="compacted")


async def test_a_branch_that_began_with_a_summary_says_what_that_stands_for(store: str) -> None:
    async with rpc_client.client(target=store, summarizer=FakeSummarizer()) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        cut = (await client.ask("session.compress", session_id="talk"))["cut_seq"]
        here = await client.ask("session.info", session_id="talk")
        branch = await client.ask("session.branch", session_id="talk")
        again = await client.ask("session.branch", session_id=branch["session_id"])
        assert [each["compacted_to"] for each in (here, branch, again)] == [cut] * 3
        early = await desk.db.branch("talk", 2)
        assert (await client.ask("session.resume", session_id=early.id))["compacted_to"] == 0
        # What is taken back where it came from stays in a branch.
        await desk.db.undo_compaction("talk")
        for key, to in (("talk", 0), (branch["session_id"], cut)):
            assert (await client.ask("session.info", session_id=key))["compacted_to"] == to
