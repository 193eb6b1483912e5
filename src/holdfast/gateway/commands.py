"""Run a command from a chat, at most once.

Three kinds concern the gateway itself: the waiting messages are in the store, questions are answered per chat, and the
conversation of a chat is bound to its route.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import commands
from holdfast.agent.commands import turns
from holdfast.gateway import gateway_context, message_policy, questions, replies, routes
from holdfast.runtime import runtime as runtimes
from holdfast.store import async_db

NOT_REPEATED = (
    "The gateway was stopped while {line} ran, so it is unknown whether it took effect. It was not run again: check, "
    "and send it again if needed."
)
NEW = "The next message begins a new conversation."
MOVED = "This chat continues in: {title}"
ROUTE_MOVED = "This chat was moved to another conversation at the same time. Send the command again if needed."
ADMINS_ONLY = "Only admins can use this command."
ACCESS_UNKNOWN = "Your permissions could not be checked, so nothing was done. Please send it again."
DONE = "Done."
STOPPED = "{line} was stopped."


class CommandResult(msgspec.Struct, frozen=True):
    """The outcome of a command: a reply, and a message to submit as if the user had sent it."""

    text: str = ""
    submit: events.Say | None = None
    dropped: tuple[int, ...] = ()
    """The waiting messages that were removed."""


async def check_permission(context: gateway_context.GatewayContext, inbound: types.InboundMessage) -> str:
    """Return why a sender may not use a command; empty if they may."""
    if not message_policy.needs_admin(inbound.text):
        return ""
    try:
        return "" if await context.is_admin(inbound.platform, inbound.sender) else ADMINS_ONLY
    except errors.StoreError:
        return ACCESS_UNKNOWN


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
    content = found[0].content
    if isinstance(content, str):
        return events.Submit(content, uid, None, inbound.route)
    parts = [part for part in content if part.get("type") != "note"]
    return events.Submit(content_parts.text(parts), uid, parts, inbound.route)


async def run(
    context: gateway_context.GatewayContext,
    runtime: runtimes.Runtime,
    bindings: routes.RouteBindings,
    inbound: types.InboundMessage,
    conversation_id: str,
    waiting: Sequence[types.InboundMessage],
) -> CommandResult:
    """Run a command in a conversation. Errors of the HoldfastError family become the reply."""
    line = inbound.text.strip()
    name = message_policy.command_name(line)
    try:
        if name == message_policy.QUEUE:
            return _list_queue(commands.split(line)[1], waiting)
        if name in message_policy.ANSWERS:
            return CommandResult(await questions.answer(context, runtime, inbound, conversation_id))
    except errors.HoldfastError as error:
        return CommandResult(str(error))
    lines, moved, submit = list[str](), list[events.Moved](), list[events.Say]()

    def emit(event: events.AnyEvent) -> None:
        match event:
            case events.Moved():
                moved.append(event)
            case events.Say():
                submit.append(event)
            case _:
                lines.append(replies.command_text(event))

    await commands.run(runtime, conversation_id, line, emit, "chat")
    for each in moved:
        lines.append(await _move(runtime, bindings, inbound.route, each))
    return CommandResult("\n".join(filter(None, lines)) or ("" if submit else DONE), submit[0] if submit else None)


async def _move(runtime: runtimes.Runtime, bindings: routes.RouteBindings, route: str, moved: events.Moved) -> str:
    try:
        is_created = moved.new and await _create_titled(runtime, route, moved.conversation_id)
        await bindings.move(route, events.Moved(moved.conversation_id) if is_created else moved)
        if moved.new:
            return NEW
        title = (await runtime.db.conversation(moved.conversation_id)).title
        return MOVED.format(title=title or moved.conversation_id)
    except errors.RouteMoved:
        return ROUTE_MOVED
    except errors.HoldfastError as error:
        return str(error)


async def _create_titled(runtime: runtimes.Runtime, route: str, conversation_id: str) -> bool:
    """Create a new conversation now if it has a title already: only this process knows the title.

    A title that is not available is reported when the conversation begins.
    """
    title = runtime.wanted_title(conversation_id)
    if title is None:
        return False
    try:
        source = routes.platform_of(route)
        await runtime.db.create_session(conversation_id, source=source, title=title, owner=runtime.owner)
    except ValueError:
        return False
    return True


def _list_queue(argument: str, waiting: Sequence[types.InboundMessage]) -> CommandResult:
    """List or drop the waiting messages of a chat."""
    known = [(each, events.Submit(each.text)) for each in waiting if not commands.is_command(each.text)]
    dropped = list[int]()

    def drop(message: events.Submit) -> bool:
        dropped.extend(each.id for each, submitted in known if submitted is message)
        return True

    text = turns.manage_queue(argument, [submitted for _, submitted in known], drop)
    return CommandResult(text, dropped=tuple(dropped))
