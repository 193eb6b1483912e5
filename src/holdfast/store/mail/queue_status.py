"""Queues for operators: their backlog, messages that could not be sent, and the expiry of old messages.

A failed message stays failed; `resend` queues a copy of it. `expire` deletes old messages in short transactions, so
other writers wait for at most one batch.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast import errors, types
from holdfast.store import store_meta, validation
from holdfast.store.driver import Tx
from holdfast.store.mail import outbox

MOST = 100
EXPIRY_BATCH = 500
AGAIN = "again:{id}"
# The platform whose messages cannot be sent again: its connections are closed.
CONNECTIONS = "http"


class Waiting(NamedTuple):
    """A chat with open messages."""

    route: str
    messages: int
    since: float
    attempts: int
    """The attempts at the first of them."""


class Unsent(NamedTuple):
    """The undelivered messages of a platform."""

    platform: str
    messages: int
    since: float
    due_at: float
    error: str | None
    """The error of the last attempt."""


class Window(NamedTuple):
    """Where a batch begins, and whether it reads inbound messages or messages that were posted by themselves."""

    after: int = 0
    posted: bool = False


class Tidied(NamedTuple):
    """How many messages one batch deleted, and where the next one begins; None after the last."""

    gone: int
    then: Window | None


class QueueStatus(outbox.Outbox):
    """The methods of `db.mail` for operators."""

    def backlog(self, limit: int = MOST) -> list[Waiting]:
        """Return the chats with open messages, the one with the oldest message first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: [Waiting(*row) for row in tx.all("backlog_routes", limit=limit)])

    def unsent(self) -> list[Unsent]:
        """Return the number of undelivered messages by platform."""
        return self.driver.read(lambda tx: [Unsent(*row) for row in tx.all("backlog_outgoing")])

    def failed(self, limit: int = MOST) -> list[types.Outgoing]:
        """Return the messages that could not be sent, the last first.

        Messages that were sent again since are left out, and answers to HTTP clients that hung up, which are in their
        conversations.
        """
        validation.check(validation.WholeNumber, limit=limit)
        ids = self.driver.read(lambda tx: [row[0] for row in tx.all("backlog_failed", limit=limit, but=CONNECTIONS)])
        return [found for id_ in ids if (found := self.outgoing(id_)) is not None]

    def resend(self, outgoing_id: int) -> types.Outgoing:
        """Queue a copy of a failed message; a repeated call returns the same copy.

        InvalidArgument if the message did not fail, was redacted, or its HTTP client has disconnected.
        """
        found = self.outgoing(outgoing_id)
        if found is None or found.failed_at is None:
            raise errors.InvalidArgument(f"There is no message {outgoing_id} that could not be sent.")
        if found.redacted or found.platform == CONNECTIONS:
            why = (
                "it was deleted" if found.redacted else "its client has disconnected; the reply is in the conversation"
            )
            raise errors.InvalidArgument(f"Message {outgoing_id} cannot be sent again: {why}.")
        new = types.NewOutgoing(
            platform=found.platform,
            chat=found.chat,
            address=found.address,
            text=found.text,
            attachments=found.attachments,
            kind=found.kind,
            seq=found.seq,
        )
        key = AGAIN.format(id=outgoing_id)
        return self.post(new, key=key, inbound_id=found.inbound_id, conversation_id=found.conversation_id)

    def expire(self, days: float, window: Window | None = None) -> Tidied:
        """Delete a batch of mail that was settled or sent more than `days` ago, and return where the next batch begins.

        Open mail stays, and so does the address from which a conversation was last spoken to.
        """
        if window is not None and not isinstance(window, Window):
            raise errors.InvalidArgument("`window` must be a Window, or None for the first.")
        validation.check(validation.Duration, days=days)
        now, begun = self._clock(), window or Window()
        before = now - days * 86_400
        work = _posted if begun.posted else _arrivals
        # Not synced: after a power loss, the batch is deleted again.
        return self.driver.write("tidy", lambda tx: work(tx, begun.after, before, now), durable=False)


def _arrivals(tx: Tx, after: int, before: float, now: float) -> Tidied:
    upto, oldest = tx.one("tidy_window", after=after, most=EXPIRY_BATCH) or (None, None)
    if upto is None or oldest >= before:
        tx.run("strangers_forget", before=before)
        return Tidied(0, Window(posted=True))
    gone = tx.run("tidy_outgoing", after=after, upto=upto, before=before)
    # A foreign key: joined messages are deleted before the message they were joined into.
    while count := tx.run("tidy_arrivals", after=after, upto=upto, before=before):
        gone += count
    return _noted(tx, gone, now, Window(upto))


def _posted(tx: Tx, after: int, before: float, now: float) -> Tidied:
    upto, oldest = tx.one("tidy_posted_window", after=after, most=EXPIRY_BATCH) or (None, None)
    if upto is None or oldest >= before:
        return Tidied(0, None)
    gone = tx.run("tidy_posted", after=after, upto=upto, before=before)
    return _noted(tx, gone, now, Window(upto, posted=True))


def _noted(tx: Tx, gone: int, now: float, then: Window) -> Tidied:
    # Until the next scrub, the files of the store may contain the deleted text.
    if gone:
        tx.run("meta_set", key=store_meta.FORGOTTEN, value=repr(now))
    return Tidied(gone, then)
