"""Questions of turns, as chats know them: their numbers, where each was shown, and whose it is to answer.

All of that is in the outbox, which outlives processes: a number is never that of another question which somebody may
still have before their eyes, and nobody answers what their chat was not shown before they wrote.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast import types
from holdfast.agent import commands
from holdfast.agent.commands import permissions
from holdfast.gateway import gateway_context, route_keys
from holdfast.runtime import runtime as runtimes
from holdfast.store import async_db

MOST = 1_000
"""How many messages with questions are looked at, the last ones; what is further back counts as not shown."""
NOT_SEEN = "What is asked was not shown in this chat before you wrote that. Read it, and answer then."
NOT_YOURS = "Only the person whose turn it is, or an admin, can answer that."


class Part(NamedTuple):
    """What the key of a message says: which part it is, of which question."""

    number: int
    request_id: str
    part: int
    parts: int

    @property
    def key(self) -> str:
        return f"question:{self.number}:{self.request_id}:{self.part}:{self.parts}"


def part_of(key: str | None) -> Part | None:
    match (key or "").split(":"):
        case ["question", number, request_id, part, parts] if number.isdigit() and part.isdigit() and parts.isdigit():
            return Part(int(number), request_id, int(part), int(parts))
        case _:
            return None


async def next_number(db: async_db.AsyncSessionDB, conversation_id: str) -> int:
    """The number of the next question of a conversation."""
    known = [part_of(each.key) for each in await db.mail.questions(conversation_id)]
    return 1 + max((each.number for each in known if each is not None), default=0)


async def answered(
    home: gateway_context.House, runtime: runtimes.Runtime, arrival: types.InboundMessage, here: str
) -> str:
    """/approve or /deny from a chat: what there is to say about it."""
    name, argument = commands.split(arrival.text.strip())
    answer = permissions.deny_request if name.lower() == "deny" else permissions.approve_request
    asked = {each.asked.request_id for each in runtime.approvals.pending(here)}
    if not asked:
        return permissions.NOTHING_PENDING
    shown = await _shown(home.db, arrival, here, asked)
    theirs = {id_: number for id_, (number, of) in shown.items() if await _may(home, arrival, of)}
    if not theirs:
        return NOT_YOURS if shown else NOT_SEEN
    return await answer(runtime.approvals, here, argument, theirs)


async def _shown(
    db: async_db.AsyncSessionDB, answer: types.InboundMessage, here: str, asked: set[str]
) -> dict[str, tuple[int, int | None]]:
    """Of these questions, those of which all was in the chat of an answer before that came: their numbers, and what
    came in that their turns are about."""
    missing, found = dict[str, int](), dict[str, tuple[int, int | None]]()
    for row in reversed(await db.mail.questions(here, MOST)):
        part = part_of(row.key)
        if part is None or part.request_id not in asked:
            continue
        there = (row.platform, row.chat) == (answer.platform, answer.chat) and answer.platform == answer.home
        if there and row.delivered_at is not None and row.delivered_at <= answer.at:
            missing[part.request_id] = missing.get(part.request_id, part.parts) - 1
            found[part.request_id] = (part.number, row.inbound_id)
    return {id_: each for id_, each in found.items() if not missing[id_]}


async def _may(home: gateway_context.House, answer: types.InboundMessage, of: int | None) -> bool:
    turn = None if of is None else await home.db.mail.inbound(of)
    if turn is not None:
        mine = (turn.platform, turn.sender, turn.route) == (answer.platform, answer.sender, answer.route)
    else:
        # Nobody's turn, as that of a notice: where several people are, it is an admin's to answer.
        mine = not route_keys.is_shared(answer.route)
    return mine or await home.is_admin(answer.platform, answer.sender)
