"""The row of a conversation: lock it, which is how every write step begins, and change it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast import errors
from holdfast.store import validation
from holdfast.store.driver import QueryCall, Row, Tx


class ConversationRow(NamedTuple):
    """A conversation as the queries `lock_conversation` and `read_conversation` return it."""

    key: int
    id: str
    owner: str
    source: str
    title: str | None
    head: int
    head_id: str
    live: int | None
    epoch: int
    last_seq: int
    compaction_epoch: int | None
    redo_epoch: int | None
    forked_at: int
    origin: int | None
    forked_epoch: int | None
    ordinal: int
    """The ordinal of the session by whose id the conversation was found; `head` is that of the newest one."""


def lock(tx: Tx, session_id: str) -> ConversationRow:
    """Lock the conversation of a session id until the transaction ends."""
    return require(tx, session_id, tx.one("lock_conversation", id=validation.check_id(session_id)))


def lock_all(tx: Tx, session_ids: Iterable[str]) -> None:
    """Lock several conversations, in an order that is the same for all writers, so that none deadlock."""
    tx.all("lock_conversations", ids=sorted(set(session_ids)))


def read(tx: Tx, session_id: str) -> ConversationRow:
    """Read the conversation of a session id without locking it."""
    return require(tx, session_id, tx.one("read_conversation", id=validation.check_id(session_id)))


def query(tx: Tx, name: str, session_id: str, **values: Any) -> list[Row]:
    """Run a query whose parameter `conversation` is the key of the conversation of a session id."""
    return tx.all(name, conversation=read(tx, session_id).key, **values)


def query_one_or_all(tx: Tx, name: str, session_id: str | None, **values: Any) -> list[Row]:
    """Run a query about one conversation, or with `conversation` NULL about all."""
    return tx.all(name, conversation=None, **values) if session_id is None else query(tx, name, session_id, **values)


def require(tx: Tx, session_id: str, row: Row | None) -> ConversationRow:
    """Return the row as a ConversationRow; raise NoSuchSession or ConversationDeleted if there is none."""
    if row is None:
        raise not_found(tx, session_id)
    return ConversationRow(*row)


def not_found(tx: Tx, session_id: str) -> errors.NoSuchSession:
    """Return the error for an id that does not exist, which may have been deleted."""
    if tx.one("tombstone", id=session_id):
        return errors.ConversationDeleted(session_id)
    return errors.NoSuchSession(session_id)


class LogSegment(NamedTuple):
    """The part of one log that a conversation reads: the messages with after < seq <= upto."""

    key: int
    after: int
    upto: int
    epoch: int | None
    """The compaction in force at the fork point; None for the conversation itself."""


def lineage(tx: Tx, here: ConversationRow) -> Iterator[LogSegment]:
    """Yield the log of a conversation, then those of its origins, newest first."""
    segment = LogSegment(here.key, here.forked_at, here.last_seq, None)
    yield segment
    origin, forked_epoch, visited = here.origin, here.forked_epoch, {here.key}
    while origin is not None:
        if origin in visited:
            raise errors.StoreCorrupt(f"The conversation {here.id} is a branch of itself.")
        visited.add(origin)
        key, upto, epoch = origin, segment.after, forked_epoch
        origin, forked_at, forked_epoch = tx.one("origin_of", key=key) or (None, 0, None)
        segment = LogSegment(key, min(forked_at, upto), upto, epoch)
        yield segment


def update(
    tx: Tx, here: ConversationRow, *, last: Sequence[QueryCall] | None = None, **changes: Any
) -> ConversationRow:
    """Change `head`, `live`, `compaction_epoch` or `redo_epoch` of a locked conversation and increment its epoch.

    No other function increments the epoch. With `last`, the step ends with these queries: see Tx.finish.
    """
    after = here._replace(epoch=here.epoch + 1, **changes)
    values = {
        "key": here.key,
        "epoch": here.epoch,
        "head": after.head,
        "live": after.live,
        "compaction_epoch": after.compaction_epoch,
        "redo_epoch": after.redo_epoch,
    }
    execute = tx.batch if last is None else tx.finish
    updated, *_ = execute(("conversation_update", values), *(last or ()))
    if not updated:
        raise errors.Superseded(here.head_id, here.epoch)
    return after


class NewId:
    """The id of a session to be created: given by the caller, or generated.

    The first attempt of a step replaces a generated id that is taken (it has six random characters). Later attempts
    keep it, so that a retry finds what the first one created.
    """

    def __init__(self, given: str | None, now: float) -> None:
        self.id = generate_session_id(now) if given is None else validation.check_id(given)
        self._resolved = given is not None
        self._now = now

    def resolve(self, tx: Tx) -> str:
        while not self._resolved and self._is_taken(tx):
            self.id = generate_session_id(self._now)
        self._resolved = True
        return self.id

    def renew(self, tx: Tx) -> bool:
        """Replace a generated id that was refused because it is taken; return whether it was replaced."""
        if self._resolved or not self._is_taken(tx):
            return False
        self.resolve(tx)
        return True

    def _is_taken(self, tx: Tx) -> bool:
        return tx.one("session_place", id=self.id) is not None or tx.one("tombstone", id=self.id) is not None


def generate_session_id(now: float) -> str:
    """Return an id such as 20260527_234659_e65f0e: the time in UTC and six random hexadecimal digits."""
    return time.strftime("%Y%m%d_%H%M%S", time.gmtime(now)) + "_" + os.urandom(3).hex()
