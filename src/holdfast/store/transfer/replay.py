"""Writes a conversation again from its lines, with the statements the store itself would have used.

Nothing is switched off for it: messages are counted, sessions end and go on, compactions stand on what
they stood on, and the database refuses whatever could not have come about. Of the history only the
outcome of some steps is known (that the head moved, not at which epoch); those are taken at the first
epoch that is free for them, which always exists, since each of them had one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast import errors
from holdfast.store import message_codec, sessions, titles, validation
from holdfast.store.driver import Tx
from holdfast.store.transfer import format as transfer_format

L = TypeVar("L", bound=transfer_format.Line)


class Names(NamedTuple):
    """What is put behind the ids of a conversation, and behind those of its origin (None: it is not here)."""

    suffix: str = ""
    origin: str | None = ""

    def here(self, session_id: str) -> str:
        return session_id + self.suffix

    def renamed(self, line: L) -> L:
        change = msgspec.structs.replace
        if isinstance(line, transfer_format.Session):
            return change(line, id=self.here(line.id)) if self.suffix else line
        if not isinstance(line, transfer_format.Conversation):
            return line
        line = change(line, id=self.here(line.id))
        if line.origin is None or not self.origin or line.forked_from is None:
            return line
        return change(line, origin=line.origin + self.origin, forked_from=line.forked_from + self.origin)


class Replay:
    """One conversation on its way in. `number` is the line it is at, for whoever has to tell of a refusal."""

    def __init__(self, told: transfer_format.Conversation, names: Names) -> None:
        self._told = names.renamed(told)
        self._names = names
        self.number = 0
        self._begun = self._again = False
        self.title: str | None = None
        self.routes: list[str] = []

    def refuse(self, tx: Tx, first: int, session_ids: Iterable[str]) -> None:
        """Raise what `run` would raise for its names: its own, those of its sessions, or that of its origin."""
        self.number = first
        for session_id in (self._told.id, *map(self._names.here, session_ids)):
            sessions.refuse_taken(tx, validation.check_id(session_id))
        if self._told.origin is not None:
            self._origin(tx, self._told)

    def run(self, tx: Tx, told: Iterable[tuple[int, transfer_format.Line]], sealed_at: int) -> None:
        """It may run again, from the beginning; and does when it is refused, which is then told of the right line."""
        self._again, self._begun = self._begun, True
        self.title, self.routes = None, []
        self._epoch = self._head = 1
        self._stands: int | None = None
        self._session: transfer_format.Session | None = None
        for self.number, line in told:
            self._write(tx, self._names.renamed(line))
        self.number = sealed_at
        self._finish(tx)

    def _write(self, tx: Tx, line: transfer_format.Line) -> None:
        match line:
            case transfer_format.Message():
                self._message(tx, line)
            case transfer_format.Session():
                self._next_session(tx, line)
            case transfer_format.Compaction():
                self._compaction(tx, line)
            case transfer_format.ActiveCompaction():
                self._stands = line.compaction_epoch
            case transfer_format.Hide():
                self._advance(tx, line.epoch, self._ordinal)
                tx.run("hide_insert", conversation=self._key, **_columns(line))
            case transfer_format.Show():
                self._show(tx, line)
            case transfer_format.Route():
                self._route(tx, line)
            case transfer_format.Conversation():
                self._born(tx, line)
            case transfer_format.Blob():
                pass  # it lies beside the log, and is the import's to take in
            case _:
                raise errors.ImportInvalid(self.number, "this line belongs to no conversation")

    # --- the conversation ------------------------------------------------------------------------------

    def _born(self, tx: Tx, line: transfer_format.Conversation) -> None:
        validation.check_id(line.id)
        sessions.refuse_taken(tx, line.id)
        title = line.title
        if title is not None and tx.one("title_holder", owner=line.owner, title=title):
            self.title = title = titles.numbered(tx, line.owner, title)
        tx.run(
            "conversation_insert",
            id=line.id,
            owner=line.owner,
            source=line.source,
            title=title,
            at=line.created_at,
            last_seq=line.forked_at or 0,
            forked_from=line.forked_from,
            forked_at=line.forked_at,
            forked_epoch=line.forked_epoch,
            origin=None if line.origin is None else self._origin(tx, line),
            folder=line.folder,
        )
        (self._key,) = tx.one("conversation_key", id=line.id) or (0,)
        tx.run("import_fence", key=self._key, fence=line.fence)

    def _origin(self, tx: Tx, line: transfer_format.Conversation) -> int:
        """The key of the conversation a branch reads from, which came in before it or was here."""
        found = tx.one("conversation_key", id=line.origin)
        if self._names.origin is None or found is None:
            raise errors.ImportInvalid(self.number, f"its origin, {errors.shown(line.origin)}, did not come in")
        forked_from = tx.one("session_place", id=line.forked_from)
        if forked_from is None or forked_from[0] != found[0]:
            raise errors.ImportInvalid(self.number, "it was not forked from a session of its origin")
        return int(found[0])

    def _finish(self, tx: Tx) -> None:
        told = self._told
        self._end_session(tx)
        self._stands = told.compaction_epoch
        self._advance(tx, told.epoch, told.head)
        self._epoch, self._head = told.epoch, told.head
        self._move(tx, told.redo_epoch)
        if tx.one("import_unsound", key=self._key):
            raise errors.ImportInvalid(self.number, "a compaction would stand for messages it has not seen")

    @property
    def _ordinal(self) -> int:
        return self._session.ordinal if self._session else 0

    def _advance(self, tx: Tx, epoch: int, head: int) -> None:
        """Up to an epoch. On the way there the head takes its steps, one an epoch, and the view follows."""
        while self._epoch < epoch:
            behind = head - self._head
            self._epoch = self._epoch + 1 if behind > 1 else epoch
            self._head += 1 if behind > 0 else 0
            self._move(tx)

    def _move(self, tx: Tx, redo_epoch: int | None = None) -> None:
        live = self._session is not None and self._session.ended_at is None
        tx.run(
            "import_moves",
            key=self._key,
            epoch=self._epoch,
            head=self._head,
            live=1 if live else None,
            compaction_epoch=self._stands,
            redo_epoch=redo_epoch,
        )

    # --- what it is made of ----------------------------------------------------------------------------

    def _next_session(self, tx: Tx, line: transfer_format.Session) -> None:
        self._end_session(tx)
        if line.ordinal > 1:
            self._refuse_taken(tx, line.id)
        tx.run(
            "session_insert",
            conversation=self._key,
            ordinal=line.ordinal,
            id=line.id,
            parent=line.ordinal - 1 or None,
            source=line.source,
            model=line.model,
            at=line.started_at,
            first_seq=line.first_seq,
        )
        self._session = line

    def _refuse_taken(self, tx: Tx, session_id: str) -> None:
        place = tx.one("session_place", id=validation.check_id(session_id))
        if place is not None and place[0] == self._key:
            raise errors.ImportInvalid(self.number, f"the id {errors.shown(session_id)} names two sessions")
        sessions.refuse_taken(tx, session_id)

    def _end_session(self, tx: Tx) -> None:
        session = self._session
        if session is not None and session.ended_at is not None:
            tx.run(
                "session_end",
                conversation=self._key,
                ordinal=session.ordinal,
                at=session.ended_at,
                reason=session.end_reason,
                last_seq=session.last_seq,
            )

    def _message(self, tx: Tx, line: transfer_format.Message) -> None:
        values = _columns(line)
        digest = message_codec.digest(self._told.id, line.seq, line.uid, line.role, values["body"])
        # Gathered, a message is refused after its line was left behind; then each goes by itself.
        write = tx.run if self._again else tx.later
        write("import_message", conversation=self._key, digest=digest, **values)

    def _compaction(self, tx: Tx, line: transfer_format.Compaction) -> None:
        self._stands = line.base_epoch
        self._advance(tx, line.epoch - 1, line.session - 1)
        values = _columns(line)
        digest = message_codec.summary_digest(self._told.id, line.epoch, values["body"])
        tx.run("import_compaction", conversation=self._key, digest=digest, **values)
        self._epoch, self._head, self._stands = line.epoch, line.session, line.epoch
        self._move(tx)

    def _show(self, tx: Tx, line: transfer_format.Show) -> None:
        self._advance(tx, line.shown_epoch, self._ordinal)
        if tx.run("hide_shown", conversation=self._key, **_columns(line)) != 1:
            raise errors.ImportInvalid(self.number, "it shows what is not hidden")

    def _route(self, tx: Tx, line: transfer_format.Route) -> None:
        """A key that is known here stays what it is here."""
        if tx.one("route_get", key=line.key):
            self.routes.append(line.key)
            return
        tx.run("import_route", key=line.key, conversation=self._key, version=line.version, at=line.updated_at)


def _columns(line: transfer_format.Line) -> dict[str, Any]:
    """The values of a line, which the columns are named after; a body as text."""
    values = msgspec.structs.asdict(line)
    if "body" in values:
        values["body"] = bytes(values["body"]).decode()
    return values
