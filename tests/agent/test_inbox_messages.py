"""Inbox entries: each is answered once, after the running turn and before the user's next message."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, events, types
from holdfast.model import ScriptedModel
from holdfast.runtime import inbox_messages
from tests.support import agents, polling
from tests.support.runtimes import events_until, open_runtime


async def add_entries(db: AsyncSessionDB, *keys: str, conversation: str = "talk") -> list[types.InboxEntry]:
    """Create a conversation of two messages, and inbox entries for it."""
    create = types.NewConversation(source="test")
    await db.append_message(conversation, role="user", content="Hello.", uid="hello", create=create)
    await db.append_message(conversation, role="assistant", content="Good day.")
    return [await db.mail.add_inbox_entry(conversation, key, f"{key} ended", kind="process") for key in keys]


async def log(db: AsyncSessionDB, conversation: str = "talk") -> list[str]:
    """Return the texts after the first two messages."""
    return [content_parts.text(each.content) for each in (await db.transcript(conversation))[2:]]


def outcomes(db: AsyncSessionDB, rows: list[types.InboxEntry]) -> list[tuple[str | None, int | None]]:
    found = [db.db.driver.read(lambda tx, key=each.key: tx.one("inbox_by_key", key=key)) for each in rows]
    return [(row[6], row[7]) for row in found]


async def settled(db: AsyncSessionDB) -> None:
    """Wait until no entry is left."""
    await polling.until_async(lambda: not db.db.mail.inbox_entries())


async def test_entries_are_answered_in_order_before_the_message_and_marked(db: AsyncSessionDB) -> None:
    rows = await add_entries(db, "one", "two")
    model = ScriptedModel(["Saw one.", "Saw two.", "Fine."])
    async with open_runtime(db, model) as run:
        with run.subscribe("talk") as stream:
            assert (await run.submit("talk", events.Submit("And now?"))).final_response == "Fine."
            seen = [each.event for each in await events_until(stream, events.TurnFinished, 3)]
    assert await log(db) == ["one ended", "Saw one.", "two ended", "Saw two.", "And now?", "Fine."]
    assert outcomes(db, rows) == [("completed", 3), ("completed", 5)]
    assert await db.mail.inbox_entries() == []
    started = [(each.text, each.notice) for each in seen if isinstance(each, events.TurnStarted)]
    assert started == [("one ended", "process"), ("two ended", "process"), ("And now?", "")]
    parts = content_parts.parse(model.requests[0].messages[-1].content)
    texts = [part.text for part in parts if isinstance(part, content_parts.Text)]
    assert inbox_messages.FROM_THE_PROGRAM in texts
    assert texts[-1] == "one ended"
    kinds = [content_parts.notice_kind(each.content) for each in await db.transcript("talk")]
    assert kinds == ["", "", "process", "", "process", "", "", ""]


async def test_entry_waits_while_its_conversation_has_no_subscriber(db: AsyncSessionDB) -> None:
    rows = await add_entries(db, "one")
    async with open_runtime(db) as run:
        run.check_inbox("talk")
        with run.subscribe("elsewhere"):
            await run.submit("elsewhere", events.Submit("Hi"))
            run.check_inbox("talk")
            await asyncio.sleep(0)
        with run.subscribe("talk", takes_inbox=False) as stream:
            await run.send("talk", events.Command("/stop"))
            await events_until(stream, events.Notice)
        with run.subscribe("talk"):
            pass  # it leaves before the entry is read
        await polling.until_async(lambda: not run._inbox_checks)
        assert (await db.mail.inbox_entries(), run.queued("talk"), run._states) == (rows, 0, {})
        assert await log(db) == []
        await run.submit("talk", events.Submit("I am back."))
    assert await log(db) == ["one ended", "ok", "I am back.", "ok"]


async def test_entry_that_cannot_become_a_message_does_not_block_the_others(db: AsyncSessionDB) -> None:
    rows = await add_entries(db, "one", "two")
    await db.append_message("talk", role="user", content="Something else.", uid=inbox_messages.uid_of("one"))
    async with open_runtime(db, ScriptedModel(["Saw two.", "Fine."])) as run:
        assert (await run.submit("talk", events.Submit("And now?"))).final_response == "Fine."
    assert await log(db) == ["Something else.", "two ended", "Saw two.", "And now?", "Fine."]
    assert outcomes(db, rows) == [(None, None), ("completed", 4)]


async def test_more_entries_than_one_page_come_before_the_message(db: AsyncSessionDB) -> None:
    rows = await add_entries(db, *(f"{number}" for number in range(101)))
    async with open_runtime(db, ScriptedModel(["Saw it."] * len(rows) + ["Fine."])) as run:
        await run.submit("talk", events.Submit("And now?"))
    assert (await log(db))[-4:] == ["100 ended", "Saw it.", "And now?", "Fine."]
    assert await db.mail.inbox_entries() == []


async def test_interrupt_of_an_entry_leaves_the_message_behind_it(db: AsyncSessionDB) -> None:
    rows = await add_entries(db, "one", "two")
    slow = agents.Trickle("Hm")
    async with open_runtime(db, slow) as run:
        answered = run.submit("talk", events.Submit("And now?"))
        await slow.stuck.reached.wait()
        agent = run.agents.peek("talk")
        agent.model = ScriptedModel(["Fine."])
        await run.send("talk", events.Interrupt())
        assert (await answered).completed
    assert outcomes(db, rows) == [("interrupted", 3), (None, None)]


async def test_entry_never_interrupts_a_turn(db: AsyncSessionDB) -> None:
    await add_entries(db)
    gate, model = agents.Gate(), ScriptedModel([agents.calls("work"), "Worked.", "Saw it."])
    async with open_runtime(db, model, tools=[agents.tool("work", gate)]) as run:
        with run.subscribe("talk") as stream:
            answered = run.submit("talk", events.Submit("Work."))
            await gate.reached.wait()
            await db.mail.add_inbox_entry("talk", "one", "one ended")
            run.check_inbox("talk")
            await polling.until_async(lambda: not run._inbox_checks)
            assert not answered.done()
            gate.go.set()
            await events_until(stream, events.TurnFinished, 2)
    assert await log(db) == ["Work.", "", "ok", "Worked.", "one ended", "Saw it."]


@pytest.mark.parametrize(
    ("failing", "first", "second"),
    [("inbox_entries", ["Fine."], ["Saw it."]), ("settle_inbox_entry", ["Saw it.", "Fine."], [])],
)
async def test_store_failure_leaves_the_entry_and_the_message_is_answered(
    failing: str, first: list[str], second: list[str], monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    rows = await add_entries(db, "one")
    async with open_runtime(db, ScriptedModel(first)) as run:
        with monkeypatch.context() as patched:
            patched.setattr(type(db.mail), failing, agents.failing(errors.StoreFull()))
            assert (await run.submit("talk", events.Submit("And now?"))).final_response == "Fine."
        assert await db.mail.inbox_entries() == rows
    async with open_runtime(db, ScriptedModel(second)) as run:
        await run.deliver("talk")
        await settled(db)
    assert (await log(db)).count("one ended") == 1


async def test_close_leaves_entries_that_were_not_begun(db: AsyncSessionDB) -> None:
    rows = await add_entries(db, "one", "two")
    run = open_runtime(db, slow := agents.Trickle("Hm"))
    await run.deliver("talk")
    await slow.stuck.reached.wait()
    await run.close()
    assert await db.mail.inbox_entries() == rows[1:]
    assert await db.leases() == []


async def test_entries_wait_while_another_process_holds_the_turn(db: AsyncSessionDB) -> None:
    rows = await add_entries(db, "one", "two")
    lease = await db.acquire_lease("talk", "turn", "elsewhere")
    async with open_runtime(db, ScriptedModel(["Saw one.", "Saw two."]), patience=0.01) as run:
        assert await run.deliver("talk") == 2
        await run.wait_idle("talk")
        assert await db.mail.inbox_entries() == rows
        await db.release_lease(lease)
        await run.deliver("talk")
        await settled(db)
    assert await log(db) == ["one ended", "Saw one.", "two ended", "Saw two."]
    assert (await db.conversation("talk")).title is None


@pytest.mark.parametrize("key", ["k", "k" * 194, "k" * 195, "é" * 200])
def test_uid_is_derived_from_the_key(key: str) -> None:
    uid = inbox_messages.uid_of(key)
    assert uid == inbox_messages.uid_of(key) != inbox_messages.uid_of(key[:-1] + "x")
    assert uid.startswith("inbox:")
    assert len(uid) <= 200


@pytest.mark.parametrize("reason", get_args(events.Exit))
@pytest.mark.parametrize("begun", [True, False])
def test_entry_is_settled_only_when_its_turn_is_stored_and_over(reason: events.Exit, begun: bool) -> None:
    result = agents.turn_result(interrupted=reason == "interrupted", exit_reason=reason)
    later = reason in ("busy", "store", "lease_lost") or not begun
    assert inbox_messages.outcome(result, begun) == (None if later else reason)
