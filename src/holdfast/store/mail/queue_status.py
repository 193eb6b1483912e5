"""The backlog: what came in and waits, what is to be sent, and what could not be; for people who look after it.

That something could not be sent is final. Whoever wants it sent all the same has it written down once more, to the
same place, and that is tried like anything else.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast import errors, types
from holdfast.store import validation
from holdfast.store.mail import outbox

MOST = 100
AGAIN = "again:{id}"
# Its messages belong to connections: when one is gone, so is whom to send to.
CONNECTIONS = "http"


class Waiting(NamedTuple):
    """A chat where something waits."""

    route: str
    messages: int
    since: float
    attempts: int
    """How often the first of them was begun."""


class Unsent(NamedTuple):
    """What is to be sent by a platform."""

    platform: str
    messages: int
    since: float
    due_at: float
    error: str | None
    """Why the platform did not take it, the last time it was tried."""


class QueueStatus(outbox.Outbox):
    """The methods of `db.mail` for operators: the backlog, and messages that could not be sent."""

    def backlog(self, limit: int = MOST) -> list[Waiting]:
        """The chats where something waits, the longest waiting first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: [Waiting(*row) for row in tx.all("backlog_routes", limit=limit)])

    def unsent(self) -> list[Unsent]:
        """What is to be sent and was not yet, by platform."""
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
        """Have something sent that could not be: the same words to the same place, as something new. Once however often
        this is asked. InvalidArgument where it did not fail, or there is nothing left of it."""
        found = self.outgoing(outgoing_id)
        if found is None or found.failed_at is None:
            raise errors.InvalidArgument(f"There is no message {outgoing_id} that could not be sent.")
        if found.redacted or found.platform == CONNECTIONS:
            why = "it was deleted" if found.redacted else "whoever asked has hung up; the answer is in the conversation"
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
