"""Run a command from a chat, at most once.

Some kinds concern the gateway itself: the waiting messages are in the store, questions are answered per chat, the
conversation of a chat is bound to its route, and a link belongs to the sender.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import commands
from holdfast.agent.commands import base, links, permissions, status, turns
from holdfast.gateway import gateway_context, platform, questions, routes, text_split
from holdfast.runtime import runtime as runtimes
from holdfast.runtime import wording
from holdfast.store import async_db

NOT_REPEATED = (
    "The gateway was stopped while {line} ran, so it is unknown whether it took effect. It was not run again: check, "
    "and send it again if needed."
)
NEW = "The next message begins a new conversation."
MOVED = "This chat continues in: {title}"
ROUTE_MOVED = "This chat was moved to another conversation at the same time. Send the command again if needed."
ACCESS_UNKNOWN = "Your permissions could not be checked, so nothing was done. Please send it again."
DONE = "Done."
STOPPED = "Stopped."
LINKED = (
    "Linked. This chat continues in: {title}\nIt uses the conversations and notes of your other chat, and shows your "
    "turns there. /link off ends that."
)
LINKED_WITHOUT_CONVERSATION = "Linked. The other conversation was deleted, so your next message begins a new one."
UNLINKED_OTHERS = "The links of your other chats to this one were removed."
UNLINKED = "The link was removed. The next message begins a new conversation, with separate notes."
NOT_LINKED = "This chat is not linked."
LINK_CHANGED = "The link of this chat was changed at the same time. Send the command again if needed."
DIRECT_ONLY = "/link is only available in a direct chat: in a group every member would read the code and the replies."
CODE_REVOKED = "The code was deleted, because others can read it here. Enter /link in your other chat for a new one."
_MARKDOWN = re.compile(r"[\\*_~`<>\[\]|&]|[ \t]{2}|^ ?(?:[-+=#]|\d+[.)])", re.MULTILINE)
"""Matches text that Markdown would change: its special characters, and spaces that align columns."""
_ANSWERS: dict[Callable[[base.Invocation], Awaitable[None]], questions.AnswerRequest] = {
    permissions.approve: permissions.approve_request,
    permissions.deny: permissions.deny_request,
}


class CommandResult(msgspec.Struct, frozen=True):
    """The outcome of a command: a reply, and a message to submit as if the user had sent it."""

    text: str = ""
    submit: events.Say | None = None
    dropped: tuple[int, ...] = ()
    """The waiting messages that were removed."""


async def check_permission(context: gateway_context.GatewayContext, inbound: types.InboundMessage) -> str:
    """Return why a sender may not use a command; empty if they may."""
    if not commands.needs_admin(inbound.text):
        return ""
    try:
        return "" if await context.is_admin(inbound.platform, inbound.sender) else runtimes.ADMINS_ONLY
    except errors.StoreError:
        return ACCESS_UNKNOWN


def format_reply(context: gateway_context.GatewayContext, inbound: types.InboundMessage, text: str) -> str:
    """Return the reply of a command as Markdown, if the platform of its chat renders that."""
    can = context.can(gateway_context.reply_address(inbound).platform)
    return text_split.code_block(text) if can.format is not None and _MARKDOWN.search(text) else text


async def find_submitted(db: async_db.AsyncSessionDB, inbound: types.InboundMessage, uid: str) -> events.Submit | None:
    """Return the message that an earlier attempt at a command, such as /retry, had stored in the log; else None."""
    conversation_id = inbound.target or ""
    try:
        seq = await db.find_seq(conversation_id, uid)
        found = [] if seq is None else await db.transcript(conversation_id, seq - 1, seq)
    except errors.NoSuchSession:
        return None
    if not found or found[0].redacted:
        return None
    content = content_parts.without_turn_notes(found[0].content)
    parts = None if isinstance(content, str) else content
    return events.Submit(content_parts.text(content), uid, parts, inbound.route)


async def run(
    context: gateway_context.GatewayContext,
    runtime: runtimes.Runtime,
    bindings: routes.RouteBindings,
    inbound: types.InboundMessage,
    conversation_id: str,
    waiting: Sequence[types.InboundMessage],
) -> CommandResult:
    """Run a command in a conversation. Errors of the HoldfastError family become the reply."""
    line, found = inbound.text.strip(), commands.find(inbound.text)
    argument = commands.split(line)[1]
    lines, moved, submit = list[str](), list[events.Moved](), list[events.Say]()

    def on_output(event: events.AnyEvent) -> None:
        if (sentence := wording.describe(event)) is not None:
            lines.append(sentence.text)

    def to_sender(event: runtimes.SenderEvent) -> None:
        moved.extend([event] if isinstance(event, events.Moved) else [])
        submit.extend([event] if isinstance(event, events.Say) else [])

    try:
        if found is not None and found.run is turns.queue:
            return _list_queue(argument, _waiting_messages(waiting))
        if found is not None and (answer := _ANSWERS.get(found.run)) is not None:
            return CommandResult(await questions.answer(context, runtime, inbound, conversation_id, answer))
        if found is not None and found.run is links.link and (text := await _link(runtime, bindings, inbound)):
            return CommandResult(text)
        if found is not None and found.run is status.status and not argument:
            invocation = base.Invocation(runtime, conversation_id, "", on_output, "chat")
            await status.status(invocation, len(_waiting_messages(waiting)))
        else:
            await runtime.send(conversation_id, events.Command(line, "chat"), to_sender, on_output)
        await _bind(runtime, bindings, inbound.route, conversation_id, moved, lines)
    except errors.RouteMoved:
        lines.append(ROUTE_MOVED)
    except errors.HoldfastError as error:
        lines.append(str(error))
    done = STOPPED if found is not None and found.run is turns.stop else DONE
    return CommandResult("\n".join(filter(None, lines)) or ("" if submit else done), submit[0] if submit else None)


async def _link(runtime: runtimes.Runtime, bindings: routes.RouteBindings, inbound: types.InboundMessage) -> str | None:
    """Link the sender by a code, or unlink them, and return the reply; None if the command is to create a code."""
    contacts, sender = runtime.db.contacts, (inbound.platform, inbound.sender)
    identity, (_, argument) = routes.principal_of(inbound).identity, commands.split(inbound.text.strip())
    if not routes.is_direct(inbound.route):
        if argument and argument.lower() != "off":
            with suppress(errors.PairingRefused):
                await contacts.revoke_link_code(*sender, argument)
                return f"{DIRECT_ONLY}\n{CODE_REVOKED}"
        return DIRECT_ONLY
    if not argument:
        # The turns of other chats are copied to those of linked senders only.
        owner = await contacts.link(*sender, identity, replace=False)
        return None if owner == runtime.owner else LINK_CHANGED
    if argument.lower() == "off":
        others = [await contacts.unlink(each.platform, each.sender) for each in await contacts.links(identity)]
        if not await contacts.unlink(*sender):
            return UNLINKED_OTHERS if others else NOT_LINKED
        await bindings.move(inbound.route, None)
        return f"{UNLINKED_OTHERS}\n{UNLINKED}" if others else UNLINKED
    _, session_id = await contacts.link_by_code(*sender, argument)
    try:
        conversation = await runtime.db.conversation(session_id)
    except errors.NoSuchSession:
        await bindings.move(inbound.route, None)
        return LINKED_WITHOUT_CONVERSATION
    await bindings.move(inbound.route, conversation.id)
    return LINKED.format(title=conversation.title or conversation.id)


async def _bind(
    runtime: runtimes.Runtime,
    bindings: routes.RouteBindings,
    route: str,
    conversation_id: str,
    moved: Sequence[events.Moved],
    lines: list[str],
) -> None:
    """Bind the chat to the conversation that a command chose or gave a title, and add that to the output."""
    for each in moved:
        text = await _move(runtime, bindings, route, each)
        lines += [] if lines else [text]  # The output of /branch names the conversation already.
    if not moved and runtime.wanted_title(conversation_id) is not None:
        lines.append(await _create_titled(runtime, bindings, route, conversation_id) or "")


async def _move(runtime: runtimes.Runtime, bindings: routes.RouteBindings, route: str, moved: events.Moved) -> str:
    if moved.new:
        problem = await _create_titled(runtime, bindings, route, moved.conversation_id)
        if problem is not None:
            await bindings.move(route, None)
        return f"{problem}\n{NEW}" if problem else NEW
    await bindings.move(route, moved.conversation_id)
    title = (await runtime.db.conversation(moved.conversation_id)).title
    return MOVED.format(title=title or moved.conversation_id)


async def _create_titled(
    runtime: runtimes.Runtime, bindings: routes.RouteBindings, route: str, conversation_id: str
) -> str | None:
    """Create a conversation that has a title before its first message, because only this process knows the title.

    Return why it was not created, empty if it has no title; None if it was.
    """
    title, source = runtime.wanted_title(conversation_id), routes.platform_of(route)
    if title is None:
        return ""
    runtime.want_title(conversation_id, None)
    try:
        await runtime.db.create_session(conversation_id, source=source, title=title, owner=runtime.owner)
    except ValueError as error:
        return str(error)
    await bindings.move(route, conversation_id)
    return None


def _waiting_messages(waiting: Sequence[types.InboundMessage]) -> list[types.InboundMessage]:
    return [each for each in platform.without_deleted(waiting) if not commands.is_command(each.text)]


def _list_queue(argument: str, messages: Sequence[types.InboundMessage]) -> CommandResult:
    """List or drop the waiting messages of a chat."""
    known = [(each, events.Submit(each.text)) for each in messages]
    dropped = list[int]()

    def drop(message: events.Submit) -> bool:
        dropped.extend(each.id for each, submitted in known if submitted is message)
        return True

    text = turns.manage_queue(argument, [submitted for _, submitted in known], drop)
    return CommandResult(text, dropped=tuple(dropped))
