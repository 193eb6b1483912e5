"""Sessions of all clients: what is asked of one is done in order, a close among it, and nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors, events
from holdfast.compaction import hooks
from holdfast.rpc_server import open_sessions, session
from holdfast.runtime import subscriptions
from tests.support import approvals, rpc_client
from tests.support.chat import Dictated
from tests.support.compaction import fill
from tests.terminal.test_server import PICTURE
from tests.terminal.test_server_leaving import asked, ends, spoken, until_ended


async def until_none_is_left(desk: rpc_client.Desk) -> None:
    while [*desk.server._sessions]:
        await asyncio.sleep(0)


def uids(client: rpc_client.Caller) -> list[tuple[str, str]]:
    return [(each["payload"]["uid"], each["payload"]["status"]) for each in client.told("message.complete")]


# --- closing, in order ---------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [0, 8])
async def test_a_prompt_before_a_close_is_taken_and_ended_by_it_and_one_after_it_is_refused(images: int) -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        key = await spoken(client)
        before = client.asking("prompt.submit", session_id=key, text="b", uid="b", images=[PICTURE] * images)
        titled = client.asking("session.title", session_id=key, title="Named")
        closed = client.asking("session.close", session_id=key)
        after = client.asking("prompt.submit", session_id=key, text="c", uid="c")
        assert (await before)["result"]["uid"] == "b"
        assert (await titled)["result"]["title"] == "Named"
        assert (await closed)["result"]["ended"]
        assert (await after)["error"]["code"] == -32002
        await desk.home.door.wait_idle(key)
        assert [uid for uid, _ in uids(client)].count("b") == 1
        assert "c" not in dict(uids(client))
        assert await ends(desk.db, key) == ["tui_close"]


async def test_what_waited_behind_a_close_is_refused_and_leaves_no_title_behind() -> None:
    async with rpc_client.client() as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        (session,) = desk.server._sessions
        await session.order.acquire()
        waiting = [
            client.asking("session.close", session_id=key),
            client.asking("session.title", session_id=key, title="Late"),
            client.asking("prompt.submit", session_id=key, text="Late"),
        ]
        await client.ask("server.info")
        session.order.release()
        closed, *late = await asyncio.gather(*waiting)
        assert [each["error"]["code"] for each in late] == [-32002, -32002]
        assert closed["result"] == {"session_id": key, "ended": False}
        assert desk.home.door.wanted_title(key) is None
        assert await rpc_client.no_row(desk.db, key)


async def test_a_session_that_was_opened_during_a_close_goes_on() -> None:
    model = Dictated()
    reached, go = asyncio.Event(), asyncio.Event()

    async def closing(_: str) -> None:
        reached.set()
        await go.wait()

    async with rpc_client.client(model=model, hooks=hooks.Hooks(closing=(closing,))) as (desk, client):
        other = await desk.caller()
        model.say("a", None)
        key = await spoken(client)
        closed = client.asking("session.close", session_id=key)
        await reached.wait()
        await other.ask("session.resume", session_id=key)
        await other.ask("prompt.submit", session_id=key, text="Hello", uid="u")
        await other.until("message.start")
        go.set()
        assert not (await closed)["result"]["ended"]
        assert await ends(desk.db, key) == [None]
        model.say("b", None)
        assert (await other.until("message.complete", uid="u"))["payload"]["text"] == "b"
        assert (await other.ask("session.close", session_id=key))["ended"]
        assert await ends(desk.db, key) == ["tui_close"]


async def test_who_opens_again_what_it_closes_finds_it_closed_and_is_told_everything_once() -> None:
    model = Dictated()

    async with rpc_client.client(model=model) as (desk, client):
        model.say("a", None)
        key = await spoken(client)
        await client.ask("prompt.submit", session_id=key, text="b", uid="b")
        model.say("Once upon")
        await client.until("message.delta", text="Once upon")
        three = [
            client.asking("session.close", session_id=key),
            client.asking("session.resume", session_id=key),
            client.asking("prompt.submit", session_id=key, text="c", uid="c"),
        ]
        closed, again, sent = [(await each)["result"] for each in three]
        assert (closed["ended"], again["live"], sent["uid"]) == (True, False, "c")
        model.say("d", None)
        await client.until("message.complete", uid="c")
        assert uids(client)[1:] == [("b", "interrupted"), ("c", "completed")]
        assert await ends(desk.db, key) == ["tui_close", None]


async def test_what_a_client_does_not_read_keeps_its_session_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "FLUSH_SECONDS", 0.0)

    async with rpc_client.client(["a"]) as (desk, client):
        await fill(desk.db, 1)
        await client.ask("session.resume", session_id="talk")
        client.reads.clear()
        desk.home.door.publish("talk", events.Notice("This is not read."))
        await desk.db.end_session("talk", "elsewhere")
        await desk.db.resume("talk")
        # There is another key to tell of first.
        sent = client.asking("prompt.submit", session_id="talk", text="Hello")
        closed = client.asking("session.close", session_id="talk")
        await until_ended(desk.db, "talk")
        client.reads.set()
        assert "result" in await sent
        assert (await closed)["result"]["ended"]


async def test_what_a_command_says_comes_before_what_was_asked_after_it() -> None:
    async with rpc_client.client(["a", "b", "c"]) as (_, client):
        key = await spoken(client)
        again = client.asking("command.exec", session_id=key, line="/retry")
        after = client.asking("prompt.submit", session_id=key, text="After", uid="u")
        assert (await again)["result"]["prompt"]["queued"] == 0
        assert (await after)["result"]["queued"] == 1
        await client.until("message.complete", uid="u")
        assert [each["payload"]["text"] for each in client.told("message.start")] == ["Hello", "Hello", "After"]


# --- closes that fail ----------------------------------------------------------------------------------


def failing(db: AsyncSessionDB, times: int) -> None:
    """Have a store be busy so often when a conversation is to be ended."""
    works, left = db.end_conversation, [errors.StoreBusy()] * times

    async def fails(*given: Any) -> bool:
        if left:
            raise left.pop()
        return await works(*given)

    db.end_conversation = fails  # type: ignore[method-assign,assignment]


async def test_close_without_the_store_closes_the_session_and_ends_nothing() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        key = await spoken(client)
        failing(desk.db, 1)
        assert not (await client.ask("session.close", session_id=key))["ended"]
        await until_none_is_left(desk)
        await client.ask("session.resume", session_id=key)
        assert (await client.say(key, "Still here?", uid="u"))["payload"]["text"] == "b"
        assert (await client.ask("session.close", session_id=key))["ended"]
        assert await ends(desk.db, key) == ["tui_close"]


@pytest.mark.parametrize("how", ["the client vanishes", "the server ends"])
async def test_a_close_that_breaks_down_takes_no_other_with_it(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def breaks() -> None:
        raise ZeroDivisionError

    async with rpc_client.client(["a", "b"], grace=0.0) as (desk, client):
        broken, whole = await spoken(client), await spoken(client, "Other words")
        agent = desk.home.door.agents.peek(broken)
        assert agent is not None
        agent.leave = breaks  # type: ignore[method-assign]
        every = [*desk.server._sessions]
        if how == "the server ends":
            await desk.server.close()
            assert [*desk.server._sessions] == []
        else:
            await client.leave()
            await until_none_is_left(desk)
        assert await ends(desk.db, whole) == ["tui_close"]
        assert [each.subscription.is_delivering for each in every] == [False, False]
        del agent.leave
    assert [each.levelname for each in caplog.records if "could not be closed" in each.getMessage()] == ["ERROR"]


# --- opening that nobody is told of --------------------------------------------------------------------


async def test_who_comes_back_with_a_broken_picture_takes_nothing_up() -> None:
    async with rpc_client.client(["a"]) as (desk, client):
        key = await spoken(client)
        await client.leave()
        back = await desk.caller()
        broken = {"images": [{"data": "AAAA"}]}
        refused = await rpc_client.refusal(back.ask("session.resume", session_id=key, options=broken))
        assert refused.code == -32602
        assert [session.gone for session in desk.server._sessions] == [True]


# --- open questions ------------------------------------------------------------------------------------


async def test_whoever_opens_a_conversation_is_told_of_its_open_questions() -> None:
    async with rpc_client.client(["a", approvals.runs("true"), "Done."]) as (desk, client):
        key = await spoken(client)
        request = await asked(client, key)
        other = await desk.caller()
        for each in (other, client):
            await each.ask("session.resume", session_id=key)
            assert (await each.until("approval.request"))["payload"]["request_id"] == request
        await other.ask("approval.respond", session_id=key, request_id=request, answer="once")
        assert (await client.until("message.complete", uid="it"))["payload"]["text"] == "Done."


# --- the session that is meant -------------------------------------------------------------------------


async def test_a_prompt_that_names_no_session_goes_to_the_one_that_is_open_or_to_a_new_one() -> None:
    async with rpc_client.client(["a", "b", "c"]) as (desk, client):
        both = [client.asking("prompt.submit", text=text, uid=text) for text in ("One", "Two")]
        keys = {(await each)["result"]["session_id"] for each in both}
        await client.until("message.complete", uid="Two")
        (key,) = keys
        assert len(await desk.db.transcript(key)) == 4
        await client.ask("session.create")
        refused = await rpc_client.refusal(client.ask("prompt.submit", text="Three"))
        assert (refused.code, key in refused.data["candidates"], len(refused.data["candidates"])) == (-32003, True, 2)
        await client.ask("session.close", session_id=key)
        elsewhere = await client.ask("prompt.submit", text="Three", uid="Three")
        assert elsewhere["session_id"] not in keys
        await client.until("message.complete", uid="Three")


async def test_an_id_is_never_chosen_by_a_client() -> None:
    async with rpc_client.client() as (_, client):
        assert (await rpc_client.refusal(client.ask("session.create", session_id="notes"))).code == -32602


async def test_every_refusal_says_its_kind() -> None:
    async with rpc_client.client() as (_, client):
        key = (await client.ask("session.create"))["session_id"]
        for method, kind in (
            ("session.undo", "HoldfastError"),
            ("session.branch", "HoldfastError"),
            ("session.compress", "HoldfastError"),
        ):
            refused = await rpc_client.refusal(client.ask(method, session_id=key))
            assert (refused.code, refused.data) == (-32000, {"type": kind})


# --- limits --------------------------------------------------------------------------------------------


async def test_who_has_as_many_open_as_may_be_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_sessions, "MAX_SESSIONS", 1)

    async with rpc_client.client(["a"]) as (desk, client):
        key = await spoken(client)
        for method, given in (
            ("session.create", {}),
            ("session.branch", {"session_id": key, "title": "Other"}),
            ("command.exec", {"session_id": key, "line": "/branch Other"}),
            ("command.exec", {"session_id": key, "line": "/new Other"}),
        ):
            refused = await rpc_client.refusal(client.ask(method, **given))
            assert (refused.code, refused.data) == (-32000, {"type": "LimitReached"})
        assert len(await desk.db.list_sessions(every=True)) == 1
        assert desk.home.door._titles == {}


async def test_only_so_many_prompts_of_a_session_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_PROMPTS", 2)
    model = Dictated()

    async with rpc_client.client(model=model) as (_, client):
        key = (await client.ask("session.create"))["session_id"]
        for text in ("runs", "waits", "waits, too"):
            await client.ask("prompt.submit", session_id=key, text=text)
        refused = await rpc_client.refusal(client.ask("prompt.submit", session_id=key, text="one more"))
        assert (refused.code, refused.data) == (-32000, {"type": "LimitReached"})
        model.say("a", None)
        await client.until("message.complete")
        await client.ask("prompt.submit", session_id=key, text="now")


async def test_queued_prompts_of_a_session_are_limited_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_QUEUED_CHARACTERS", 10)

    async with rpc_client.client(model=Dictated()) as (_, client):
        key = (await client.ask("session.create"))["session_id"]
        for text in ("runs", "is too long"):
            await client.ask("prompt.submit", session_id=key, text=text)
        refused = await rpc_client.refusal(client.ask("prompt.submit", session_id=key, text="one more"))
        assert (refused.code, refused.data) == (-32000, {"type": "LimitReached"})


async def test_session_whose_creation_failed_is_discarded() -> None:
    async with rpc_client.client() as (desk, client):
        works = desk.db.conversation

        async def fails(_: str) -> Any:
            raise errors.StoreBusy

        desk.db.conversation = fails  # type: ignore[method-assign]
        assert (await rpc_client.refusal(client.ask("session.create", title="T"))).data == {"type": "StoreBusy"}
        await until_none_is_left(desk)
        assert desk.home.door._titles == {}
        desk.db.conversation = works  # type: ignore[method-assign]
        await client.ask("session.create", title="T")


@pytest.mark.parametrize("method", ["session.steer", "prompt.submit"])
async def test_a_uid_is_as_long_as_a_name(method: str) -> None:
    async with rpc_client.client() as (_, client):
        key = (await client.ask("session.create"))["session_id"]
        for uid in ("", "x" * 201):
            assert (await rpc_client.refusal(client.ask(method, session_id=key, text="x", uid=uid))).code == -32602


# --- the review of the last turn -----------------------------------------------------------------------


async def reviewed(desk: rpc_client.Desk, client: rpc_client.Caller, model: Dictated) -> str:
    """A turn that is over, and its review at work; the session."""
    model.say("a", None)
    key = await spoken(client)
    while len(model.requests) < 2:
        await asyncio.sleep(0.001)
    return key


def under_way(desk: rpc_client.Desk, key: str) -> bool:
    agent = desk.home.door.agents.peek(key)
    assert agent is not None
    return agent.memory.is_reviewing


async def test_a_close_waits_for_the_review_of_the_last_turn() -> None:
    model = Dictated()

    async with rpc_client.client(model=model, reviews=True, remembers=True) as (desk, client):
        key = await reviewed(desk, client, model)
        (session,) = desk.server._sessions
        closed = client.asking("session.close", session_id=key)
        while not session.closing:
            await asyncio.sleep(0)
        for _ in range(10):  # More often than whoever ends it asks the store.
            assert (under_way(desk, key), await ends(desk.db, key)) == (True, [None])
        model.say("nothing", None)
        assert (await closed)["result"]["ended"]
        assert not under_way(desk, key)


async def test_a_review_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REVIEW_SECONDS", 0.0)
    model = Dictated()

    async with rpc_client.client(model=model, reviews=True, remembers=True) as (desk, client):
        key = await reviewed(desk, client, model)
        assert (await client.ask("session.close", session_id=key))["ended"]
        assert under_way(desk, key)


# --- the end of the server -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["its client is not served any more", "the server ends"])
async def test_when_the_program_ends_every_prompt_has_its_end_and_is_told_so(how: str) -> None:
    model = Dictated()

    async with rpc_client.client(model=model) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        for uid in ("a", "b"):
            await client.ask("prompt.submit", session_id=key, text=uid, uid=uid)
        model.say("Once upon")
        await client.until("message.delta")
        if how == "the server ends":
            await desk.server.close()
            refused = await rpc_client.refusal(client.ask("session.create"))
            assert (refused.code, refused.data) == (-32000, {"type": "Gone"})
        else:
            client.attended.cancel()
            await asyncio.wait([client.attended])
            desk._callers.remove(client)
        assert sorted(uids(client)) == [("a", "interrupted"), ("b", "dropped")]
        assert await ends(desk.db, key) == ["tui_close"]
