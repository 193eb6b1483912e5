"""Memories: facts about an owner that hold in all of the owner's conversations.

A memory belongs to its owner. It outlives the conversation it was learned in, and then has no source any more.
"""

from __future__ import annotations

from holdfast import errors, types
from holdfast.store import conversation_row, store_meta, titles, validation
from holdfast.store.driver import Row, Tx
from holdfast.store.facet import Facet

MAX_MEMORIES = 500
MAX_LENGTH = 500


class Memories(Facet):
    """`db.memory`: facts about an owner, known in all of the owner's conversations."""

    def add(self, owner: str, text: str, *, source: str | None = None) -> types.Memory:
        """Store a fact about an owner; the same text again returns the same memory.

        The text is cleaned like titles: invisible characters are dropped, white space is folded. `source` is any
        session of the conversation it was learned in. Raises InvalidArgument for an empty or too long text, and
        LimitReached if the owner has 500 memories.
        """
        owner, cleaned, now = validation.check_owner(owner), clean(text), self._clock()
        return self.driver.write("memory", lambda tx: remember(tx, owner, cleaned, source, now))

    def all(self, owner: str) -> list[types.Memory]:
        """Return the memories of an owner, oldest first."""
        owner = validation.check_owner(owner)
        return self.driver.read(lambda tx: [_memory(row) for row in tx.all("memories_of", owner=owner)])

    def revise(self, owner: str, memory_id: int, text: str) -> types.Memory:
        """Replace the text of a memory. Raises NotFound if the owner has no memory of this id.

        If another memory has this text already, that one is returned and this one is deleted.
        """
        validation.check(validation.WholeNumber, memory_id=memory_id)
        owner, cleaned, now = validation.check_owner(owner), clean(text), self._clock()
        return self.driver.write("memory", lambda tx: revise(tx, owner, memory_id, cleaned, now))

    def forget(self, owner: str, memory_id: int) -> bool:
        """Delete a memory; return whether it existed."""
        validation.check(validation.WholeNumber, memory_id=memory_id)
        owner, now = validation.check_owner(owner), self._clock()
        return self.driver.write("memory", lambda tx: forget(tx, owner, memory_id, now))


def remember(tx: Tx, owner: str, text: str, source: str | None, now: float) -> types.Memory:
    known = tx.one("memory_by_text", owner=owner, text=text)
    if known is None:
        count = tx.one("memories_count", owner=owner)
        if count is not None and count[0] >= MAX_MEMORIES:
            raise errors.LimitReached(f"The owner has {MAX_MEMORIES} memories, which is the limit. Forget some first.")
        tx.run("memory_insert", owner=owner, text=text, at=now, updated_at=now, source=_source_key(tx, source))
        known = tx.one("memory_by_text", owner=owner, text=text)
    assert known is not None  # there, or just written
    return _memory(known)


def _source_key(tx: Tx, source: str | None) -> int | None:
    """Return the key of the conversation it was learned in, if that exists."""
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
    """Store a memory of another store, unless it exists here or the owner has no room for it."""
    count = tx.one("memories_count", owner=memory.owner)
    if (
        tx.one("memory_by_text", owner=memory.owner, text=memory.text) is None
        and count is not None
        and count[0] < MAX_MEMORIES
    ):
        source = tx.one("conversation_key", id=memory.source) if memory.source is not None else None
        tx.run(
            "memory_insert",
            owner=memory.owner,
            text=memory.text,
            at=memory.at,
            updated_at=memory.updated_at,
            source=source[0] if source else None,
        )


def clean(text: object) -> str:
    """Return the text as it is stored; raise InvalidArgument if it cannot be."""
    return titles.clean(text, "text", MAX_LENGTH)


def _memory(row: Row) -> types.Memory:
    return types.Memory(**dict(zip(types.Memory.__struct_fields__, row, strict=True)))
