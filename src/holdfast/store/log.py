"""Append to the log of a conversation, and read it.

An append goes to the head, whichever session of the conversation the caller names. It is acknowledged only after its
commit, and its uid makes a retry harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import errors, types
from holdfast.store import (
    compactions,
    conversation_row,
    leases,
    message_codec,
    sessions,
    tool_pairs,
    validation,
    visibility,
)
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Row, Tx


class AppendRequest:
    """An append, validated and encoded. It is the step that a driver runs, once or several times."""

    def __init__(
        self,
        session_id: str | None,
        messages: Sequence[types.NewMessage | Mapping[str, Any]],
        now: float,
        *,
        expect_head: bool = False,
        create: types.NewConversation | None = None,
        lease: types.Lease | None = None,
    ) -> None:
        if lease is not None:
            validation.check_type(types.Lease, lease, "lease")
        if not isinstance(messages, Sequence) or not messages:
            raise errors.InvalidArgument("`messages` must be a list of at least one message.")
        self.create = self.new_id = None
        if create is not None:
            self.create = sessions.normalize(validation.check_type(types.NewConversation, create, "create"))
            self.new_id = conversation_row.NewId(session_id, now)
        self.session_id = validation.check_id(session_id) if self.new_id is None else self.new_id.id
        self.messages = [message_codec.encode_message(message_codec.to_new_message(each), now) for each in messages]
        self.expect_head = expect_head
        self.lease = lease
        self.now = now
        self.created = False
        """Whether the last attempt created the conversation."""
        # A caller's uid may already be stored; a generated one only after a first attempt.
        self.may_be_stored = not all(message.is_uid_generated for message in self.messages)
        self.lost: errors.StoreUnreachable | None = None
        """The error of an earlier attempt in a shared statement, which may have been committed."""

    def __call__(self, tx: Tx) -> list[types.Receipt]:
        return append(tx, self)


def append(tx: Tx, request: AppendRequest) -> list[types.Receipt]:
    """Append the messages of a request to the head of its conversation and return a receipt for each.

    Messages that are stored already keep their numbers, the others get the next ones in order. An ended conversation
    is continued. Raises NoSuchSession, Superseded, LeaseLost, UidReused or IdTaken; then the caller rolls back.
    """
    may_be_stored, request.may_be_stored = request.may_be_stored, True
    if request.new_id is not None:
        request.session_id = request.new_id.resolve(tx)
    row = _lock(tx, request)
    request.created = row is None
    here = ConversationRow(*row) if row is not None else _create(tx, request)
    if request.create is not None and request.create.owner != here.owner:
        raise errors.IdTaken(request.session_id)
    stored = _find_stored(tx, here, request.messages) if may_be_stored and row is not None else {}
    resumed = False
    # A stored message stays acknowledged, whatever happened to head or lease since.
    if not stored or not all(message.uid in stored for message in request.messages):
        if request.expect_head and here.ordinal != here.head:
            raise errors.Superseded(here.head_id, here.epoch)
        if request.lease is not None:
            leases.check_held(tx, here, request.lease)
        if here.live is None:
            here, resumed = sessions.continue_ended(tx, here, request.now), True
    receipts: list[types.Receipt] = []
    for message, stored_at in zip(request.messages, _insert(tx, here, request.messages, stored), strict=True):
        seq, session, duplicate = stored_at
        moved_from = request.session_id if session != request.session_id else None
        receipts.append(types.Receipt(seq, message.uid, session, here.id, here.epoch, moved_from, duplicate, resumed))
    return receipts


def _lock(tx: Tx, request: AppendRequest) -> Row | None:
    """Lock the conversation and return its row, or None if it does not exist."""
    row = tx.one("lock_conversation", id=request.session_id)
    # Another process may create the conversation between the two queries.
    while row is None and request.create is not None and tx.one("session_place", id=request.session_id):
        row = tx.one("lock_conversation", id=request.session_id)
    return row


def _create(tx: Tx, request: AppendRequest) -> ConversationRow:
    session_id, create = request.session_id, request.create
    if create is None:
        raise conversation_row.not_found(tx, session_id)
    if tx.one("tombstone", id=session_id):
        raise errors.ConversationDeleted(session_id)
    here = sessions.insert_conversation(tx, session_id, create, request.now)
    if create.route is not None:
        sessions.bind_unbound_route(tx, create.route, here, request.now)
    return here


StoredMessage = tuple[int, str, bool]
"""The seq of a message, its session, and whether it was stored before."""


def _find_stored(
    tx: Tx, here: ConversationRow, messages: Sequence[message_codec.EncodedMessage]
) -> dict[str, StoredMessage]:
    """Find the messages whose uids are stored already. Raises UidReused if one has another content."""
    stored: dict[str, StoredMessage] = {}
    for message in messages:
        row = tx.one("message_by_uid", conversation=here.key, uid=message.uid)
        if row is None:
            continue
        seq, session, role, body, redacted = row
        if role != message.role or (not redacted and body != message.body):
            raise errors.UidReused(message.uid, seq)
        stored[message.uid] = (seq, session, True)
    return stored


def _insert(
    tx: Tx,
    here: ConversationRow,
    messages: Sequence[message_codec.EncodedMessage],
    stored: dict[str, StoredMessage],
) -> list[StoredMessage]:
    """Insert the messages that are not stored yet. A batch may repeat a uid, but not with another content."""
    seq = here.last_seq
    results: list[StoredMessage] = []
    inserted: dict[str, message_codec.EncodedMessage] = {}
    for message in messages:
        if message.uid in stored:
            first = inserted.get(message.uid, message)
            if (first.role, first.body) != (message.role, message.body):
                raise errors.UidReused(message.uid, stored[message.uid][0])
            results.append(stored[message.uid])
            continue
        seq += 1
        tx.defer(
            "message_insert",
            conversation=here.key,
            seq=seq,
            session=here.head,
            uid=message.uid,
            role=message.role,
            at=message.at,
            body=message.body,
            digest=message_codec.digest(here.id, seq, message.uid, message.role, message.body),
        )
        results.append((seq, here.head_id, False))
        if len(messages) > 1:
            stored[message.uid], inserted[message.uid] = (seq, here.head_id, True), message
    return results


# --- reading -----------------------------------------------------------------------------------------


def transcript(tx: Tx, session_id: str, after: int = 0, upto: int | None = None) -> list[types.Message]:
    """Return the log of a conversation in order, including hidden messages and those of its origins."""
    here = conversation_row.read(tx, session_id)
    last = here.last_seq if upto is None else min(upto, here.last_seq)
    return read_range(tx, here, after, last)


def context(tx: Tx, session_id: str, upto: int | None = None) -> types.Context:
    """Return the messages for the model: the pinned ones, the summary, and those after the cut, none of them hidden."""
    here = conversation_row.read(tx, session_id)
    last = here.last_seq if upto is None else min(upto, here.last_seq)
    compaction = compactions.current(tx, here)
    cut = compaction.cut_seq if compaction else 0
    tail = read_range(tx, here, cut, last)
    pinned_seqs = [seq for seq in compaction.pinned if seq <= last] if compaction else []
    pinned = [message for seq in pinned_seqs for message in read_range(tx, here, seq - 1, seq)]
    hidden = visibility.hidden_ranges(tx, here.key)
    if hidden:
        tail = [message for message in tail if not visibility.is_hidden(hidden, message.seq)]
        pinned = [message for message in pinned if not visibility.is_hidden(hidden, message.seq)]
    running: frozenset[str] = frozenset()
    # Arranged as one list: a pinned tool call may have its result after the cut.
    messages = [*pinned, *_summary_message(compaction), *tail]
    if tool_pairs.has_calls(messages):
        messages, running = tool_pairs.arrange(messages, leases.turn_start_seq(tx, here))
    return types.Context(
        messages,
        conversation_id=here.id,
        session_id=here.head_id,
        epoch=here.epoch,
        last_seq=last,
        cut_seq=cut,
        compaction=compaction,
        running=running,
    )


def _summary_message(compaction: types.Compaction | None) -> list[types.Message]:
    """Return the summary as a message with the seq of the cut, or nothing if there is no summary."""
    if compaction is None or not compaction.summary:
        return []
    uid, body = f"summary:{compaction.epoch}", message_codec.encode_synthetic(compaction.summary)
    return [types.Message(compaction.cut_seq, uid, compaction.session_id, "user", compaction.at, body)]


def read_range(tx: Tx, here: ConversationRow, after: int, upto: int) -> list[types.Message]:
    """Return the messages with after < seq <= upto; a branch reads those up to its fork point from its origin."""
    if here.origin is None or after >= here.forked_at:
        return _read_own_range(tx, here.key, after, upto) if after < upto else []
    messages: list[types.Message] = []
    for segment in conversation_row.lineage(tx, here):
        low, high = max(after, segment.after), min(upto, segment.upto)
        if low < high:
            messages = _read_own_range(tx, segment.key, low, high) + messages
        if segment.after <= after:
            break
    return messages


def _read_own_range(tx: Tx, key: int, after: int, upto: int) -> list[types.Message]:
    rows = tx.all("messages_between", conversation=key, after=after, upto=upto)
    if not rows:
        return []
    # Sessions follow one another in the log, so all of them lie between those of the first and the last row.
    names: dict[int, str] = dict(tx.all("session_names", conversation=key, low=rows[0][2], high=rows[-1][2]))
    make = types.Message
    try:
        return [make(seq, uid, names[session], role, at, body) for seq, uid, session, role, at, body in rows]
    except KeyError:
        raise errors.StoreCorrupt("A message is in a session that does not exist.") from None
