"""Each inbound message is answered once, in its chat, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points, types
from holdfast.gateway import commands, gateway, platform, settings, worker
from holdfast.model import ScriptedModel
from tests.support import backends, gateways
from tests.support.agents import Trickle, calls, shape, tool
from tests.support.memory_platform import MemoryPlatform
from tests.support.polling import until_async

POLL = 0.02
"""For tests of work that a gateway finds only by polling: that of another process, or after an internal error."""
STEPS = [f"gateway.{step}" for step in ("claimed", "begun", "answered", "settled", "sending", "sent")]
WRITES = [
    *("acquire.begun", "begin.begun", "begin.claim_acquire", "begin.committing", "append.committing"),
    *("append.committed", "settle.begun", "settle.committing", "settle.committed", "send.begun"),
    *("delivered.begun", "delivered.committed"),
]


@asynccontextmanager
async def two_stores(backend: backends.Backend, folder: Path) -> AsyncIterator[tuple[AsyncSessionDB, AsyncSessionDB]]:
    """Open one store twice, as two processes do, and check it afterwards."""
    target = backend.target(folder, "store")
    async with (
        AsyncSessionDB(SessionDB(target, durability="process-crash")) as one,
        AsyncSessionDB(SessionDB(target, durability="process-crash")) as other,
        asyncio.timeout(60),
    ):
        yield one, other
        assert (await one.admin.fsck()).ok


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
async def test_second_gateway_finishes_the_turn_of_a_stopping_one(backend: backends.Backend, tmp_path: Path) -> None:
    async with two_stores(backend, tmp_path) as (db, own):
        slow, quick = Trickle("Half an ans"), ScriptedModel(["The whole answer.", "The next."])
        async with gateways.open_gateway(db, slow) as (first, chat):
            await chat.say("Hi", key="1")
            await slow.stuck.reached.wait()
            async with gateways.open_gateway(own, quick, platforms=[MemoryPlatform("second")], poll=POLL):
                await chat.say("And?", key="2")
                await first.stop()
                one, two = await gateways.wait_settled(db, "1", "2")
        said = shape(await db.transcript(one.conversation_id or ""))
        assert [role for role, _ in said] == ["user", "assistant"] * 2
        assert "The whole answer." in said[1][1]
        assert (one.attempts, two.attempts) == (2, 1)
        assert gateways.texts(await db.mail.replies(one.id)) == ["The whole answer."]
        assert await db.mail.chat_leases() == []


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
async def test_message_delivered_to_two_gateways_is_answered_once(backend: backends.Backend, tmp_path: Path) -> None:
    async with two_stores(backend, tmp_path) as (db, own):
        model = ScriptedModel(["ok"] * 99)
        async with (
            gateways.open_gateway(db, model, poll=POLL) as (_, one),
            gateways.open_gateway(own, model, poll=POLL) as (_, other),
        ):
            keys = [str(number) for number in range(9)]
            for key in keys:
                where = dict.fromkeys(("chat", "sender"), f"c{int(key) % 3}")
                await asyncio.gather(*(each.say(f"Number {key}", key=key, **where) for each in (one, other)))
            found = await gateways.wait_settled(db, *keys)
            await gateways.wait_sent(db)
            sent = one.sent + other.sent
        assert sorted(each.inbound_id or 0 for each in sent) == sorted(each.id for each in found)
        assert len(model.requests) == len(keys)
        for name in ("c0", "c1", "c2"):
            here = [each for each in found if each.chat == f"dm:{name}"]
            assert [each.seq for each in sorted(here, key=lambda each: each.id)] == [1, 3, 5]


async def test_work_of_another_process_is_noticed_without_polling_on_postgres(tmp_path: Path) -> None:
    gate, model = gateways.Gate(), ScriptedModel(["Hello!", "Noted.", calls("wait")])
    postgres = next(each for each in backends.SHARED if each.name == "postgres")
    async with two_stores(postgres, tmp_path) as (db, own):
        async with gateways.open_gateway(db, model, tools=[tool("wait", gate)]) as (_, chat):
            found = await gateways.settle(db, chat, "Hi", key="1")
            place = {"platform": "loopback", "chat": "dm:local", "address": {"chat": "local"}}
            await own.mail.post(types.NewOutgoing(text="From elsewhere.", kind="notice", **place))
            await chat.replies(2)
            await own.mail.add_inbox_entry(found.conversation_id or "", "n1", "The build ended.")
            assert gateways.texts(await chat.replies(3)) == ["Hello!", "From elsewhere.", "Noted."]
            await chat.say("Wait", key="2")
            await gate.reached.wait()
            await own.mail.add_inbound(gateways.new_inbound("3", "/stop"))
            two, _ = await gateways.wait_settled(db, "2", "3")
        assert two.outcome == "interrupted"


async def test_message_that_failed_too_often_is_given_up_and_redacted_with_its_entry(db: AsyncSessionDB) -> None:
    inbound_id = await gateways.begin_elsewhere(db, "1", "my password", attempts=5)
    inbound = await db.mail.inbound(inbound_id)
    assert inbound is not None
    born = types.NewConversation(source="loopback")
    await db.append_message("talk", role="user", content="my password", uid=worker.uid_of(inbound), create=born)
    async with gateways.open_gateway(db, ScriptedModel()) as (_, chat):
        assert gateways.texts(await chat.replies(1)) == [worker.GAVE_UP.format(count=5)]
    (found,) = await gateways.wait_settled(db, "1")
    assert (found.outcome, found.conversation_id, found.seq) == ("gave_up", "talk", 1)
    await db.redact("talk", 1)
    (gone,) = await gateways.wait_settled(db, "1")
    assert (gone.text, gone.redacted) == ("", True)


async def test_message_begun_before_its_conversation_existed_goes_to_the_bound_one(db: AsyncSessionDB) -> None:
    arrival, _ = await db.mail.add_inbound(gateways.new_inbound("1", "Hi"))
    lease = await db.mail.acquire_chat_lease(f"route:{gateways.ROUTE}")
    await db.mail.begin_inbound(lease, arrival.id, "never")
    await db.mail.release_chat_lease(lease)
    await db.create_session("talk", source="test", owner="loopback:local")
    await db.bind_route(gateways.ROUTE, "talk", version=0)
    async with gateways.open_gateway(db, ScriptedModel(["Yes."])) as (_, chat):
        assert gateways.texts(await chat.replies(1)) == ["Yes."]
    (found,) = await gateways.wait_settled(db, "1")
    assert (found.conversation_id, found.target, found.seq) == ("talk", "never", 1)
    assert (await db.route(gateways.ROUTE)).version == 1


async def test_failed_turn_is_reported_and_settled(db: AsyncSessionDB) -> None:
    async with gateways.open_gateway(db, ScriptedModel([])) as (_, chat):
        await chat.say("Hi", key="1")
        (sent,) = await chat.replies(1)
    (found,) = await gateways.wait_settled(db, "1")
    assert (found.outcome, found.seq) == ("failed", 1)
    assert sent.text.startswith("The request failed: The script has no reply")
    assert sent.text.endswith("/new to begin a new conversation.")


async def send_with_failure(
    db: AsyncSessionDB, point: str, error: Exception, monkeypatch: pytest.MonkeyPatch, text: str
) -> tuple[types.InboundMessage, list[types.Outgoing]]:
    """Send a second message with an error when a fault point is first reached; return it and its replies."""
    failures = [error]

    def fail(reached: str) -> None:
        if reached == point and failures:
            raise failures.pop()

    async with gateways.open_gateway(db, ScriptedModel(["Yes."] * 9), poll=POLL) as (opened, chat):
        await gateways.settle(db, chat, "Before", key="0")
        await gateways.wait_idle(opened, db)
        with monkeypatch.context() as patched:
            patched.setattr(fault_points, "hook", fail)
            found = await gateways.settle(db, chat, text, key="1")
            await gateways.wait_idle(opened, db)
    assert failures == []
    return found, [each for each in chat.sent if each.inbound_id == found.id]


@pytest.mark.parametrize("point", [*STEPS, *WRITES])
@pytest.mark.parametrize("error", [RuntimeError("a bug"), errors.StoreFull()], ids=["bug", "full"])
async def test_message_has_one_outcome_and_one_reply_after_any_failure(
    point: str, error: Exception, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    found, sent = await send_with_failure(db, point, error, monkeypatch, "Hi")
    assert (found.seq, [each.address for each in sent]) == (3, [{"chat": "local"}])
    assert (await db.mail.replies(found.id))[0].text == sent[0].text
    said = [role for role, _ in shape(await db.transcript(found.conversation_id or ""))]
    assert said.count("user") == 2


@pytest.mark.parametrize("step", ["claimed", "begun", "commanded", "settled"])
async def test_command_runs_at_most_once_after_any_failure(
    step: str, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    _, (sent,) = await send_with_failure(db, f"gateway.{step}", RuntimeError("a bug"), monkeypatch, "/branch")
    done = len(await db.list_sessions(owner="loopback:local")) - 1
    assert (done, sent.text == commands.NOT_REPEATED.format(line="/branch")) in ((1, False), (0, True))


async def test_lost_lease_settles_nothing_and_the_reply_is_sent_once(db: AsyncSessionDB) -> None:
    gate, model = gateways.Gate(), ScriptedModel([calls("wait"), "Once."])
    async with gateways.open_gateway(db, model, tools=[tool("wait", gate)]) as (opened, chat):
        await chat.say("Wait", key="1")
        await gate.reached.wait()
        (held,) = [each for each in await db.mail.chat_leases() if each.key.startswith("route:")]
        theirs = await db.mail.acquire_chat_lease(held.key, holder=held.holder)
        assert theirs.token > held.token
        gate.go.set()
        await until_async(lambda: opened.router.active == 0)
        assert await db.mail.open_inbound(gateways.ROUTE) != []
        await db.mail.release_chat_lease(theirs)
        opened.router.wake()
        await gateways.wait_settled(db, "1")
        await gateways.wait_idle(opened, db)
        assert gateways.texts(chat.sent) == ["Once."]
    assert len(model.requests) == 2


async def test_conversation_deleted_during_its_turn_takes_its_mail_with_it(db: AsyncSessionDB) -> None:
    slow = Trickle("Hm")
    async with gateways.open_gateway(db, slow) as (opened, chat):
        await chat.say("Secret", key="1")
        await slow.stuck.reached.wait()
        await db.delete_conversation((await db.route(gateways.ROUTE)).conversation_id or "")
        await chat.say("/stop", key="2")
        found, _ = await gateways.wait_settled(db, "1", "2")
        await gateways.wait_idle(opened, db)
    assert (found.outcome, found.text) == ("deleted", "")


def with_profile(db: AsyncSessionDB, profile: str) -> gateway.Gateway:
    wanted = settings.GatewaySettings(profile=profile, grace=0.0)
    return gateway.Gateway(db, gateways.runtime_factory(db, ScriptedModel()), [MemoryPlatform()], settings=wanted)


@pytest.mark.parametrize("profile", ["main", "für 50%"])
async def test_store_keeps_the_profile_of_its_first_gateway(profile: str, db: AsyncSessionDB) -> None:
    for _ in range(2):
        async with with_profile(db, profile):
            pass
    with pytest.raises(errors.SettingInvalid) as refused:
        await with_profile(db, "other").__aenter__()
    assert errors.quote(profile) in str(refused.value)
    assert "HOLDFAST_DB" in str(refused.value)
    with pytest.raises(errors.InvalidArgument):
        await db.admin.set_meta("gateway_profile", "other")


async def test_message_of_another_profile_is_left_alone(db: AsyncSessionDB) -> None:
    route = "agent:public:loopback:dm:eve"
    await db.mail.add_inbound(gateways.new_inbound("f1", "Hi", route=route, sender="eve"))
    model = ScriptedModel(["Hello!"])
    async with gateways.open_gateway(db, model) as (running, chat):
        running.router.notify(route)
        await gateways.settle(db, chat, "Hi", key="1")
        running.router.wake()
        await gateways.settle(db, chat, "/status", key="2")
    (left,) = await db.mail.open_inbound(route)
    assert (left.key, left.attempts, len(model.requests)) == ("f1", 0, 1)


async def test_swallowed_cancellation_blocks_no_stop(db: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.wait_for` of Python 3.11 does so if its result arrives at the same time, for example in discord.py."""
    cancelled = list[str]()

    class StubbornPlatform(MemoryPlatform):
        async def run(self, handler: platform.Handler) -> None:
            while len(cancelled) < 2:
                try:
                    await super().run(handler)
                except asyncio.CancelledError:
                    cancelled.append(self.name)

    monkeypatch.setattr(gateway, "CANCEL_SECONDS", 0.01)
    async with gateways.open_gateway(db, ScriptedModel(), platforms=[StubbornPlatform("chat")]) as (opened, _):
        await opened.wait_ready()
    assert cancelled == ["chat"] * 2
