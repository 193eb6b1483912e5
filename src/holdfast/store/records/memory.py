"""Memories: what is known about a person in all of that person's conversations.

They are their owner's and not a conversation's: one that was learnt in a conversation outlives it, and only
forgets where it is from. A person revises and forgets them; nothing else does.
"""

from __future__ import annotations

from holdfast import errors, types
from holdfast.store import conversation_row, store_meta, titles, validation
from holdfast.store.driver import Row, Tx
from holdfast.store.facet import Facet

MOST = 500
LONGEST = 500
# When a memory was last taken out, for whoever asks what the files may still hold.


class Memories(Facet):
    """`db.memory`: facts about an owner, known in all of the owner's conversations."""

    def add(self, owner: str, text: str, *, source: str | None = None) -> types.Memory:
        """Remember a fact about an owner; the same text again is the same memory.

        The text is cleaned as titles are: what cannot be seen is dropped, spaces are folded. `source` is any session
        of the conversation it was learnt in. InvalidArgument when nothing or too much is left, LimitReached when the
        owner has 500 already.
        """
        who, said, now = validation.check_owner(owner), clean(text), self._clock()
        return self.driver.write("memory", lambda tx: remember(tx, who, said, source, now))

    def all(self, owner: str) -> list[types.Memory]:
        """All that is remembered about an owner, oldest first."""
        who = validation.check_owner(owner)
        return self.driver.read(lambda tx: [_memory(row) for row in tx.all("memories_of", owner=who)])

    def revise(self, owner: str, memory_id: int, text: str) -> types.Memory:
        """Put other words in the place of a memory; NotFound when the owner has none of this id.

        Where another memory says the same already, that one stays and this one goes.
        """
        validation.check(validation.WholeNumber, memory_id=memory_id)
        who, said, now = validation.check_owner(owner), clean(text), self._clock()
        return self.driver.write("memory", lambda tx: revise(tx, who, memory_id, said, now))

    def forget(self, owner: str, memory_id: int) -> bool:
        """Forget a memory for good; whether there was one."""
        validation.check(validation.WholeNumber, memory_id=memory_id)
        who, now = validation.check_owner(owner), self._clock()
        return self.driver.write("memory", lambda tx: forget(tx, who, memory_id, now))


def remember(tx: Tx, owner: str, text: str, source: str | None, now: float) -> types.Memory:
    known = tx.one("memory_by_text", owner=owner, text=text)
    if known is None:
        count = tx.one("memories_count", owner=owner)
        if count is not None and count[0] >= MOST:
            raise errors.LimitReached(f"There are {MOST} memories already; forget some first.")
        tx.run("memory_insert", owner=owner, text=text, at=now, updated_at=now, source=_learnt(tx, source))
        known = tx.one("memory_by_text", owner=owner, text=text)
    assert known is not None  # there, or just written
    return _memory(known)


def _learnt(tx: Tx, source: str | None) -> int | None:
    """The conversation it was learnt in; one that is not there (yet, or any more) does not matter."""
    try:
        return conversation_row.look(tx, source).key if source is not None else None
    except errors.NoSuchSession:
        return None


def revise(tx: Tx, owner: str, memory_id: int, text: str, now: float) -> types.Memory:
    known = tx.one("memory_by_text", owner=owner, text=text)
    if known is not None:
        if known[0] != memory_id and not forget(tx, owner, memory_id, now):
            raise errors.NotFound("memory", str(memory_id))
        return _memory(known)
    if tx.run("memory_revise", owner=owner, id=memory_id, text=text, at=now) != 1:
        raise errors.NotFound("memory", str(memory_id))
    tx.run("meta_set", key=store_meta.FORGOTTEN, value=repr(now))
    row = tx.one("memory_by_text", owner=owner, text=text)
    assert row is not None  # just revised
    return _memory(row)


def forget(tx: Tx, owner: str, memory_id: int, now: float) -> bool:
    gone = tx.run("memory_delete", owner=owner, id=memory_id) == 1
    if gone:
        tx.run("meta_set", key=store_meta.FORGOTTEN, value=repr(now))
    return gone


def keep(tx: Tx, memory: types.Memory) -> None:
    """One that comes from another store, if it can be kept here."""
    count = tx.one("memories_count", owner=memory.owner)
    if tx.one("memory_by_text", owner=memory.owner, text=memory.text) is None and count is not None and count[0] < MOST:
        learnt = tx.one("conversation_key", id=memory.source) if memory.source is not None else None
        tx.run(
            "memory_insert",
            owner=memory.owner,
            text=memory.text,
            at=memory.at,
            updated_at=memory.updated_at,
            source=learnt[0] if learnt else None,
        )


def clean(text: object) -> str:
    """The text as it is kept, or InvalidArgument."""
    if not isinstance(text, str):
        raise errors.InvalidArgument(f"A memory is text, not {errors.shown(text)}.")
    # Far longer than any: say so without looking at every character of it.
    cleaned = titles.plain(text) if len(text) <= 100 * LONGEST else text
    if not cleaned:
        raise errors.InvalidArgument("The memory is empty.")
    if len(cleaned) > LONGEST:
        raise errors.InvalidArgument(f"The memory has {len(cleaned):,} characters; at most {LONGEST} are kept.")
    return cleaned


def _memory(row: Row) -> types.Memory:
    id_, owner, text, at, updated_at, source = row
    return types.Memory(id=id_, owner=owner, text=text, at=at, updated_at=updated_at, source=source)
