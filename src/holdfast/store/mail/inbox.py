"""The inbox of a conversation: entries that are answered once.

An entry that is added again with the same key is one row. It is open until it is settled; the first outcome is final.
It is deleted with its conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Facet, Tx, struct_from_row
from holdfast.store.mail import outbox

# The prefix of the keys of notices that a process has ended.
PROCESS_PREFIX = "process:"


class Inbox(Facet):
    """The inbox methods of `db.mail`."""

    def add_inbox_entry(self, session_id: str, key: str, text: str, *, kind: str = "notice") -> types.InboxEntry:
        """Store an entry until it is answered; the same key again returns the stored entry.

        IdTaken when the key belongs to an entry with another text, kind or conversation. If the stored text was
        redacted, texts are not compared.
        """
        validation.check_id(key, "key")
        if key.startswith(PROCESS_PREFIX):
            raise errors.InvalidArgument(f"`key` must not begin with {PROCESS_PREFIX} (reserved for processes).")
        validation.check_id(kind, "kind")
        stored, now = validation.check_content(text, "text", validation.MAX_TEXT), self._clock()
        return self.driver.write(
            "inbox", lambda tx: add_entry(tx, conversation_row.lock(tx, session_id), key, kind, stored, now)
        )

    def inbox_entries(self, session_id: str | None = None, limit: int = 100) -> list[types.InboxEntry]:
        """Return the open entries of one conversation, or of all, oldest first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: _open_entries(tx, session_id, limit))

    def open_inboxes(self, limit: int = 100) -> list[types.OpenInbox]:
        """Return the conversations with a chat and open entries, the one with the oldest entry first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: [types.OpenInbox(*row) for row in tx.all("inbox_routes", limit=limit)])

    def settle_inbox_entry(
        self, entry_id: int, outcome: str, seq: int | None = None, outgoing: Sequence[types.NewOutgoing] = ()
    ) -> bool:
        """Record the outcome of an entry and the message it became; return whether this call was the first to do so.

        `outgoing` is inserted in the same transaction. False, too, when the entry was deleted with its conversation.
        InvalidArgument when the conversation has no message `seq`.
        """
        validation.check(validation.WholeNumber, entry_id=entry_id)
        validation.check(validation.OptionalNumber, seq=seq)
        now = self._clock()
        values = {
            "id": entry_id,
            "outcome": validation.check_id(outcome, "outcome"),
            "seq": seq,
            "uid": message_codec.generate_uid(),
            "at": now,
        }
        replies = outbox.encode_messages(outgoing, now)
        return self.driver.write("inbox", lambda tx: settle(tx, values, replies))


def add_entry(tx: Tx, here: ConversationRow, key: str, kind: str, text: str, now: float) -> types.InboxEntry:
    row = tx.one("inbox_by_key", key=key)
    if row is None:
        tx.run("inbox_insert", conversation=here.key, key=key, kind=kind, text=text, at=now)
        row = tx.one("inbox_by_key", key=key)
    assert row is not None  # there, or just written
    *fields, redacted = row
    found = struct_from_row(types.InboxEntry, fields)
    if (found.conversation_id, found.kind) != (here.id, kind) or not (redacted or found.text == text):
        raise errors.IdTaken(key)
    return found


def settle(tx: Tx, values: dict[str, Any], replies: Sequence[dict[str, Any]] = ()) -> bool:
    """Settle an entry. The uid was generated before the first attempt: a retry recognises its own outcome by it."""
    entry = {"id": values["id"]}
    if replies and (conversation := tx.one("inbox_conversation", **entry)) is not None:
        conversation_row.lock(tx, conversation[0])
    try:
        if tx.run("inbox_settle", **values) == 1:
            tx.batch(*outbox.insert_replies(replies, values["id"], values["uid"]))
            return True
    except errors.StoreRefused:
        raise errors.InvalidArgument(f"The conversation has no message {values['seq']}.") from None
    row = tx.one("inbox_settled_by", **entry)
    return row is not None and row[0] == values["uid"]


def _open_entries(tx: Tx, session_id: str | None, limit: int) -> list[types.InboxEntry]:
    if session_id is None:
        rows = tx.all("inbox_open_everywhere", limit=limit)
    else:
        rows = tx.all("inbox_open", session=validation.check_id(session_id), limit=limit)
        if not rows:
            conversation_row.read(tx, session_id)  # raises NoSuchSession
    return [struct_from_row(types.InboxEntry, row) for row in rows if row[0] is not None]
