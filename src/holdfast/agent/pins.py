"""What people pin: the commands for it, with the rules a person is told of.

A message can be pinned while it is in view, and while all that is pinned has room in its share of the window: what
a person is told is pinned does stay.
"""

from __future__ import annotations

import re

from holdfast import errors, types
from holdfast.agent import agent as agents
from holdfast.compaction import compress, cut, time_slices
from holdfast.store import async_db
from holdfast.tools import recall

SHOWN = 80

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


async def listed(db: async_db.AsyncSessionDB, conversation_id: str) -> str:
    """What is pinned, a line each."""
    try:
        pins, context = await db.pins(conversation_id), await db.context(conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        pins = []
    if not pins:
        return "Nothing is pinned. /pin N pins message N, /pin last the last one."
    seen = cut.visible_seqs(context)
    return "\n".join([await _line(db, conversation_id, pin.seq, pin.seq in seen) for pin in pins])


async def pin(agent: agents.AIAgent, argument: str) -> str:
    """Pin a message, if it will stay; what was pinned."""
    work = agent.compaction_work()
    context, pins = await work.db.context(work.conversation_id), await work.db.pins(work.conversation_id)
    seq = context.last_seq if argument == "last" else numbered(argument, "/pin takes the number of a message, or last.")
    pinned = [each.seq for each in pins]
    if seq not in pinned:
        await time_slices.run_in_thread(_refuse, work, context, pinned, seq)
        await work.db.pin(work.conversation_id, seq)
        # A compaction may have been committed since the look, but none that did not see the pin after it.
        if seq not in cut.visible_seqs(await work.db.context(work.conversation_id)):
            await work.db.unpin(work.conversation_id, seq)
            raise _out_of_view(seq)
    return f"Pinned, and kept by every compaction: {await _line(work.db, work.conversation_id, seq)}"


async def unpin(db: async_db.AsyncSessionDB, conversation_id: str, argument: str) -> str:
    seq = numbered(argument, "/unpin takes the number of a message that is pinned; /pin lists them.")
    if not await db.unpin(conversation_id, seq):
        return f"Message {seq} was not pinned."
    return f"Message {seq} is not pinned any more: the next compaction may take it."


def numbered(argument: str, otherwise: str) -> int:
    """The number of a message; InvalidArgument, with this sentence, where it is none."""
    if not _NUMBER.fullmatch(argument):
        raise errors.InvalidArgument(otherwise)
    return int(argument)


def _refuse(work: compress.Job, context: types.Context, pinned: list[int], seq: int) -> None:
    """InvalidArgument, where the message would not stay, or where others that are pinned would not because of it."""
    if not 1 <= seq <= context.last_seq:
        raise errors.InvalidArgument(f"Messages are numbered 1 to {context.last_seq}.")
    if seq not in cut.visible_seqs(context):
        raise _out_of_view(seq)
    share = int(work.usable * work.policy.pinned)
    before, after = (set(cut.find_excess_pins(context, work.size_of, share, pins)) for pins in (pinned, [*pinned, seq]))
    if after - before:
        size = work.size([each for each in context if each.seq == seq])
        raise errors.InvalidArgument(
            f"There is no room to pin message {seq} (about {size:,} tokens): what is pinned may take {share:,} tokens "
            "in all, with the first exchange, and with a call its results. /unpin makes room."
        )


def _out_of_view(seq: int) -> errors.InvalidArgument:
    return errors.InvalidArgument(
        f"Message {seq} is not in view: a summary stands for it, or it was taken back. /recall {seq} shows it; "
        "a message that /compact undo brings back can be pinned then."
    )


async def _line(db: async_db.AsyncSessionDB, conversation_id: str, seq: int, seen: bool = True) -> str:
    (message,) = await db.transcript(conversation_id, seq - 1, seq)
    said = " ".join(recall.shown(message).split())
    short = said if len(said) <= SHOWN else said[: SHOWN - 2] + " …"
    return f"[{seq} {message.role}] {short}{'' if seen else ' (not in view now)'}"
