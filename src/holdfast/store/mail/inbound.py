"""Inbound messages of chat platforms, and their outcomes.

The platform's own message id is the key, so a message that is delivered repeatedly is one row. The first attempt fixes
the session of its turn, so a process that takes over after a crash continues in the same session. A message is settled
once, in the transaction that inserts the replies to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, leases, message_codec, validation, write_step
from holdfast.store.driver import Facet, QueryCall, Row, Tx, struct_from_row
from holdfast.store.mail import chat_leases, outbox

MAX_JOINED = 1_000

ChooseMessage = Callable[[Sequence[types.InboundMessage], types.Route], tuple[int, str, Sequence[int]] | None]


class InboundBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text, parts and sender's name of an inbound message, as stored in JSON."""

    text: str = ""
    parts: list[dict[str, Any]] = []
    name: str = ""


class InboundMessages(Facet):
    """The methods of `db.mail` for messages that platforms deliver."""

    @write_step.shareable
    def add_inbound(self, new: types.NewInboundMessage) -> write_step.WriteStep[tuple[types.InboundMessage, bool]]:
        """Store an inbound message; return it as it is stored, and whether this call stored it.

        When this returns, the message is durable and the platform may be sent its acknowledgement. A known key returns
        the stored message, whatever the new one says: platforms deliver again, also edited messages. Of any number of
        calls and processes, one gets True.
        """
        values = _encode(new, self._clock())
        return write_step.WriteStep("arrive", partial(receive, values=values), queue=new.route)

    def open_routes(self, limit: int = 100) -> list[str]:
        """Return the routes with open messages, the one with the oldest message first."""
        validation.check(validation.WholeNumber, limit=limit)
        return self.driver.read(lambda tx: [row[0] for row in tx.all("routes_open", limit=limit)])

    def open_inbound(self, route: str, limit: int = 100) -> list[types.InboundMessage]:
        """Return the open messages of a route, oldest first, without those that were joined into another."""
        validation.check(validation.WholeNumber, limit=limit)
        return self._all("arrivals_open", route=validation.check_route(route), limit=limit)

    def inbound(self, inbound_id: int) -> types.InboundMessage | None:
        validation.check(validation.WholeNumber, inbound_id=inbound_id)
        return next(iter(self._all("arrival_get", id=inbound_id)), None)

    def inbound_by_key(self, platform: str, key: str) -> types.InboundMessage | None:
        """Return the inbound message with this id of the platform."""
        values = {"platform": validation.check_platform(platform), "key": validation.check_id(key, "key")}
        return next(iter(self._all("arrival_by_key", **values)), None)

    def inbound_with_prefix(self, platform: str, prefix: str, limit: int = 100) -> list[types.InboundMessage]:
        """Return the inbound messages of a platform whose keys begin with `prefix`, newest first."""
        validation.check(validation.WholeNumber, limit=limit)
        first = validation.check_id(prefix, "prefix")
        after = f"{first[:-1]}{chr(ord(first[-1]) + 1)}"
        platform = validation.check_platform(platform)
        return self._all("arrivals_with_prefix", platform=platform, first=first, after=after, limit=limit)

    def newest_inbound(self, platform: str, days: float, limit: int = 1_000) -> list[types.InboundMessage]:
        """Return the newest inbound message of each chat of a platform that was active in the last `days`.

        Messages whose keys have a colon are left out. With the `days` of `expire`, no later message was deleted.
        """
        validation.check(validation.Duration, days=days)
        validation.check(validation.WholeNumber, limit=limit)
        at = self._clock() - days * 86_400
        return self._all("arrivals_newest", platform=validation.check_platform(platform), at=at, limit=limit)

    def last_inbound(self, session_id: str, platform: str) -> types.InboundMessage | None:
        """Return the latest inbound message of a platform that became a message of this conversation."""
        validation.check_platform(platform)
        rows = self.driver.read(lambda tx: conversation_row.query(tx, "arrival_last", session_id, platform=platform))
        return next(map(from_row, rows), None)

    def joined_inbound(self, inbound_id: int) -> list[types.InboundMessage]:
        """Return the messages that were joined into one, oldest first."""
        validation.check(validation.WholeNumber, inbound_id=inbound_id)
        return self._all("arrivals_joined_to", id=inbound_id)

    def _all(self, query: str, **values: Any) -> list[types.InboundMessage]:
        return self.driver.read(lambda tx: [from_row(row) for row in tx.all(query, **values)])

    def count_inbound_on(self, route: str, at: float) -> int:
        """Count the inbound messages of a route since a time, except deletions, whose keys begin with `delete:`."""
        values = {"route": validation.check_route(route), "at": validation.check_time(at)}
        return int(self.driver.read(lambda tx: tx.one("arrivals_count_on_route", **values) or (0,))[0])

    def count_inbound_from(self, platform: str, sender: str, at: float) -> int:
        """Count the inbound messages of a sender since a time, on all routes, except deletions."""
        validation.check_platform(platform)
        values = {"sender": validation.check_id(sender, "sender"), "at": validation.check_time(at)}
        query = "arrivals_count_from_sender"
        return int(self.driver.read(lambda tx: tx.one(query, platform=platform, **values) or (0,))[0])

    @write_step.shareable
    def begin_next_inbound(
        self,
        route: str,
        choose: ChooseMessage,
        *,
        lease: types.ChatLease | None = None,
        idle: bool = False,
        ttl: float = chat_leases.CHAT_LEASE_TTL,
        limit: int = 100,
    ) -> write_step.WriteStep[types.NextInbound]:
        """Acquire the chat lease of a route and begin with the message that `choose` selects, in one transaction.

        `choose` gets the open messages and the route. It returns the message, the session of its turn and the messages
        to join into it, or None; it must be quick, and may be called again. A given `lease` is used instead (LeaseLost
        when it was taken over). Busy when another holder has the lease. Without open messages no lease is acquired,
        unless `idle`.
        """
        validation.check(validation.WholeNumber, limit=limit)
        if not callable(choose):
            raise errors.InvalidArgument("`choose` must be a function.")
        validation.check(validation.LeaseTtl, ttl=ttl)
        validation.check_route(route)
        if lease is not None:
            chat_leases.check_lease(lease)
        holder = leases.current_holder(None)
        # Not synced, as neither leases nor attempts are.
        return write_step.WriteStep(
            "begin", lambda tx: begin_next(tx, route, choose, lease, holder, idle, ttl, limit), durable=False
        )

    def begin_inbound(
        self, lease: types.ChatLease, inbound_id: int, target: str, joined: Sequence[int] = ()
    ) -> types.InboundMessage | None:
        """Record that the turn of a message begins in the session `target`; return it, or None if it is settled.

        The first attempt decides: later ones return its target and join no messages. LeaseLost when the lease was
        taken over.
        """
        chat_leases.check_lease(lease)
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
            chat_leases.check_lease(lease)
        validation.check(validation.WholeNumber, inbound_id=inbound_id)
        validation.check(validation.OptionalNumber, seq=seq)
        if seq is not None and conversation_id is None:
            raise errors.InvalidArgument("`conversation_id` must be given with `seq`.")
        now = self._clock()
        settlement = SettleParameters(
            inbound_id,
            validation.check_id(outcome, "outcome"),
            seq,
            validation.check_optional_id(conversation_id),
            message_codec.generate_uid(),
            now,
        )
        replies = outbox.encode_messages(outgoing, now)
        refused = None if seq is None else errors.InvalidArgument(f"Inbound message {inbound_id} is not message {seq}.")
        return write_step.WriteStep(
            "settle", lambda tx: settle(tx, lease, settlement, replies, bool(release)), refused=refused
        )

    def last_chat(self, session_id: str, route: str | None = None) -> types.Home | None:
        """Return the chat of the last inbound message of the conversation or, if given, of a route; or None."""
        if route is None:
            return next(iter(self._chats("arrival_home", session_id)), None)
        validation.check_route(route)
        return next(iter(self._chats("arrival_home_of_route", session_id, route=route)), None)

    def linked_chats(self, session_id: str) -> list[types.Home]:
        """Return the chats that are bound to the conversation, if their senders are linked to its owner."""
        return self._chats("linked_chats", session_id)

    def _chats(self, query: str, session_id: str, **values: str) -> list[types.Home]:
        rows = self.driver.read(lambda tx: conversation_row.query(tx, query, session_id, **values))
        return [types.Home(home, chat, outbox.decode_address(address), *rest) for home, chat, address, *rest in rows]

    def counts(self) -> dict[str, int]:
        """Count open inbound messages, their routes, undelivered messages and failed ones."""
        names = ("arrivals_open", "routes_waiting", "outgoing_open", "outgoing_failed")
        row = self.driver.read(lambda tx: tx.one("mail_counts")) or (0, 0, 0, 0)
        return dict(zip(names, row, strict=True))


def _encode(given: object, now: float) -> dict[str, Any]:
    """Validate an inbound message, and return the parameters of the query that inserts it."""
    new = validation.check_type(types.NewInboundMessage, given, "new")
    validation.check_content(new.text, "text", validation.MAX_TEXT, min_length=0)
    return {
        "platform": validation.check_platform(new.platform),
        "key": validation.check_id(new.key, "key"),
        "route": validation.check_route(new.route),
        "home": validation.check_platform(new.platform if new.home is None else new.home),
        "chat": validation.check_route(new.chat),
        "sender": validation.check_id(new.sender, "sender"),
        "address": outbox.encode_address(new.address),
        "body": message_codec.encode_exact(InboundBody(new.text, new.parts, new.name), "message"),
        "at": now if new.at is None else validation.check_time(new.at),
        "received_by": message_codec.generate_uid(),
    }


def receive(tx: Tx, values: dict[str, Any]) -> tuple[types.InboundMessage, bool]:
    """Insert a message unless its key is known. A retry recognises the row of an earlier attempt by `received_by`."""
    (inserted,) = tx.finish(("arrival_insert", values))
    *columns, uid = values.values()
    if inserted:
        return from_row((*inserted[0], *columns, 0, None, None, None, None, None, None, None, False)), True
    key = {"platform": values["platform"], "key": values["key"]}
    rows, receivers = tx.batch(("arrival_by_key", key), ("arrival_receiver", key))
    if not rows or not receivers:
        return receive(tx, values)  # it was deleted as expired in the meantime
    return from_row(rows[0]), receivers[0][0] == uid


def begin_next(
    tx: Tx,
    route: str,
    choose: ChooseMessage,
    lease: types.ChatLease | None,
    holder: leases.Holder,
    idle: bool,
    ttl: float,
    limit: int,
) -> types.NextInbound:
    # Read under the lease: no other holder begins with these messages.
    reads = ("arrivals_open", {"route": route, "limit": limit}), ("route_with_inbox", {"key": route})
    if lease is None:
        held, rows = chat_leases.acquire(tx, f"route:{route}", holder, ttl, *reads)
    else:
        held = lease
        locked, *rows = tx.batch(chat_leases.lock_query(lease), *reads)
        chat_leases.check_held(lease, locked)
    waiting = [from_row(row) for row in rows[0]]
    if not waiting and not idle and lease is None:
        chat_leases.release(tx, held)
        return types.NextInbound(None, waiting)
    *bound, inbox_waits = rows[1][0] if rows[1] else (route, None, 0, "", False)
    chosen = choose(waiting, types.Route(*bound)) if waiting else None
    if chosen is None:
        return types.NextInbound(held, waiting)
    inbound_id, target, joined = check_choice(*chosen)
    found = next((each for each in waiting if each.id == inbound_id), None)
    if found is None:
        raise errors.InvalidArgument(f"Inbound message {inbound_id} is not open on this route.")
    inbox_empty = not inbox_waits and target == bound[1]
    return types.NextInbound(held, waiting, begin_attempt(tx, found, target, joined), inbox_empty)


def check_choice(inbound_id: int, target: str, joined: object) -> tuple[int, str, tuple[int, ...]]:
    """Validate a message to begin with, its target, and the messages that are joined into it."""
    if not isinstance(joined, list | tuple) or len(joined) > MAX_JOINED:
        raise errors.InvalidArgument(f"`joined` must be a list of at most {MAX_JOINED:,} ids.")
    for each in (inbound_id, *joined):
        validation.check(validation.WholeNumber, inbound_id=each)
    return inbound_id, validation.check_id(target, "target"), tuple(joined)


def begin(
    tx: Tx, lease: types.ChatLease, inbound_id: int, target: str, joined: tuple[int, ...]
) -> types.InboundMessage | None:
    locked, rows = tx.batch(chat_leases.lock_query(lease), ("arrival_get", {"id": inbound_id}))
    chat_leases.check_held(lease, locked)
    found = from_row(rows[0]) if rows else None
    if found is None or not found.open:
        return None
    if found.joined is not None:
        raise errors.InvalidArgument(f"Inbound message {inbound_id} was joined into {found.joined}.")
    return begin_attempt(tx, found, target, joined)


def begin_attempt(
    tx: Tx, found: types.InboundMessage, target: str, joined: tuple[int, ...]
) -> types.InboundMessage | None:
    """Count an attempt at an open message and fix its target; return the message as it is then."""
    before = tx.retry_state.setdefault(("begin", found.id), found.attempts)
    if found.attempts == before:
        joins = [("arrival_join", {"id": other, "into": found.id}) for other in joined if before == 0]
        changed, *_ = tx.finish(("arrival_begin", {"id": found.id, "target": target}), *joins)
        if not changed:
            return None
    return msgspec.structs.replace(found, attempts=before + 1, target=found.target or target)


class SettleParameters(NamedTuple):
    """The outcome of an inbound message, as parameters of a query. A retry recognises its own outcome by the uid."""

    id: int
    outcome: str
    seq: int | None
    session: str | None
    uid: str
    at: float


def settle(
    tx: Tx, lease: types.ChatLease | None, settlement: SettleParameters, replies: list[dict[str, Any]], release: bool
) -> bool:
    """Settle an inbound message in one round trip; return whether this call did it.

    The SQL conditions enforce the checks; the code below only selects the error to raise.
    """
    held_by = chat_leases.lease_values(lease)
    locks: list[QueryCall] = []
    if settlement.session is not None:
        locks.append(("lock_conversation", {"id": settlement.session}))
    if lease is not None:
        locks.append(chat_leases.lock_query(lease))
    writes: list[QueryCall] = [("arrival_settle", {**settlement._asdict(), **held_by})]
    writes += outbox.insert_replies(replies, settlement.id, settlement.uid)
    if lease is not None and release:
        writes.append(("claim_release_settled", {**held_by, "id": settlement.id, "uid": settlement.uid}))
    # Every writer locks in this order: the conversation, the lease, the inbound message.
    results = iter(tx.finish(*locks, ("arrival_settled", {"id": settlement.id}), *writes))
    conversation = next(results) if settlement.session is not None else []
    held = next(results) if lease is not None else []
    settled = next(results)
    if not settled or settled[0][0] is not None:
        return bool(settled) and settled[0][0] == settlement.uid
    if settlement.session is not None:
        conversation_row.require(tx, settlement.session, next(iter(conversation), None))
    if lease is not None:
        chat_leases.check_held(lease, held)
    return True


def from_row(row: Row) -> types.InboundMessage:
    """Decode a row of `arrivals`; the body of a redacted message is empty."""
    *head, address, body = row[:9]
    try:
        content = msgspec.json.decode(body, type=InboundBody) if body else InboundBody()
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.StoreCorrupt(f"Inbound message {row[0]} is damaged and cannot be read.") from None
    texts = (outbox.decode_address(address), content.text, content.parts, content.name)
    return struct_from_row(types.InboundMessage, (*head, *texts, *row[9:-1], bool(row[-1])))
