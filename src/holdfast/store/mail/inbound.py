"""Inbound messages of chat platforms, and their outcomes.

The platform's own message id is the key, so a message that is delivered repeatedly is one row. The session of its turn
is fixed by the first attempt, so a process that takes over after a crash continues in the same session. A message is
settled once, in the transaction that inserts the replies to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import errors, types
from holdfast.store import (
    conversation_row,
    leases,
    message_codec,
    store_meta,
    validation,
    write_step,
)
from holdfast.store.driver import Query, Row, Tx
from holdfast.store.facet import Facet
from holdfast.store.mail import chat_leases, outbox

LONGEST = 1_000_000
MAX_JOINED = 1_000
# How long settled messages are kept, to recognise repeated deliveries.
REMEMBERED_DAYS = 30.0
_REFUSED = "There is no message {seq} that it could have become."


Choose = Callable[[Sequence[types.InboundMessage], types.Route], tuple[int, str, Sequence[int]] | None]


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text and parts of an inbound message, as stored in JSON."""

    text: str = ""
    parts: list[dict[str, Any]] = []
    name: str = ""


class Prepared(msgspec.Struct, frozen=True):
    """An inbound message, validated and encoded for any number of attempts to insert it."""

    uid: str
    values: dict[str, Any]

    def __call__(self, tx: Tx) -> tuple[types.InboundMessage, bool]:
        return arrive(tx, self.uid, self.values)


class InboundMessages(Facet):
    """The methods of `db.mail` for messages that arrive from outside."""

    @write_step.shareable
    def add_inbound(self, new: types.NewInboundMessage) -> write_step.WriteStep[tuple[types.InboundMessage, bool]]:
        """Store an inbound message; return it as it is stored, and whether it is new.

        When this returns, the message is durable and the platform may be sent its acknowledgement. A key that is stored
        already returns the stored message, whatever the new one says: platforms deliver again, also edited messages.
        """
        return write_step.WriteStep("arrive", prepared(new, self._clock()), queue=new.route)

    def open_routes(self, limit: int = 100) -> list[str]:
        """Return the routes with open messages, the one with the oldest message first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: [row[0] for row in tx.all("routes_open", limit=limit)])

    def open_inbound(self, route: str, limit: int = 100) -> list[types.InboundMessage]:
        """Return the open messages of a route, oldest first, without those that were joined into another."""
        validation.check(validation.WholeNumber, limit=limit)
        named = validation.check_route(route)
        return self.driver.read(lambda tx: [from_row(row) for row in tx.all("arrivals_on", route=named, limit=limit)])

    def inbound(self, inbound_id: int) -> types.InboundMessage | None:
        validation.check(validation.WholeNumber, inbound_id=inbound_id)
        return self.driver.read(lambda tx: _one(tx, "arrival_get", id=inbound_id))

    def inbound_by_key(self, platform: str, key: str) -> types.InboundMessage | None:
        """Return the inbound message with this id of the platform."""
        where, name = validation.check_platform(platform), validation.check_id(key, "key")
        return self.driver.read(lambda tx: _one(tx, "arrival_by_key", platform=where, key=name))

    def inbound_with_prefix(self, platform: str, prefix: str, limit: int = 100) -> list[types.InboundMessage]:
        """Return the inbound messages of a platform whose keys begin with `prefix`, newest first."""
        validation.check(validation.WholeNumber, limit=limit)
        first = validation.check_id(prefix, "prefix")
        between = {"first": first, "last": f"{first[:-1]}{chr(ord(first[-1]) + 1)}"}
        where = validation.check_platform(platform)
        return self.driver.read(
            lambda tx: [from_row(row) for row in tx.all("arrivals_between", platform=where, limit=limit, **between)]
        )

    def last_inbound(self, session_id: str, platform: str) -> types.InboundMessage | None:
        """Return the latest inbound message of a platform that became a message of this conversation."""
        where = validation.check_platform(platform)
        return self.driver.read(
            lambda tx: _one(tx, "arrival_last", conversation=conversation_row.look(tx, session_id).key, platform=where)
        )

    def joined_inbound(self, inbound_id: int) -> list[types.InboundMessage]:
        """Return the messages that were joined into one, oldest first."""
        validation.check(validation.WholeNumber, inbound_id=inbound_id)
        return self.driver.read(lambda tx: [from_row(row) for row in tx.all("arrivals_joined_to", id=inbound_id)])

    def count_inbound_on(self, route: str, at: float) -> int:
        """Count the inbound messages of a route since a time."""
        named, since = validation.check_route(route), validation.check_time(at)
        return int(self.driver.read(lambda tx: tx.one("arrivals_since", route=named, at=since) or (0,))[0])

    def count_inbound_from(self, platform: str, sender: str, at: float) -> int:
        """Count the inbound messages of a sender since a time, on all routes."""
        of = {"platform": validation.check_platform(platform), "sender": validation.check_id(sender, "sender")}
        since = validation.check_time(at)
        return int(self.driver.read(lambda tx: tx.one("arrivals_from", at=since, **of) or (0,))[0])

    @write_step.shareable
    def take_up(
        self,
        route: str,
        choose: Choose,
        *,
        lease: types.ChatLease | None = None,
        idle: bool = False,
        ttl: float = chat_leases.CHAT_LEASE_TTL,
        limit: int = 100,
    ) -> write_step.WriteStep[types.TakenUp]:
        """Take the chat lease of a route and begin with the message that `choose` selects, in one transaction.

        `choose` gets the open messages and the route. It returns the message, the session of its turn and the messages
        to join into it, or None; it must be quick, and may be called again. A given `lease` is used instead (LeaseLost
        when it was taken over). Busy when another holder has the lease. Without open messages no lease is taken, unless
        `idle`.
        """
        validation.check(validation.WholeNumber, limit=limit)
        validation.check(validation.OptionalFlag, idle=idle)
        if not callable(choose):
            raise errors.InvalidArgument("`choose` must be a function.")
        validation.check(validation.LeaseTtl, ttl=ttl)
        named, mine = validation.check_route(route), lease if lease is None else chat_leases.checked(lease)
        taking = Taking(named, choose, mine, idle, ttl, limit, leases.this_process(None))
        # Not synced, as neither chat leases nor beginnings are.
        return write_step.WriteStep("begin", taking, durable=False)

    def begin_inbound(
        self, lease: types.ChatLease, inbound_id: int, target: str, joined: Sequence[int] = ()
    ) -> types.InboundMessage | None:
        """Record that the turn of a message begins in the session `target`; return it, or None if it is settled.

        The first attempt decides: later ones return its target and join no messages. LeaseLost when the lease was
        taken over.
        """
        chat_leases.checked(lease)
        chosen = check_choice(inbound_id, target, joined)
        # Not synced: the writes of the turn come later in the same log and are.
        return self.driver.write("begin", lambda tx: begin(tx, lease, *chosen), durable=False)

    @write_step.shareable
    def settle_inbound(
        self,
        lease: types.ChatLease | None,
        inbound_id: int,
        outcome: str,
        *,
        seq: int | None = None,
        conversation_id: str | None = None,
        outgoing: Sequence[types.NewOutgoing] = (),
        release: bool = False,
    ) -> write_step.WriteStep[bool]:
        """Record the outcome of a message and queue the replies to it, in one transaction.

        Returns whether this call was the first; if not, nothing is written. Joined messages get the same outcome. `seq`
        is the message that it became; InvalidArgument if the conversation has no such message. LeaseLost when the lease
        was taken over. With `release`, the lease is released in the same transaction.
        """
        if lease is not None:
            chat_leases.checked(lease)
        validation.check(validation.WholeNumber, inbound_id=inbound_id)
        validation.check(validation.OptionalNumber, seq=seq)
        validation.check(validation.OptionalFlag, release=release)
        if seq is not None and conversation_id is None:
            raise errors.InvalidArgument("`conversation_id` must be given with `seq`.")
        now = self._clock()
        settling = Settling(
            lease=lease,
            id=inbound_id,
            outcome=validation.check_id(outcome, "outcome"),
            seq=seq,
            conversation_id=validation.check_optional_id(conversation_id),
            outgoing=outbox.prepared(outgoing, now),
            release=release,
            uid=message_codec.mint_uid(),
            now=now,
        )
        refused = None if seq is None else errors.InvalidArgument(_REFUSED.format(seq=seq))
        return write_step.WriteStep("settle", lambda tx: settle(tx, settling), refused=refused)

    def home_of(self, session_id: str) -> types.Home | None:
        """Return the chat of the last inbound message of the conversation, or None."""

        def look(tx: Tx) -> types.Home | None:
            row = tx.one("arrival_home", conversation=conversation_row.look(tx, session_id).key)
            return None if row is None else types.Home(row[0], row[1], outbox.decoded(row[2]), row[3])

        return self.driver.read(look)

    def forget_inbound(self, older_than_days: float = REMEMBERED_DAYS) -> int:
        """Delete messages that were settled that long ago, with their replies; return how many.

        A platform that delivers one of them again creates a new message. The last message of each conversation stays,
        as do undelivered replies. The log of the conversation does not change.
        """
        validation.check(validation.Duration, older_than_days=older_than_days)
        now = self._clock()
        return self.driver.write("tidy", lambda tx: forget(tx, now - older_than_days * 86_400, now))

    def counts(self) -> dict[str, int]:
        """Count open inbound messages, their routes, undelivered messages and failed ones."""
        names = ("arrivals_open", "routes_waiting", "outgoing_open", "outgoing_failed")
        row = self.driver.read(lambda tx: tx.one("mail_counts")) or (0, 0, 0, 0)
        return dict(zip(names, row, strict=True))


class Taking(msgspec.Struct, frozen=True):
    """The validated arguments of take_up."""

    route: str
    choose: Choose
    lease: types.ChatLease | None
    idle: bool
    ttl: float
    limit: int
    holder: leases.Holder

    def __call__(self, tx: Tx) -> types.TakenUp:
        # Read under the lease: no other holder begins with these messages.
        reads = ("arrivals_on", {"route": self.route, "limit": self.limit}), ("route_with_inbox", {"key": self.route})
        if self.lease is None:
            lease, rows = chat_leases.take(tx, f"route:{self.route}", self.holder, self.ttl, *reads)
        else:
            lease = self.lease
            held, *rows = tx.batch(chat_leases.locked(lease), *reads)
            chat_leases.verify(lease, held)
        waiting = [from_row(row) for row in rows[0]]
        if not waiting and not self.idle and self.lease is None:
            chat_leases.free(tx, lease)
            return types.TakenUp(None, waiting)
        route, inbox_empty = _route_with_inbox(self.route, rows[1])
        return self._begun(tx, types.TakenUp(lease, waiting), route, inbox_empty)

    def _begun(self, tx: Tx, taken: types.TakenUp, route: types.Route, inbox_empty: bool) -> types.TakenUp:
        chosen = self.choose(taken.waiting, route) if taken.waiting else None
        if chosen is None:
            return taken
        inbound_id, target, joined = check_choice(*chosen)
        found = next((each for each in taken.waiting if each.id == inbound_id), None)
        if found is None:
            raise errors.InvalidArgument(f"Inbound message {inbound_id} does not wait on this route.")
        inbox_empty = inbox_empty and target == route.conversation_id
        return msgspec.structs.replace(taken, begun=begun(tx, found, target, joined), inbox_empty=inbox_empty)


def _route_with_inbox(key: str, rows: Sequence[Row]) -> tuple[types.Route, bool]:
    """Return a route, and whether the inbox of its conversation is empty."""
    if not rows:
        return types.Route(key, None, 0), True
    *route, waits = rows[0]
    return types.Route(*route), not waits


class Settling(NamedTuple):
    """The validated arguments of settle_inbound.

    The uid was minted before the first attempt: a retry recognises its own outcome by it.
    """

    lease: types.ChatLease | None
    id: int
    outcome: str
    seq: int | None
    conversation_id: str | None
    outgoing: tuple[outbox.Prepared, ...]
    release: bool
    uid: str
    now: float


def check_choice(inbound_id: int, target: str, joined: object) -> tuple[int, str, tuple[int, ...]]:
    """Validate a message to begin with, its target, and the messages that are joined into it."""
    if not isinstance(joined, list | tuple) or len(joined) > MAX_JOINED:
        raise errors.InvalidArgument(f"`joined` must be a list of at most {MAX_JOINED:,} ids.")
    for each in (inbound_id, *joined):
        validation.check(validation.WholeNumber, inbound_id=each)
    return inbound_id, validation.check_id(target, "target"), tuple(joined)


def prepared(given: object, now: float) -> Prepared:
    new = validation.check_type(types.NewInboundMessage, given, "new")
    validation.check_content(new.text, "text", LONGEST, min_length=0)
    home = new.platform if new.home is None else new.home
    return Prepared(
        message_codec.mint_uid(),
        {
            "platform": validation.check_platform(new.platform),
            "key": validation.check_id(new.key, "key"),
            "route": validation.check_route(new.route),
            "home": validation.check_platform(home),
            "chat": validation.check_route(new.chat),
            "sender": validation.check_id(new.sender, "sender"),
            "address": outbox.address(new.address),
            "body": message_codec.exact(Body(new.text, new.parts, new.name), "message"),
            "at": now if new.at is None else validation.check_time(new.at),
        },
    )


def arrive(tx: Tx, uid: str, values: dict[str, Any]) -> tuple[types.InboundMessage, bool]:
    retried, tx.retry_state[uid] = tx.retry_state.get(uid, False), True
    (inserted,) = tx.finish(("arrival_insert", values))
    if inserted:
        return from_row((*inserted[0], *values.values(), 0, None, None, None, None, None, None, False)), True
    found = _one(tx, "arrival_by_key", platform=values["platform"], key=values["key"])
    assert found is not None  # The key is known, and an inbound message is not deleted before it is settled.
    # The commit of an earlier attempt may have succeeded although its outcome was not received.
    tx.retry_state[uid] = retried and found.at == values["at"]
    return found, tx.retry_state[uid]


def begin(
    tx: Tx, lease: types.ChatLease, inbound_id: int, target: str, joined: tuple[int, ...]
) -> types.InboundMessage | None:
    held, rows = tx.batch(chat_leases.locked(lease), ("arrival_get", {"id": inbound_id}))
    chat_leases.verify(lease, held)
    found = from_row(rows[0]) if rows else None
    if found is None or not found.open:
        return None
    if found.joined is not None:
        raise errors.InvalidArgument(f"Arrival {inbound_id} was joined into {found.joined}.")
    return begun(tx, found, target, joined)


def begun(tx: Tx, found: types.InboundMessage, target: str, joined: tuple[int, ...]) -> types.InboundMessage | None:
    """Count an attempt at an open message and fix its target; return the message as it is then."""
    before = tx.retry_state.setdefault(("begin", found.id), found.attempts)
    if found.attempts == before:
        others = [("arrival_join", {"id": other, "into": found.id}) for other in joined if before == 0]
        changed, *_ = tx.finish(("arrival_begin", {"id": found.id, "target": target}), *others)
        if not changed:
            return None
    return msgspec.structs.replace(found, attempts=before + 1, target=found.target or target)


def settle(tx: Tx, said: Settling) -> bool:
    # Every writer locks in this order: the conversation, the lease, the inbound message.
    places = [("lock_conversation", {"id": said.conversation_id})] if said.conversation_id is not None else []
    held_leases = [chat_leases.locked(said.lease)] if said.lease is not None else []
    *found, settled = tx.batch(*places, *held_leases, ("arrival_settled", {"id": said.id}))
    if not settled or settled[0][0] is not None:
        return bool(settled) and settled[0][0] == said.uid
    conversation = None
    if said.conversation_id is not None:
        conversation = conversation_row.state(tx, said.conversation_id, found.pop(0)).key
    if said.lease is not None:
        chat_leases.verify(said.lease, found.pop(0))
    what = {"outcome": said.outcome, "conversation": conversation, "seq": said.seq}
    writes: list[Query] = [("arrival_settle", {"id": said.id, "at": said.now, "uid": said.uid, **what})]
    writes += outbox.parts_inserted(said.outgoing, inbound_id=said.id, conversation=conversation)
    if said.seq is not None:
        writes.append(("arrival_redact_settled", {"id": said.id, "at": said.now}))
    if said.lease is not None and said.release:
        writes.append(("claim_free", {"key": said.lease.key, "token": said.lease.token}))
    tx.finish(*writes)
    return True


def forget(tx: Tx, before: float, now: float) -> int:
    tx.run("outgoing_forget", before=before)
    tx.run("strangers_forget", before=before)
    gone = 0
    # A foreign key: joined messages are deleted before the message they were joined into.
    while count := tx.run("arrivals_forget", before=before):
        gone += count
    if gone:
        tx.run("meta_set", key=store_meta.FORGOTTEN, value=repr(now))
    return gone


def redact(tx: Tx, conversation: int, seq: int, now: float) -> None:
    """Redact the inbound messages that became this message, and the replies that quote it."""
    tx.run("outgoing_redact_message", conversation=conversation, seq=seq, at=now)
    tx.run("arrival_redact_message", conversation=conversation, seq=seq, at=now)


def _one(tx: Tx, query: str, **values: Any) -> types.InboundMessage | None:
    row = tx.one(query, **values)
    return None if row is None else from_row(row)


def from_row(row: Row) -> types.InboundMessage:
    (id_, platform, key, route, home, chat, sender, address, body, at, attempts, target, joined) = row[:13]
    outcome, conversation_id, seq, settled_at, redacted = row[13:]
    try:
        said = msgspec.json.decode(body, type=Body) if body else Body()
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.StoreCorrupt(f"What came in as {id_} is damaged and cannot be read.") from None
    return types.InboundMessage(
        id=id_,
        platform=platform,
        key=key,
        route=route,
        home=home,
        chat=chat,
        sender=sender,
        address=outbox.decoded(address),
        text=said.text,
        parts=said.parts,
        name=said.name,
        at=at,
        attempts=attempts,
        target=target,
        joined=joined,
        outcome=outcome,
        conversation_id=conversation_id,
        seq=seq,
        settled_at=settled_at,
        redacted=bool(redacted),
    )
