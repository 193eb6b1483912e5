"""A notice as something a process can be killed in delivering: from the end of its process to what became of it."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, content_parts, types
from holdfast.app import process_records
from holdfast.runtime import runtime
from holdfast.store.db import SessionDB
from tests.faults import turns, zygote

OPERATIONS = ("process", "inbox", "acquire", "append", "release")
NOTICE = "process 1 ended with 0"


def prepare(db: SessionDB, conversation: str, name: str) -> None:
    """A conversation with a past, and a process that runs."""
    create = types.NewConversation(source="fault")
    db.append_message(conversation, role="user", content="Hello.", create=create)
    db.append_message(conversation, role="assistant", content="Good day.")
    db.processes.record_start(
        types.Process(id=name, conversation_id=conversation, command="make", folder="/", started_at=1.0, place="{}")
    )


def deliver(stage: zygote.Stage) -> bool:
    """The program sees that the process has ended, tells of it, and has it answered; whether it told first."""

    async def program() -> bool:
        async with AsyncSessionDB(stage.open()) as db:

            async def build(conversation_id: str) -> AIAgent:
                return turns.agent(db, turns.Echo(), conversation_id)

            async with runtime.Runtime(db, build) as run:
                book = process_records.ProcessRecords(db, run.check_inbox)
                first = await book.ended(stage.args["process"], "exited", 0, NOTICE)
                with run.subscribe(stage.args["conversation"]):
                    await run.deliver(stage.args["conversation"])
                    while await db.mail.inbox_entries(stage.args["conversation"]):
                        await asyncio.sleep(0.002)
                return first

    if stage.barrier is not None:
        stage.barrier.wait()
    return asyncio.run(program())


def wrongs(db: SessionDB, conversation: str) -> list[Any]:
    """What is not as it should be when a notice was delivered: once in the log, answered once, settled."""
    said = [(each.role, content_parts.text(each.content)) for each in db.transcript(conversation)[2:]]
    found: list[Any] = [] if said == [("user", NOTICE), ("assistant", f"re {NOTICE}")] else [said]
    found += [each.key for each in db.mail.inbox_entries(conversation)]
    found += [each.state for each in db.processes.all(conversation) if each.state != "exited"]
    return found + [f"{bad.promise} {bad.detail}" for bad in db.admin.fsck().violations]
