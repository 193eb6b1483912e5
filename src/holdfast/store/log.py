"""Append to the log of a conversation, and read it.

An append is acknowledged only after its commit. Its uid makes a retry harmless, and it always goes to the head: the
given id may be any session of the conversation, however old.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import errors, types
from holdfast.store import (
    compactions,
    conversation_row,
    leases,
    message_codec,
    routes,
    sessions,
    titles,
    tool_pairs,
    visibility,
)
from holdfast.store.driver import Row, Tx


class AppendRequest:
    """An append, validated and encoded. It is the step that a driver runs, once or several times."""

    __slots__ = (
        *("create", "created", "expect_head", "is_retry", "lease", "lost", "messages", "new_id", "now", "session_id"),
    )

    def __init__(
        self,
        session_id: str | conversation_row.NewId,
        messages: Sequence[message_codec.Prepared],
        expect_head: bool,
        create: types.NewConversation | None,
        lease: types.Lease | None,
        now: float,
    ) -> None:
        self.session_id = session_id if isinstance(session_id, str) else session_id.id
        self.new_id = None if isinstance(session_id, str) else session_id
        self.messages = messages
        self.expect_head = expect_head
        self.create = create
        self.lease = lease
        self.now = now
        self.created = False
        """Whether the last attempt created the conversation."""
        # A uid generated for this request can only be stored by an earlier attempt of this request.
        self.is_retry = not all(message.minted for message in messages)
        self.lost: errors.StoreUnreachable | None = None
        """The error of an earlier attempt in a shared statement, which may have been committed."""

    def __call__(self, tx: Tx) -> list[types.Receipt]:
        return append(tx, self)


def append(tx: Tx, request: AppendRequest) -> list[types.Receipt]:
    """Append the messages of a request to the head of its conversation and return a receipt for each.

    Messages that are stored already keep their numbers, the others get the next ones in order. An ended conversation
    is continued. Raises NoSuchSession, Superseded, LeaseLost, UidReused or IdTaken; then the caller rolls back.
    """
    is_retry, request.is_retry = request.is_retry, True
    if request.new_id is not None:
        request.session_id = request.new_id.settle(tx)
    row = _lock(tx, request)
    request.created = row is None
    here = conversation_row.State(*row) if row is not None else _create(tx, request)
    if request.create is not None and request.create.owner != here.owner:
        raise errors.IdTaken(request.session_id)
    stored = _find_stored(tx, here, request.messages) if is_retry and row is not None else {}
    resumed = False
    # A stored message stays acknowledged, whatever happened to head or lease since.
    if not all(message.uid in stored for message in request.messages):
        if request.expect_head and here.asked != here.head:
            raise errors.Superseded(here.head_id, here.epoch)
        if request.lease is not None:
            leases.check_held(tx, here, request.lease)
        if here.live is None:
            here, resumed = sessions.continue_(tx, here, request.now), True
    return [
        make_receipt(request.session_id, message.uid, seq, session, here, duplicate, resumed)
        for message, (seq, session, duplicate) in zip(
            request.messages, _insert(tx, here, request.messages, stored), strict=True
        )
    ]


def make_receipt(
    session_id: str, uid: str, seq: int, session: str, here: conversation_row.State, duplicate: bool, resumed: bool
) -> types.Receipt:
    moved_from = session_id if session != session_id else None
    return types.Receipt(seq, uid, session, here.id, here.epoch, moved_from, duplicate, resumed)


def _lock(tx: Tx, request: AppendRequest) -> Row | None:
    """Lock the conversation; None if it does not exist, which is checked last: another process may create it now."""
    row = tx.one("lock_conversation", id=request.session_id)
    while row is None and request.create is not None and tx.one("session_place", id=request.session_id):
        row = tx.one("lock_conversation", id=request.session_id)
    return row


def _create(tx: Tx, request: AppendRequest) -> conversation_row.State:
    session_id, create = request.session_id, request.create
    if create is None:
        raise conversation_row.missing(tx, session_id)
    if tx.one("tombstone", id=session_id):
        raise errors.ConversationDeleted(session_id)
    if create.title is not None:
        titles.refuse_taken(tx, create.owner, create.title)
    here = sessions.born(
        tx,
        session_id,
        owner=create.owner,
        source=create.source,
        model=create.model,
        title=create.title,
        folder=create.folder,
        metadata=message_codec.encode_metadata(create.metadata),
        now=request.now,
    )
    if create.route is not None:
        routes.bind_unbound(tx, create.route, here, request.now)
    return here


Stored = tuple[int, str, bool]
"""The seq of a message, its session, and whether it was stored before."""


def _find_stored(tx: Tx, here: conversation_row.State, messages: Sequence[message_codec.Prepared]) -> dict[str, Stored]:
    """Find the messages whose uids are stored already. Raises UidReused if one has another content."""
    stored: dict[str, Stored] = {}
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
    tx: Tx, here: conversation_row.State, messages: Sequence[message_codec.Prepared], stored: dict[str, Stored]
) -> list[Stored]:
    """Insert the messages that are not stored yet. A batch may repeat a uid, but not with another content."""
    seq = here.last_seq
    results: list[Stored] = []
    inserted: dict[str, message_codec.Prepared] = {}
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


def seq_of(tx: Tx, session_id: str, uid: str) -> int | None:
    row = tx.one("message_by_uid", conversation=conversation_row.look(tx, session_id).key, uid=uid)
    return None if row is None else int(row[0])


def transcript(tx: Tx, session_id: str, after: int = 0, upto: int | None = None) -> list[types.Message]:
    """Return the log of a conversation in order, with the messages of its origins and with hidden messages."""
    here = conversation_row.look(tx, session_id)
    last = here.last_seq if upto is None else min(upto, here.last_seq)
    return between(tx, here, after, last)


def context(tx: Tx, session_id: str, upto: int | None = None) -> types.Context:
    """Return the messages for the model: the pinned ones, the summary, and those after the cut, none of them hidden."""
    here = conversation_row.look(tx, session_id)
    last = here.last_seq if upto is None else min(upto, here.last_seq)
    compaction = compactions.current(tx, here)
    cut = compaction.cut_seq if compaction else 0
    tail = between(tx, here, cut, last)
    pinned_seqs = [seq for seq in compaction.pinned if seq <= last] if compaction else []
    pinned = [message for seq in pinned_seqs for message in between(tx, here, seq - 1, seq)]
    hidden = visibility.in_force(tx, here.key)
    if hidden:
        tail = [message for message in tail if not visibility.covers(hidden, message.seq)]
        pinned = [message for message in pinned if not visibility.covers(hidden, message.seq)]
    running: frozenset[str] = frozenset()
    # Arranged as one list: a pinned tool call may have its result after the cut.
    messages = [*pinned, *_summary_message(compaction), *tail]
    if tool_pairs.has_calls(messages):
        messages, running = tool_pairs.arrange(messages, leases.turn_began(tx, here))
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
    uid, body = f"summary:{compaction.epoch}", message_codec.written(compaction.summary)
    return [types.Message(compaction.cut_seq, uid, compaction.session_id, "user", compaction.at, body)]


def between(tx: Tx, here: conversation_row.State, after: int, upto: int) -> list[types.Message]:
    """Return the messages with after < seq <= upto; those before a fork are read from the origin."""
    messages: list[types.Message] = []
    key, origin, forked_at = here.key, here.origin, here.forked_at
    visited = {key}
    while upto > after:
        if upto > forked_at:
            messages = _read_messages(tx, key, max(after, forked_at), upto) + messages
        if origin is None:
            break
        upto, key = min(upto, forked_at), origin
        if key in visited:
            raise errors.StoreCorrupt(f"The conversation {here.id} is a branch of itself.")
        visited.add(key)
        origin, forked_at = (tx.one("origin_of", key=key) or (None, 0))[:2]
    return messages


def _read_messages(tx: Tx, key: int, after: int, upto: int) -> list[types.Message]:
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
