"""The end of a session: closed by its client, after a disconnect, at the end of the input, or with the server."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, content_parts
from holdfast.compaction import hooks
from holdfast.rpc import frames
from holdfast.rpc_server import session
from tests.support import agents, approvals, polling, rpc_client
from tests.support.rpc_client import IMAGE, Harness, RpcClient


class ClosingHook:
    """A closing hook that waits until it may proceed."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.reached, self.proceed = asyncio.Event(), asyncio.Event()

    @property
    def hooks(self) -> hooks.Hooks:
        return hooks.Hooks(closing=(self,))

    async def __call__(self, session_id: str) -> None:
        self.keys.append(session_id)
        self.reached.set()
        await self.proceed.wait()


async def start_turn(server: rpc_client.Harness, client: rpc_client.RpcClient, uids: str = "abc") -> str:
    """Submit prompts, the first of which is being answered; return the key."""
    key = await client.create()
    for uid in uids:
        await client.call("prompt.submit", session_id=key, text=uid, uid=uid)
    server.model.say("Once ")
    await client.wait_for("message.delta")
    return key


ENDS = [("a", "interrupted"), ("b", "dropped"), ("c", "dropped")]


@pytest.mark.parametrize("how", ["session is closed", "server is closed", "serve is cancelled"])
async def test_close_interrupts_the_turn_and_every_prompt_ends(server: Harness, client: RpcClient, how: str) -> None:
    key = await start_turn(server, client)
    if how == "session is closed":
        assert (await client.call("session.close", session_id=key))["ended"]
    elif how == "server is closed":
        await server.rpc.close()
        refused = await client.refusal("session.create")
        assert (refused.code, refused.data) == (-32000, {"type": "Gone"})
    else:
        client.served.cancel()
        await asyncio.wait([client.served])
        server.clients.remove(client)
    assert sorted(client.completed) == ENDS
    assert [each.role for each in await server.db.transcript(key)] == ["user", "assistant"]
    assert await server.end_reasons(key) == ["tui_close"]


@pytest.mark.parametrize("clients", [1, 2])
async def test_concurrent_closes_end_the_conversation_once(clients: int) -> None:
    hook = ClosingHook()
    hook.proceed.set()
    async with rpc_client.connect(["a"], hooks=hook.hooks) as (server, client):
        other = await server.connect() if clients == 2 else client
        key = await client.start_conversation()
        if other is not client:
            await other.call("session.resume", session_id=key)
        both = [each.request("session.close", session_id=key) for each in (client, other)]
        ended = [response.get("result", {}).get("ended") for response in await asyncio.gather(*both)]
        assert sorted(ended, key=bool) == [False if clients == 2 else None, True]
        assert (hook.keys, await server.end_reasons(key)) == ([key], ["tui_close"])


async def test_cancelled_close_is_completed() -> None:
    hook = ClosingHook()
    async with rpc_client.connect(["a"], hooks=hook.hooks) as (server, client):
        key = await client.start_conversation()
        closed = client.request("session.close", session_id=key)
        await hook.reached.wait()
        client.cancel(closed)
        assert (await closed)["error"]["code"] == -32800
        hook.proceed.set()
        await server.wait_ended(key)


@pytest.mark.parametrize("images", [0, 8])
async def test_prompt_before_a_close_is_accepted_and_a_later_one_refused(images: int) -> None:
    async with rpc_client.connect(["a", "b"]) as (server, client):
        key = await client.start_conversation()
        before = client.request("prompt.submit", session_id=key, text="b", uid="b", images=[IMAGE] * images)
        titled = client.request("session.title", session_id=key, title="Named")
        closed = client.request("session.close", session_id=key)
        after = client.request("prompt.submit", session_id=key, text="c", uid="c")
        assert (await before)["result"]["uid"] == "b"
        assert (await titled)["result"]["title"] == "Named"
        assert (await closed)["result"]["ended"]
        assert (await after)["error"]["code"] == -32002
        await server.runtime.wait_idle(key)
        assert [uid for uid, _ in client.completed][1:] == ["b"]


async def test_conversation_opened_by_another_client_during_a_close_continues() -> None:
    hook = ClosingHook()
    async with rpc_client.connect(hooks=hook.hooks) as (server, client):
        other = await server.connect()
        server.model.say("a", None)
        key = await client.start_conversation()
        closed = client.request("session.close", session_id=key)
        await hook.reached.wait()
        await other.call("session.resume", session_id=key)
        await other.call("prompt.submit", session_id=key, text="Hello", uid="u")
        await other.wait_for("message.start")
        hook.proceed.set()
        assert not (await closed)["result"]["ended"]
        assert await server.end_reasons(key) == [None]
        server.model.say("b", None)
        assert (await other.wait_for("message.complete", uid="u"))["payload"]["text"] == "b"
        assert (await other.call("session.close", session_id=key))["ended"]


async def test_session_resumed_during_its_close_is_opened_after_it_and_blocks_no_other() -> None:
    hook = ClosingHook()
    hook.proceed.set()
    async with rpc_client.connect(["a", "b", "c"], hooks=hook.hooks) as (server, client):
        key, other = await client.start_conversation(), await client.start_conversation("Other words")
        await client.call("session.close", session_id=other)
        hook.reached.clear()
        hook.proceed.clear()
        closed = client.request("session.close", session_id=key)
        await hook.reached.wait()
        again = client.request("session.resume", session_id=key)
        after = client.request("prompt.submit", session_id=key, text="After", uid="u")
        assert (await client.call("session.resume", session_id=other))["session_id"] == other
        assert await client.create() not in (key, other)
        assert [each.done() for each in (again, after)] == [False, False]
        hook.proceed.set()
        assert (await closed)["result"]["ended"]
        assert not (await again)["result"]["live"]
        assert (await after)["result"]["uid"] == "u"
        await client.wait_for("message.complete", uid="u")
        assert [uid for uid, _ in client.completed].count("u") == 1
        assert await server.end_reasons(key) == ["tui_close", None]


# --- clients that do not read --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reads later", "server shuts down", "client disconnects"])
async def test_close_does_not_wait_for_an_unread_client(how: str) -> None:
    clock = agents.LoopClock()
    async with rpc_client.connect() as (server, client):
        key = await start_turn(server, client)
        client.reading.clear()
        server.model.say("upon ")
        await client.blocked.wait()
        closed = client.request("session.close", session_id=key)
        await clock.finish(server.wait_ended(key))
        if how == "server shuts down":
            await clock.finish(server.rpc.close())
        elif how == "client disconnects":
            client.stuck = True
            await client.disconnect()
            server.clients.remove(client)
        else:
            client.reading.set()
            assert (await closed)["result"] == {"session_id": key, "ended": True}
            assert sorted(client.completed) == ENDS
        await server.wait_sessions_closed()


@pytest.mark.parametrize("failures", [session.END_ATTEMPTS - 1, 99])
async def test_conversation_is_ended_in_another_attempt_or_left(db: AsyncSessionDB, failures: int) -> None:
    before = asyncio.all_tasks()
    async with rpc_client.serve(db, ["a"], grace=0.0) as server:
        key = await (await server.connect()).start_conversation()
        server.fail_end(failures)
        await server.clients.pop().disconnect()
        await server.wait_sessions_closed()
        assert await server.end_reasons(key) == [None if failures == 99 else "tui_close"]
    await asyncio.sleep(0)
    assert {each.get_name() for each in asyncio.all_tasks() - before} == set()


async def test_failed_close_does_not_affect_other_sessions(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async with rpc_client.connect(["a", "b"], grace=0.0) as (server, client):
        broken, whole = await client.start_conversation(), await client.start_conversation("Other words")
        agent = server.runtime.agents.peek(broken)
        assert agent is not None
        agent.leave = fail  # type: ignore[method-assign]
        opened = server.sessions
        await client.disconnect()
        await server.wait_sessions_closed()
        assert await server.end_reasons(whole) == ["tui_close"]
        assert [each.subscription.is_delivering for each in opened] == [False, False]
        del agent.leave
    assert [each.levelname for each in caplog.records if "could not be closed" in each.getMessage()] == ["ERROR"]


@pytest.mark.parametrize("waits", [True, False])
async def test_close_waits_for_the_review_of_the_last_turn(waits: bool) -> None:
    async with rpc_client.connect(reviews=True, remembers=True) as (server, client):
        server.model.say("a", None)
        key = await client.start_conversation()
        await polling.until_async(lambda: len(server.model.requests) == 2)
        (opened,), agent = server.sessions, server.runtime.agents.peek(key)
        assert agent is not None
        closed = client.request("session.close", session_id=key)
        await polling.until_async(lambda: opened.closing)
        if waits:
            for _ in range(10):  # More often than the store is asked at the end.
                assert (agent.memory.is_reviewing, await server.end_reasons(key)) == (True, [None])
            server.model.say("nothing", None)
        else:
            await agents.LoopClock().finish(closed)
        assert (await closed)["result"]["ended"]
        assert agent.memory.is_reviewing is not waits


# --- disconnects ---------------------------------------------------------------------------------------


async def test_session_of_a_disconnected_client_is_closed_and_its_request_denied() -> None:
    async with rpc_client.connect([approvals.shell_reply("true"), "Done."], grace=0.0) as (server, client):
        other = await server.connect()
        key = await client.create()
        await client.request_approval(key)
        await client.disconnect()
        await server.wait_ended(key)
        assert await server.end_reasons(key) == ["tui_close"]
        assert not server.runtime.running(key)
        assert server.shell.ran == []
        assert [row[1:3] for row in await approvals.audit_rows(server.db)] == [(False, "interrupted")]
        assert (await other.call("server.info"))["protocol"] == 1


async def test_reconnected_client_continues_and_gets_the_request_again() -> None:
    async with rpc_client.connect([approvals.shell_reply("true"), "Done."]) as (server, client):
        key = await client.create(options={"columns": 33})
        request = await client.request_approval(key)
        await client.disconnect()
        back = await server.connect()
        stands = await back.call("session.resume", session_id=key)
        assert (stands["running"], stands["options"]["columns"]) == (True, 33)
        again = await back.wait_for("approval.request")
        assert again["payload"]["request_id"] == request
        answer = {"answer": "deny", "reason": "Not on a Sunday."}
        await back.call("approval.respond", session_id=key, request_id=request, **answer)
        assert (await back.wait_for("message.complete", uid="it"))["payload"]["text"] == "Done."
        assert (server.shell.ran, "Not on a Sunday." in server.home.results[0]) == ([], True)
        assert await server.end_reasons(key) == [None]


@pytest.mark.parametrize("reconnects", [False, True])
async def test_disconnect_during_a_write_loses_no_event(reconnects: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with rpc_client.connect() as (server, client):
        key = await client.create()
        await client.call("prompt.submit", session_id=key, text="Hello", uid="it")
        await client.wait_for("message.start")
        client.reading.clear()
        client.stuck = True
        server.model.say("Once ", "upon ")
        await client.blocked.wait()
        await client.disconnect()
        if reconnects:
            back = await server.connect()
            await back.call("session.resume", session_id=key)
        client.reading.set()
        server.model.say("a time.", None)
        if reconnects:
            assert (await back.wait_for("message.complete", uid="it"))["payload"]["text"] == "Once upon a time."
            assert back.payloads("message.delta", "text") == [("Once ",), ("upon ",), ("a time.",)]
        await server.runtime.wait_idle(key)
        assert content_parts.text((await server.db.transcript(key))[-1].content) == "Once upon a time."
        assert not client.events_of("message.delta")
    assert [each.getMessage() for each in caplog.records if each.levelname in ("WARNING", "ERROR")] == []


# --- the end of the input ------------------------------------------------------------------------------

PIPE = frames.FrameLimits(drain_seconds=rpc_client.FOREVER)
"""Limits of a client whose input may end before it has read everything."""


async def test_requests_before_the_end_of_the_input_are_answered_with_their_turns() -> None:
    async with rpc_client.connect(["a", "b"], grace=0.0) as (server, _):
        client = await server.connect(PIPE)
        requests = [
            client.request("session.create", title="A plan"),
            client.request("prompt.submit", text="One", uid="1"),
            client.request("prompt.submit", text="Two", uid="2"),
        ]
        await client.disconnect()
        assert [request.result().get("error") for request in requests] == [None] * 3
        assert client.payloads("message.complete", "uid", "text") == [("1", "a"), ("2", "b")]
        assert client.events_of("session.info")[-1]["payload"]["title"] == "A plan"
        key = client.events[-1]["session_id"]
        await server.wait_ended(key)
        assert await server.end_reasons(key) == ["tui_close"]


@pytest.mark.parametrize("other_client", [False, True])
async def test_approval_after_the_end_of_the_input_needs_another_client(other_client: bool) -> None:
    async with rpc_client.connect(["a", approvals.shell_reply("true"), "Done."]) as (server, other):
        client = await server.connect(PIPE)
        key = await client.start_conversation()
        if other_client:
            await other.call("session.resume", session_id=key)
        request = await client.request_approval(key)
        leaving = asyncio.create_task(client.disconnect())
        if other_client:
            await other.wait_for("approval.request")
            await other.call("approval.respond", session_id=key, request_id=request, answer="once")
        await leaving
        assert client.events_of("message.complete")[-1]["payload"]["text"] == "Done."
        assert server.shell.ran == (["true"] if other_client else [])
        by = "a client: once" if other_client else "no approver"
        assert [(allowed, who) for _, allowed, who, _ in await approvals.audit_rows(server.db)] == [(other_client, by)]


@pytest.mark.parametrize("unread", [True, False], ids=["output is closed", "timeout"])
async def test_turn_whose_events_cannot_be_sent_is_not_waited_for(unread: bool) -> None:
    async with rpc_client.connect(grace=0.0) as (server, _):
        client = await server.connect(PIPE if unread else frames.FrameLimits(drain_seconds=0.01))
        key = await start_turn(server, client, "a")
        if unread:
            client.broken.set()
        await client.disconnect()
        await server.wait_ended(key)
        assert content_parts.text((await server.db.transcript(key))[-1].content).startswith("Once ")
