"""Notices: each is answered once, after the turn under way and before the person's next message, by whomever."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from holdfast import AIAgent, AsyncSessionDB, content_parts, errors, events, types
from holdfast.app import process_records
from holdfast.model import ScriptedModel, base
from holdfast.runtime import inbox_messages, runtime
from tests.support import agents
from tests.support.agents import turn_result as ended
from tests.support.runtimes import events_until, open_runtime


async def begun(db: AsyncSessionDB, *keys: str, conversation: str = "talk") -> list[types.InboxEntry]:
    """A conversation with a past, and what waits for it."""
    create = types.NewConversation(source="test")
    await db.append_message(conversation, role="user", content="Hello.", uid="hello", create=create)
    await db.append_message(conversation, role="assistant", content="Good day.")
    return [await db.mail.add_inbox_entry(conversation, key, f"{key} ended", kind="process") for key in keys]


async def log(db: AsyncSessionDB, conversation: str = "talk") -> list[tuple[str, str]]:
    """Who said what after the past."""
    return [(each.role, content_parts.text(each.content)) for each in (await db.transcript(conversation))[2:]]


async def outcomes(db: AsyncSessionDB, rows: list[types.InboxEntry]) -> list[tuple[str | None, int | None]]:
    def look(key: str) -> tuple[Any, ...]:
        row = db.db.driver.read(lambda tx: tx.one("inbox_by_key", key=key))
        assert row is not None
        return row

    found = [look(each.key) for each in rows]
    return [(row[6], row[7]) for row in found]


async def test_notices_come_first_in_their_order_and_then_the_message(db: AsyncSessionDB) -> None:
    rows = await begun(db, "one", "two")
    async with open_runtime(db, ScriptedModel(["Saw one.", "Saw two.", "Fine."])) as run:
        assert (await run.submit("talk", events.Submit("And now?"))).final_response == "Fine."
    assert await log(db) == [
        ("user", "one ended"), ("assistant", "Saw one."),
        ("user", "two ended"), ("assistant", "Saw two."),
        ("user", "And now?"), ("assistant", "Fine."),
    ]  # fmt: skip
    assert await outcomes(db, rows) == [("completed", 3), ("completed", 5)]
    assert await db.mail.inbox_entries() == []


async def test_notice_is_marked_for_people_and_for_the_model_and_is_not_the_persons(db: AsyncSessionDB) -> None:
    await begun(db, "one")
    model = ScriptedModel(["Saw it.", "Fine."])
    async with open_runtime(db, model) as run:
        with run.subscribe("talk") as listening:
            await run.submit("talk", events.Submit("And now?"))
            seen = [each.event for each in await events_until(listening, events.TurnFinished, 2)]
    started = [each for each in seen if isinstance(each, events.TurnStarted)]
    assert [(each.text, each.notice) for each in started] == [("one ended", "process"), ("And now?", "")]
    told = [
        part.text
        for part in content_parts.parse(model.requests[0].messages[-1].content)
        if isinstance(part, content_parts.Text)
    ]
    assert inbox_messages.FROM_THE_PROGRAM in told
    assert told[-1] == "one ended"
    stored = await db.transcript("talk")
    assert [content_parts.notice_kind(each.content) for each in stored] == ["", "", "process", "", "", ""]


async def test_no_title_is_made_of_a_notice(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    await db.mail.add_inbox_entry("talk", "one", "one ended")
    async with open_runtime(db, ScriptedModel(["Saw it."])) as run:
        assert await run.deliver("talk") == 1
        await settled(db)
    assert (await db.conversation("talk")).title is None


async def settled(db: AsyncSessionDB) -> None:
    """Until nothing waits any more; the story's own limit ends what never comes about."""
    while await db.mail.inbox_entries():
        await asyncio.sleep(0.005)


async def test_whoever_begins_to_listen_has_what_waits_delivered(db: AsyncSessionDB) -> None:
    await begun(db, "one")
    async with open_runtime(db, ScriptedModel(["Saw it."])) as run:
        with run.subscribe("talk") as listening:
            seen = await events_until(listening, events.TurnFinished)
    assert isinstance(seen[-1].event, events.TurnFinished)
    assert await log(db) == [("user", "one ended"), ("assistant", "Saw it.")]


async def test_notice_waits_while_nobody_listens_to_its_conversation(db: AsyncSessionDB) -> None:
    rows = await begun(db, "one")
    async with open_runtime(db, ScriptedModel(["Elsewhere.", "Saw it.", "Fine."])) as run:
        run.check_inbox("talk")
        with run.subscribe("elsewhere"):
            await run.submit("elsewhere", events.Submit("Hi"))
            run.check_inbox("talk")
            await asyncio.sleep(0)
        assert await db.mail.inbox_entries() == rows
        assert run.queued("talk") == 0
        await run.submit("talk", events.Submit("I am back."))
    assert [role for role, _ in await log(db)] == ["user", "assistant"] * 2
    assert await db.mail.inbox_entries() == []


async def test_command_has_nothing_delivered_and_neither_has_whoever_left(db: AsyncSessionDB) -> None:
    """Else its turn would run while nobody sees it."""

    rows = await begun(db, "one")
    async with open_runtime(db, ScriptedModel(["Fine."])) as run:
        with run.subscribe("talk", takes_inbox=False) as listening:
            await run.send("talk", events.Command("/stop"))
            await events_until(listening, events.Notice)
            assert not run._inbox_checks
        with run.subscribe("talk"):
            assert run._inbox_checks
            lane = run._states["talk"]
        while run._inbox_checks:
            await asyncio.sleep(0)
        # A lane that nobody has any more is nobody's to wait for: nothing may work on it.
        assert (run._states, lane.worker) == ({}, None)
    assert await db.mail.inbox_entries() == rows
    assert await log(db) == []


async def test_notice_that_cannot_become_a_message_waits_and_keeps_nothing_else(db: AsyncSessionDB) -> None:
    rows = await begun(db, "one", "two")
    await db.append_message("talk", role="user", content="Something else.", uid=inbox_messages.uid_of("one"))
    async with open_runtime(db, ScriptedModel(["Saw two.", "Fine."])) as run:
        assert (await run.submit("talk", events.Submit("And now?"))).final_response == "Fine."
    assert [text for _, text in await log(db)] == ["Something else.", "two ended", "Saw two.", "And now?", "Fine."]
    assert await outcomes(db, rows) == [(None, None), ("completed", 4)]


async def test_all_that_waits_comes_before_the_message_however_much_it_is(db: AsyncSessionDB) -> None:
    rows = await begun(db, *(f"{number}" for number in range(101)))
    async with open_runtime(db, ScriptedModel(["Saw it."] * len(rows) + ["Fine."])) as run:
        assert (await run.submit("talk", events.Submit("And now?"))).final_response == "Fine."
    assert [text for _, text in (await log(db))[-4:]] == ["100 ended", "Saw it.", "And now?", "Fine."]
    assert await db.mail.inbox_entries() == []


async def test_interrupt_before_the_notice_began_stops_the_message_behind_it(db: AsyncSessionDB) -> None:
    rows = await begun(db, "one")
    model = ScriptedModel([])
    building = asyncio.Event()
    go_on = asyncio.Event()

    async def build(conversation_id: str) -> AIAgent:
        building.set()
        await go_on.wait()
        return agents.agent(db, model, session_id=conversation_id)

    async with runtime.Runtime(db, build) as run:
        answered = run.submit("talk", events.Submit("And now?"))
        await building.wait()
        await run.send("talk", events.Interrupt())
        go_on.set()
        assert (await answered).interrupted
    assert model.requests == []
    assert await db.mail.inbox_entries() == rows
    assert await log(db) == []


async def test_notice_never_interrupts_a_turn(db: AsyncSessionDB) -> None:
    await begun(db)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def work(_: dict[str, Any]) -> types.Content:
        reached.set()
        await go_on.wait()
        return "done"

    model = ScriptedModel([agents.calls("work"), "Worked.", "Saw it."])

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, model, session_id=conversation_id, tools=[agents.tool("work", work)])

    async with runtime.Runtime(db, build) as run:
        with run.subscribe("talk") as listening:
            answered = run.submit("talk", events.Submit("Work."))
            await reached.wait()
            await db.mail.add_inbox_entry("talk", "one", "one ended")
            run.check_inbox("talk")
            while run._inbox_checks:
                await asyncio.sleep(0)
            assert not answered.done()
            go_on.set()
            await events_until(listening, events.TurnFinished, 2)
        assert (await answered).final_response == "Worked."
    assert [text for _, text in await log(db)] == ["Work.", "", "done", "Worked.", "one ended", "Saw it."]


async def test_two_programs_on_one_store_answer_a_notice_once(db: AsyncSessionDB) -> None:
    for number in range(8):
        here = f"talk{number}"
        await begun(db, f"one{number}", conversation=here)
        models = [ScriptedModel(["Saw it."]) for _ in range(2)]
        async with open_runtime(db, models[0]) as first, open_runtime(db, models[1]) as second:
            with first.subscribe(here), second.subscribe(here):
                await settled(db)
                while first._states[here].worker or second._states[here].worker:
                    await asyncio.sleep(0.002)
        assert await log(db, here) == [("user", f"one{number} ended"), ("assistant", "Saw it.")]
        assert sum(len(model.requests) for model in models) == 1


async def test_notice_that_was_answered_and_not_settled_is_not_answered_again(db: AsyncSessionDB) -> None:
    (row,) = await begun(db, "one")
    message = inbox_messages.submitted(row)
    agent = agents.agent(db, ScriptedModel(["Saw it."]), session_id="talk")
    await agent.run_conversation(message.text, content=message.content, uid=message.uid)
    model = ScriptedModel([])
    async with open_runtime(db, model) as run:
        await run.deliver("talk")
        await settled(db)
    assert model.requests == []
    assert await log(db) == [("user", "one ended"), ("assistant", "Saw it.")]
    assert await outcomes(db, [row]) == [("completed", 3)]


async def test_model_that_cannot_answer_settles_the_notice_which_stays_in_the_log(db: AsyncSessionDB) -> None:
    rows = await begun(db, "one")
    async with open_runtime(db, ScriptedModel([errors.KeyRefused("No key."), "Fine."])) as run:
        assert (await run.submit("talk", events.Submit("And now?"))).completed
    assert await outcomes(db, rows) == [("model", 3)]
    assert (await log(db))[0] == ("user", "one ended")


@pytest.mark.parametrize("fails", ["inbox_entries", "settle_inbox_entry"])
async def test_store_that_fails_leaves_the_notice_waiting_and_the_message_is_answered(
    fails: str, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    rows = await begun(db, "one")

    def broken(*_: object) -> None:
        raise errors.StoreFull()

    async with open_runtime(
        db, ScriptedModel(["Saw it.", "Fine."] if fails == "settle_inbox_entry" else ["Fine."])
    ) as run:
        with monkeypatch.context() as patched:
            patched.setattr(type(db.mail), fails, lambda *_: asyncio.to_thread(broken))
            assert (await run.submit("talk", events.Submit("And now?"))).final_response == "Fine."
        assert await db.mail.inbox_entries() == rows
    async with open_runtime(db, ScriptedModel([] if fails == "settle_inbox_entry" else ["Saw it."])) as run:
        await run.deliver("talk")
        await settled(db)
    assert [text for _, text in await log(db)].count("one ended") == 1


async def test_interrupt_stops_the_notice_and_the_message_behind_it_is_answered(db: AsyncSessionDB) -> None:
    rows = await begun(db, "one", "two")
    slow = agents.Trickle("Hm")
    models: list[base.Model] = [slow]

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, models[0], session_id=conversation_id)

    async with runtime.Runtime(db, build) as run:
        answered = run.submit("talk", events.Submit("And now?"))
        await slow.stuck.reached.wait()
        agent = run.agents.peek("talk")
        assert agent is not None
        agent.model = ScriptedModel(["Fine."])
        await run.send("talk", events.Interrupt())
        assert (await answered).completed
    assert await outcomes(db, rows) == [("interrupted", 3), (None, None)]


async def test_closing_leaves_what_was_not_begun_in_the_inbox(db: AsyncSessionDB) -> None:
    rows = await begun(db, "one", "two")
    slow = agents.Trickle("Hm")
    run = open_runtime(db, slow)
    await run.deliver("talk")
    await slow.stuck.reached.wait()
    await run.close()
    assert await db.mail.inbox_entries() == rows[1:]
    assert await db.leases() == []


async def test_unborn_conversation_has_no_inbox_and_is_not_born_by_looking(db: AsyncSessionDB) -> None:
    async with open_runtime(db, ScriptedModel([])) as run:
        with run.subscribe("new"):
            assert await run.deliver("new") == 0
        assert not run._states
    assert await db.list_sessions() == []


@pytest.mark.parametrize("key", ["k", "k" * 194, "k" * 195, "é" * 200, "process:1"])
def test_uid_is_made_from_the_key_and_is_one(key: str) -> None:
    uid = inbox_messages.uid_of(key)
    assert uid == inbox_messages.uid_of(key) != inbox_messages.uid_of(key[:-1] + "x")
    assert uid.startswith("inbox:")
    assert len(uid) <= 200


@pytest.mark.parametrize("reason", get_args(events.Exit))
@pytest.mark.parametrize("begun", [True, False])
def test_only_what_is_in_the_log_and_known_to_be_over_is_settled(reason: events.Exit, begun: bool) -> None:
    result = ended(interrupted=reason == "interrupted", exit_reason=reason)
    later = reason in ("busy", "store", "lease_lost") or not begun
    assert inbox_messages.outcome(result, begun) == (None if later else reason)


async def test_notice_waits_while_a_turn_elsewhere_takes_too_long(db: AsyncSessionDB) -> None:
    rows = await begun(db, "one", "two")
    lease = await db.acquire_lease("talk", "turn", "somebody else")
    model = ScriptedModel(["Saw one.", "Saw two."])

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, model, session_id=conversation_id, patience=0.01)

    async with runtime.Runtime(db, build) as run:
        assert await run.deliver("talk") == 2
        while run._states:
            await asyncio.sleep(0.005)
        assert await db.mail.inbox_entries() == rows
        await db.release_lease(lease)
        await run.deliver("talk")
        await settled(db)
    assert [text for _, text in await log(db)] == ["one ended", "Saw one.", "two ended", "Saw two."]


# --- processes that end -------------------------------------------------------------------------------------


def process(name: str, conversation: str = "talk") -> types.Process:
    return types.Process(
        id=name, conversation_id=conversation, command="make", folder="/", started_at=1.0, place="{}"
    )  # fmt: skip


async def test_end_of_a_process_is_delivered_to_whoever_listens(db: AsyncSessionDB) -> None:
    await begun(db)
    async with open_runtime(db, ScriptedModel(["Saw it."])) as run:
        book = process_records.ProcessRecords(db, run.check_inbox)
        await book.started(process("1"))
        with run.subscribe("talk") as listening:
            assert await book.ended("1", "exited", 0, "process 1 ended")
            assert not await book.ended("1", "gone", None, "process 1 is gone")
            await events_until(listening, events.TurnFinished)
    assert await log(db) == [("user", "process 1 ended"), ("assistant", "Saw it.")]


async def test_end_that_another_program_reported_is_delivered_here_where_somebody_listens(db: AsyncSessionDB) -> None:
    await begun(db)
    async with open_runtime(db, ScriptedModel(["Saw it."])) as run:
        book = process_records.ProcessRecords(db, run.check_inbox)
        await db.processes.record_start(process("1"))
        assert [each.id for each in await book.every(None, True)] == ["1"]
        with run.subscribe("talk") as listening:
            await db.processes.record_end("1", "exited", 0, "process 1 ended")
            assert await book.every(None, True) == []
            await events_until(listening, events.TurnFinished)
    assert await db.mail.inbox_entries() == []
