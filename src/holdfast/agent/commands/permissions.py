"""Commands about permissions: answer pending approvals, list rules and grants, revoke a grant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import msgspec

from holdfast import errors, events, safe_text, types
from holdfast.agent import approvals
from holdfast.agent.commands import base
from holdfast.tools.permissions import rules

MAX_NAME_WIDTH = 24
NOTHING_PENDING = "No approval is pending."
_REFERENCE = re.compile(r"[0-9]{1,9}|#[0-9a-f]{28}")
"""The number of a request, or its id, which buttons contain because a number is unique in one conversation only."""
ANSWERS: tuple[events.Answered, ...] = tuple(each for each in get_args(events.Answered) if each != "deny")
COMPLETE_ANSWERS = base.choices(
    ("once", "this time"),
    ("conversation", "for the rest of this conversation"),
    ("always", "from now on, everywhere"),
)
_SAY: dict[rules.Effect, str] = {"allow": "allowed", "ask": "needs approval", "deny": "forbidden"}


async def approve(invocation: base.Invocation) -> None:
    host = invocation.host
    invocation.answer(await approve_request(host.approvals, invocation.conversation_id, invocation.argument))


async def deny(invocation: base.Invocation) -> None:
    host = invocation.host
    invocation.answer(await deny_request(host.approvals, invocation.conversation_id, invocation.argument))


async def permissions(invocation: base.Invocation) -> None:
    match invocation.argument.split():
        case []:
            invocation.answer(_list(invocation.host.approvals.law.rules, await _grants(invocation)))
        case ["revoke", number] if base.parse_number(number, 15):
            known = {each.id for each in await _grants(invocation)}
            found = int(number) in known and await invocation.host.db.permissions.revoke(int(number))
            invocation.answer(f"Revoked grant {number}." if found else f"There is no grant {number}.")
        case _:
            invocation.answer("/permissions takes no argument, or revoke and the number of a grant.")


async def complete_revoke(invocation: base.Invocation) -> Sequence[base.Candidate]:
    return [base.Candidate(f"revoke {grant.id}", grant.rule) for grant in await _grants(invocation)]


async def approve_request(
    queue: approvals.Approvals, conversation_id: str, argument: str, among: Mapping[str, int] | None = None
) -> str:
    """Approve the pending request of this number or id, or the only one; return a sentence about it.

    `among` limits the requests to these, with these numbers.
    """
    reference, how = split_reference(argument)
    answer = next((each for each in ANSWERS if each == (how or "once")), None)
    if answer is None:
        return f"/approve takes one of {', '.join(ANSWERS)}."
    return await _answer(queue, conversation_id, among, reference, answer)


async def deny_request(
    queue: approvals.Approvals, conversation_id: str, argument: str, among: Mapping[str, int] | None = None
) -> str:
    """Deny the pending request of this number or id, or the only one; the rest of the argument is the reason."""
    reference, reason = split_reference(argument)
    return await _answer(queue, conversation_id, among, reference, "deny", reason)


def split_reference(argument: str) -> tuple[str, str]:
    """Split the number or id of a request, empty if the argument does not begin with one, from the rest."""
    first, *rest = argument.split(maxsplit=1) or [""]
    return (first, rest[0] if rest else "") if _REFERENCE.fullmatch(first) else ("", argument)


async def _answer(
    queue: approvals.Approvals,
    conversation_id: str,
    among: Mapping[str, int] | None,
    reference: str,
    answer: events.Answered,
    reason: str = "",
) -> str:
    pending = [each.asked for each in queue.pending(conversation_id)]
    if among is not None:
        pending = [
            msgspec.structs.replace(each, number=among[each.request_id]) for each in pending if each.request_id in among
        ]
    if not pending:
        return NOTHING_PENDING
    meant = [each for each in pending if reference in ("", str(each.number), f"#{each.request_id}")]
    if len(meant) != 1:
        # Without a number, the person may have seen only one of the requests.
        lines = [f"{each.number}  {each.summary}" for each in pending]
        named = "This approval is no longer" if reference.startswith("#") else f"No approval {reference} is"
        problem = f"{named} pending" if reference else "Several approvals are pending"
        return "\n".join([f"{problem}. Name one: /{'deny' if answer == 'deny' else 'approve'} NUMBER.", *lines])
    asked = meant[0]
    problem = await queue.answer(conversation_id, events.Approve(asked.request_id, answer, "a person", reason)) or ""
    return problem or f"{'Denied' if answer == 'deny' else 'Allowed'}: {asked.summary}"


def list_tools(specs: Iterable[types.ToolSpec], law: Iterable[rules.Rule]) -> str:
    """List the tools, each with the rules of the settings about it."""
    given, known, lines = tuple(law), tuple(specs), list[str]()
    width = min(MAX_NAME_WIDTH, max((len(spec.name) for spec in known), default=0))
    for spec in known:
        first = re.split(r"(?<=[.!?])\s", spec.description.strip(), maxsplit=1)[0]
        lines.append(f"{spec.name:{width}}  {first}")
        lines += [f"    {_SAY[each.effect]}: {each.text}" for each in given if rules.applies_to(each, spec.name)]
    return "\n".join(lines) or "There are no tools."


async def _grants(invocation: base.Invocation) -> list[types.Grant]:
    store, owner = invocation.host.db.permissions, invocation.host.approvals.owner
    try:
        return await store.grants(owner, invocation.conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        return await store.grants(owner)


def _list(law: Iterable[rules.Rule], grants: Iterable[types.Grant]) -> str:
    lines = [f"settings  {_SAY[each.effect]}: {each.text}" for each in law]
    for grant in grants:
        where = "always" if grant.conversation_id is None else "this conversation"
        lines.append(f"grant {grant.id}  {where}: {grant.rule}  ({grant.by}, {safe_text.date(grant.at)})")
    return "\n".join(lines) or "No rules and no grants: every change needs approval."
