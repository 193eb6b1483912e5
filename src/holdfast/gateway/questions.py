"""Questions of turns in chats: their text and choices, their numbers, and who may answer them.

The outbox stores all of this, so it survives a restart: a number is never reused while users may still see it, and a
question can only be answered from a chat that showed all of it before the answer was written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from holdfast import events, types
from holdfast.agent import approvals, commands
from holdfast.agent.commands import permissions
from holdfast.gateway import gateway_context, platform, routes, text_split
from holdfast.runtime import runtime as runtimes
from holdfast.store import async_db

MAX_READ = 1_000
"""How many question messages are read, the newest first; older ones count as not shown."""
NOT_SHOWN = "This question was not shown in this chat before your answer. Read it, then answer again."
NOT_ALLOWED = "Only the person whose message is being answered, or an admin, can answer this question."


AnswerRequest = Callable[[approvals.Approvals, str, str, Mapping[str, int]], Awaitable[str]]
"""Answers one of the pending approvals of a conversation, by the numbers that users see, and returns the reply."""


class QuestionKey(NamedTuple):
    """The outbox key of one message of a question: which part of which question it is."""

    number: int
    request_id: str
    part: int
    parts: int
    can_remember: bool = False
    """Whether the answer may be permanent."""

    @property
    def text(self) -> str:
        remember = ":remember" if self.can_remember else ""
        return f"question:{self.number}:{self.request_id}:{self.part}:{self.parts}{remember}"


def parse_key(key: str | None) -> QuestionKey | None:
    match (key or "").split(":"):
        case ["question", number, request_id, part, parts, *more] if all(map(str.isdigit, (number, part, parts))):
            return QuestionKey(int(number), request_id, int(part), int(parts), more == ["remember"])
        case _:
            return None


def question_of(key: str | None) -> platform.ApprovalQuestion | None:
    """Return the structured question of an outbox message; None if the message is not its last part."""
    found = parse_key(key)
    if found is None or found.part != found.parts - 1:
        return None
    # The number would be that of another question after /new, and a button stays in the chat.
    reference, choice = f"#{found.request_id}", platform.QuestionChoice
    choices = [choice("Allow once", approval_line(reference))]
    if found.can_remember:
        choices.append(choice("Allow in this conversation", approval_line(reference, "conversation")))
        choices.append(choice("Always allow (admins)", approval_line(reference, "always")))
    choices.append(choice("Deny", denial_line(reference)))
    return platform.ApprovalQuestion(found.request_id, found.number, tuple(choices))


def approval_line(reference: int | str, *scope: events.Answered) -> str:
    """Return the command that allows a request, by its number or id: once, or for a scope."""
    return commands.command_line(permissions.approve, reference, *scope)


def denial_line(reference: int | str) -> str:
    return commands.command_line(permissions.deny, reference)


def question_text(asked: events.ApprovalAsked, number: int, explain: bool = True) -> str:
    """Return the text of a question; `explain` adds how to answer it. Invisible characters are escaped."""
    detail = escape(asked.detail)
    lines = [f"Question {number}: allow this? {escape_line(asked.summary)}"]
    lines += [text_split.code_block(detail)] if detail else []
    lines += [f"Warning: {escape_line(asked.danger)}"] if asked.danger else []
    if explain:
        lines.append(f"{approval_line(number)} allows it once, {denial_line(number)} REASON denies it.")
    if explain and asked.remembers:
        lines.append(
            f"{approval_line(number, 'conversation')} allows for this conversation, "
            f"{approval_line(number, 'always')} (admins) permanently: {escape_line(asked.remembers)}"
        )
    elif asked.remembers:
        lines.append(f"A lasting permission allows: {escape_line(asked.remembers)}")
    return "\n".join(lines)


def escape(text: str) -> str:
    """Escape characters that are invisible or change the direction of text."""
    return text if text.isprintable() else "".join(c if c in "\n\t" else _escape(c) for c in text)


def escape_line(text: str) -> str:
    """Escape like `escape`, including line breaks."""
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


async def next_number(db: async_db.AsyncSessionDB, conversation_id: str) -> int:
    """Return the number of the next question of a conversation."""
    known = [parse_key(each.key) for each in await db.mail.questions(conversation_id)]
    return 1 + max((each.number for each in known if each is not None), default=0)


async def answer(
    context: gateway_context.GatewayContext,
    runtime: runtimes.Runtime,
    inbound: types.InboundMessage,
    conversation_id: str,
    answer_request: AnswerRequest,
) -> str:
    """Answer a question from a chat, and return the reply."""
    _, argument = commands.split(inbound.text.strip())
    open_ids = {each.asked.request_id for each in runtime.approvals.pending(conversation_id)}
    if not open_ids:
        return permissions.NOTHING_PENDING
    shown = await _shown_questions(context.db, inbound, conversation_id, open_ids)
    answerable = {id_: number for id_, (number, cause) in shown.items() if await _may_answer(context, inbound, cause)}
    if not answerable:
        return NOT_ALLOWED if shown else NOT_SHOWN
    return await answer_request(runtime.approvals, conversation_id, argument, answerable)


async def _shown_questions(
    db: async_db.AsyncSessionDB, answer: types.InboundMessage, conversation_id: str, open_ids: set[str]
) -> dict[str, tuple[int, int | None]]:
    """Return the questions that the chat of an answer had received completely: number and inbound message by id."""
    missing, found = dict[str, int](), dict[str, tuple[int, int | None]]()
    for row in reversed(await db.mail.questions(conversation_id, MAX_READ)):
        key = parse_key(row.key)
        if key is None or key.request_id not in open_ids:
            continue
        is_here = (row.platform, row.chat) == (answer.platform, answer.chat) and answer.platform == answer.home
        if is_here and row.delivered_at is not None and row.delivered_at <= answer.at:
            missing[key.request_id] = missing.get(key.request_id, key.parts) - 1
            found[key.request_id] = (key.number, row.inbound_id)
    return {id_: each for id_, each in found.items() if not missing[id_]}


async def _may_answer(context: gateway_context.GatewayContext, answer: types.InboundMessage, cause: int | None) -> bool:
    turn = None if cause is None else await context.db.mail.inbound(cause)
    if turn is not None:
        is_own = (turn.platform, turn.sender, turn.route) == (answer.platform, answer.sender, answer.route)
    else:
        # The turn of a notice belongs to no sender: in a shared chat only an admin answers.
        is_own = not routes.is_shared(answer.route)
    return is_own or await context.is_admin(answer.platform, answer.sender)
