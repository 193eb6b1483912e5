"""The outbox: messages to be sent to chats.

The parts of a reply are inserted in the transaction that records the outcome of the message they answer, and go to the
chat of that message: the database refuses any other. Messages to one chat are sent in order. A delivery and a final
failure cannot be changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation, write_step
from holdfast.store.driver import Facet, QueryCall, Row, Tx, struct_from_row
from holdfast.store.mail import chat_leases
from holdfast.store.records import permissions

KIND = validation.ArgumentType(types.OutgoingKind)
MAX_ADDRESS = 16 * 1024
MAX_PARTS = 1_000
MAX_ERROR = 500
WRONG_CHAT = "The message is addressed to another chat than the message it answers."


class AttachmentRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attachment in the stored JSON, with the fields of the log."""

    blob: str
    name: str = ""


class OutgoingBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text and attachments of an outbound message, as stored in JSON."""

    text: str = ""
    attachments: tuple[AttachmentRef, ...] = ()


class Outbox(Facet):
    """The outbox methods of `db.mail`."""

    def post(
        self,
        new: types.NewOutgoing,
        *,
        key: str | None = None,
        inbound_id: int | None = None,
        conversation_id: str | None = None,
    ) -> types.Outgoing:
        """Queue a message that is not a reply, such as a question or a notice in the middle of a turn.

        The same key again returns the stored message. `inbound_id` is the message being answered; StoreRefused if the
        new one is addressed to another chat.
        """
        (values,) = encode_messages([new], self._clock())
        validation.check(validation.OptionalNumber, inbound_id=inbound_id)
        values |= {
            "key": message_codec.generate_uid() if key is None else validation.check_id(key, "key"),
            "arrival": inbound_id,
        }
        validation.check_optional_id(conversation_id, "conversation_id")
        return self.driver.write("post", lambda tx: post(tx, values, conversation_id))

    def outgoing(self, outgoing_id: int) -> types.Outgoing | None:
        validation.check(validation.WholeNumber, outgoing_id=outgoing_id)
        return self.driver.read(lambda tx: _one(tx, "outgoing_get", id=outgoing_id))

    def replies(self, inbound_id: int) -> list[types.Outgoing]:
        """Return the messages that answer an inbound message, in order: posts and the parts of the reply."""
        validation.check(validation.WholeNumber, inbound_id=inbound_id)
        return self.driver.read(lambda tx: [from_row(row) for row in tx.all("outgoing_of_arrival", arrival=inbound_id)])

    def questions(self, conversation_id: str, limit: int = 100) -> list[types.Outgoing]:
        """Return the questions of a conversation, part by part, newest first. NoSuchSession."""
        validation.check(validation.WholeNumber, limit=limit)
        rows = self.driver.read(
            lambda tx: conversation_row.query(tx, "outgoing_questions", conversation_id, limit=limit)
        )
        return [from_row(row) for row in rows]

    def due_outgoing(self, platform: str, limit: int = 100, now: float | None = None) -> list[types.Outgoing]:
        """Return the first undelivered message of each chat if it is due, the longest due first."""
        validation.check(validation.WholeNumber, limit=limit)
        values = {
            "platform": validation.check_platform(platform),
            "now": self._clock() if now is None else validation.check_time(now),
            "limit": limit,
        }
        return self.driver.read(lambda tx: [from_row(row) for row in tx.all("outgoing_due", **values)])

    @write_step.shareable
    def begin_sending(
        self, lease: types.ChatLease | None, outgoing_id: int
    ) -> write_step.WriteStep[types.Outgoing | None]:
        """Record an attempt to send a message and return it; None if it was delivered or failed for good.

        A message that only one process can send needs no lease. LeaseLost when the lease was taken over; SendRefused
        when the message is addressed to another chat than the message it answers.
        """
        if lease is not None:
            chat_leases.check_lease(lease)
        validation.check(validation.WholeNumber, outgoing_id=outgoing_id)
        uid = message_codec.generate_uid()
        return write_step.WriteStep("send", lambda tx: begin_sending(tx, lease, outgoing_id, uid), durable=False)

    @write_step.shareable
    def mark_delivered(self, outgoing_id: int, external: str | None = None) -> write_step.WriteStep[bool]:
        """Record a delivery under the platform's id `external`; return whether this call was the first to end it.

        It needs no lease: a process may report its delivery after it lost the lease.
        """
        validation.check(validation.WholeNumber, outgoing_id=outgoing_id)
        values = {
            "id": outgoing_id,
            "external": None if external is None else _clean(external, "external", validation.MAX_ID),
            "at": self._clock(),
        }
        return write_step.WriteStep("delivered", lambda tx: record_result(tx, "outgoing_delivered", values))

    def mark_failed(self, outgoing_id: int, error: str, retry_at: float | None = None) -> bool:
        """Record a failed attempt: retry at `retry_at`, or (None) never; return whether it was recorded."""
        validation.check(validation.WholeNumber, outgoing_id=outgoing_id)
        query, at = "outgoing_failed", self._clock()
        if retry_at is not None:
            query, at = "outgoing_retry", validation.check_time(retry_at)
        values = {"id": outgoing_id, "error": _clean(error, "error", MAX_ERROR) or "failed", "at": at}
        return self.driver.write("send", lambda tx: record_result(tx, query, values), durable=retry_at is None)


def encode_address(address: object) -> str:
    # Keys keep their order: the database compares the addresses of a message and its reply as text.
    return msgspec.json.encode(message_codec.check_object(address, "address", MAX_ADDRESS)).decode()


def decode_address(text: str) -> dict[str, Any]:
    """Decode an address; that of a redacted message is empty."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.StoreCorrupt("The address of a chat is damaged and cannot be read.") from None


def encode_messages(messages: object, now: float) -> list[dict[str, Any]]:
    """Validate outbound messages, and return the parameters of the queries that insert them."""
    if not isinstance(messages, Sequence) or len(messages) > MAX_PARTS:
        raise errors.InvalidArgument(f"`outgoing` must be a list of at most {MAX_PARTS:,} messages.")
    return [_encode(new, now) for new in messages]


def _encode(given: object, now: float) -> dict[str, Any]:
    new = validation.check_type(types.NewOutgoing, given, "outgoing")
    validation.convert(KIND, new.kind, "kind")
    validation.check_content(new.text, "text", validation.MAX_TEXT, min_length=0)
    validation.check(validation.OptionalNumber, seq=new.seq)
    if not isinstance(new.attachments, list | tuple):
        raise errors.InvalidArgument("`attachments` must be a list of digests.")
    attachments = tuple(_attachment(digest, new.file_names) for digest in new.attachments)
    return {
        "platform": validation.check_platform(new.platform),
        "chat": validation.check_route(new.chat),
        "address": encode_address(new.address),
        "kind": new.kind,
        "body": message_codec.encode_exact(OutgoingBody(new.text, attachments), "message"),
        "seq": new.seq,
        "at": now,
    }


def _attachment(digest: object, names: object) -> AttachmentRef:
    checked = validation.check_id(digest, "digest")
    name = validation.check_type(dict, names, "file_names").get(checked)
    return AttachmentRef(checked, validation.check_text(name, "file_names", validation.MAX_ID) if name else "")


def insert_replies(messages: Sequence[dict[str, Any]], answered_id: int, uid: str) -> list[QueryCall]:
    """Return the queries that insert the parts of a reply if the message it answers was settled by `uid`."""
    if not messages:
        return []
    answered = {"id": answered_id, "uid": uid}
    inserts = [("reply_insert", {**answered, "part": part, **values}) for part, values in enumerate(messages)]
    return [_lock_chat(messages[0]), *inserts]


def _lock_chat(values: dict[str, Any]) -> QueryCall:
    """Return the query that locks a chat, so that no message is inserted between the parts of a reply."""
    return "outgoing_lock_chat", {"platform": values["platform"], "chat": values["chat"]}


def post(tx: Tx, values: dict[str, Any], conversation_id: str | None) -> types.Outgoing:
    by_key = "outgoing_by_key", {"key": values["key"]}
    locks = [] if conversation_id is None else [("lock_conversation", {"id": conversation_id})]
    *locked, rows = tx.batch(*locks, by_key)
    conversation = None
    if conversation_id is not None:
        conversation = conversation_row.require(tx, conversation_id, next(iter(locked[0]), None)).key
    if not rows:
        *_, rows = tx.finish(_lock_chat(values), ("post_insert", {**values, "conversation": conversation}), by_key)
    return from_row(rows[0])


def begin_sending(tx: Tx, lease: types.ChatLease | None, outgoing_id: int, uid: str) -> types.Outgoing | None:
    """Count an attempt in one round trip, once per uid.

    The SQL conditions enforce the checks; the code below only selects the error to raise.
    """
    by_id = {"id": outgoing_id}
    locks = [] if lease is None else [chat_leases.lock_query(lease)]
    attempt = "outgoing_begin", {**by_id, "uid": uid, **chat_leases.lease_values(lease)}
    *held, _, rows, origins = tx.finish(*locks, attempt, ("outgoing_get", by_id), ("outgoing_origin", by_id))
    if lease is not None:
        chat_leases.check_held(lease, held[0])
    found = from_row(rows[0]) if rows else None
    if found is None or not found.open:
        return None
    attempted_by, *origin = origins[0]
    if origin[0] is not None and tuple(origin) != rows[0][1:4]:
        raise errors.SendRefused(WRONG_CHAT)
    return found if attempted_by == uid else None


def record_result(tx: Tx, query: str, values: dict[str, Any]) -> bool:
    """Record the result of an attempt to send; return whether this call was the first to do so."""
    mine = (query, values["id"])
    retried, tx.retry_state[mine] = tx.retry_state.get(mine, False), True
    if tx.finish((query, values))[0]:
        return True
    # The commit of an earlier attempt may have succeeded although its outcome was not received.
    found = _one(tx, "outgoing_get", id=values["id"]) if retried else None
    tx.retry_state[mine] = found is not None and values["at"] in (found.delivered_at, found.failed_at)
    return bool(tx.retry_state[mine])


def _clean(text: object, name: str, max_length: int) -> str:
    """Shorten a text from a platform and replace characters that are not printable."""
    shown = permissions.clip(text.replace("\0", " ") if isinstance(text, str) else text, name)
    return "".join(each if each.isprintable() else " " for each in shown[:max_length])


def _one(tx: Tx, query: str, **values: Any) -> types.Outgoing | None:
    row = tx.one(query, **values)
    return None if row is None else from_row(row)


def from_row(row: Row) -> types.Outgoing:
    """Decode a row of `outbox`; only `outgoing_due` has the last column, the number of messages behind it."""
    id_, platform, chat, address, body, *rest, redacted, behind = row
    try:
        content = msgspec.json.decode(body, type=OutgoingBody) if body else OutgoingBody()
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.StoreCorrupt(f"Outbound message {id_} is damaged and cannot be read.") from None
    attachments = [each.blob for each in content.attachments]
    names = {each.blob: each.name for each in content.attachments if each.name}
    head = (id_, platform, chat, decode_address(address), content.text, attachments)
    return struct_from_row(types.Outgoing, (*head, *rest, bool(redacted), behind, names))
