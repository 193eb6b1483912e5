"""The inbox of a conversation: entries that are answered once.

An entry that is sent again with the same key is one row. It is open until it is settled; the first outcome is final.
It is deleted with its conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Row, Tx
from holdfast.store.facet import Facet
from holdfast.store.mail import outbox

LONGEST = 1_000_000
# The prefix of the keys of notices that a process has ended.
PROCESS = "process:"


class Inbox(Facet):
    """The inbox methods of `db.mail`: messages for a conversation that are answered once."""

    def add_inbox_entry(self, session_id: str, key: str, text: str, *, kind: str = "notice") -> types.InboxEntry:
        """Store an entry until it is answered; the same key again returns the stored entry.

        IdTaken when the key belongs to an entry with another text, kind or conversation. If the stored text was
        redacted, texts are not compared.
        """
        named, sort, said, now = (
            _checked_key(key),
            validation.check_id(kind, "kind"),
            validation.check_content(text, "text", LONGEST),
            self._clock(),
        )
        return self.driver.write(
            "inbox", lambda tx: receive(tx, conversation_row.lock(tx, session_id), named, sort, said, now)
        )

    def inbox_entries(self, session_id: str | None = None, limit: int = 100) -> list[types.InboxEntry]:
        """Return the open entries of one conversation, or of all, oldest first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: _waiting(tx, session_id, limit))

    def open_inboxes(self, limit: int = 100) -> list[types.OpenInbox]:
        """Return the conversations with a chat and open entries, the one with the oldest entry first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: [types.OpenInbox(*row) for row in tx.all("inbound_homes", limit=limit)])

    def settle_inbox_entry(
        self, entry_id: int, outcome: str, seq: int | None = None, outgoing: Sequence[types.NewOutgoing] = ()
    ) -> bool:
        """Record the outcome of an entry and the message it became; return whether this call was the first to do so.

        `outgoing` is inserted in the same transaction. False, too, when the entry was deleted with its conversation.
        InvalidArgument when the conversation has no message `seq`.
        """
        validation.check(validation.WholeNumber, entry_id=entry_id)
        validation.check(validation.OptionalNumber, seq=seq)
        said, uid, now = validation.check_id(outcome, "outcome"), message_codec.mint_uid(), self._clock()
        parts = outbox.prepared(outgoing, now)
        return self.driver.write("inbox", lambda tx: settle(tx, entry_id, said, seq, uid, now, parts))


def receive(tx: Tx, here: conversation_row.State, key: str, kind: str, text: str, now: float) -> types.InboxEntry:
    row = tx.one("inbound_by_key", key=key)
    if row is None:
        tx.run("inbound_insert", conversation=here.key, key=key, kind=kind, text=text, at=now)
        row = tx.one("inbound_by_key", key=key)
    assert row is not None  # there, or just written
    *fields, redacted = row
    found = _inbound(tuple(fields))
    same = (found.conversation_id, found.kind) == (here.id, kind) and (redacted or found.text == text)
    if not same:
        raise errors.IdTaken(key)
    return found


def settle(
    tx: Tx,
    entry_id: int,
    outcome: str,
    seq: int | None,
    uid: str,
    now: float,
    parts: Sequence[outbox.Prepared] = (),
) -> bool:
    """Settle an entry. The uid was minted before the first attempt: a retry recognises its own outcome by it."""
    where = tx.one("inbound_conversation", id=entry_id) if parts else None
    here = conversation_row.lock(tx, where[0]) if where is not None else None
    try:
        if tx.run("inbound_settle", id=entry_id, outcome=outcome, seq=seq, uid=uid, at=now) == 1:
            tx.batch(*outbox.parts_inserted(parts, inbox_entry_id=entry_id, conversation=here.key if here else None))
            return True
    except errors.StoreRefused:
        raise errors.InvalidArgument(f"There is no message {seq} that it could have become.") from None
    row = tx.one("inbound_settled_by", id=entry_id)
    return row is not None and row[0] == uid


def _waiting(tx: Tx, session_id: str | None, limit: int) -> list[types.InboxEntry]:
    if session_id is None:
        return [_inbound(row) for row in tx.all("inbound_waiting_anywhere", limit=limit)]
    rows = tx.all("inbound_waiting", session=validation.check_id(session_id), limit=limit)
    if not rows:
        conversation_row.look(tx, session_id)  # raises NoSuchSession
    return [_inbound(row) for row in rows if row[0] is not None]


def _checked_key(key: object) -> str:
    named = validation.check_id(key, "key")
    if named.startswith(PROCESS):
        raise errors.InvalidArgument(f"`key` must not begin with {PROCESS}, which is reserved for processes.")
    return named


def _inbound(row: Row) -> types.InboxEntry:
    id_, key, conversation_id, text, kind, at, outcome, seq = row
    return types.InboxEntry(
        id=id_, key=key, conversation_id=conversation_id, text=text, kind=kind, at=at, outcome=outcome, seq=seq
    )
