"""Brings a copied conversation up to what its original is by now.

A log is only appended to, and whatever else happens to a conversation has an epoch of its own. So all that is told
up to the epoch and the last message of the copy is in the copy, and the rest is written as if it had just come in.
What can happen to lines that are there is little: a live session ends, a text is redacted, a title or a folder changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.store import message_codec
from holdfast.store.driver import Tx
from holdfast.store.transfer import format as transfer_format
from holdfast.store.transfer import replay


class Catchup(replay.Replay):
    """One conversation that is there and has grown elsewhere. It may run again, from the beginning."""

    def run(self, tx: Tx, told: Iterable[tuple[int, transfer_format.Any]], sealed_at: int) -> None:
        (self._key,) = tx.one("conversation_key", id=self._told.id) or (0,)
        row = tx.one("export_conversation", key=self._key)
        assert row is not None  # whoever calls has found it, in the same transaction
        self._there = transfer_format.Conversation(
            **dict(zip(transfer_format.Conversation.__struct_fields__, row, strict=True))
        )
        self._epoch, self._head = self._there.epoch, self._there.head
        self._stands, self._session = None, None
        self.title, self.routes = None, []
        for self.number, line in told:
            if not self._known(tx, line):
                self._write(tx, line)
        self.number = sealed_at
        self._finish(tx)

    def _known(self, tx: Tx, line: transfer_format.Any) -> bool:
        there = self._there
        match line:
            case transfer_format.Conversation():
                self._changed(tx, line)
                return True
            case transfer_format.Session() if line.ordinal <= there.head:
                self._session = line
                return True
            case transfer_format.Message() if line.seq <= there.last_seq:
                self._redacted(tx, line)
                return True
            case transfer_format.Compaction() if line.epoch <= there.epoch:
                self._stands = line.epoch
                self._blanked(tx, line)
                return True
            case transfer_format.Hide():
                return line.epoch <= there.epoch
            case transfer_format.Show():
                return line.shown_epoch <= there.epoch
            case _:
                return False

    def _changed(self, tx: Tx, line: transfer_format.Conversation) -> None:
        tx.run("import_fence", key=self._key, fence=line.fence)
        if line.folder != self._there.folder:
            tx.run("folder_set", key=self._key, folder=line.folder)
        if line.title == self._there.title:
            return
        holder = None if line.title is None else tx.one("title_holder", owner=line.owner, title=line.title)
        if holder is not None:  # that one has another by now, and gets it when its turn comes
            (key,) = tx.one("conversation_key", id=holder[0]) or (0,)
            tx.run("title_set", key=key, title=None)
        tx.run("title_set", key=self._key, title=line.title)

    def _redacted(self, tx: Tx, line: transfer_format.Message) -> None:
        if line.redacted_at is not None:
            digest = message_codec.digest(self._told.id, line.seq, line.uid, line.role, "")
            tx.run("message_redact", conversation=self._key, seq=line.seq, digest=digest, at=line.redacted_at)

    def _blanked(self, tx: Tx, line: transfer_format.Compaction) -> None:
        if line.redacted_at is not None:
            body = bytes(line.body).decode()
            digest = message_codec.summary_digest(self._told.id, line.epoch, body)
            values = {"epoch": line.epoch, "body": body, "at": line.redacted_at, "digest": digest}
            tx.run("compaction_redact", conversation=self._key, **values)

    def _end_session(self, tx: Tx) -> None:
        ordinal, there = self._ordinal, self._there
        if ordinal > there.head or (ordinal == there.head and there.live):
            super()._end_session(tx)
