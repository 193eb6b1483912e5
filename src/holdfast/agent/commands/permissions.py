"""Commands about permissions: answer what is asked, look at what was allowed, take it back."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import errors, events
from holdfast.agent import permission_commands
from holdfast.agent.commands import base

ANSWERS = base.choices(
    ("once", "this time"),
    ("conversation", "for the rest of this conversation"),
    ("always", "from now on, everywhere"),
)


async def approve(asked: base.Asked) -> None:
    said = await permission_commands.approve(asked.desk.approvals, asked.conversation_id, asked.argument)
    asked.emit(events.Answer(said))


async def deny(asked: base.Asked) -> None:
    asked.emit(
        events.Answer(await permission_commands.deny(asked.desk.approvals, asked.conversation_id, asked.argument))
    )


async def permissions(asked: base.Asked) -> None:
    desk = asked.desk
    said = await permission_commands.permissions(desk.db, desk.approvals, asked.conversation_id, asked.argument)
    asked.emit(events.Answer(said))


async def revocable(asked: base.Asked) -> Sequence[base.Candidate]:
    desk = asked.desk
    try:
        grants = await desk.db.permissions.grants(desk.approvals.owner, asked.conversation_id)
    except errors.NoSuchSession:
        grants = await desk.db.permissions.grants(desk.approvals.owner)
    return [base.Candidate(f"revoke {grant.id}", grant.rule) for grant in grants]
