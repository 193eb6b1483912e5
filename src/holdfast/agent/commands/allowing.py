"""Commands about permissions: answer what is asked, look at what was allowed, take it back."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import errors, events
from holdfast.agent import permitting
from holdfast.agent.commands import port

ANSWERS = port.choices(
    ("once", "this time"),
    ("conversation", "for the rest of this conversation"),
    ("always", "from now on, everywhere"),
)


async def approve(asked: port.Asked) -> None:
    said = await permitting.approve(asked.desk.approvals, asked.conversation_id, asked.argument)
    asked.emit(events.Answer(said))


async def deny(asked: port.Asked) -> None:
    asked.emit(events.Answer(await permitting.deny(asked.desk.approvals, asked.conversation_id, asked.argument)))


async def permissions(asked: port.Asked) -> None:
    desk = asked.desk
    said = await permitting.permissions(desk.db, desk.approvals, asked.conversation_id, asked.argument)
    asked.emit(events.Answer(said))


async def revocable(asked: port.Asked) -> Sequence[port.Candidate]:
    desk = asked.desk
    try:
        grants = await desk.db.permissions.grants(desk.approvals.owner, asked.conversation_id)
    except errors.NoSuchSession:
        grants = await desk.db.permissions.grants(desk.approvals.owner)
    return [port.Candidate(f"revoke {grant.id}", grant.rule) for grant in grants]
