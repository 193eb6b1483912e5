"""Commands about the context: compact it, show originals, pin messages.

A message can be pinned while it is in the context and all pinned messages fit into their share of the window, so that
every compaction really keeps it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from holdfast import errors, events, types
from holdfast.agent import agent as agents
from holdfast.agent.commands import base, turns
from holdfast.compaction import base as compaction
from holdfast.compaction import compress, cut, time_slices
from holdfast.store import async_db
from holdfast.tools import recall as recall_tool

MAX_RECALLED = 50
MAX_HITS = 15
NOTHING_FOUND = "Nothing was found."
NO_MESSAGES = "The conversation has no messages yet."

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)

FORMS = base.choices(
    ("--preview", "show what would be summarized and what would stay"),
    ("here 3", "keep the last 3 exchanges verbatim"),
    ("undo", "undo the last compaction"),
    ("redo", "redo the compaction that was undone"),
)


# --- compaction ----------------------------------------------------------------------------------------


async def compact(invocation: base.Invocation) -> None:
    host, conversation_id = invocation.host, invocation.conversation_id
    agent = await host.agents.get(conversation_id)
    match invocation.argument.lower().split():
        case ["--preview" | "preview"]:
            invocation.answer(await _preview(agent))
        case ["--preview" | "preview", "here", count] if base.parse_number(count):
            invocation.answer(await _preview(agent, int(count)))
        case [word, *_] if word.startswith("--"):
            invocation.emit(events.Notice("/compact takes a focus, --preview, here N, undo or redo.", "error"))
        case ["undo"]:
            undone = await host.db.undo_compaction(conversation_id)
            invocation.answer(f"Restored the messages up to {undone.cut_seq}. /compact redo compacts them again.")
        case ["redo"]:
            redone = await host.db.redo_compaction(conversation_id)
            invocation.answer(f"The messages up to {redone.cut_seq} are represented by the summary again.")
        case ["here", count] if base.parse_number(count):
            await _compact(agent, invocation, keep_exchanges=int(count))
        case ["here", *_]:
            invocation.emit(events.Notice("/compact here N keeps the last N exchanges verbatim.", "error"))
        case _:
            await _compact(agent, invocation, focus=invocation.argument or None)


async def _compact(
    agent: agents.AIAgent, invocation: base.Invocation, *, focus: str | None = None, keep_exchanges: int | None = None
) -> None:
    result = await agent.compress_context(focus, force=True, keep_exchanges=keep_exchanges, emit=invocation.emit)
    if result.outcome is compaction.Outcome.NOTHING_TO_DO:
        invocation.answer(result.reason)


async def _preview(agent: agents.AIAgent, keep_exchanges: int | None = None) -> str:
    job = agent.compaction_job()
    context = await job.db.context(job.conversation_id)
    pins = await job.db.pins(job.conversation_id)
    found = await asyncio.to_thread(compress.plan_cut, job, context, keep_exchanges, pins, True)
    if found is None:
        return await asyncio.to_thread(compress.explain_nothing_to_do, job, context)
    tokens = sum(map(job.meter.of, found.going))
    pinned = f" Pinned, so kept: {', '.join(map(str, found.pinned))}." if found.pinned else ""
    return (
        f"{len(found.going)} messages up to {found.cut_seq} (about {tokens:,} tokens) would be summarized; "
        f"{len(found.staying)} would stay as they are.{pinned}"
    )


# --- originals -----------------------------------------------------------------------------------------


async def recall(invocation: base.Invocation) -> None:
    invocation.answer(await find_originals(invocation.host.db, invocation.conversation_id, invocation.argument))


async def find_originals(db: async_db.AsyncSessionDB, conversation_id: str, argument: str) -> str:
    """Return messages verbatim, by number (17), range (17-23) or words, even if a summary represents them."""
    if not argument:
        raise errors.InvalidArgument("/recall takes the number of a message, a range (17-23), or words.")
    numbers = _RANGE.fullmatch(argument)
    if numbers:
        return await _find_range(db, conversation_id, int(numbers[1]), int(numbers[2] or numbers[1]))
    hits = await db.search(argument, session_id=conversation_id, limit=MAX_HITS)
    # The search index has words, not messages.
    found = [each for hit in hits for each in await db.transcript(conversation_id, hit.seq - 1, hit.seq)]
    return "\n".join(map(_original, found)) or NOTHING_FOUND


async def _find_range(db: async_db.AsyncSessionDB, conversation_id: str, first: int, last: int) -> str:
    if not 1 <= first <= last:
        raise errors.InvalidArgument("Message numbers start at 1, and a range begins with the smaller number.")
    end = min(last, (await db.conversation(conversation_id)).last_seq)
    shown = min(end, first + MAX_RECALLED - 1)
    found = await db.transcript(conversation_id, first - 1, shown) if first <= shown else []
    lines = list(map(_original, found))
    if shown < end:
        lines.append(f"[The first {MAX_RECALLED} messages; /recall {shown + 1}-{end} shows the others.]")
    return "\n".join(lines) or NOTHING_FOUND


def _original(message: types.Message) -> str:
    return f"[{message.seq} {message.role}] {recall_tool.shown(message)}"


# --- pins ----------------------------------------------------------------------------------------------


async def pin(invocation: base.Invocation) -> None:
    if not invocation.argument:
        invocation.answer(await _list_pins(invocation.host.db, invocation.conversation_id))
        return
    agent = await invocation.host.agents.get(invocation.conversation_id)
    try:
        invocation.answer(await pin_message(agent, invocation.argument))
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        raise errors.InvalidArgument(NO_MESSAGES) from None


async def unpin(invocation: base.Invocation) -> None:
    seq = _seq(invocation.argument, "/unpin takes the number of a pinned message; /pin lists them.")
    found = await invocation.host.db.unpin(invocation.conversation_id, seq)
    after = "is no longer pinned: the next compaction may summarize it." if found else "is not pinned."
    invocation.answer(f"Message {seq} {after}")


async def complete_pins(invocation: base.Invocation) -> Sequence[base.Candidate]:
    return [base.Candidate(str(pin.seq)) for pin in await invocation.host.db.pins(invocation.conversation_id)]


async def _list_pins(db: async_db.AsyncSessionDB, conversation_id: str) -> str:
    try:
        pins, context = await db.pins(conversation_id), await db.context(conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        pins = []
    if not pins:
        return "No pinned messages. /pin N pins message N, /pin last the last one."
    in_context = cut.visible_seqs(context)
    return "\n".join([await _pin_line(db, conversation_id, pin.seq, pin.seq in in_context) for pin in pins])


async def pin_message(agent: agents.AIAgent, argument: str) -> str:
    """Pin a message if every compaction can keep it. Raises InvalidArgument otherwise."""
    job = agent.compaction_job()
    context, pins = await job.db.context(job.conversation_id), await job.db.pins(job.conversation_id)
    seq = context.last_seq if argument == "last" else _seq(argument, "/pin takes the number of a message, or last.")
    pinned = [each.seq for each in pins]
    if seq not in pinned:
        await time_slices.run_in_thread(_check_pin, job, context, pinned, seq)
        await job.db.pin(job.conversation_id, seq)
        # A compaction may have been committed since the check; later ones see the pin.
        if seq not in cut.visible_seqs(await job.db.context(job.conversation_id)):
            await job.db.unpin(job.conversation_id, seq)
            raise _not_in_context(seq)
    return f"Pinned; every compaction keeps it: {await _pin_line(job.db, job.conversation_id, seq)}"


def _seq(argument: str, usage: str) -> int:
    if not re.fullmatch(r"\d{1,9}", argument, re.ASCII):
        raise errors.InvalidArgument(usage)
    return int(argument)


def _check_pin(job: compress.Job, context: types.Context, pinned: list[int], seq: int) -> None:
    """Raise InvalidArgument if compactions could not keep the message, or other pinned ones because of it."""
    if not context.last_seq:
        raise errors.InvalidArgument(NO_MESSAGES)
    if not 1 <= seq <= context.last_seq:
        raise errors.InvalidArgument(f"Messages are numbered 1 to {context.last_seq}.")
    if seq not in cut.visible_seqs(context):
        raise _not_in_context(seq)
    share = int(job.usable * job.policy.pinned)
    before, after = (set(cut.find_excess_pins(context, job.meter.of, share, pins)) for pins in (pinned, [*pinned, seq]))
    if after - before:
        size = job.size([each for each in context if each.seq == seq])
        raise errors.InvalidArgument(
            f"No space to pin message {seq} (about {size:,} tokens): pinned messages, the first exchange and the "
            f"results of pinned calls may have {share:,} tokens together. /unpin frees space."
        )


def _not_in_context(seq: int) -> errors.InvalidArgument:
    return errors.InvalidArgument(
        f"Message {seq} is not in the context: it was summarized or undone. /recall {seq} shows it. To pin it, restore "
        "it first with /compact undo or /redo."
    )


async def _pin_line(db: async_db.AsyncSessionDB, conversation_id: str, seq: int, in_context: bool = True) -> str:
    (message,) = await db.transcript(conversation_id, seq - 1, seq)
    note = "" if in_context else " (not in the context now)"
    return f"[{seq} {message.role}] {turns.preview(recall_tool.shown(message))}{note}"
