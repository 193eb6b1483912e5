"""The outbox: messages to be sent to chats.

A reply is inserted in the transaction that records the outcome of the inbound message it answers, part by part, and
goes to the chat of that message: the database refuses any other. Messages to one chat are sent in order. That a message
was delivered, or failed for good, is final.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation, write_step
from holdfast.store.driver import Query, Row, Tx
from holdfast.store.facet import Facet
from holdfast.store.mail import chat_leases
from holdfast.store.records import permissions

KINDS = get_args(types.OutgoingKind)
LONGEST = 1_000_000
MAX_ADDRESS = 16 * 1024
MAX_PARTS = 1_000
ELSEWHERE = "It was addressed to another place than what it answers came from."


class Named(msgspec.Struct, frozen=True):
    """An attachment, named as messages name theirs."""

    blob: str


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text and attachments of an outbound message, as stored in JSON."""

    text: str = ""
    attachments: tuple[Named, ...] = ()


class Address(msgspec.Struct, frozen=True):
    """An address as it is given, to be checked as other values are."""

    where: dict[str, Any]


class Prepared(NamedTuple):
    """A validated and encoded outbound message."""

    values: dict[str, Any]


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
        """Queue a message that is not a reply: a question or a notice in the middle of a turn.

        The same key again returns the stored message. `inbound_id` is the message being answered; StoreRefused if the
        new one is addressed to another chat.
        """
        (ready,) = prepared([new], self._clock())
        validation.check(validation.OptionalNumber, inbound_id=inbound_id)
        named = message_codec.mint_uid() if key is None else validation.check_id(key, "key")
        return self.driver.write("post", lambda tx: post(tx, ready, named, inbound_id, conversation_id))

    def outgoing(self, outgoing_id: int) -> types.Outgoing | None:
        validation.check(validation.WholeNumber, outgoing_id=outgoing_id)
        return self.driver.read(lambda tx: _one(tx, "outgoing_get", id=outgoing_id))

    def replies(self, inbound_id: int) -> list[types.Outgoing]:
        """Return the messages that answer an inbound message, in order: posts and the parts of the reply."""
        validation.check(validation.WholeNumber, inbound_id=inbound_id)
        return self.driver.read(lambda tx: [from_row(row) for row in tx.all("outgoing_of", arrival=inbound_id)])

    def questions(self, conversation_id: str, limit: int = 100) -> list[types.Outgoing]:
        """Return the questions of a conversation, part by part, newest first. NoSuchSession."""
        validation.check(validation.WholeNumber, limit=limit)

        def read(tx: Tx) -> list[types.Outgoing]:
            key = conversation_row.look(tx, conversation_id).key
            return [from_row(row) for row in tx.all("outgoing_questions", conversation=key, limit=limit)]

        return self.driver.read(read)

    def due_outgoing(self, platform: str, limit: int = 100, now: float | None = None) -> list[types.Outgoing]:
        """Return the first undelivered message of each chat if it is due, the longest due first."""
        validation.check(validation.WholeNumber, limit=limit)
        where, when = validation.check_platform(platform), self._clock() if now is None else validation.check_time(now)
        return self.driver.read(
            lambda tx: [
                from_row(row[:-1], row[-1] - 1) for row in tx.all("outgoing_due", platform=where, now=when, limit=limit)
            ]
        )

    @write_step.shareable
    def begin_sending(
        self, lease: types.ChatLease | None, outgoing_id: int
    ) -> write_step.WriteStep[types.Outgoing | None]:
        """Record an attempt to send a message and return it; None if it was delivered or failed for good.

        No lease is needed for messages that only one process can send. LeaseLost when the lease was taken over;
        SendRefused when the message is addressed to another chat than the message it answers.
        """
        if lease is not None:
            chat_leases.checked(lease)
        validation.check(validation.WholeNumber, outgoing_id=outgoing_id)
        return write_step.WriteStep("send", lambda tx: begin(tx, lease, outgoing_id), durable=False)

    @write_step.shareable
    def mark_delivered(self, outgoing_id: int, external: str | None = None) -> write_step.WriteStep[bool]:
        """Record a delivery under the platform's id `external`; return whether this call was the first to end it.

        It needs no lease: a process may report its delivery after it lost the lease.
        """
        validation.check(validation.WholeNumber, outgoing_id=outgoing_id)
        name, now = None if external is None else _clipped(external, validation.MAX_ID), self._clock()
        return write_step.WriteStep(
            "delivered", lambda tx: _ended(tx, "outgoing_delivered", id=outgoing_id, external=name, at=now)
        )

    def mark_failed(self, outgoing_id: int, error: str, retry_at: float | None = None) -> bool:
        """Record a failed attempt: retry at `retry_at`, or (None) never; return whether it was recorded."""
        validation.check(validation.WholeNumber, outgoing_id=outgoing_id)
        due = None if retry_at is None else validation.check_time(retry_at)
        said, now = _clipped(error, 500) or "failed", self._clock()
        query, when = ("outgoing_failed", now) if due is None else ("outgoing_later", due)
        return self.driver.write(
            "send", lambda tx: _ended(tx, query, id=outgoing_id, error=said, at=when), durable=due is None
        )


def address(where: object) -> str:
    """Encode an address as JSON."""
    if not isinstance(where, dict):
        raise errors.InvalidArgument("`address` must be an object.")
    text = message_codec.exact(Address(where), "address")[len('{"where":') : -1]
    if len(text.encode()) > MAX_ADDRESS:
        raise errors.InvalidArgument(f"`address` must have at most {MAX_ADDRESS:,} bytes as JSON.")
    return text


def decoded(text: str) -> dict[str, Any]:
    """Decode an address; that of a redacted message is empty."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.StoreCorrupt("An address is damaged and cannot be read.") from None


def prepared(several: object, now: float) -> tuple[Prepared, ...]:
    if not isinstance(several, Sequence) or len(several) > MAX_PARTS:
        raise errors.InvalidArgument(f"`outgoing` must be a list of at most {MAX_PARTS:,} messages.")
    return tuple(Prepared(_values(new, now)) for new in several)


def _values(given: object, now: float) -> dict[str, Any]:
    new = validation.check_type(types.NewOutgoing, given, "outgoing")
    if new.kind not in KINDS:
        raise errors.InvalidArgument(f"`kind` must be one of {', '.join(KINDS)}.")
    validation.check_content(new.text, "text", LONGEST, min_length=0)
    validation.check(validation.OptionalNumber, seq=new.seq)
    if not isinstance(new.attachments, list | tuple):
        raise errors.InvalidArgument("`attachments` must be a list of digests.")
    named = tuple(Named(validation.check_id(digest, "digest")) for digest in new.attachments)
    return {
        "platform": validation.check_platform(new.platform),
        "chat": validation.check_route(new.chat),
        "address": address(new.address),
        "kind": new.kind,
        "body": message_codec.exact(Body(new.text, named), "message"),
        "seq": new.seq,
        "at": now,
    }


def parts_inserted(
    several: Sequence[Prepared],
    *,
    inbound_id: int | None = None,
    inbox_entry_id: int | None = None,
    conversation: int | None = None,
) -> list[Query]:
    """Return the queries that insert the parts of one reply; they run after the query that records its outcome."""
    of = {"arrival": inbound_id, "inbound": inbox_entry_id, "conversation": conversation, "key": None}
    inserts: list[Query] = [
        ("outgoing_insert", {"part": part, **of, **each.values}) for part, each in enumerate(several)
    ]
    return [_chat_locked(several[0]), *inserts] if several else []


def _chat_locked(first: Prepared) -> Query:
    """Return the query that locks a chat: no message may come between the parts of a reply."""
    return "outgoing_chat", {"platform": first.values["platform"], "chat": first.values["chat"]}


def post(tx: Tx, ready: Prepared, key: str, inbound_id: int | None, conversation_id: str | None) -> types.Outgoing:
    conversation = None if conversation_id is None else conversation_row.lock(tx, conversation_id).key
    of = {"arrival": inbound_id, "inbound": None, "conversation": conversation, "key": key, "part": None}
    by_key = "outgoing_by_key", {"key": key}
    (rows,) = tx.batch(by_key)
    if not rows:
        *_, rows = tx.finish(_chat_locked(ready), ("outgoing_insert", {**of, **ready.values}), by_key)
    return from_row(rows[0])


def begin(tx: Tx, lease: types.ChatLease | None, outgoing_id: int) -> types.Outgoing | None:
    leases = [chat_leases.locked(lease)] if lease is not None else []
    *held, rows, origin = tx.batch(
        *leases, ("outgoing_get", {"id": outgoing_id}), ("outgoing_origin", {"id": outgoing_id})
    )
    if lease is not None:
        chat_leases.verify(lease, held[0])
    found = from_row(rows[0]) if rows else None
    if found is None or not found.open:
        return None
    if origin and (origin[0][:2] != (found.platform, found.chat) or decoded(origin[0][2]) != found.address):
        raise errors.SendRefused(ELSEWHERE)
    # If a repeated attempt finds one attempt more than the first, the first one was committed.
    before = tx.retry_state.setdefault(("send", outgoing_id), found.attempts)
    if found.attempts == before and not tx.finish(("outgoing_begin", {"id": outgoing_id}))[0]:
        return None
    return msgspec.structs.replace(found, attempts=before + 1)


def _ended(tx: Tx, query: str, **values: Any) -> bool:
    """Record how a delivery ended; whether this call was the first to do so."""
    mine = (query, values["id"])
    retried, tx.retry_state[mine] = tx.retry_state.get(mine, False), True
    if tx.finish((query, values))[0]:
        return True
    # The commit of an earlier attempt may have succeeded although its outcome was not received.
    found = _one(tx, "outgoing_get", id=values["id"]) if retried else None
    tx.retry_state[mine] = found is not None and values["at"] in (found.delivered_at, found.failed_at)
    return bool(tx.retry_state[mine])


def _clipped(text: object, most: int) -> str:
    """Shorten a text from a platform and replace characters that are not printable."""
    return "".join(each if each.isprintable() else " " for each in permissions.clipped(text)[:most])


def _one(tx: Tx, query: str, **values: Any) -> types.Outgoing | None:
    row = tx.one(query, **values)
    return None if row is None else from_row(row)


def from_row(row: Row, behind: int = 0) -> types.Outgoing:
    (id_, inbound_id, inbox_entry_id, part, key, conversation_id, seq, platform, chat, where, kind, body) = row[:12]
    at, attempts, due_at, delivered_at, external, failed_at, error, redacted = row[12:]
    try:
        said = msgspec.json.decode(body, type=Body) if body else Body()
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.StoreCorrupt(f"What goes out as {id_} is damaged and cannot be read.") from None
    return types.Outgoing(
        id=id_,
        platform=platform,
        chat=chat,
        address=decoded(where),
        text=said.text,
        attachments=[named.blob for named in said.attachments],
        kind=kind,
        at=at,
        inbound_id=inbound_id,
        inbox_entry_id=inbox_entry_id,
        part=part,
        key=key,
        conversation_id=conversation_id,
        seq=seq,
        attempts=attempts,
        due_at=due_at,
        delivered_at=delivered_at,
        external=external,
        failed_at=failed_at,
        error=error,
        redacted=bool(redacted),
        behind=behind,
    )
