"""Commands about turns: take some back and forth, ask again, stop one, tell it something, look at what waits.

Nothing is deleted: what is taken back leaves the context, and stays in the transcript.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from holdfast import content_parts, errors, events, types
from holdfast.agent import turn_lease
from holdfast.agent.commands import base
from holdfast.compaction import speaker

SHOWN = 80
RUNNING = "A turn is running. Wait for it to end, or /stop it first."


@asynccontextmanager
async def alone(asked: base.Asked) -> AsyncIterator[None]:
    """While no turn of this conversation runs, here or anywhere: one that comes now waits. Refused where one does."""
    if asked.desk.running(asked.conversation_id):
        raise errors.HoldfastError(RUNNING)
    async with turn_lease.begin(asked.desk.db, asked.conversation_id, patience=0):
        yield


# --- back and forth ------------------------------------------------------------------------------------


async def undo(asked: base.Asked) -> None:
    count = _count(asked.argument or "1")
    if count is None:
        raise errors.InvalidArgument("/undo takes how many turns to take back, and without a number takes back one.")
    async with alone(asked):
        taken, hidden = await _taken_back(asked, count)
    many = "1 message" if hidden.from_seq == hidden.to_seq else f"messages {hidden.from_seq} to {hidden.to_seq}"
    lines = [f"Taken back, with all that came of it ({many}):", *map(_line, taken), "/redo brings it back."]
    asked.emit(events.Answer("\n".join(lines)))


async def redo(asked: base.Asked) -> None:
    """What was taken back last, as it was taken back."""
    db, here = asked.desk.db, asked.conversation_id
    async with alone(asked):
        hidden = [each for each in await db.hides(here) if each.shown_epoch is None]
        if not hidden:
            raise errors.NothingToUndo("Nothing was taken back that could come again.")
        context, last = await db.context(here), hidden[-1]
        if last.from_seq <= context.cut_seq:
            raise errors.ShowRefused(await _covered(asked, context))
        shown = await db.show(here, last.epoch)
    context = await db.context(here)
    back = [each for each in context if shown.from_seq <= each.seq <= shown.to_seq and speaker.begins_exchange(each)]
    since = any(each.seq > shown.to_seq for each in context)
    lines = ["Back again:", *map(_line, back), *(["It stands before what was said since."] if since else ())]
    asked.emit(events.Answer("\n".join(lines)))


async def retry(asked: base.Asked) -> None:
    """Whoever asked says the same words again: the answer of before is taken back, and /redo would bring it back."""
    async with alone(asked):
        (message,), _ = await _taken_back(asked, 1, again=True)
    said = _as_said(message.content)
    asked.emit(events.Say(content_parts.text(said), None if isinstance(said, str) else said))


async def _taken_back(asked: base.Asked, count: int, again: bool = False) -> tuple[Sequence[types.Message], types.Hide]:
    """Hide the last turns: what a person began them with, and all that came after. Refused as a whole, or done."""
    db, here = asked.desk.db, asked.conversation_id
    context = await db.context(here)
    begun = [each for each in context if each.seq > context.cut_seq and speaker.begins_exchange(each)]
    if len(begun) < count:
        raise errors.InvalidArgument(await _too_few(asked, context, len(begun)))
    taken = begun[-count:]
    if again and taken[0].redacted:
        raise errors.InvalidArgument(f"Message {taken[0].seq} was redacted, so it cannot be sent again.")
    hidden = await db.hide(here, taken[0].seq, context.last_seq)
    if (await db.context(here)).cut_seq >= taken[0].seq:
        raise errors.ShowRefused(
            "A compaction was made at this very moment, and its summary stands for that turn, too. /compact undo takes "
            "it back, and the turn with it."
        )
    return taken, hidden


async def _too_few(asked: base.Asked, context: types.Context, there: int) -> str:
    many = {0: "There is no turn", 1: "There is only 1 turn"}.get(there, f"There are only {there} turns")
    if not context.cut_seq:
        return f"{many} to take back."
    return f"{many} after the summary. {await _covered(asked, context)}"


async def _covered(asked: base.Asked, context: types.Context) -> str:
    """Why what a summary stands for cannot be taken back or forth, and what to do."""
    stands = f"A summary stands for the messages up to {context.cut_seq}"
    if (await asked.desk.db.conversation(asked.conversation_id)).compaction_epoch is None:
        return f"{stands}, and this branch began with it."
    return f"{stands}: /compact undo first."


def _as_said(content: types.Content) -> types.Content:
    """A message as a person sent it: without the notes that were added for the model."""
    if isinstance(content, str):
        return content
    said = [part for part in content if part.get("type") != "note"]
    plain = len(said) == 1 and said[0].keys() == {"type", "text"}
    return content_parts.text(said) if plain else said


def _line(message: types.Message) -> str:
    return f"  [{message.seq}] {_short('(redacted)' if message.redacted else content_parts.text(message.content))}"


def _short(words: str) -> str:
    said = " ".join(words.split())
    return said if len(said) <= SHOWN else said[: SHOWN - 2] + " …"


def _count(text: str) -> int | None:
    """A whole number from 1 on."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) else None


# --- the turn that runs, and those to come -------------------------------------------------------------


async def stop(asked: base.Asked) -> None:
    if not asked.desk.stop(asked.conversation_id):
        asked.emit(events.Notice("Nothing is running."))


async def steer(asked: base.Asked) -> None:
    """Without a turn to tell it to, it is a message like any other."""
    if asked.desk.steer(asked.conversation_id, asked.argument):
        asked.emit(events.Notice("The model is told before its next step."))
    else:
        asked.emit(events.Say(asked.argument))


async def queue(asked: base.Asked) -> None:
    desk, here = asked.desk, asked.conversation_id
    asked.emit(events.Answer(queued(asked.argument, desk.waiting(here), lambda each: desk.drop(here, each))))


def queued(argument: str, waiting: Sequence[events.Submit], drop: Callable[[events.Submit], bool]) -> str:
    """What /queue has to say of what waits, and does with it; InvalidArgument where that cannot be."""
    match argument.lower().split():
        case []:
            lines = [f"{number}  {_short(each.text)}" for number, each in enumerate(waiting, 1)]
            return "\n".join(lines) or "Nothing waits."
        case ["drop", "all"]:
            dropped = [drop(each) for each in waiting]
            return f"{sum(dropped)} dropped." if dropped else "Nothing waits."
        case ["drop", number] if (place := _count(number)) is not None:
            if place > len(waiting) or not drop(waiting[place - 1]):
                raise errors.InvalidArgument(f"No message {place} waits; /queue lists those that do.")
            return f"Dropped: {_short(waiting[place - 1].text)}"
        case _:
            raise errors.InvalidArgument("/queue lists what waits; /queue drop N takes one back, /queue drop all all.")


async def droppable(asked: base.Asked) -> Sequence[base.Candidate]:
    waiting = asked.desk.waiting(asked.conversation_id)
    every = [base.Candidate("drop all", "all that waits")] if waiting else []
    return [base.Candidate(f"drop {number}", _short(each.text)) for number, each in enumerate(waiting, 1)] + every
