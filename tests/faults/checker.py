"""Holds what clients saw against what the store has."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast import errors, types
from holdfast.store.db import SessionDB

COVERS = "covers "


class Sent(msgspec.Struct, frozen=True):
    """A message given to append. No receipt and no refusal: the client died or never heard."""

    client: str
    asked: str
    uid: str
    content: str
    receipt: types.Receipt | None = None
    refused: str | None = None


class Granted(msgspec.Struct, frozen=True):
    """A lease that was granted."""

    client: str
    lease: types.Lease


class Committed(msgspec.Struct, frozen=True):
    """A compaction given to commit. Neither done nor refused: the outcome is unknown."""

    client: str
    work: types.Snapshot
    child_id: str
    cut_seq: int
    token: int | None = None
    done: bool = False
    refused: str | None = None


class Summarized(msgspec.Struct, frozen=True):
    """A summarizer was called: expensive, so only the lease holder may do it."""

    client: str
    conversation_id: str
    token: int | None


class Erased(msgspec.Struct, frozen=True):
    """A conversation its owner deleted, or one message of it redacted."""

    conversation_id: str
    seq: int | None = None


Record = Sent | Granted | Committed | Summarized | Erased


def summarize(context: types.Context, cut_seq: int) -> str:
    """Names every message up to the cut that this context holds, itself or in its own summary."""
    seen = {message.seq for message in context if message.seq <= cut_seq and not message.uid.startswith("summary:")}
    if context.compaction and not context.summary:
        # Given up on purpose: by the two-call way, or with the text of a redacted message.
        seen |= set(range(1, context.cut_seq + 1))
    return COVERS + ",".join(map(str, sorted(seen | (covered(context.summary) or set()))))


def covered(summary: str | None) -> set[int] | None:
    """Return the seqs that a summary covers; None if it does not name them."""
    if summary is None or not summary.startswith(COVERS):
        return None
    return {int(seq) for seq in summary.removeprefix(COVERS).split(",") if seq}


def verify(db: SessionDB, history: Sequence[Record] = (), *, also: Iterable[str] = (), fsck: bool = True) -> list[str]:
    """Every promise found broken, over all conversations the history or `also` names, and by fsck in the whole store.

    fsck knows what rows must be like, such as the order of the sessions.
    """
    found: list[str] = []
    for conversation_id in sorted(_named(history) | set(also)):
        found += [f"{conversation_id}: {problem}" for problem in _conversation(db, conversation_id, history)]
    found += [*_client_order(history), *_tokens(history)]
    if fsck:
        found += [f"fsck: {bad.promise} {bad.conversation_id} {bad.detail}" for bad in db.admin.fsck().violations]
    return found


def _named(history: Sequence[Record]) -> set[str]:
    ids = {record.receipt.conversation_id for record in history if isinstance(record, Sent) and record.receipt}
    ids |= {record.lease.conversation_id for record in history if isinstance(record, Granted)}
    return ids | {record.work.conversation_id for record in history if isinstance(record, Committed)}


def _conversation(db: SessionDB, conversation_id: str, history: Sequence[Record]) -> Iterator[str]:
    erased = {
        record.seq for record in history if isinstance(record, Erased) and record.conversation_id == conversation_id
    }
    try:
        stands, sessions = db.conversation(conversation_id), db.sessions(conversation_id)
        log = {message.seq: message for message in db.transcript(conversation_id)}
    except errors.NoSuchSession as error:
        if None not in erased:
            yield f"P1 the conversation is gone ({type(error).__name__})"
        return
    if None in erased:
        yield "P1 the conversation was deleted and is there"
    yield from _numbering(stands, log)
    yield from _view(db, stands, log)
    yield from _acknowledged(history, stands.id, sessions, log, erased)
    yield from _compactions(db, history, stands.id, sessions)


Log = dict[int, types.Message]


def _numbering(stands: types.Conversation, log: Log) -> Iterator[str]:
    if list(log) != list(range(1, stands.last_seq + 1)):
        yield f"P2 the log is {list(log)} and should run to {stands.last_seq}"
    if len({message.uid for message in log.values()}) != len(log):
        yield "P1 a uid stands twice in the log"


def _view(db: SessionDB, stands: types.Conversation, log: Log) -> Iterator[str]:
    context = db.context(stands.id)
    hidden = [(hide.from_seq, hide.to_seq) for hide in db.hides(stands.id) if hide.shown_epoch is None]

    def is_hidden(seq: int) -> bool:
        return any(low <= seq <= high for low, high in hidden)

    stated = covered(context.summary)
    pinned = set(context.compaction.pinned) if context.compaction else set()
    after = [message.seq for message in context if message.seq > context.cut_seq]
    should = [seq for seq in log if seq > context.cut_seq and not is_hidden(seq)]
    if after != should:
        yield f"P5 after the cut {context.cut_seq} the context has {after} and should have {should}"
    for seq in range(1, context.cut_seq + 1):
        if stated is not None and seq not in stated | pinned and not is_hidden(seq):
            yield f"P5 message {seq} left the context by a compaction that did not see it"
    if context.last_seq != stands.last_seq or context.epoch != stands.epoch:
        yield "P5 the context is not of the state the conversation is in"
    for message in context:
        if message.seq > context.cut_seq and message.content != log[message.seq].content:
            yield f"P5 message {message.seq} reads otherwise in the context"


def _acknowledged(
    history: Sequence[Record],
    conversation_id: str,
    sessions: Sequence[types.Session],
    log: Log,
    erased: set[int | None],
) -> Iterator[str]:
    places = {session.id: session for session in sessions}
    by_uid = {message.uid: message for message in log.values()}
    maybe = {record.uid for record in history if isinstance(record, Sent) and record.refused is None}
    for record in history:
        if not isinstance(record, Sent):
            continue
        stored = by_uid.get(record.uid)
        if record.receipt is None:
            if record.refused is not None and stored is not None and record.uid not in maybe:
                yield f"P7 {record.uid} was refused ({record.refused}) and is in the log"
        elif record.receipt.conversation_id == conversation_id:
            yield from _receipt(record, record.receipt, stored, log, places, erased)


def _receipt(
    record: Sent,
    receipt: types.Receipt,
    stored: types.Message | None,
    log: Log,
    places: dict[str, types.Session],
    erased: set[int | None],
) -> Iterator[str]:
    at_seq = log.get(receipt.seq)
    if stored is None or at_seq is None or at_seq.uid != record.uid:
        yield f"P1 {record.uid} was acknowledged at {receipt.seq} and is not there"
        return
    if stored.content != record.content and receipt.seq not in erased:
        yield f"P1 {record.uid} was acknowledged with other content than is stored"
    if stored.session_id != receipt.session_id:
        yield f"P7 {record.uid} was said to be in {receipt.session_id} and is in {stored.session_id}"
    place = places.get(stored.session_id)
    # What a branch inherits stands in sessions of its origin.
    if place is not None and not place.first_seq <= stored.seq <= place.last_seq:
        yield f"P7 {record.uid} lies outside of its session {place.id}"
    moved_from = None if record.asked == receipt.session_id else record.asked
    if not receipt.duplicate and receipt.moved_from != moved_from:
        yield f"P7 {record.uid} was sent to {record.asked}, stored in {receipt.session_id}, and this was not said"


def _compactions(
    db: SessionDB, history: Sequence[Record], conversation_id: str, sessions: Sequence[types.Session]
) -> Iterator[str]:
    made = {compaction.session_id: compaction for compaction in db.compactions(conversation_id)}
    before = {after.id: session.id for session, after in itertools.pairwise(sessions)}
    mine = [
        record for record in history if isinstance(record, Committed) and record.work.conversation_id == conversation_id
    ]
    maybe = {record.child_id for record in mine if record.refused is None}
    for record in mine:
        found = made.get(record.child_id)
        if record.done and found is None:
            yield f"P1 the compaction {record.child_id} was acknowledged and is not there"
        if record.refused is not None and found is not None and record.child_id not in maybe:
            yield f"P6 the compaction {record.child_id} was refused ({record.refused}) and is there"
        if found is None or record.refused is not None:
            continue
        if (found.cut_seq, found.token) != (record.cut_seq, record.token) or found.seen_seq > record.work.last_seq:
            yield f"P5 the compaction {record.child_id} is not what was committed"
        if found.epoch != record.work.epoch + 1 or before.get(record.child_id) != record.work.head_id:
            yield f"P6 the compaction {record.child_id} was committed to a state it had not seen"
        yield from _lost(record, found, history)


def _lost(record: Committed, found: types.Compaction, history: Sequence[Record]) -> Iterator[str]:
    """A lease after which another was granted cannot have committed."""
    for granted in history:
        if not isinstance(granted, Granted) or granted.lease.purpose != "compact" or record.token is None:
            continue
        lease = granted.lease
        if lease.conversation_id != record.work.conversation_id:
            continue
        if lease.token > record.token and lease.snapshot.epoch < found.epoch:
            yield f"P6 token {record.token} committed after token {lease.token} was given"


def _client_order(history: Sequence[Record]) -> Iterator[str]:
    last: dict[tuple[str, str], int] = {}
    for record in history:
        if isinstance(record, Sent) and record.receipt and not record.receipt.duplicate:
            key = (record.client, record.receipt.conversation_id)
            if record.receipt.seq <= last.get(key, 0):
                yield f"P2 {record.client} was acknowledged {record.receipt.seq} after {last[key]}"
            last[key] = record.receipt.seq


def _tokens(history: Sequence[Record]) -> Iterator[str]:
    grants = [record.lease for record in history if isinstance(record, Granted)]
    tokens = [(lease.conversation_id, lease.token) for lease in grants]
    if len(set(tokens)) != len(tokens):
        yield "P6 a token was given twice"
    held = {(lease.conversation_id, lease.token) for lease in grants}
    for record in history:
        if isinstance(record, Summarized) and (record.conversation_id, record.token) not in held:
            yield f"P6 {record.client} summarized without the lease"
