"""The slash commands: one registry for all front ends.

A command answers with events to whoever listens; it changes the conversation only through the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from holdfast import errors, events, types
from holdfast.agent import agent as agents
from holdfast.agent import approvals, cache, notes, originals, permitting, pinning
from holdfast.compaction import compress
from holdfast.compaction import port as compaction
from holdfast.store import aio, state

LISTED = 15

Emit = Callable[[events.AnyEvent], None]


class Standing(Protocol):
    """A command that stands for words: what it is called, what it is for, what it takes."""

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def argument(self) -> str: ...


class Words(Protocol):
    """Commands that come from elsewhere, such as prompts of servers; they may be others each time."""

    def listed(self) -> Sequence[Standing]: ...
    async def text(self, name: str, argument: str) -> str | None:
        """What is said by the command; None where there is none of this name."""


class Desk(Protocol):
    """What commands need of the runtime."""

    @property
    def db(self) -> aio.AsyncSessionDB: ...
    @property
    def owner(self) -> str: ...
    @property
    def words(self) -> Words | None: ...
    @property
    def approvals(self) -> approvals.Approvals: ...
    @property
    def agents(self) -> cache.Cache: ...
    def want_title(self, conversation_id: str, title: str) -> None: ...
    def wanted_title(self, conversation_id: str) -> str | None: ...
    def queued(self, conversation_id: str) -> int: ...


class Asked(msgspec.Struct, frozen=True):
    """A command with its surroundings."""

    desk: Desk
    conversation_id: str
    argument: str
    emit: Emit


class Slash(msgspec.Struct, frozen=True):
    """One command."""

    name: str
    help: str
    run: Callable[[Asked], Awaitable[None]]
    argument: str = ""
    """What it takes, as shown in help; empty: nothing."""


async def run(desk: Desk, conversation_id: str, line: str, emit: Emit) -> None:
    """Carry out a line that begins with a slash. What goes wrong is said, and nothing is raised."""
    name, _, argument = line.strip().lstrip("/").partition(" ")
    slash = COMMANDS.get(name.lower())
    if slash is None:
        if await _said(desk, name.lower(), argument.strip(), emit):
            return
        emit(events.Notice(f"There is no command {errors.shown('/' + name)}. /help lists them.", "error"))
        return
    if argument.strip() and not slash.argument:
        emit(events.Notice(f"/{slash.name} takes nothing after it.", "error"))
        return
    try:
        await slash.run(Asked(desk, conversation_id, argument.strip(), emit))
    except errors.HoldfastError as error:
        emit(events.Notice(str(error), "error"))


async def _said(desk: Desk, name: str, argument: str, emit: Emit) -> bool:
    """Have the words said that a command from elsewhere stands for; whether there is one."""
    try:
        words = await desk.words.text(name, argument) if desk.words else None
    except errors.HoldfastError as error:
        emit(events.Notice(str(error), "error"))
        return True
    if words is not None:
        emit(events.Say(words))
    return words is not None


# --- the commands --------------------------------------------------------------------------------------


async def _help(asked: Asked) -> None:
    every: list[Standing] = [*COMMANDS.values(), *(asked.desk.words.listed() if asked.desk.words else ())]
    width = max(len(f"/{each.name} {each.argument}") for each in every)
    lines = (f"{f'/{each.name} {each.argument}':{width}}  {each.help}" for each in every)
    asked.emit(events.Answer("\n".join(lines)))


async def _new(asked: Asked) -> None:
    """The row comes with the first message: whoever opens a conversation and says nothing leaves nothing behind."""
    fresh = state.mint_session_id(time.time())
    if asked.argument:
        asked.desk.want_title(fresh, asked.argument)
    asked.emit(events.Moved(fresh, new=True))
    left = asked.desk.agents.peek(asked.conversation_id)
    if left is not None:
        await left.leave()


async def _title(asked: Asked) -> None:
    db, here = asked.desk.db, asked.conversation_id
    try:
        if asked.argument:
            asked.emit(events.Titled(await db.set_session_title(here, asked.argument)))
            return
        title = (await db.conversation(here)).title
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        if asked.argument:
            asked.desk.want_title(here, asked.argument)
            asked.emit(events.Notice("The conversation gets this title with its first message."))
            return
        title = asked.desk.wanted_title(here)
    asked.emit(events.Answer(title or "This conversation has no title. /title TEXT gives it one."))


async def _sessions(asked: Asked) -> None:
    heads = await asked.desk.db.list_sessions(owner=asked.desk.owner, limit=LISTED)
    lines = [_listed(head, head.conversation_id == asked.conversation_id) for head in heads]
    asked.emit(events.Answer("\n".join(lines) or "There are no conversations yet."))


def _listed(head: types.Session, here: bool) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(head.active_at))
    return f"{'*' if here else ' '} {head.conversation_id}  {when}  {head.last_seq:>5}  {head.title or ''}".rstrip()


async def _resume(asked: Asked) -> None:
    head = await asked.desk.db.resolve(asked.argument or "last", owner=asked.desk.owner)
    asked.emit(events.Moved(head.conversation_id))


async def _status(asked: Asked) -> None:
    agent = await asked.desk.agents.get(asked.conversation_id)
    lines = [f"model         {agent.model.name} (window {agent.model.window:,} tokens)"]
    try:
        here = await asked.desk.db.conversation(asked.conversation_id)
        lines += [
            f"conversation  {here.id}",
            f"session       {here.head_id}",
            f"title         {here.title or '-'}",
            f"messages      {here.last_seq}",
        ]
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        lines.append("conversation  begins with your first message")
    lines.append(
        f"turn          {'running' if agent.busy else 'none'}, {asked.desk.queued(asked.conversation_id)} waiting"
    )
    asked.emit(events.Answer("\n".join(lines)))


async def _usage(asked: Asked) -> None:
    try:
        used = await asked.desk.db.usage(asked.conversation_id)
        summaries = await compress.used(asked.desk.db, asked.conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        used, summaries = {}, types.Usage()
    lines = [f"{model}: {_tokens(usage)}" for model, usage in used.items()]
    if summaries != types.Usage():
        lines.append(f"summaries: {_tokens(summaries)}")
    asked.emit(events.Answer("\n".join(lines) or "Nothing was used yet."))


def _tokens(usage: types.Usage) -> str:
    cost = "" if usage.cost is None else f", ${usage.cost:.4f}"
    return f"{usage.input:,} tokens in ({usage.cache_read:,} cached), {usage.output:,} out{cost}"


# --- compaction ----------------------------------------------------------------------------------------


async def _compact(asked: Asked) -> None:
    agent = await asked.desk.agents.get(asked.conversation_id)
    match asked.argument.lower().split():
        case ["--preview" | "preview"]:
            asked.emit(events.Answer(await _preview(agent)))
        case ["--preview" | "preview", "here", count] if count.isascii() and count.isdigit() and int(count) > 0:
            asked.emit(events.Answer(await _preview(agent, int(count))))
        case [word, *_] if word.startswith("--"):
            asked.emit(events.Notice("/compact takes a focus, --preview, here N, undo or redo.", "error"))
        case ["undo"]:
            undone = await asked.desk.db.undo_compaction(asked.conversation_id)
            asked.emit(events.Answer(f"The messages up to {undone.cut_seq} are back. /compact redo takes that back."))
        case ["redo"]:
            redone = await asked.desk.db.redo_compaction(asked.conversation_id)
            asked.emit(events.Answer(f"The summary stands for the messages up to {redone.cut_seq} again."))
        case ["here", count] if count.isascii() and count.isdigit() and int(count) > 0:
            await _now(agent, asked, keep_exchanges=int(count))
        case ["here", *_]:
            asked.emit(events.Notice("/compact here N keeps the last N exchanges as they are.", "error"))
        case _:
            await _now(agent, asked, focus=asked.argument or None)


async def _now(
    agent: agents.AIAgent, asked: Asked, *, focus: str | None = None, keep_exchanges: int | None = None
) -> None:
    made = await agent.compress_context(focus, force=True, keep_exchanges=keep_exchanges, emit=asked.emit)
    if made.outcome is compaction.Outcome.NOTHING_TO_DO:
        asked.emit(events.Answer(made.reason))


async def _preview(agent: agents.AIAgent, keep_exchanges: int | None = None) -> str:
    """What would go and what would stay. Nothing is changed."""
    work = agent.compaction_work()
    context = await work.db.context(work.conversation_id)
    pins = await work.db.pins(work.conversation_id)
    found = await asyncio.to_thread(compress.find, work, context, keep_exchanges, pins)
    if found is None:
        return "There is nothing to compact."
    tokens = sum(map(work.meter.of, found.going))
    pinned = f" Pinned and staying: {', '.join(map(str, found.pinned))}." if found.pinned else ""
    return (
        f"{len(found.going)} messages up to {found.cut_seq} (about {tokens:,} tokens) would give way to a summary; "
        f"{len(found.staying)} would stay as they are.{pinned}"
    )


async def _recall(asked: Asked) -> None:
    asked.emit(events.Answer(await originals.recalled(asked.desk.db, asked.conversation_id, asked.argument)))


async def _pin(asked: Asked) -> None:
    if not asked.argument:
        asked.emit(events.Answer(await pinning.listed(asked.desk.db, asked.conversation_id)))
        return
    agent = await asked.desk.agents.get(asked.conversation_id)
    asked.emit(events.Answer(await pinning.pin(agent, asked.argument)))


async def _unpin(asked: Asked) -> None:
    asked.emit(events.Answer(await pinning.unpin(asked.desk.db, asked.conversation_id, asked.argument)))


async def _memory(asked: Asked) -> None:
    said, changed = await notes.ordered(notes.Notes(asked.desk.db, asked.desk.owner), asked.argument)
    for agent in asked.desk.agents.every() if changed else ():
        agent.remembering.changed()
    asked.emit(events.Answer(said))


# --- permissions ---------------------------------------------------------------------------------------


async def _approve(asked: Asked) -> None:
    said = await permitting.approve(asked.desk.approvals, asked.conversation_id, asked.argument)
    asked.emit(events.Answer(said))


async def _deny(asked: Asked) -> None:
    asked.emit(events.Answer(await permitting.deny(asked.desk.approvals, asked.conversation_id, asked.argument)))


async def _tools(asked: Asked) -> None:
    agent = await asked.desk.agents.get(asked.conversation_id)
    asked.emit(events.Answer(permitting.tools(agent.tools.specs, asked.desk.approvals.law.rules)))


async def _permissions(asked: Asked) -> None:
    desk = asked.desk
    said = await permitting.permissions(desk.db, desk.approvals, asked.conversation_id, asked.argument)
    asked.emit(events.Answer(said))


async def _stop(asked: Asked) -> None:
    agent = asked.desk.agents.peek(asked.conversation_id)
    if agent is None or not agent.interrupt():
        asked.emit(events.Notice("Nothing is running."))


async def _quit(asked: Asked) -> None:
    asked.emit(events.Quit())


COMMANDS: dict[str, Slash] = {
    slash.name: slash
    for slash in (
        Slash("help", "List the commands.", _help),
        Slash("new", "Begin a new conversation.", _new, "[TITLE]"),
        Slash("title", "Show the title, or set it.", _title, "[TEXT]"),
        Slash("sessions", "List conversations, the most recent first.", _sessions),
        Slash("resume", "Go on with another conversation: an id, a title, or `last`.", _resume, "[ID]"),
        Slash("status", "Show the model, the conversation and what runs.", _status),
        Slash("usage", "Show the tokens this conversation has used.", _usage),
        Slash(
            "compact",
            "Let a summary stand for the older part.",
            _compact,
            "[FOCUS | --preview | here N | undo | redo]",
        ),
        Slash("compress", "The same as /compact.", _compact, "[...]"),
        Slash("recall", "Show originals: a number, a range, or words.", _recall, "SEQ|WORDS"),
        Slash("pin", "Keep a message word for word, or list what is kept so.", _pin, "[N | last]"),
        Slash("unpin", "Let the next compaction have a message again.", _unpin, "N"),
        Slash(
            "memory",
            "Show what is remembered about you, or change it.",
            _memory,
            "[add TEXT | edit ID TEXT | forget ID|all]",
        ),
        Slash("tools", "List the tools, and what the settings say of them.", _tools),
        Slash("permissions", "List what is allowed, or take it back.", _permissions, "[revoke ID]"),
        Slash("approve", "Allow what is asked for.", _approve, "[once | conversation | always]"),
        Slash("deny", "Deny what is asked for; the model is told why.", _deny, "[REASON]"),
        Slash("stop", "Stop the running turn; what was said stays.", _stop),
        Slash("quit", "Leave. The conversation stays.", _quit),
    )
}
