"""Sessions: create, continue, end and find them; and the routes that are bound to their conversations."""

from __future__ import annotations

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, titles, validation
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Row, Tx

MAX_REASON = 100
EVERY = 1_000_000


def check_id_free(tx: Tx, session_id: str) -> None:
    if tx.one("session_place", id=session_id):
        raise errors.IdTaken(session_id)
    if tx.one("tombstone", id=session_id):
        raise errors.ConversationDeleted(session_id)


def normalize(new: types.NewConversation) -> types.NewConversation:
    """Validate the values of a new conversation and return them as they are stored."""
    return msgspec.structs.replace(
        new,
        source=validation.check_id(new.source, "source"),
        model=validation.check_optional_id(new.model, "model"),
        title=titles.clean(new.title) if new.title is not None else None,
        owner=validation.check_owner(new.owner),
        route=validation.check_route(new.route) if new.route is not None else None,
        folder=titles.clean_folder_or_none(new.folder),
        metadata=message_codec.check_metadata(new.metadata),
    )


def insert_conversation(
    tx: Tx,
    conversation_id: str,
    new: types.NewConversation,
    now: float,
    *,
    forked_from: str | None = None,
    forked_at: int | None = None,
    forked_epoch: int | None = None,
    origin: int | None = None,
) -> ConversationRow:
    """Insert a conversation and its first session. Raises TitleTaken."""
    if new.title is not None:
        titles.check_title_free(tx, new.owner, new.title)
    last_seq = forked_at or 0
    fork = {"forked_from": forked_from, "forked_at": forked_at, "forked_epoch": forked_epoch, "origin": origin}
    metadata = message_codec.encode_metadata(new.metadata)
    values = {**msgspec.structs.asdict(new), **fork, "id": conversation_id, "at": now, "last_seq": last_seq}
    values["metadata"] = metadata
    (((key,),),) = tx.batch(("conversation_insert", values))
    tx.defer(
        "session_insert",
        conversation=key,
        ordinal=1,
        id=conversation_id,
        parent=None,
        source=new.source,
        model=new.model,
        at=now,
        first_seq=last_seq + 1,
    )
    return ConversationRow(
        key, conversation_id, new.owner, new.source, new.title, 1, conversation_id, 1, 1, last_seq,
        None, None, last_seq, origin, forked_epoch, 1,
    )  # fmt: skip


def insert_continuation(
    tx: Tx, here: ConversationRow, child_id: str, source: str, model: str | None, now: float
) -> None:
    """Insert a continuation of the head; the caller updates the conversation."""
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


def continue_ended(tx: Tx, here: ConversationRow, now: float) -> ConversationRow:
    """Continue an ended conversation in a new session; its context does not change."""
    child = conversation_row.NewId(None, now).resolve(tx)
    source, model, _ = tx.one("session_origin", conversation=here.key, ordinal=here.head) or ("", None, None)
    insert_continuation(tx, here, child, source, model, now)
    return conversation_row.update(tx, here, head=here.head + 1, live=1)._replace(head_id=child)


def end_head(tx: Tx, here: ConversationRow, reason: str, now: float) -> None:
    """Mark the head as ended; the caller updates the conversation."""
    changed = tx.run(
        "session_end", conversation=here.key, ordinal=here.head, at=now, reason=reason, last_seq=here.last_seq
    )
    if changed != 1:
        raise errors.Superseded(here.head_id, here.epoch)


def end(tx: Tx, session_id: str, reason: str, now: float, *, whole: bool) -> bool:
    """End this session, or the head of its conversation; return whether this call ended it. The first end wins."""
    here = conversation_row.lock(tx, session_id)
    if not here.live or (not whole and here.ordinal != here.head):
        return False
    end_head(tx, here, reason, now)
    conversation_row.update(tx, here, live=None)
    return True


def resume(tx: Tx, session_id: str, now: float) -> str:
    """Return the live head, which is a new continuation if the conversation has ended."""
    here = conversation_row.lock(tx, session_id)
    return here.head_id if here.live else continue_ended(tx, here, now).head_id


# --- finding -----------------------------------------------------------------------------------------


def get(tx: Tx, session_id: str) -> types.Session | None:
    row = tx.one("session_get", id=validation.check_id(session_id))
    return from_row(row) if row else None


def from_row(row: Row) -> types.Session:
    return types.Session(*(*row[:-1], message_codec.decode_metadata(row[-1], row[1])))


def head(tx: Tx, session_id: str) -> types.Session:
    found = get(tx, conversation_row.read(tx, session_id).head_id)
    if found is None:  # A foreign key guarantees the row.
        raise errors.StoreCorrupt(f"The head session of {errors.quote(session_id)} is missing. Run `holdfast doctor`.")
    return found


def get_conversation(tx: Tx, here: ConversationRow) -> types.Conversation:
    row = tx.one("conversation", key=here.key)
    if row is None:  # The query joins the head, which a foreign key guarantees.
        raise errors.StoreCorrupt(f"The head session of conversation {here.id} is missing. Run `holdfast doctor`.")
    found = types.Conversation(*(*row[:-1], message_codec.decode_metadata(row[-1], here.id)))
    return msgspec.structs.replace(found, live=bool(found.live))  # SQLite has no booleans


def continuations(tx: Tx, session_id: str) -> list[types.Session]:
    """Return the continuation of this session, or nothing."""
    here = conversation_row.read(tx, session_id)
    row = tx.one("session_id_at", conversation=here.key, ordinal=here.ordinal + 1)
    found = get(tx, row[0]) if row else None
    return [found] if found else []


def list_matching(
    tx: Tx,
    limit: int,
    skip: int = 0,
    *,
    owner: str | None,
    source: str | None = None,
    live: bool | None = None,
    folder: str | None = None,
    every: bool = False,
) -> list[types.Session]:
    """List sessions by filters, of which None matches all; a folder also matches conversations without one."""
    filters = {"owner": owner, "source": source, "live": live, "folder": folder, "every": every}
    rows = tx.all("sessions_list", **filters, limit=limit, skip=skip, most=min(limit + skip, 2**63 - 1))
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
        newest = list_matching(tx, 1, owner=owner)
        if newest:
            return newest[0]
    found = [row[0] for row in tx.all("prefix_candidates", start=text, stop=text + "\U0010ffff", owner=owner)]
    gone = conversation_row.not_found(tx, text)
    # The id of a deleted conversation is not a prefix: repeating a deletion must not delete another conversation.
    if isinstance(gone, errors.ConversationDeleted):
        # The owner of a deleted conversation is unknown, so its deletion is not reported to callers with an owner.
        raise errors.NoSuchSession(text) if owner else gone
    if not found:
        found = _match_titles(tx, text, owner) if near else []
    if not found:
        raise gone
    if len(found) > 1:
        raise errors.Ambiguous(text, found)
    return head(tx, found[0])


def _match_titles(tx: Tx, text: str, owner: str | None) -> list[str]:
    """Match titles case-insensitively: equal ones, else by prefix, else by substring."""
    wanted = " ".join(text.casefold().split())
    heads = list_matching(tx, EVERY, owner=owner)
    titles = [(head.id, head.title.casefold()) for head in heads if head.title]
    ways = (str.__eq__, str.startswith, str.__contains__)
    return next((found for fits in ways if (found := [each for each, title in titles if fits(title, wanted)])), [])


# --- routes: chat keys that are bound to conversations -----------------------------------------------


def get_route(tx: Tx, key: str) -> types.Route:
    """Return a route; version 0 means that it was never bound."""
    row = tx.one("route_get", key=key)
    return types.Route(*row) if row else types.Route(key, None, 0)


def bind_route(tx: Tx, key: str, session_id: str | None, version: int, now: float) -> types.Route:
    """Bind a route by compare-and-swap; raise RouteMoved if its version is not the one the caller read."""
    here = conversation_row.lock(tx, session_id) if session_id is not None else None
    found = get_route(tx, key)
    bound = types.Route(key, here.id if here else None, version + 1, here.owner if here else "")
    if found == bound and tx.retry_state.get("route") == bound:
        return bound
    tx.retry_state["route"] = bound
    if found.version != version:
        raise errors.RouteMoved(key, found.conversation_id, found.version)
    target = here.key if here else None
    if found.version == 0:
        tx.run("route_insert", key=key, conversation=target, at=now)
    elif tx.run("route_swap", key=key, conversation=target, version=version, at=now) != 1:
        found = get_route(tx, key)
        raise errors.RouteMoved(key, found.conversation_id, found.version)
    return bound


def bind_unbound_route(tx: Tx, key: str, here: ConversationRow, now: float) -> None:
    """Bind the route of a new conversation; raise RouteMoved if another conversation has it."""
    found = get_route(tx, key)
    if found.conversation_id is not None:
        raise errors.RouteMoved(key, found.conversation_id, found.version)
    bind_route(tx, key, here.id, found.version, now)
