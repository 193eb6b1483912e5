"""Queues for operators: their backlog, messages that could not be sent, and the expiry of old messages."""

from __future__ import annotations

from typing import NamedTuple

from holdfast import errors, types
from holdfast.store import store_meta, validation
from holdfast.store.driver import Tx
from holdfast.store.mail import outbox

DEFAULT_LIMIT = 100
EXPIRY_BATCH = 500
# The platform whose messages cannot be sent again: its connections are closed.
HTTP = "http"


class RouteBacklog(NamedTuple):
    """The open inbound messages of a route."""

    route: str
    messages: int
    since: float
    attempts: int
    """The attempts at the first of them."""


class PlatformBacklog(NamedTuple):
    """The undelivered messages of a platform."""

    platform: str
    messages: int
    since: float
    due_at: float
    error: str | None
    """The error of the last attempt."""


class ExpiryCursor(NamedTuple):
    """The id after which a batch begins: of an inbound message, or of an outbound one that answers none."""

    after: int = 0
    posts: bool = False


class ExpiryBatch(NamedTuple):
    """The number of messages that one batch deleted, and the start of the next batch; None after the last."""

    deleted: int
    next: ExpiryCursor | None


class QueueStatus(outbox.Outbox):
    """The methods of `db.mail` for operators."""

    def backlog(self, limit: int = DEFAULT_LIMIT) -> list[RouteBacklog]:
        """Return the routes with open messages, the one with the oldest message first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: [RouteBacklog(*row) for row in tx.all("backlog_routes", limit=limit)])

    def unsent_counts(self) -> list[PlatformBacklog]:
        """Return the number of undelivered messages by platform."""
        return self.driver.read(lambda tx: [PlatformBacklog(*row) for row in tx.all("backlog_outgoing")])

    def failures(self, limit: int = DEFAULT_LIMIT) -> list[types.Outgoing]:
        """Return the messages that could not be sent, the last first.

        Messages that were sent again since are left out, and so are answers to HTTP clients that disconnected, which
        are in their conversations.
        """
        validation.check(validation.WholeNumber, limit=limit)
        values = {"except_platform": HTTP, "limit": limit}
        return self.driver.read(lambda tx: [outbox.from_row(row) for row in tx.all("outgoing_failures", **values)])

    def resend(self, outgoing_id: int) -> types.Outgoing:
        """Queue a copy of a failed message, which stays failed, once.

        InvalidArgument if the message did not fail, was queued again before, was redacted, or its HTTP client has
        disconnected.
        """
        key, found = f"again:{outgoing_id}", self.outgoing(outgoing_id)
        if found is None or found.failed_at is None:
            raise errors.InvalidArgument(f"There is no failed message {outgoing_id}.")
        if found.redacted:
            raise errors.InvalidArgument(f"Message {outgoing_id} cannot be sent again: it was redacted.")
        if found.platform == HTTP:
            raise errors.InvalidArgument(
                f"Message {outgoing_id} cannot be sent again: its client has disconnected. The reply is in the "
                "conversation."
            )
        if (copy := self.driver.read(lambda tx: tx.one("outgoing_by_key", key=key))) is not None:
            raise errors.InvalidArgument(f"Message {outgoing_id} was already queued again as {copy[0]}.")
        new = types.NewOutgoing(**{name: getattr(found, name) for name in types.NewOutgoing.__struct_fields__})
        return self.post(new, key=key, inbound_id=found.inbound_id, conversation_id=found.conversation_id)

    def expire(self, days: float, cursor: ExpiryCursor | None = None) -> ExpiryBatch:
        """Delete a batch of mail that was settled or sent more than `days` ago, and return where the next one begins.

        Open mail stays, and so does the last inbound message of each conversation, whose chat gets its notices, and of
        each chat of a linked sender, which gets copies. Each batch is a short transaction, so that other writers wait
        for at most one.
        """
        if not isinstance(cursor, ExpiryCursor | None):
            raise errors.InvalidArgument("`cursor` must be an ExpiryCursor, or None for the first batch.")
        validation.check(validation.Duration, days=days)
        now, start = self._clock(), cursor or ExpiryCursor()
        # Not synced: after a power loss, the batch is deleted again.
        return self.driver.write("expire", lambda tx: expire(tx, start, now - days * 86_400, now), durable=False)


def expire(tx: Tx, start: ExpiryCursor, before: float, now: float) -> ExpiryBatch:
    window = "expire_posts_window" if start.posts else "expire_arrivals_window"
    last, oldest = tx.one(window, after=start.after, limit=EXPIRY_BATCH) or (None, None)
    if last is None or oldest >= before:
        if start.posts:
            return ExpiryBatch(0, None)
        tx.run("strangers_delete_old", before=before)
        return ExpiryBatch(0, ExpiryCursor(posts=True))
    values = {"after": start.after, "last": last, "before": before}
    deleted = tx.run("expire_posts" if start.posts else "expire_replies", **values)
    # A foreign key: joined messages are deleted before the message they were joined into.
    while not start.posts and (count := tx.run("expire_arrivals", **values)):
        deleted += count
    # Until the next scrub, the files of the store may contain the deleted text.
    if deleted:
        tx.run("meta_set", key=store_meta.FORGOTTEN, value=repr(now))
    return ExpiryBatch(deleted, ExpiryCursor(last, start.posts))
