"""Sessions: create, continue, end and find them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Row, Tx

MAX_REASON = 100
EVERY = 1_000_000


def refuse_taken(tx: Tx, session_id: str) -> None:
    if tx.one("session_place", id=session_id):
        raise errors.IdTaken(session_id)
    if tx.one("tombstone", id=session_id):
        raise errors.ConversationDeleted(session_id)


def born(
    tx: Tx,
    conversation_id: str,
    *,
    owner: str,
    source: str,
    model: str | None,
    title: str | None,
    now: float,
    forked_from: str | None = None,
    forked_at: int | None = None,
    forked_epoch: int | None = None,
    origin: int | None = None,
    folder: str | None = None,
    metadata: str | None = None,
) -> conversation_row.State:
    """Insert a conversation and its first session."""
    last_seq = forked_at or 0
    tx.run(
        "conversation_insert",
        id=conversation_id,
        owner=owner,
        source=source,
        title=title,
        at=now,
        last_seq=last_seq,
        forked_from=forked_from,
        forked_at=forked_at,
        forked_epoch=forked_epoch,
        origin=origin,
        folder=folder,
        metadata=metadata,
    )
    (key,) = tx.one("conversation_key", id=conversation_id) or (0,)
    tx.run(
        "session_insert",
        conversation=key,
        ordinal=1,
        id=conversation_id,
        parent=None,
        source=source,
        model=model,
        at=now,
        first_seq=last_seq + 1,
    )
    return conversation_row.State(
        key, conversation_id, owner, source, title, 1, conversation_id, 1, 1, last_seq,
        None, None, last_seq, origin, forked_epoch, 1,
    )  # fmt: skip


def add(tx: Tx, here: conversation_row.State, child_id: str, source: str, model: str | None, now: float) -> None:
    """Insert a continuation of the head; the caller moves the head."""
    tx.defer(
        "session_insert",
        conversation=here.key,
        ordinal=here.head + 1,
        id=child_id,
        parent=here.head,
        source=source,
        model=model,
        at=now,
        first_seq=here.last_seq + 1,
    )


def continue_(tx: Tx, here: conversation_row.State, now: float) -> conversation_row.State:
    """Continue an ended conversation in a new session; its context does not change."""
    child = conversation_row.NewId(None, now).settle(tx)
    source, model, _ = tx.one("session_origin", conversation=here.key, ordinal=here.head) or ("", None, None)
    add(tx, here, child, source, model, now)
    return conversation_row.moved(tx, here, head=here.head + 1, live=1)._replace(head_id=child)


def end_head(tx: Tx, here: conversation_row.State, reason: str, now: float) -> None:
    """Mark the head as ended; the caller raises the epoch."""
    changed = tx.run(
        "session_end", conversation=here.key, ordinal=here.head, at=now, reason=reason, last_seq=here.last_seq
    )
    if changed != 1:
        raise errors.Superseded(here.head_id, here.epoch)


def end(tx: Tx, session_id: str, reason: str, now: float, *, whole: bool) -> bool:
    """End this session, or the head of its conversation; return whether this call ended it. The first end wins."""
    here = conversation_row.lock(tx, session_id)
    if not here.live or (not whole and here.asked != here.head):
        return False
    end_head(tx, here, reason, now)
    conversation_row.moved(tx, here, live=None)
    return True


def resume(tx: Tx, session_id: str, now: float) -> str:
    """Return the live head, which is a new continuation if the conversation has ended."""
    here = conversation_row.lock(tx, session_id)
    return here.head_id if here.live else continue_(tx, here, now).head_id


# --- finding -----------------------------------------------------------------------------------------


def get(tx: Tx, session_id: str) -> types.Session | None:
    row = tx.one("session_get", id=validation.check_id(session_id))
    return from_row(row) if row else None


def from_row(row: Row) -> types.Session:
    return types.Session(*(*row[:-1], message_codec.decode_metadata(row[-1], row[1])))


def head(tx: Tx, session_id: str) -> types.Session:
    found = get(tx, conversation_row.look(tx, session_id).head_id)
    if found is None:  # A foreign key guarantees the row.
        raise errors.StoreCorrupt(f"The head of session {errors.shown(session_id)} is missing. Run `holdfast doctor`.")
    return found


def conversation(tx: Tx, here: conversation_row.State) -> types.Conversation:
    row = tx.one("conversation", key=here.key)
    if row is None:  # The query joins the head, which a foreign key guarantees.
        raise errors.StoreCorrupt(f"Conversation {here.id} has lost its head. Run `holdfast doctor`.")
    return types.Conversation(*(*row[:-1], message_codec.decode_metadata(row[-1], here.id)))


def of_conversation(tx: Tx, session_id: str) -> list[types.Session]:
    here = conversation_row.look(tx, session_id)
    return [from_row(row) for row in tx.all("sessions_of", conversation=here.key)]


def continuations(tx: Tx, session_id: str) -> list[types.Session]:
    """Return the continuation of this session, or nothing."""
    here = conversation_row.look(tx, session_id)
    row = tx.one("session_id_at", conversation=here.key, ordinal=here.asked + 1)
    found = get(tx, row[0]) if row else None
    return [found] if found else []


class Wanted(NamedTuple):
    """Filters of a list; None matches all. A folder also matches conversations without a folder."""

    owner: str | None
    source: str | None = None
    live: bool | None = None
    folder: str | None = None
    every: bool = False


def listed(tx: Tx, wanted: Wanted, limit: int, skip: int = 0) -> list[types.Session]:
    most = min(limit + skip, 2**63 - 1)
    rows = tx.all("sessions_list", **wanted._asdict(), limit=limit, skip=skip, most=most)
    return [from_row(row) for row in rows]


def resolve(tx: Tx, text: str, owner: str | None, near: bool = False) -> types.Session:
    """Find the head of a conversation by id, title, `last`, or a prefix that only one id has.

    With `near`, also by a title with other capitals, or by a part of one that fits only one.
    """
    by_id = get(tx, text) if len(text) <= validation.MAX_ID and text.isprintable() else None
    if by_id and owner in (None, by_id.owner):
        return head(tx, text)
    by_title = [row[0] for row in tx.all("title_holders", owner=owner, title=" ".join(text.split()))]
    if len(by_title) > 1:
        raise errors.Ambiguous(text, by_title)
    if by_title:
        return head(tx, by_title[0])
    if text == "last":
        newest = listed(tx, Wanted(owner), 1)
        if newest:
            return newest[0]
    found = [row[0] for row in tx.all("prefix_candidates", start=text, stop=text + "\U0010ffff", owner=owner)]
    gone = conversation_row.missing(tx, text)
    # The id of a deleted conversation is not a prefix: repeating a deletion must not delete another conversation.
    if isinstance(gone, errors.ConversationDeleted):
        # The owner of a deleted conversation is unknown, so its deletion is not reported to callers with an owner.
        raise errors.NoSuchSession(text) if owner else gone
    if not found:
        found = _titled_nearly(tx, text, owner) if near else []
    if not found:
        raise gone
    if len(found) > 1:
        raise errors.Ambiguous(text, found)
    return head(tx, found[0])


def _titled_nearly(tx: Tx, text: str, owner: str | None) -> list[str]:
    """Match titles case-insensitively: equal ones, else by prefix, else by substring."""
    wanted = " ".join(text.casefold().split())
    heads = listed(tx, Wanted(owner), EVERY)
    titles = [(head.id, head.title.casefold()) for head in heads if head.title]
    ways = (str.__eq__, str.startswith, str.__contains__)
    return next((found for fits in ways if (found := [each for each, title in titles if fits(title, wanted)])), [])
