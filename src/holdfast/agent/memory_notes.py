"""The notes about one person, in the store: what the memory tool, the review and `/memory` work on.

Keys, tokens and passwords are taken out before anything is kept: nobody needs them remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast import errors, events, redaction, types
from holdfast.store import async_db
from holdfast.store.records import memory as records_memory
from holdfast.tools import memory

Notify = Callable[[events.Notice], None]

USE = "/memory lists; add TEXT, edit ID TEXT and forget ID|all change."


def _nowhere() -> str | None:
    return None


def _nobody(_: events.Notice) -> None:
    """Discard the event."""


class Notes:
    """What is remembered for one owner. `source` says in which conversation something is learnt now.

    `notify` is called with every change, so that the user sees what a model notes, at the moment it does.
    """

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        owner: str,
        source: Callable[[], str | None] = _nowhere,
        notify: Notify = _nobody,
    ) -> None:
        self._db, self._owner, self._source, self._notify = db, owner, source, notify

    async def remember(self, text: str) -> types.Memory:
        made = await self._db.memory.add(self._owner, _kept(text), source=self._source())
        self._changed(f"Added to memory: {memory.line(made)} (/memory forget {made.id} removes it.)")
        return made

    async def memories(self) -> Sequence[types.Memory]:
        return await self._db.memory.all(self._owner)

    async def revise(self, number: int, text: str) -> types.Memory:
        made = await self._db.memory.update(self._owner, number, _kept(text))
        self._changed(f"Changed in memory: {memory.line(made)} (/memory forget {made.id} removes it.)")
        return made

    async def forget(self, number: int) -> bool:
        found = await self._db.memory.delete(self._owner, number)
        if found:
            self._changed(f"Removed from memory: note {number}.")
        return found

    def _changed(self, text: str) -> None:
        self._notify(events.Notice(text, to_chats=True))


def _kept(text: str) -> str:
    """Cleaned first: nothing that cannot be seen hides a key from being found."""
    return redaction.redact(records_memory.clean(text))


async def ordered(notes: Notes, order: str) -> tuple[str, bool]:
    """What a person wants of the notes, carried out: what there is to say, and whether anything was changed."""
    verb, _, rest = order.partition(" ")
    number, _, text = rest.strip().partition(" ")
    match verb.lower():
        case "" | "list":
            return "\n".join(map(memory.line, await notes.memories())) or "Nothing is remembered.", False
        case "add" if rest.strip():
            return f"Remembered: {memory.line(await notes.remember(rest.strip()))}", True
        case "edit" if _is_number(number) and text.strip():
            return f"Remembered instead: {memory.line(await notes.revise(int(number), text.strip()))}", True
        case "forget" if number.lower() == "all" and not text:
            return await _all_forgotten(notes), True
        case "forget" if _is_number(number) and not text:
            found = await notes.forget(int(number))
            return (f"{number} is forgotten." if found else f"There is no {number}."), found
    raise errors.InvalidArgument(USE)


async def _all_forgotten(notes: Notes) -> str:
    every = await notes.memories()
    for each in every:
        await notes.forget(each.id)
    return f"{len(every)} forgotten." if every else "Nothing was remembered."


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
