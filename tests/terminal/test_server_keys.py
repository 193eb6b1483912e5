"""The key of a session is the head of its conversation: whoever moves it, and before anybody can act on an old one."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, errors, events
from holdfast.compaction import hooks
from holdfast.store import notifications
from tests.support import approvals, rpc_client
from tests.support.compaction import FakeSummarizer, blocked_summary, fill
from tests.support.compaction import compacting_agent as agent

FULL, ALMOST = 90, 50
"""Exchanges beyond the hard threshold, and beyond the soft one."""


async def test_a_compaction_inside_a_turn_moves_the_key_before_the_reply_is_told(store: str) -> None:
    async with rpc_client.client(["ok"], summarizer=FakeSummarizer(), target=store) as (desk, client):
        await fill(desk.db, FULL)
        assert (await client.ask("session.resume", session_id="talk"))["session_id"] == "talk"
        reply = await client.say("talk", "Hello")
        head = (await desk.db.head("talk")).id
        assert (head != "talk", reply["session_id"], reply["payload"]["text"]) == (True, head, "ok")
        moved = [each for each in client.told("session.info") if each["payload"]["previous"]]
        assert [(each["session_id"], each["payload"]["previous"]) for each in moved] == [(head, "talk")]
        assert client.events.index(moved[0]) < client.events.index(reply)
        # Nothing is ever told with a key that was not told before.
        keys = [each["session_id"] for each in client.events if each["session_id"]]
        assert keys == sorted(keys, key=["talk", head].index)


async def test_a_compaction_beside_the_turns_moves_the_key() -> None:
    slow, reached, go = blocked_summary()

    async with rpc_client.client(["ok"], summarizer=FakeSummarizer(slow)) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        assert (await client.say("talk", "Hello"))["session_id"] == "talk"
        await reached.wait()
        go.set()
        moved = await client.until("session.info", previous="talk")
        assert moved["session_id"] == (await desk.db.head("talk")).id
        await client.until("status", kind="compacted")


async def test_a_compaction_of_another_process_moves_the_key_with_the_next_request_and_with_the_next_reply(
    store: str,
) -> None:
    async with rpc_client.client(["ok"], target=store) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        made = await agent(desk.db).compress_context(force=True)
        assert made.session_id != "talk"
        assert (await client.ask("session.info", session_id="talk"))["session_id"] == made.session_id
        assert (await client.until("session.info"))["payload"]["previous"] == "talk"
        await desk.db.end_session(made.session_id, "elsewhere")
        resumed = (await desk.db.resume("talk")).id
        reply = await client.say("talk", "Hello")
        assert reply["session_id"] == resumed


async def test_a_compaction_of_another_process_moves_the_key_as_soon_as_it_is_heard_of() -> None:
    async with rpc_client.client() as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        made = await agent(desk.db).compress_context(force=True)
        for conversation in ("another", "talk", "talk"):
            desk.db.notifications._dispatch(notifications.Hint("moved", conversation))
        moved = await client.until("session.info")
        assert (moved["session_id"], moved["payload"]["previous"]) == (made.session_id, "talk")
        assert (await client.ask("session.info", session_id="talk"))["session_id"] == made.session_id
        assert len(client.told("session.info")) == 1


async def test_a_compaction_of_another_process_during_a_turn_moves_the_key_before_the_reply_is_told() -> None:
    going = asyncio.Event()

    async def wait() -> str:
        await going.wait()
        return "done"

    async with rpc_client.client([approvals.runs("true"), "ok"], shell=approvals.Shell(wait), background=False) as (
        desk,
        client,
    ):
        await fill(desk.db, 40)
        await client.ask("session.resume", session_id="talk")
        await client.ask("prompt.submit", session_id="talk", text="Hello", uid="u1")
        request = (await client.until("approval.request"))["payload"]["request_id"]
        made = await agent(desk.db).compress_context(force=True)
        assert made.session_id != "talk"
        await client.ask("approval.respond", session_id="talk", request_id=request, answer="once")
        going.set()
        reply = await client.until("message.complete", uid="u1")
        assert (reply["session_id"], reply["payload"]["status"]) == (made.session_id, "completed")


async def test_the_key_never_goes_back_to_a_head_that_was_overtaken_before_it_was_told() -> None:
    async with rpc_client.client(summarizer=FakeSummarizer()) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        door = desk.home.door
        client.reads.clear()
        door.publish("talk", events.Notice("The client is reading this for a long time."))
        own = await door.agents.get("talk")
        made = await own.compress_context(force=True, emit=lambda event: door.publish("talk", event))
        await desk.db.end_session(made.session_id, "elsewhere")
        head = (await desk.db.resume("talk")).id
        client.reads.set()
        await client.until("status", kind="compacted")
        # Both notices, then the key and what became of the compaction.
        assert [each["session_id"] for each in client.events[1:]] == ["talk", "talk", head, head]
        assert made.session_id not in ("talk", head)


async def test_closing_after_a_rotation_ends_the_continuation_once_and_not_the_parent(store: str) -> None:
    told: list[str] = []

    async def closing(session_id: str) -> None:
        told.append(session_id)

    async with rpc_client.client(
        ["ok"], summarizer=FakeSummarizer(), hooks=hooks.Hooks(closing=(closing,)), target=store
    ) as (
        desk,
        client,
    ):
        await fill(desk.db, FULL)
        await client.ask("session.resume", session_id="talk")
        await client.say("talk", "Hello")
        closed = await client.ask("session.close", session_id="talk")
        parent, head = await desk.db.sessions("talk")
        assert closed == {"session_id": head.id, "ended": True}
        assert (parent.end_reason, head.end_reason) == ("compression", "tui_close")
        assert told == [head.id]
        assert (await rpc_client.refusal(client.ask("session.close", session_id="talk"))).code == -32002
        assert len(await desk.db.sessions("talk")) == 2
    assert len(told) == 1


async def test_closing_twice_at_once_ends_the_head_once() -> None:
    async with rpc_client.client(["ok"]) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        await client.say(key, "Hello")
        both = [client.asking("session.close", session_id=key) for _ in range(2)]
        ended = [answer.get("result", {}).get("ended", "refused") for answer in await asyncio.gather(*both)]
        assert sorted(map(str, ended)) == ["True", "refused"]
        assert [each.end_reason for each in await desk.db.sessions(key)] == ["tui_close"]


@pytest.mark.parametrize("moved", [False, True])
async def test_closing_with_no_agent_built_ends_the_key_it_holds(moved: bool, store: str) -> None:
    async with rpc_client.client(target=store) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        if moved:
            await agent(desk.db).compress_context(force=True)
        assert (await client.ask("session.close", session_id="talk"))["ended"]
        assert not desk.home.door.agents.every()
        *before, head = await desk.db.sessions("talk")
        assert head.end_reason == "tui_close"
        assert [each.end_reason for each in before] == ["compression"] * moved


async def test_closing_during_a_compaction_ends_the_head_and_lets_nothing_move_it_afterwards() -> None:
    slow, reached, _ = blocked_summary()

    async with rpc_client.client(["ok"], summarizer=FakeSummarizer(slow)) as (desk, client):
        await fill(desk.db, ALMOST)
        await client.ask("session.resume", session_id="talk")
        await client.say("talk", "Hello")
        await reached.wait()
        assert await client.ask("session.close", session_id="talk") == {"session_id": "talk", "ended": True}
        (only,) = await desk.db.sessions("talk")
        assert only.end_reason == "tui_close"
        assert await desk.db.get_compression_lock_holder("talk") is None


async def test_a_message_to_a_closed_conversation_opens_a_continuation_and_the_key_is_that() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        await client.say(key, "Hello")
        await client.ask("session.close", session_id=key)
        again = await client.ask("session.resume", session_id=key)
        assert (again["session_id"], again["live"]) == (key, False)
        reply = await client.say(key, "Again")
        assert reply["session_id"] == (await desk.db.head(key)).id != key


async def test_opening_and_closing_without_a_message_leaves_no_row(store: str) -> None:
    async with rpc_client.client(target=store) as (desk, client):
        opened = await client.ask("session.create", title="A plan", options={"columns": 40})
        key = opened["session_id"]
        assert (opened["begun"], opened["pending_title"]) == (False, "A plan")
        await client.ask("session.history", session_id=key)
        await client.ask("session.title", session_id=key, title="Another")
        await client.ask("command.exec", session_id=key, line="/status")
        assert await client.ask("session.close", session_id=key) == {"session_id": key, "ended": False}
        assert await rpc_client.no_row(desk.db, key)
        assert await desk.db.list_sessions(every=True) == []
        assert desk.home.door.wanted_title(key) is None


# --- titles --------------------------------------------------------------------------------------------


async def test_a_title_that_is_taken_is_dropped_with_a_notice_and_the_automatic_one_is_given_in_the_same_turn(
    store: str,
) -> None:
    async with rpc_client.client(["ok"], target=store) as (desk, client):
        await desk.db.create_session("other", source="test", title="Taken")
        key = (await client.ask("session.create", title="Taken"))["session_id"]
        reply = await client.say(key, "Plan the trip")
        (notice,) = client.told("status")
        assert (notice["payload"]["kind"], notice["payload"]["level"]) == ("notice", "warning")
        assert "title was not set" in notice["payload"]["text"]
        last = client.told("session.info")[-1]
        assert (last["payload"]["title"], last["payload"]["pending_title"]) == ("Plan the trip", None)
        assert client.events.index(notice) < client.events.index(last) < client.events.index(reply)


async def test_a_title_that_the_store_could_not_take_is_kept_for_the_next_turn() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        works = desk.db.set_session_title

        async def fails(*_: object) -> None:
            raise errors.StoreBusy()

        desk.db.set_session_title = fails  # type: ignore[method-assign,assignment]
        key = (await client.ask("session.create", title="My plan"))["session_id"]
        await client.say(key, "Plan the trip")
        kept = client.told("session.info")[-1]["payload"]
        assert (kept["title"], kept["pending_title"]) == (None, "My plan")
        waits = {"session_id": key, "title": "My plan", "pending": True}
        assert await client.ask("session.title", session_id=key) == waits
        desk.db.set_session_title = works  # type: ignore[method-assign]
        await client.say(key, "Go on")
        given = client.told("session.info")[-1]["payload"]
        assert (given["title"], given["pending_title"]) == ("My plan", None)


async def test_a_title_that_is_set_by_hand_is_not_overtaken_by_one_that_waited() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        await client.say(key, "Plan the trip")
        agent = desk.home.door.agents.peek(key)
        assert agent is not None
        agent.title.wanted = "Waited"  # as a store that failed leaves it
        titled = await client.ask("session.title", session_id=key, title="By hand")
        assert titled == {"session_id": key, "title": "By hand", "pending": False}
        await client.say(key, "Go on")
        assert (await desk.db.conversation(key)).title == "By hand"


async def test_a_title_by_hand_that_is_taken_is_refused_by_name() -> None:
    async with rpc_client.client(["a"]) as (desk, client):
        await desk.db.create_session("other", source="test", title="Taken")
        key = (await client.ask("session.create"))["session_id"]
        await client.say(key, "Plan the trip")
        refused = await rpc_client.refusal(client.ask("session.title", session_id=key, title="Taken"))
        assert (refused.code, refused.data) == (-32000, {"type": "TitleTaken"})
        assert (await client.ask("session.title", session_id=key, title=None))["title"] is None


async def test_the_store_is_the_same_for_all_of_it(db: AsyncSessionDB) -> None:
    """Two servers over one file: what one moves, the other's client finds."""

    async with (
        rpc_client.served(db, ["one"]) as first,
        rpc_client.served(db, ["two"], summarizer=FakeSummarizer()) as second,
    ):
        here, there = await first.caller(), await second.caller()
        await fill(db, ALMOST)
        await here.ask("session.resume", session_id="talk")
        await there.ask("session.resume", session_id="talk")
        made = await there.ask("session.compress", session_id="talk")
        assert made["outcome"] == "compacted"
        assert (await there.until("session.info"))["session_id"] == made["session_id"] != "talk"
        assert (await here.say("talk", "Hello"))["session_id"] == made["session_id"]
