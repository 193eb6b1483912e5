"""Write a conversation from its lines, with the statements that the store itself uses.

No constraint is disabled: messages are counted, sessions end and continue, compactions build on each other, and the
database refuses a history that could not have happened. The lines give only the outcome of some steps (that the head
moved, not at which epoch). Each such step is replayed at the first free epoch, which always exists, because each step
had an epoch of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast import errors
from holdfast.store import message_codec, sessions, titles, validation
from holdfast.store.driver import Tx
from holdfast.store.transfer import jsonl

L = TypeVar("L", bound=jsonl.Line)


class IdSuffixes(NamedTuple):
    """The suffixes for the ids of a conversation and of its origin (None: the origin is not in the store)."""

    suffix: str = ""
    origin: str | None = ""

    def apply(self, line: L) -> L:
        change = msgspec.structs.replace
        if isinstance(line, jsonl.SessionLine):
            return change(line, id=line.id + self.suffix) if self.suffix else line
        if not isinstance(line, jsonl.ConversationLine):
            return line
        line = change(line, id=line.id + self.suffix)
        if line.origin is None or not self.origin or line.forked_from is None:
            return line
        return change(line, origin=line.origin + self.origin, forked_from=line.forked_from + self.origin)


class Replay:
    """Writes one conversation. `number` is the current line, for the report of a refusal.

    `title` is the title the conversation got because its own was taken. `routes` are keys that were bound before.
    """

    def __init__(self, ids: IdSuffixes | None = None) -> None:
        self._ids = ids or IdSuffixes()
        self.number = 0
        self._attempts = 0
        self.title: str | None = None
        self.routes: list[str] = []

    def check_ids(self, tx: Tx, number: int, conversation: jsonl.ConversationLine, session_ids: Iterable[str]) -> None:
        """Raise the error that `run` would raise for an id that is taken or an origin that is missing."""
        self.number, conversation = number, self._ids.apply(conversation)
        for session_id in (conversation.id, *(id_ + self._ids.suffix for id_ in session_ids)):
            sessions.check_id_free(tx, validation.check_id(session_id))
        self._find_origin(tx, conversation)

    def run(self, tx: Tx, lines: Iterable[tuple[int, jsonl.Line]], sealed_at: int) -> None:
        """Write all lines. The driver may run this again; a second run finds the exact line that is refused."""
        self._attempts += 1
        self.title, self.routes = None, []
        self._epoch = self._head = 1
        self._active: int | None = None
        self._session: jsonl.SessionLine | None = None
        for self.number, line in lines:
            self._write(tx, self._ids.apply(line))
        self.number = sealed_at
        self._finish(tx)

    def _write(self, tx: Tx, line: jsonl.Line) -> None:
        match line:
            case jsonl.MessageLine():
                self._write_message(tx, line)
            case jsonl.SessionLine():
                self._write_session(tx, line)
            case jsonl.CompactionLine():
                self._write_compaction(tx, line)
            case jsonl.ActiveCompactionLine():
                self._active = line.compaction_epoch
            case jsonl.HideLine():
                self._advance(tx, line.epoch, self._session.ordinal if self._session else 0)
                tx.run("hide_insert", conversation=self._key, **_columns(line))
            case jsonl.ShowLine():
                self._advance(tx, line.shown_epoch, self._session.ordinal if self._session else 0)
                if tx.run("hide_shown", conversation=self._key, **_columns(line)) != 1:
                    raise errors.ImportInvalid(self.number, "it shows a range that is not hidden")
            case jsonl.RouteLine():
                self._write_route(tx, line)
            case jsonl.ConversationLine():
                self._write_conversation(tx, line)
            case _:
                pass  # The caller stores attachments.

    # --- the conversation ------------------------------------------------------------------------------

    def _write_conversation(self, tx: Tx, line: jsonl.ConversationLine) -> None:
        sessions.check_id_free(tx, validation.check_id(line.id))
        title = line.title
        if title is not None and tx.one("title_holder", owner=line.owner, title=title):
            self.title = title = titles.next_branch_title(tx, line.owner, title)
        values = _columns(line) | {
            "title": title,
            "at": line.created_at,
            "last_seq": line.forked_at or 0,
            "origin": self._find_origin(tx, line),
            "metadata": message_codec.encode_metadata(line.metadata),
        }
        (((self._key,),),) = tx.batch(("conversation_insert", values))
        tx.run("import_fence", key=self._key, fence=line.fence)
        self._conversation = line

    def _find_origin(self, tx: Tx, line: jsonl.ConversationLine) -> int | None:
        """Return the key of the origin of a branch, which was imported before or was in the store."""
        if line.origin is None:
            return None
        found = tx.one("conversation_key", id=line.origin)
        if self._ids.origin is None or found is None:
            raise errors.ImportInvalid(self.number, f"its origin {errors.quote(line.origin)} was not imported")
        forked_from = tx.one("session_place", id=line.forked_from)
        if forked_from is None or forked_from[0] != found[0]:
            raise errors.ImportInvalid(self.number, "it was not forked from a session of its origin")
        return int(found[0])

    def _finish(self, tx: Tx) -> None:
        final = self._conversation
        self._end_session(tx)
        self._active = final.compaction_epoch
        self._advance(tx, final.epoch, final.head)
        self._epoch, self._head = final.epoch, final.head
        self._update(tx, final.redo_epoch)
        if tx.one("import_unsound", key=self._key):
            raise errors.ImportInvalid(self.number, "a compaction covers messages that it was made without")

    def _advance(self, tx: Tx, epoch: int, head: int) -> None:
        """Advance to an epoch. The head moves by at most one per epoch."""
        while self._epoch < epoch:
            behind = head - self._head
            self._epoch = self._epoch + 1 if behind > 1 else epoch
            self._head += 1 if behind > 0 else 0
            self._update(tx)

    def _update(self, tx: Tx, redo_epoch: int | None = None) -> None:
        tx.run(
            "import_moves",
            key=self._key,
            epoch=self._epoch,
            head=self._head,
            live=1 if self._session is not None and self._session.ended_at is None else None,
            compaction_epoch=self._active,
            redo_epoch=redo_epoch,
        )

    # --- sessions, messages and the rest ---------------------------------------------------------------

    def _write_session(self, tx: Tx, line: jsonl.SessionLine) -> None:
        self._end_session(tx)
        if line.ordinal > 1:
            place = tx.one("session_place", id=validation.check_id(line.id))
            if place is not None and place[0] == self._key:
                raise errors.ImportInvalid(self.number, f"the id {errors.quote(line.id)} names two sessions")
            sessions.check_id_free(tx, line.id)
        parent = line.ordinal - 1 or None
        tx.run("session_insert", conversation=self._key, parent=parent, at=line.started_at, **_columns(line))
        self._session = line

    def _end_session(self, tx: Tx) -> None:
        session = self._session
        if session is not None and session.ended_at is not None:
            end = {"at": session.ended_at, "reason": session.end_reason}
            tx.run("session_end", conversation=self._key, **end, **_columns(session))

    def _write_message(self, tx: Tx, line: jsonl.MessageLine) -> None:
        values = _columns(line)
        digest = message_codec.digest(self._conversation.id, line.seq, line.uid, line.role, values["body"])
        # A batched message is refused after later lines were read, so a second attempt writes them one by one.
        write = tx.defer if self._attempts == 1 else tx.run
        write("import_message", conversation=self._key, digest=digest, **values)

    def _write_compaction(self, tx: Tx, line: jsonl.CompactionLine) -> None:
        self._active = line.base_epoch
        self._advance(tx, line.epoch - 1, line.session - 1)
        values = _columns(line)
        digest = message_codec.summary_digest(self._conversation.id, line.epoch, values["body"])
        tx.run("import_compaction", conversation=self._key, digest=digest, **values)
        self._epoch, self._head, self._active = line.epoch, line.session, line.epoch
        self._update(tx)

    def _write_route(self, tx: Tx, line: jsonl.RouteLine) -> None:
        """Bind a route, unless the store knows its key already."""
        if tx.one("route_get", key=line.key):
            self.routes.append(line.key)
            return
        tx.run("import_route", key=line.key, conversation=self._key, version=line.version, at=line.updated_at)


def _columns(line: jsonl.Line) -> dict[str, Any]:
    """Return the fields of a line, which are named like the columns, with a body as text. Queries ignore extra ones."""
    values = msgspec.structs.asdict(line)
    if "body" in values:
        values["body"] = bytes(values["body"]).decode()
    return values
