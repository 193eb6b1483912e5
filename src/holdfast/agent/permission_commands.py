"""What people may ask and say about permissions in words: answer a question, list tools, look at grants, revoke one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import get_args

import msgspec

from holdfast import errors, events, time_format, types
from holdfast.agent import approvals
from holdfast.store import async_db
from holdfast.tools.permissions import rules as permissions_rules

MOST_WIDE = 24
NOTHING = "Nothing is asked at the moment."
ANSWERS: tuple[events.Answered, ...] = tuple(each for each in get_args(events.Answered) if each != "deny")
_SAID: dict[permissions_rules.Say, str] = {"allow": "allowed", "ask": "asked for", "deny": "forbidden"}


async def approve(
    desk: approvals.Approvals, conversation_id: str, argument: str, among: Mapping[str, int] | None = None
) -> str:
    """Answer a question with yes, the one of this number or the only one; what there is to say about it.

    `among`: only these can be meant, and are known by these numbers.
    """
    number, how = numbered(argument)
    answer = next((each for each in ANSWERS if each == (how or "once")), None)
    if answer is None:
        return f"/approve takes one of {', '.join(ANSWERS)}."
    return await _answered(desk, conversation_id, among, number, answer)


async def deny(
    desk: approvals.Approvals, conversation_id: str, argument: str, among: Mapping[str, int] | None = None
) -> str:
    """Answer it with no."""
    number, reason = numbered(argument)
    return await _answered(desk, conversation_id, among, number, "deny", reason)


def numbered(argument: str) -> tuple[int | None, str]:
    """The number of a question, where the argument begins with one, and the rest of it."""
    first, *rest = argument.split(maxsplit=1) or [""]
    if not first.isascii() or not first.isdigit() or len(first) > 9:
        return None, argument
    return int(first), rest[0] if rest else ""


async def _answered(
    desk: approvals.Approvals,
    conversation_id: str,
    among: Mapping[str, int] | None,
    number: int | None,
    answer: events.Answered,
    reason: str = "",
) -> str:
    waiting = [each.asked for each in desk.pending(conversation_id)]
    if among is not None:
        waiting = [
            msgspec.structs.replace(each, number=among[each.request_id]) for each in waiting if each.request_id in among
        ]
    if not waiting:
        return NOTHING
    meant = [each for each in waiting if number in (None, each.number)]
    if len(meant) != 1:
        # Whoever does not say which may have seen only one of them.
        lines = [f"{each.number}  {each.summary}" for each in waiting]
        head = "Several things are asked" if number is None else f"There is no open question {number}"
        return "\n".join([f"{head}. Say which one: /{'deny' if answer == 'deny' else 'approve'} NUMBER.", *lines])
    asked = meant[0]
    said = await desk.answer(conversation_id, events.Approve(asked.request_id, answer, "a person", reason))
    return said or f"{'Denied' if answer == 'deny' else 'Allowed'}: {asked.summary}"


def tools(specs: Iterable[types.ToolSpec], rules: Iterable[permissions_rules.Rule]) -> str:
    """Every tool, and what the settings say of it."""
    given, known, lines = tuple(rules), tuple(specs), list[str]()
    widest = min(MOST_WIDE, max((len(spec.name) for spec in known), default=0))
    for spec in known:
        said = [f"{_SAID[each.say]}: {each.text}" for each in given if permissions_rules.speaks_of(each, spec.name)]
        first = re.split(r"(?<=[.!?])\s", spec.description.strip(), maxsplit=1)[0]
        lines.append(f"{spec.name:{widest}}  {first}")
        lines += [f"    {line}" for line in said]
    return "\n".join(lines) or "There are no tools."


async def permissions(
    db: async_db.AsyncSessionDB, desk: approvals.Approvals, conversation_id: str, argument: str
) -> str:
    """The rules of the settings and what was granted; `revoke ID` takes a grant back."""
    match argument.split():
        case []:
            return _listed(desk.law.rules, await _grants(db, desk, conversation_id))
        case ["revoke", number] if number.isascii() and number.isdigit() and len(number) < 16:
            known = {each.id for each in await _grants(db, desk, conversation_id)}
            found = int(number) in known and await db.permissions.revoke(int(number))
            return f"Grant {number} is revoked." if found else f"There is no grant {number}."
        case _:
            return "/permissions takes nothing, or revoke and the number of a grant."


async def _grants(db: async_db.AsyncSessionDB, desk: approvals.Approvals, conversation_id: str) -> list[types.Grant]:
    try:
        return await db.permissions.grants(desk.owner, conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        return await db.permissions.grants(desk.owner)


def _listed(rules: Iterable[permissions_rules.Rule], grants: Iterable[types.Grant]) -> str:
    lines = [f"settings  {_SAID[each.say]}: {each.text}" for each in rules]
    for grant in grants:
        where = "always" if grant.conversation_id is None else "this conversation"
        lines.append(f"grant {grant.id}  {where}: {grant.rule}  ({grant.by}, {time_format.when(grant.at)})")
    return "\n".join(lines) or "No rules and no grants: whatever changes something is asked for."
