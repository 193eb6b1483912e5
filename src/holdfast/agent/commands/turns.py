"""Commands about turns: undo, redo and retry them, stop or steer the running one, manage the queue.

Nothing is deleted: an undone turn leaves the context and stays in the transcript.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from holdfast import content_parts, errors, events, types
from holdfast.agent import turn_lease
from holdfast.agent.commands import base
from holdfast.compaction import speaker

PREVIEW_CHARS = 80
RUNNING = "A turn is running. Wait for it to end, or /stop it first."
QUEUE_EMPTY = "No messages are waiting."
STEERED = events.Notice("The model gets this before its next step.")


@asynccontextmanager
async def exclusive(invocation: base.Invocation) -> AsyncIterator[None]:
    """Hold the turn lease during the block. Raises an error if a turn is running, in any process."""
    if invocation.host.running(invocation.conversation_id):
        raise errors.HoldfastError(RUNNING)
    async with turn_lease.begin(invocation.host.db, invocation.conversation_id, wait_seconds=0):
        yield


# --- undo ----------------------------------------------------------------------------------------------


async def undo(invocation: base.Invocation) -> None:
    count = base.parse_number(invocation.argument or "1")
    if count is None:
        raise errors.InvalidArgument("/undo takes the number of turns to undo; without one, it undoes the last turn.")
    async with exclusive(invocation):
        undone, hidden = await _hide_turns(invocation, count)
    many = "1 message" if hidden.from_seq == hidden.to_seq else f"messages {hidden.from_seq} to {hidden.to_seq}"
    invocation.answer("\n".join([f"Undone ({many}):", *map(_line, undone), "/redo restores it."]))


async def redo(invocation: base.Invocation) -> None:
    """Restore the turns of the last undo."""
    db, conversation_id = invocation.host.db, invocation.conversation_id
    async with exclusive(invocation):
        hidden = [each for each in await db.hides(conversation_id) if each.shown_epoch is None]
        if not hidden:
            raise errors.NothingToUndo("Nothing was undone that could be restored.")
        context, last = await db.context(conversation_id), hidden[-1]
        if last.from_seq <= context.cut_seq:
            raise errors.ShowRefused(await _summarized(invocation, context))
        shown = await db.show(conversation_id, last.epoch)
    context = await db.context(conversation_id)
    restored = [
        each for each in context if shown.from_seq <= each.seq <= shown.to_seq and speaker.begins_exchange(each)
    ]
    has_later = any(each.seq > shown.to_seq for each in context)
    note = ["It comes before the messages that were sent since."] if has_later else []
    invocation.answer("\n".join(["Restored:", *map(_line, restored), *note]))


async def retry(invocation: base.Invocation) -> None:
    """Undo the last turn and have the sender submit the same message again."""
    async with exclusive(invocation):
        (message,), _ = await _hide_turns(invocation, 1, resend=True)
    content = content_parts.without_turn_notes(message.content)
    invocation.emit(events.Say(content_parts.text(content), None if isinstance(content, str) else content))


async def _hide_turns(
    invocation: base.Invocation, count: int, resend: bool = False
) -> tuple[Sequence[types.Message], types.Hide]:
    """Hide the last turns as a whole; return the messages that began them."""
    db, conversation_id = invocation.host.db, invocation.conversation_id
    context = await db.context(conversation_id)
    begun = [each for each in context if each.seq > context.cut_seq and speaker.begins_exchange(each)]
    if len(begun) < count:
        raise errors.InvalidArgument(await _too_few(invocation, context, len(begun)))
    undone = begun[-count:]
    if resend and undone[0].redacted:
        raise errors.InvalidArgument(f"Message {undone[0].seq} was redacted, so it cannot be sent again.")
    hidden = await db.hide(conversation_id, undone[0].seq, context.last_seq)
    if (await db.context(conversation_id)).cut_seq >= undone[0].seq:
        raise errors.ShowRefused(
            "A compaction summarized this turn at the same moment. /compact undo restores it; then undo it again."
        )
    return undone, hidden


async def _too_few(invocation: base.Invocation, context: types.Context, count: int) -> str:
    many = {0: "There is no turn", 1: "There is only 1 turn"}.get(count, f"There are only {count} turns")
    if not context.cut_seq:
        return f"{many} to undo."
    return f"{many} after the summary. {await _summarized(invocation, context)}"


async def _summarized(invocation: base.Invocation, context: types.Context) -> str:
    """Explain why a summarized turn cannot be undone or redone, and what to do."""
    text = f"The messages up to {context.cut_seq} are represented by a summary"
    if (await invocation.host.db.conversation(invocation.conversation_id)).compaction_epoch is None:
        return f"{text}, with which this branch began."
    return f"{text}: run /compact undo first."


def _line(message: types.Message) -> str:
    return f"  [{message.seq}] {preview('(redacted)' if message.redacted else content_parts.text(message.content))}"


def preview(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW_CHARS else line[: PREVIEW_CHARS - 2] + " …"


# --- the running turn and the queue --------------------------------------------------------------------


async def stop(invocation: base.Invocation) -> None:
    if not invocation.host.stop(invocation.conversation_id):
        holder = await find_other_turn(invocation)
        invocation.emit(events.Notice(turn_lease.RUNNING.format(holder) if holder else "Nothing is running."))


async def find_other_turn(invocation: base.Invocation) -> str | None:
    """Return where a turn of the conversation runs: another front end or process, or the chat of another sender."""
    with suppress(errors.LeasesUnavailable):
        for each in await invocation.host.db.leases():
            if (each.conversation_id, each.purpose, each.state) == (invocation.conversation_id, "turn", "held"):
                return each.agent.partition("#")[0] or each.holder
    return None


async def steer(invocation: base.Invocation) -> None:
    """Steer the running turn; without one, the text is submitted as a message."""
    if invocation.host.steer(invocation.conversation_id, invocation.argument):
        invocation.emit(STEERED)
    else:
        invocation.emit(events.Say(invocation.argument))


async def queue(invocation: base.Invocation) -> None:
    host, conversation_id = invocation.host, invocation.conversation_id
    invocation.answer(
        manage_queue(invocation.argument, host.waiting(conversation_id), lambda each: host.drop(conversation_id, each))
    )


def manage_queue(argument: str, waiting: Sequence[events.Submit], drop: Callable[[events.Submit], bool]) -> str:
    """Run /queue on these messages; return the answer. Raises InvalidArgument."""
    match argument.lower().split():
        case []:
            return "\n".join(f"{number}  {preview(each.text)}" for number, each in enumerate(waiting, 1)) or QUEUE_EMPTY
        case ["drop", "all"]:
            dropped = [drop(each) for each in waiting]
            return f"Dropped {sum(dropped)}." if dropped else QUEUE_EMPTY
        case ["drop", text] if (number := base.parse_number(text)) is not None:
            if number > len(waiting) or not drop(waiting[number - 1]):
                raise errors.InvalidArgument(f"No message {number} is waiting; /queue lists those that are.")
            return f"Dropped: {preview(waiting[number - 1].text)}"
        case _:
            raise errors.InvalidArgument("/queue lists waiting messages; /queue drop N or /queue drop all drops them.")


async def complete_queue(invocation: base.Invocation) -> Sequence[base.Candidate]:
    waiting = invocation.host.waiting(invocation.conversation_id)
    values = [base.Candidate(f"drop {number}", preview(each.text)) for number, each in enumerate(waiting, 1)]
    return [*values, *([base.Candidate("drop all", "all waiting messages")] if waiting else ())]
