"""A command from a chat: carried out at most once, by those who may, and what it has to say.

Two are about the gateway itself: what waits are messages in the store, and where a chat goes on is its route.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import commands
from holdfast.agent.commands import turns
from holdfast.gateway import gateway_context, outgoing, questions, route_binding, route_keys
from holdfast.runtime import runtime as runtimes
from holdfast.store import async_db

ONCE = (
    "{line} was begun before, and this program was stopped in the middle of it: whether it was done is not known, so "
    "it is not done again. Look first, and send it again if it was not."
)
NEW = "The next message begins a new conversation."
THERE = "This chat goes on in {title} now."
MOVED = "This chat was moved to another conversation at this very moment. Send it again if you still want to."
ADMINS = "That is for admins."
UNSURE = "I could not find out whether you may do that, so nothing was done. Please send it again."
DONE = "Done."


class Said(msgspec.Struct, frozen=True):
    """What a command came to: something to tell, and words that are to be said as a message."""

    text: str = ""
    say: events.Say | None = None
    dropped: tuple[int, ...] = ()
    """The arrivals that were taken back."""


SLOW = frozenset({"compact", "compress"})
"""The commands that take so long that somebody may want to stop them."""
STOPPED = "{line} was stopped."


def name(line: str) -> str:
    return commands.split(line)[0].lower()


def for_admins(line: str) -> bool:
    """What changes more than the conversation of whoever says it: what is paid for, and what is allowed for ever."""
    command, argument = commands.split(line)
    return (command.lower() == "model" and bool(argument)) or (
        command.lower() == "approve" and "always" in argument.lower().split()
    )


async def refusal(home: gateway_context.House, arrival: types.InboundMessage) -> str:
    """Why somebody may not give a command; empty where they may, as far as that does not depend on what is asked."""
    if not for_admins(arrival.text):
        return ""
    try:
        return "" if await home.is_admin(arrival.platform, arrival.sender) else ADMINS
    except errors.StoreError:
        return UNSURE


async def said_before(db: async_db.AsyncSessionDB, arrival: types.InboundMessage, uid: str) -> events.Submit | None:
    """The message that a command had asked for before a process died, as /retry does; None where it had not, or it is
    gone. It is in the log, so its turn goes on like that of any other."""
    try:
        seq = await db.find_seq(arrival.target or "", uid)
        found = [] if seq is None else await db.transcript(arrival.target or "", seq - 1, seq)
    except errors.NoSuchSession:
        return None
    if not found or found[0].redacted:
        return None
    content = found[0].content
    said = content if isinstance(content, str) else [part for part in content if part.get("type") != "note"]
    return events.Submit(content_parts.text(said), uid, None if isinstance(said, str) else said, arrival.route)


async def carry_out(
    home: gateway_context.House,
    runtime: runtimes.Runtime,
    bound: route_binding.Binding,
    arrival: types.InboundMessage,
    here: str,
    waiting: Sequence[types.InboundMessage],
) -> Said:
    """Carry it out in this conversation. What goes wrong is said, and nothing of this family of errors is raised."""
    line = arrival.text.strip()
    if name(line) == "queue":
        return _queue(commands.split(line)[1], waiting)
    if name(line) in ("approve", "deny"):
        return await _answer(home, runtime, arrival, here)
    lines, moved, say = list[str](), list[events.Moved](), list[events.Say]()

    def emit(event: events.AnyEvent) -> None:
        match event:
            case events.Moved():
                moved.append(event)
            case events.Say():
                say.append(event)
            case _:
                lines.extend([text] if (text := outgoing.told(event)) else [])

    await commands.run(runtime, here, line, emit, "chat")
    for each in moved:
        lines.append(await _moved(runtime, bound, arrival.route, each))
    return Said("\n".join(filter(None, lines)) or ("" if say else DONE), say[0] if say else None)


async def _answer(
    home: gateway_context.House, runtime: runtimes.Runtime, arrival: types.InboundMessage, here: str
) -> Said:
    try:
        return Said(await questions.answered(home, runtime, arrival, here))
    except errors.HoldfastError as error:
        return Said(str(error))


async def _moved(runtime: runtimes.Runtime, bound: route_binding.Binding, route: str, moved: events.Moved) -> str:
    try:
        begun = moved.new and await _titled(runtime, route, moved.conversation_id)
        await bound.move(route, events.Moved(moved.conversation_id) if begun else moved)
        if moved.new:
            return NEW
        return THERE.format(title=(await runtime.db.conversation(moved.conversation_id)).title or moved.conversation_id)
    except errors.RouteMoved:
        return MOVED
    except errors.HoldfastError as error:
        return str(error)


async def _titled(runtime: runtimes.Runtime, route: str, conversation_id: str) -> bool:
    """Whether a conversation to come has a title already, and so begins now: a title that only a process knew would be
    gone with it. One that cannot be had is told of when the conversation begins."""
    title = runtime.wanted_title(conversation_id)
    if title is None:
        return False
    try:
        source = route_keys.platform(route)
        await runtime.db.create_session(conversation_id, source=source, title=title, owner=runtime.owner)
    except ValueError:
        return False
    return True


def _queue(argument: str, waiting: Sequence[types.InboundMessage]) -> Said:
    """What waits in this chat, wherever it is going to be worked on."""
    known = [(each, events.Submit(each.text)) for each in waiting if not commands.is_command(each.text)]
    dropped = list[int]()

    def drop(message: events.Submit) -> bool:
        dropped.extend(each.id for each, submitted in known if submitted is message)
        return True

    try:
        text = turns.manage_queue(argument, [submitted for _, submitted in known], drop)
    except errors.HoldfastError as error:
        return Said(str(error))
    return Said(text, dropped=tuple(dropped))
