"""How sessions are left: closed by their client, by one that vanished, with the server; and who may still answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast import AsyncSessionDB, content_parts, events
from holdfast.compaction import hooks
from holdfast.rpc import frames
from holdfast.runtime import subscriptions
from tests.support import approvals, rpc_client
from tests.support.chat import Dictated
from tests.support.compaction import compacting_agent, fill


async def ends(db: AsyncSessionDB, session_id: str) -> list[str | None]:
    return [each.end_reason for each in await db.sessions(session_id)]


async def until_ended(db: AsyncSessionDB, session_id: str) -> None:
    while (await db.head(session_id)).live:
        await asyncio.sleep(0.01)


async def spoken(client: rpc_client.Caller, text: str = "Hello") -> str:
    key: str = (await client.ask("session.create"))["session_id"]
    await client.say(key, text)
    return key


async def asked(client: rpc_client.Caller, key: str) -> str:
    """A turn that waits for permission; the question."""
    await client.ask("prompt.submit", session_id=key, text="Do it.", uid="it")
    request: str = (await client.until("approval.request"))["payload"]["request_id"]
    return request


# --- closing -------------------------------------------------------------------------------------------


async def test_closing_during_a_turn_stops_it_keeps_what_was_said_and_every_prompt_has_its_end(store: str) -> None:
    model = Dictated()

    async with rpc_client.client(model=model, target=store) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        for uid in ("a", "b", "c"):
            await client.ask("prompt.submit", session_id=key, text=uid, uid=uid)
        model.say("Once upon")
        await client.until("message.delta")
        assert (await client.ask("session.close", session_id=key))["ended"]
        ended = {each["payload"]["uid"]: each["payload"]["status"] for each in client.told("message.complete")}
        assert ended == {"a": "interrupted", "b": "dropped", "c": "dropped"}
        assert [each.role for each in await desk.db.transcript(key)] == ["user", "assistant"]
        assert await ends(desk.db, key) == ["tui_close"]


async def test_whoever_closed_a_session_is_not_asked_any_more() -> None:
    async with rpc_client.client(["a", approvals.runs("true"), "Then not."]) as (desk, client):
        key = await spoken(client)
        await client.ask("session.close", session_id=key)
        result = await desk.home.door.submit(key, events.Submit("Do it."))
        assert (result.final_response, desk.home.shell.ran) == ("Then not.", [])


async def test_the_last_of_several_clients_ends_it() -> None:
    async with rpc_client.client(["a", "b"]) as (desk, client):
        other = await desk.caller()
        key = await spoken(client)
        await other.ask("session.resume", session_id=key)
        assert not (await client.ask("session.close", session_id=key))["ended"]
        assert await ends(desk.db, key) == [None]
        assert (await other.say(key, "Still here?"))["payload"]["text"] == "b"
        assert (await other.ask("session.close", session_id=key))["ended"]
        assert await ends(desk.db, key) == ["tui_close"]


async def test_a_close_that_nobody_waits_for_any_more_is_done_all_the_same() -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def closing(_: str) -> None:
        reached.set()
        await go.wait()

    async with rpc_client.client(["a"], hooks=hooks.Hooks(closing=(closing,))) as (desk, client):
        key = await spoken(client)
        asking = client.asking("session.close", session_id=key)
        await reached.wait()
        client.cancel(asking)
        assert (await asking)["error"]["code"] == -32800
        go.set()
        await until_ended(desk.db, key)
        assert await ends(desk.db, key) == ["tui_close"]


async def test_a_client_that_does_not_read_keeps_nobody_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "FLUSH_SECONDS", 0.0)

    async with rpc_client.client(["a"]) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        await client.ask("prompt.submit", session_id=key, text="Hello")
        client.reads.clear()
        await desk.home.door.wait_idle(key)
        closing = client.asking("session.close", session_id=key)
        await until_ended(desk.db, key)
        client.reads.set()
        assert rpc_client.result(await closing)["ended"]


async def test_leaving_the_server_closes_every_session_and_tells_of_it_once(db: AsyncSessionDB) -> None:
    told: list[str] = []

    async def closing(session_id: str) -> None:
        told.append(session_id)

    async with rpc_client.served(db, ["a", "b"], hooks=hooks.Hooks(closing=(closing,))) as desk:
        client = await desk.caller()
        keys = [await spoken(client), await spoken(client, "Other words")]
        empty = (await client.ask("session.create"))["session_id"]
    assert [await ends(db, key) for key in keys] == [["tui_close"]] * 2
    assert await rpc_client.no_row(db, empty)
    assert sorted(told) == sorted(keys)


# --- vanishing -----------------------------------------------------------------------------------------


async def test_the_sessions_of_a_client_that_vanished_are_closed_after_a_while() -> None:
    model = Dictated()

    async with rpc_client.client(model=model, grace=0.0) as (desk, client):
        other = await desk.caller()
        key = (await client.ask("session.create"))["session_id"]
        await client.ask("prompt.submit", session_id=key, text="Hello")
        model.say("Once upon")
        await client.until("message.delta")
        await client.leave()
        await until_ended(desk.db, key)
        assert await ends(desk.db, key) == ["tui_close"]
        assert not desk.home.door.running(key)
        assert (await other.ask("server.info"))["protocol"] == 1


async def test_a_client_that_comes_back_goes_on_where_it_was_and_is_asked_again(store: str) -> None:
    async with rpc_client.client([approvals.runs("true"), "Done."], target=store) as (desk, client):
        key = (await client.ask("session.create", options={"columns": 33}))["session_id"]
        request = await asked(client, key)
        await client.leave()
        back = await desk.caller()
        stands = await back.ask("session.resume", session_id=key)
        assert (stands["running"], stands["options"]["columns"]) == (True, 33)
        again = await back.until("approval.request")
        assert again["payload"]["request_id"] == request
        await back.ask("approval.respond", session_id=key, request_id=request, answer="once")
        assert (await back.until("message.complete", uid="it"))["payload"]["text"] == "Done."
        assert desk.home.shell.ran == ["true"]
        assert await ends(desk.db, key) == [None]


async def test_a_client_that_vanished_without_reading_can_come_back() -> None:
    model = Dictated()

    async with rpc_client.client(model=model) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        await client.ask("prompt.submit", session_id=key, text="Hello", uid="it")
        await client.until("message.start")
        client.reads.clear()
        model.say(*(["words "] * 100))
        while not model.words.empty():
            await asyncio.sleep(0)
        await client.leave()
        back = await desk.caller()
        await back.ask("session.resume", session_id=key)
        model.say("and the end.", None)
        reply = await back.until("message.complete", uid="it")
        assert reply["payload"]["text"] == "words " * 100 + "and the end."


@pytest.mark.parametrize("comes_back", [False, True], ids=["for good", "for a while"])
async def test_a_client_that_goes_while_it_is_being_told_something_loses_nothing(
    comes_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = Dictated()

    async with rpc_client.client(model=model) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        await client.ask("prompt.submit", session_id=key, text="Hello", uid="it")
        await client.until("message.start")
        client.reads.clear()
        client.held = True  # What is being sent stays on its way, though the channel is closed.
        model.say("Once ", "upon ")
        await client.sending.wait()
        await client.leave()
        back = await desk.caller() if comes_back else None
        if back is not None:
            await back.ask("session.resume", session_id=key)
        client.reads.set()
        model.say("a time.", None)
        if back is not None:
            assert (await back.until("message.complete", uid="it"))["payload"]["text"] == "Once upon a time."
            told = [each["payload"]["text"] for each in back.told("message.delta")]
            assert told == ["Once ", "upon ", "a time."]
        await desk.home.door.wait_idle(key)
        assert content_parts.text((await desk.db.transcript(key))[-1].content) == "Once upon a time."
        assert not client.told("message.delta")
    assert [each.getMessage() for each in caplog.records if each.levelname in ("WARNING", "ERROR")] == []


async def test_what_nobody_came_back_to_permit_is_not_done() -> None:
    async with rpc_client.client([approvals.runs("true"), "Done."], grace=0.0) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        await asked(client, key)
        await client.leave()
        await until_ended(desk.db, key)
        assert desk.home.shell.ran == []
        assert [(allowed, by) for _, allowed, by, _ in await approvals.audit(desk.db)] == [(False, "interrupted")]


# --- the end of the input ------------------------------------------------------------------------------

PIPE = frames.FrameLimits(drain_seconds=rpc_client.FOR_EVER)
"""Of one who may stop asking before all is told."""


async def test_what_was_asked_before_the_input_ended_is_answered_turns_and_all() -> None:
    async with rpc_client.client(["a", "b"], grace=0.0) as (desk, _):
        client = await desk.caller(PIPE)
        asked = [
            client.asking("session.create", title="A plan"),
            client.asking("prompt.submit", text="One", uid="1"),
            client.asking("prompt.submit", text="Two", uid="2"),
        ]
        await client.leave()
        assert [answer.result().get("error") for answer in asked] == [None] * 3
        over = client.told("message.complete")
        assert [(each["payload"]["uid"], each["payload"]["text"]) for each in over] == [("1", "a"), ("2", "b")]
        assert client.told("session.info")[-1]["payload"]["title"] == "A plan"
        key = over[0]["session_id"]
        await until_ended(desk.db, key)
        assert await ends(desk.db, key) == ["tui_close"]


async def test_whoever_asks_nothing_more_permits_nothing_more() -> None:
    async with rpc_client.client([approvals.runs("true"), "Then not."]) as (desk, _):
        client = await desk.caller(PIPE)
        key = (await client.ask("session.create"))["session_id"]
        await asked(client, key)
        await client.leave()
        assert client.told("message.complete")[-1]["payload"]["text"] == "Then not."
        assert desk.home.shell.ran == []
        assert [(allowed, by) for _, allowed, by, _ in await approvals.audit(desk.db)] == [(False, "nobody")]


async def test_another_one_may_still_permit_it() -> None:
    async with rpc_client.client(["a", approvals.runs("true"), "Done."]) as (desk, other):
        client = await desk.caller(PIPE)
        key = (await client.ask("session.create"))["session_id"]
        await client.say(key, "Hello")
        await other.ask("session.resume", session_id=key)
        request = await asked(client, key)
        leaving = asyncio.create_task(client.leave())
        await other.until("approval.request")
        await other.ask("approval.respond", session_id=key, request_id=request, answer="once")
        await leaving
        assert client.told("message.complete")[-1]["payload"]["text"] == "Done."
        assert desk.home.shell.ran == ["true"]


@pytest.mark.parametrize("how", ["nobody reads", "it takes too long"])
async def test_a_turn_that_nobody_can_be_told_of_is_not_waited_for(how: str) -> None:
    model = Dictated()

    async with rpc_client.client(model=model, grace=0.0) as (desk, _):
        client = await desk.caller(PIPE if how == "nobody reads" else frames.FrameLimits(drain_seconds=0.01))
        key = (await client.ask("session.create"))["session_id"]
        await client.ask("prompt.submit", session_id=key, text="Hello")
        model.say("Once upon")
        await client.until("message.delta")
        if how == "nobody reads":
            client.broken.set()
        await client.leave()
        await until_ended(desk.db, key)
        assert content_parts.text((await desk.db.transcript(key))[-1].content).startswith("Once upon")


async def test_what_is_opened_can_be_spoken_to_before_that_is_answered() -> None:
    async with rpc_client.client(["a"]) as (desk, client):
        await fill(desk.db, 1)
        both = [
            client.asking("session.resume", session_id="talk"),
            client.asking("prompt.submit", session_id="talk", text="Hello", uid="u"),
        ]
        assert [("result" in answer) for answer in await asyncio.gather(*both)] == [True, True]
        assert (await client.until("message.complete", uid="u"))["payload"]["text"] == "a"


# --- approvals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_of", [lambda _, __: "talk", lambda head, _: head], ids=["old key", "new key"])
async def test_an_approval_that_is_open_across_a_rotation_stays_answerable(
    key_of: Callable[[str, str], str], store: str
) -> None:
    async with rpc_client.client([approvals.runs("true"), "Done."], background=False, target=store) as (desk, client):
        await fill(desk.db, 40)
        await client.ask("session.resume", session_id="talk")
        request = await asked(client, "talk")
        head = (await compacting_agent(desk.db).compress_context(force=True)).session_id
        assert head != "talk"
        key = key_of(head, "talk")
        answered = await client.ask("approval.respond", session_id=key, request_id=request, answer="once")
        assert (answered["accepted"], answered["notice"]) == (True, None)
        settled = await client.until("status", kind="approval.settled")
        assert settled["payload"]["data"]["allowed"]
        reply = await client.until("message.complete", uid="it")
        assert (reply["session_id"], reply["payload"]["text"]) == (head, "Done.")


async def test_the_first_answer_counts_and_a_denial_tells_the_model_why() -> None:
    async with rpc_client.client([approvals.runs("true"), "Then not."]) as (desk, client):
        key = (await client.ask("session.create"))["session_id"]
        request = await asked(client, key)
        given = {"session_id": key, "request_id": request}
        first = await client.ask("approval.respond", **given, answer="deny", reason="Not on a Sunday.")
        late = await client.ask("approval.respond", **given, answer="always")
        assert (first["accepted"], late["accepted"], bool(late["notice"])) == (True, False, True)
        await client.until("message.complete", uid="it")
        assert desk.home.shell.ran == []
        assert "Not on a Sunday." in desk.home.results[0]
