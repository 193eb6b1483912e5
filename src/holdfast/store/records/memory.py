"""Memories: facts about an owner that hold in all of the owner's conversations.

A memory belongs to its owner. It outlives the conversation it was learned in, and then has no source any more.
"""

from __future__ import annotations

import msgspec

from holdfast import errors, types
from holdfast.store import store_meta, titles, validation
from holdfast.store.driver import Facet, Tx, read_struct, read_structs

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
        validation.check_optional_id(source, "source")
        return self.driver.write("memory", lambda tx: add(tx, owner, cleaned, source, now))

    def all(self, owner: str) -> list[types.Memory]:
        """Return the memories of an owner, oldest first."""
        validation.check_owner(owner)
        return self.driver.read(lambda tx: read_structs(tx, types.Memory, "memories_of", owner=owner))

    def update(self, owner: str, memory_id: int, text: str) -> types.Memory:
        """Replace the text of a memory. Raises NotFound if the owner has no memory of this id.

        If another memory has this text already, that one is returned and this one is deleted.
        """
        validation.check(validation.WholeNumber, memory_id=memory_id)
        owner, cleaned, now = validation.check_owner(owner), clean(text), self._clock()
        return self.driver.write("memory", lambda tx: update(tx, owner, memory_id, cleaned, now))

    def delete(self, owner: str, memory_id: int) -> bool:
        """Delete a memory; return whether it existed."""
        validation.check(validation.WholeNumber, memory_id=memory_id)
        owner, now = validation.check_owner(owner), self._clock()
        return self.driver.write("memory", lambda tx: delete(tx, owner, memory_id, now))


def find(tx: Tx, owner: str, text: str) -> types.Memory | None:
    return read_struct(tx, types.Memory, "memory_by_text", owner=owner, text=text)


def is_full(tx: Tx, owner: str) -> bool:
    (count,) = tx.one("memories_count", owner=owner) or (0,)
    return bool(count >= MAX_MEMORIES)


def add(tx: Tx, owner: str, text: str, source: str | None, now: float) -> types.Memory:
    known = find(tx, owner, text)
    if known is None:
        if is_full(tx, owner):
            raise errors.LimitReached(f"The owner has {MAX_MEMORIES} memories, which is the limit. Forget some first.")
        key, *_ = tx.one("read_conversation", id=source) or (None,)
        tx.run("memory_insert", owner=owner, text=text, at=now, updated_at=now, source=key)
        known = find(tx, owner, text)
    assert known is not None  # there, or just written
    return known


def update(tx: Tx, owner: str, memory_id: int, text: str, now: float) -> types.Memory:
    known = find(tx, owner, text)
    if known is not None:
        if known.id != memory_id and not delete(tx, owner, memory_id, now):
            raise errors.NotFound("memory", str(memory_id))
        return known
    if tx.run("memory_revise", owner=owner, id=memory_id, text=text, at=now) != 1:
        raise errors.NotFound("memory", str(memory_id))
    tx.run("meta_set", key=store_meta.FORGOTTEN, value=repr(now))
    revised = find(tx, owner, text)
    assert revised is not None  # just revised
    return revised


def delete(tx: Tx, owner: str, memory_id: int, now: float) -> bool:
    deleted = tx.run("memory_delete", owner=owner, id=memory_id) == 1
    if deleted:
        tx.run("meta_set", key=store_meta.FORGOTTEN, value=repr(now))
    return deleted


def import_memory(tx: Tx, memory: types.Memory) -> None:
    """Store a memory of another store, unless it exists here or the owner has reached the limit."""
    if find(tx, memory.owner, memory.text) is None and not is_full(tx, memory.owner):
        (source,) = tx.one("conversation_key", id=memory.source) or (None,)
        tx.run("memory_insert", **msgspec.structs.asdict(memory) | {"source": source})


def clean(text: object) -> str:
    """Return the text as it is stored; raise InvalidArgument if it cannot be."""
    return titles.clean(text, "text", MAX_LENGTH)
